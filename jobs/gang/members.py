"""Owns a gang's Ray side: its placement group, an agent on each node, and what they answer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from jobs.errors import RaydeckError, Unreachable
from jobs.gang import placing
from jobs.gang.agent import Agent, Facts, NodeReport
from jobs.gang.verdict import first_line, last_error
from jobs.model import Launch

ANSWER_SECONDS = 11.0
"""How long the agents may take to end their node's processes; they bound it themselves, a little below this."""


@dataclass(slots=True)
class Member:
    """One node of the gang."""

    index: int
    node: str
    """Its name."""
    node_id: str
    address: str
    handle: Any
    """Ray's handle of the agent."""
    report: NodeReport = field(default_factory=NodeReport)
    lost: str = ""
    """A sentence on how the agent, or its node, was lost; empty while it lives."""
    asked_at: float | None = None
    """Since when there has been no answer, monotonic; None if there is one to the last question."""
    pending: Any = None


@dataclass(frozen=True, slots=True)
class End:
    """What is left after a gang was ended."""

    survivors: list[int]
    """Processes that could not be ended."""
    unanswered: list[str]
    """Nodes that did not say. There the guard sweeps, as soon as the agent is gone, and nobody hears of it."""


class Placement:
    """The placement group of one attempt: all its nodes, or none."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self.group: PlacementGroup = placement_group(
            [placing.bundle(launch)] * launch.nodes,
            strategy="STRICT_SPREAD",
            name=f"raydeck-{launch.run}-a{launch.attempt}",
            bundle_label_selector=[placing.selector(launch)] * launch.nodes,
        )

    def wait(self, seconds: float) -> bool:
        """Whether it is placed, waiting up to that long."""
        try:
            return bool(self.group.wait(seconds))
        except RayError as error:
            raise Unreachable(f"Ray did not answer about the placement group: {first_line(error)}") from error

    def missing(self) -> str:
        """Why it is not placed, in words."""
        return placing.missing(self._launch, _rooms())

    def remove(self) -> None:
        """Give the nodes back, or take the demand back."""
        remove_placement_group(self.group)


class Gang:
    """The agents of one attempt. Nothing here waits longer than it says."""

    def __init__(self, launch: Launch, placement: Placement) -> None:
        self.members: list[Member] = []
        self._started = False
        rooms = {room.node_id: room for room in _rooms()}
        where: dict[int, str] = placement_group_table(placement.group)["bundles_to_node_id"]
        wanted = placing.bundle(launch)
        for index in range(launch.nodes):
            node_id = where[index]
            room = rooms.get(node_id)
            name, address = (room.name, room.address) if room else (node_id, "")
            handle = (
                ray.remote(Agent)
                .options(
                    num_cpus=wanted.get("CPU", 0),
                    num_gpus=_whole(wanted.get("GPU", 0)),
                    memory=wanted.get("memory", 0) or None,
                    max_restarts=0,
                    max_task_retries=0,
                    name=None,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        placement.group, placement_group_bundle_index=index
                    ),
                )
                .remote(launch.model_dump_json(), index, name, address)
            )
            self.members.append(Member(index, name, node_id, address, handle))
        self._facts = [member.handle.facts.remote() for member in self.members]

    def facts(self, seconds: float) -> list[Facts] | None:
        """All agents' facts, or None if they are not all there after ``seconds``. Raises Unreachable for a lost one."""
        ready, waiting = ray.wait(self._facts, num_returns=len(self._facts), timeout=seconds)
        if waiting and not any(_failed(reference) for reference in ready):
            return None
        return [self._get(member, reference) for member, reference in zip(self.members, self._facts, strict=True)]

    def start(self, address: str, port: int, seconds: float) -> None:
        """Have all agents start torchrun. Raises RaydeckError when one cannot."""
        self._started = True
        references = [member.handle.start.remote(address, port) for member in self.members]
        ray.wait(references, num_returns=len(references), timeout=seconds)
        for member, reference in zip(self.members, references, strict=True):
            self._get(member, reference)

    def poll(self, seconds: float) -> None:
        """Take in the agents' newest reports, waiting up to ``seconds``; one that is late keeps its old one."""
        for member in self.members:
            if member.pending is None and not member.lost:
                member.pending = member.handle.report.remote()
                member.asked_at = member.asked_at or time.monotonic()
        pending = [member.pending for member in self.members if member.pending is not None]
        if not pending:
            return
        ready, _ = ray.wait(pending, num_returns=len(pending), timeout=seconds)
        for member in self.members:
            if member.pending in ready:
                try:
                    member.report, member.asked_at = ray.get(member.pending), None
                except ActorUnavailableError:
                    # The network to it is cut for the moment. Whether the node is dead is for Ray to find out.
                    pass
                except RayError as error:
                    member.lost, member.asked_at = _loss(member, error), None
                member.pending = None

    def ask_to_leave(self) -> None:
        """Have all ranks asked to save and leave. Does not wait."""
        for member in self.members:
            if not member.lost:
                member.handle.ask_to_leave.remote()

    def end(self) -> End:
        """End everything on all nodes, then the agents."""
        # Agents that were never told to start have nothing to end, and may not even be there to be asked.
        living = [member for member in self.members if self._started and not member.lost]
        references = [member.handle.end.remote() for member in living]
        survivors: set[int] = set()
        unanswered = [member.node for member in self.members if member.lost]
        if references:
            ready, _ = ray.wait(references, num_returns=len(references), timeout=ANSWER_SECONDS)
            for member, reference in zip(living, references, strict=True):
                try:
                    if reference not in ready:
                        raise GetTimeoutError("no answer")
                    survivors.update(ray.get(reference))
                except RayError:
                    unanswered.append(member.node)
        for member in self.members:
            ray.kill(member.handle)
        return End(sorted(survivors), sorted(unanswered))

    @staticmethod
    def _get(member: Member, reference: Any) -> Any:
        where = f"{member.node} ({member.address})"
        try:
            return ray.get(reference, timeout=0.1)
        except GetTimeoutError:
            raise Unreachable(f"the agent on {where} did not answer in time") from None
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, RaydeckError):
                raise Unreachable(f"on {where}: {cause.sentence}") from error
            raise Unreachable(_loss(member, error)) from error


def _failed(reference: Any) -> bool:
    try:
        ray.get(reference, timeout=0.1)
    except RayError:
        return True
    return False


def _loss(member: Member, error: RayError) -> str:
    where = f"{member.node} ({member.address})"
    for node in ray.nodes():
        if node["NodeID"] == member.node_id and not node["Alive"]:
            why = node.get("DeathReasonMessage") or "no reason is given"
            return f"{where} is lost: Ray has declared the node dead ({why})"
    if "creation task" in str(error):
        return f"the agent on {where} could not start: {last_error(str(error))}"
    if isinstance(error, ActorDiedError):
        return f"the agent on {where} is lost: its process was killed, or crashed"
    return f"the agent on {where} is lost: {first_line(error)}"


def _rooms() -> list[placing.NodeRoom]:
    return placing.rooms(ray.nodes(), available_resources_per_node())


def _whole(amount: float) -> float:
    return int(amount) if amount == int(amount) else amount
