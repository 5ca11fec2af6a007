"""Owns a gang's Ray side: its placement group, an agent on each node, and what they answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
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
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from jobs import failure
from jobs.errors import RaydeckError, Unreachable
from jobs.gang import placing
from jobs.gang.agent import Agent, Facts, NodeReport
from jobs.gang.record import End
from jobs.gang.verdict import Broken, Lost, broken, first_line, last_error, of_loss
from jobs.model import Failure, Launch

_LOOK_EVERY_SECONDS = 0.25
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
    lost: Lost | None = None
    """How the agent, or its node, was lost; None while it lives."""
    asked_at: float | None = None
    """Since when there has been no answer, monotonic; None if there is one to the last question."""
    pending: Any = None
    told_at: float = 0.0
    """When the report came, monotonic."""


class Placement:
    """The placement group of one attempt: all its nodes, or none."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        selectors = placing.selectors(launch)
        self.group: PlacementGroup = placement_group(
            [placing.bundle(launch)] * len(selectors),
            strategy="STRICT_SPREAD",
            name=f"raydeck-{launch.run}-a{launch.attempt}",
            bundle_label_selector=selectors,
        )

    def wait(self, seconds: float) -> bool:
        """Whether it is placed, waiting up to that long."""
        try:
            return bool(self.group.wait(seconds))
        except RayError as error:
            raise Unreachable(f"Ray did not answer about the placement group: {first_line(error)}") from error

    def missing(self) -> str:
        """Why it is not placed, in words. Raises Broken when a node that the queue chose is gone: it can never be."""
        rooms = _rooms()
        if gone := placing.gone(self._launch, rooms):
            known = {str(node["NodeID"]): placing.name_of(node) for node in ray.nodes()}
            names = sorted(known.get(node_id, node_id) for node_id in gone)
            reason = f"{', '.join(names)}, which the queue chose for it, is not in Ray any more"
            raise broken(Failure.NODE_LOST, reason, names)
        return placing.missing(self._launch, rooms)

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
        """All agents' facts, or None if they are not all there after ``seconds``. Raises Broken for a lost one."""
        ready, waiting = ray.wait(self._facts, num_returns=len(self._facts), timeout=seconds)
        if waiting and not any(_failed(reference) for reference in ready):
            return None
        return [self._get(member, reference) for member, reference in zip(self.members, self._facts, strict=True)]

    def start(self, address: str, port: int, seconds: float) -> None:
        """Have all agents start torchrun. Raises Broken when one cannot."""
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
                    member.told_at = time.monotonic()
                except ActorUnavailableError:
                    # The network to it is cut for the moment. Whether the node is dead is for Ray to find out.
                    pass
                except RayError as error:
                    member.lost, member.asked_at = _loss(member, error), None
                member.pending = None

    def find_losses(self, seconds: float, silent_too: bool, meanwhile: Callable[[], None]) -> None:
        """Wait for Ray's word on nodes whose agent is gone (with ``silent_too``: or does not answer), up to so long.

        A node on which a task still runs is alive, whatever became of its agent.
        """
        deadline = time.monotonic() + seconds
        asked: dict[Any, Member] = {}
        for member in self.members:
            gone = member.lost is not None and member.lost.failure is Failure.UNKNOWN
            if gone or (silent_too and member.asked_at is not None):
                pinned = NodeAffinitySchedulingStrategy(member.node_id, soft=False)
                task = ray.remote(_alive).options(num_cpus=0, max_retries=0, scheduling_strategy=pinned)
                asked[task.remote()] = member
        while asked and time.monotonic() < deadline:
            ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_LOOK_EVERY_SECONDS)
            dead = {str(node["NodeID"]): node for node in ray.nodes() if not node["Alive"]}
            for reference, member in list(asked.items()):
                if (node := dead.get(member.node_id)) is not None:
                    member.lost, member.asked_at = _dead(member, node), None
                elif reference not in ready or _failed(reference):
                    continue
                del asked[reference]
            meanwhile()
        for reference in asked:
            ray.cancel(reference, force=True)

    def notes(self, seconds: float) -> dict[str, list[str]]:
        """What the kernels of the nodes told, by node, as far as they answer within ``seconds``."""
        asked = {member.handle.notes.remote(): member.node for member in self.members if not member.lost}
        if not asked:
            return {}
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=seconds)
        found: dict[str, list[str]] = {}
        for reference in ready:
            try:
                found[asked[reference]] = ray.get(reference)
            except RayError:
                # It was lost at this moment; whoever asks judges by what the others tell.
                continue
        return found

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
            reason = f"the agent on {where} did not answer in time"
            raise broken(Failure.START_TIMEOUT, reason, [member.node]) from None
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, RaydeckError):
                reason = f"on {where}: {cause.sentence}"
                raise broken(failure.classify(1, cause.sentence).failure, reason) from error
            raise Broken(of_loss(_loss(member, error))) from error


def _alive() -> bool:
    return True


def _failed(reference: Any) -> bool:
    try:
        ray.get(reference, timeout=0.1)
    except RayError:
        return True
    return False


def _loss(member: Member, error: RayError) -> Lost:
    where = f"{member.node} ({member.address})"
    for node in ray.nodes():
        if node["NodeID"] == member.node_id and not node["Alive"]:
            return _dead(member, node)
    # Ray's own words tell when it ended the worker for want of memory, or knows the node to be dead already.
    told = failure.classify(None, str(error))
    if "creation task" in str(error):
        sentence = f"the agent on {where} could not start: {last_error(str(error))}"
    elif isinstance(error, ActorDiedError):
        sentence = f"the agent on {where} is lost: its process was killed, or crashed"
    else:
        sentence = f"the agent on {where} is lost: {first_line(error)}"
    known = told.failure in (Failure.OUT_OF_MEMORY, Failure.NODE_LOST)
    return Lost(member.node, sentence, told.failure if known else Failure.UNKNOWN, told.evidence if known else "")


def _dead(member: Member, node: Mapping[str, Any]) -> Lost:
    why = node.get("DeathReasonMessage") or "no reason is given"
    sentence = f"{member.node} ({member.address}) is lost: Ray has declared the node dead ({why})"
    return Lost(member.node, sentence, Failure.NODE_LOST)


def _rooms() -> list[placing.NodeRoom]:
    return placing.rooms(ray.nodes(), available_resources_per_node())


def _whole(amount: float) -> float:
    return int(amount) if amount == int(amount) else amount
