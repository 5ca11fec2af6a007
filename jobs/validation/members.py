"""Owns the Ray side of a validation: an actor on every node, the GPUs that are reserved, who was lost and why."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.validation.member import Member, Ran

NODE_LABEL = "raydeck.io/node"
HELLO_SECONDS = 30.0
CLOCK_TRIES = 8
SLACK_SECONDS = 10.0
"""How much longer than its programs' limit a node may take to say what became of them."""
WAIT_STEP_SECONDS = 0.5
PLACE_SECONDS = 5.0
"""Ray may need so long to give what is free."""

TELL_SECONDS, TELL_NODES = 0.5, 100
"""So often nodes are asked how far they are; of many nodes less often: at most so many in a second."""

SoFar = tuple[str, int | None]
"""The check that a node is at, and its GPU."""
Work = tuple[str, dict[str, Any], dict[str, str]]
"""A program, its request, and its environment."""


@dataclass(slots=True)
class Node:
    """A node that Ray has."""

    name: str
    node_id: str
    address: str
    gpus: int
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    handle: Any = None
    lost: str = ""
    """Why it cannot be asked any more."""
    ahead_seconds: float = 0.0
    """Its clock less this one's."""
    uncertain_seconds: float = 0.0
    """How far off that may be."""
    port: int = 0
    """Free there a moment ago."""


def alive() -> list[Node]:
    """The nodes that Ray says are alive, by name."""
    found = [
        Node(
            name=str(node["Labels"].get(NODE_LABEL) or node.get("NodeManagerHostname") or node["NodeID"]),
            node_id=str(node["NodeID"]),
            address=str(node.get("NodeManagerAddress", "")),
            gpus=int(node["Resources"].get("GPU", 0)),
            labels=dict(node["Labels"]),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: node.name)


class Members:
    """The nodes of one validation. Nothing here waits longer than it says; a node that is lost is a sentence."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self._groups: list[PlacementGroup] = []
        for node in nodes:
            node.handle = (
                ray.remote(Member)
                .options(
                    num_cpus=0,
                    max_concurrency=2,  # it can be asked how far it is while programs run
                    max_restarts=0,
                    max_task_retries=0,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
                )
                .remote(node.name, node.address)
            )

    def greet(self) -> None:
        """Have every node answer once, and measure its clock. Those that do not are lost."""
        self._all({node.name: node.handle.hello.remote() for node in self.nodes.values()}, HELLO_SECONDS)
        for node in self.nodes.values():
            best = float("inf")
            for _ in range(0 if node.lost else CLOCK_TRIES):
                began = time.time()
                told = self._all({node.name: node.handle.hello.remote()}, HELLO_SECONDS).get(node.name)
                if told is None:
                    break
                took = time.time() - began
                if took < best:
                    best, node.port = took, told[1]
                    node.ahead_seconds, node.uncertain_seconds = told[0] - (began + took / 2), took / 2

    def port(self, name: str) -> int:
        """A port that is free on a node; 0 where it cannot be asked."""
        told = self._all({name: self.nodes[name].handle.hello.remote()}, HELLO_SECONDS).get(name)
        return int(told[1]) if told is not None else 0

    def run(
        self, work: Mapping[str, Sequence[Work]], seconds: float, tell: Callable[[Mapping[str, SoFar]], None]
    ) -> dict[str, list[Ran]]:
        """Run programs on nodes, all at the same time. A node that the answer lacks was lost: `Node.lost` says why.

        ``tell`` is told again and again how far each node is.
        """
        asked = {
            name: self.nodes[name].handle.run.remote(list(programs), seconds)
            for name, programs in work.items()
            if not self.nodes[name].lost
        }
        deadline = time.monotonic() + seconds + SLACK_SECONDS
        waiting = dict(asked)
        every = max(TELL_SECONDS, len(asked) / TELL_NODES)
        while waiting and time.monotonic() < deadline:
            _, rest = ray.wait(list(waiting.values()), num_returns=len(waiting), timeout=every)
            waiting = {name: reference for name, reference in waiting.items() if reference in rest}
            tell(self._so_far(list(waiting)))
        return self._all(asked, max(0.0, deadline - time.monotonic()), seconds)

    def _so_far(self, names: Sequence[str]) -> dict[str, SoFar]:
        """How far these are. One that does not answer at once is not waited for, and is not lost for that."""
        asked = {name: self.nodes[name].handle.so_far.remote() for name in names}
        ready = ray.wait(list(asked.values()), num_returns=len(asked), timeout=TELL_SECONDS)[0] if asked else []
        found: dict[str, SoFar] = {}
        for name, reference in asked.items():
            if reference in ready:
                with contextlib.suppress(RayError):  # that it is lost, its work tells
                    told: SoFar | None = ray.get(reference)
                    if told is not None:
                        found[name] = told
        return found

    def reserve(self, names: Sequence[str], seconds: float) -> dict[str, str]:
        """Take all GPUs of these nodes; gives those where that did not succeed in time, each with who holds them."""
        groups = {
            name: placement_group(
                [{"GPU": self.nodes[name].gpus}],
                name=f"raydeck-validation-{name}",
                bundle_label_selector=[{"ray.io/node-id": self.nodes[name].node_id}],
            )
            for name in names
            if self.nodes[name].gpus and not self.nodes[name].lost
        }
        waiting = dict(groups)
        deadline = time.monotonic() + max(seconds, PLACE_SECONDS)
        while waiting:
            for name, group in list(waiting.items()):
                if group.wait(0.05):
                    del waiting[name]
            if time.monotonic() >= deadline:
                break
            time.sleep(min(WAIT_STEP_SECONDS, max(0.0, deadline - time.monotonic())))
        self._groups += [group for name, group in groups.items() if name not in waiting]
        free = available_resources_per_node()
        busy: dict[str, str] = {}
        for name, group in waiting.items():
            remove_placement_group(group)
            node = self.nodes[name]
            idle = int(free.get(node.node_id, {}).get("GPU", 0))
            busy[name] = f"{node.gpus - idle} of its {node.gpus} GPUs are in use"  # as far as Ray has told by now
        return busy

    def free(self) -> None:
        """Give the GPUs back."""
        for group in self._groups:
            remove_placement_group(group)
        self._groups.clear()

    def close(self) -> None:
        """Give everything back, and leave nothing on the nodes."""
        self.free()
        self._all({name: node.handle.close.remote() for name, node in self.nodes.items() if not node.lost}, 5.0)
        for node in self.nodes.values():
            ray.kill(node.handle)

    def _all(self, asked: dict[str, Any], seconds: float, told_seconds: float | None = None) -> dict[str, Any]:
        """What came of each within so long; whoever did not answer is lost (within ``told_seconds``, it is said)."""
        if not asked:
            return {}
        ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=seconds)
        dead = {str(node["NodeID"]) for node in ray.nodes() if not node["Alive"]}
        found: dict[str, Any] = {}
        for name, reference in asked.items():
            node = self.nodes[name]
            if reference not in ready:
                node.lost = (
                    "Ray declared it dead"
                    if node.node_id in dead
                    else f"it did not answer within {told_seconds or seconds:.0f} s"
                )
                continue
            try:
                found[name] = ray.get(reference)
            except RayError as error:
                first = str(error).strip().splitlines() or [type(error).__name__]
                node.lost = "Ray declared it dead" if node.node_id in dead else first[0][:300]
        return found
