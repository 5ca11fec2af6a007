"""The nodes during one pass: what is free on each, who could use it, and when what is held there comes back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jobs.controller.schedule.types import Demand, Holder, Room

Shape = tuple[Demand, tuple[str, ...]]
"""What a run asks for, and the nodes that it is kept off."""

_OWN = ("raydeck.io/node", "ray.io/node-id", "kubernetes.io/hostname")
"""Labels that name one node, and so are no kind."""
_SLACK = 1e-6
"""Ray counts in ten-thousandths: sums of fractions are not exact."""


class Pool:
    """All nodes that are alive. Indexes stand for nodes, in the order that they were given in."""

    def __init__(self, rooms: Sequence[Room], holding: Sequence[Holder], now: float) -> None:
        self.rooms = rooms
        self.now = now
        self.gpus: list[float] = []
        self.cpus: list[float] = []
        self.memory: list[float] = []
        for room in rooms:
            total, foreign = room.total, room.foreign
            self.gpus.append(total.get("GPU", 0.0) - foreign.get("GPU", 0.0) + _SLACK)
            self.cpus.append(total.get("CPU", 0.0) - foreign.get("CPU", 0.0) + _SLACK)
            self.memory.append(total.get("memory", 0.0) - foreign.get("memory", 0.0) + _SLACK)
        self.index = {room.node_id: number for number, room in enumerate(rooms)}
        self.holders: list[list[Holder]] = [[] for _ in rooms]
        self._usable: dict[Shape, list[int]] = {}
        self._alike: dict[tuple[object, ...], list[int]] = {}
        """Nodes that differ in nothing but what is free: most of a cluster's nodes are of a few kinds."""
        for number, room in enumerate(rooms):
            total = room.total
            kind = (
                total.get("GPU"), total.get("CPU"), total.get("memory"),
                frozenset(item for item in room.labels.items() if not item[0].startswith(_OWN)),
            )  # fmt: skip
            self._alike.setdefault(kind, []).append(number)
        self._ends: dict[int, list[tuple[float, str, Holder]]] = {}
        for holder in holding:
            for node in holder.nodes:
                number = self.index.get(node)
                if number is not None:
                    self.holders[number].append(holder)
                    self._take(number, holder.demand)

    def _take(self, number: int, demand: Demand) -> None:
        self.gpus[number] -= demand.gpus
        self.cpus[number] -= demand.cpus
        self.memory[number] -= demand.memory_bytes

    def take(self, numbers: Sequence[int], holder: Holder) -> None:
        """A run that was let go holds its part on these nodes from now on."""
        for number in numbers:
            self._take(number, holder.demand)
            self.holders[number].append(holder)
            self._ends.pop(number, None)

    @property
    def seen_shapes(self) -> int:
        """How many different demands were looked at."""
        return len(self._usable)

    def knows(self, shape: Shape) -> bool:
        """Whether this demand was looked at."""
        return shape in self._usable

    def usable(self, shape: Shape) -> list[int]:
        """The nodes that take work, are large enough, and that the run is not kept off; full or not."""
        known = self._usable.get(shape)
        if known is None:
            demand, excluded = shape
            own = any(name.startswith(_OWN) for name, _ in demand.labels)
            known = []
            for numbers in self._alike.values():
                if own or large_enough(self.rooms[numbers[0]], demand):
                    known += [number for number in numbers if self._takes(number, excluded)]
            if own:
                known = [number for number in known if large_enough(self.rooms[number], demand)]
            self._usable[shape] = known
        return known

    def _takes(self, number: int, excluded: tuple[str, ...]) -> bool:
        room = self.rooms[number]
        return not room.cordoned and room.name not in excluded

    def with_room(self, shape: Shape) -> list[int]:
        """Those of them that have room now."""
        demand = shape[0]
        gpus, cpus, memory = demand.gpus, demand.cpus, demand.memory_bytes
        return [
            number
            for number in self.usable(shape)
            if self.gpus[number] >= gpus and self.cpus[number] >= cpus and self.memory[number] >= memory
        ]

    def best(self, numbers: Sequence[int], demand: Demand) -> list[int]:
        """Of these the ones to take: where least is left over, so that whole nodes stay whole."""
        ranked = sorted(numbers, key=lambda number: (self.gpus[number], self.cpus[number], self.rooms[number].name))
        return ranked[: demand.nodes]

    def free_at(self, number: int, demand: Demand) -> float:
        """By when this node has room, by the time limits of those on it; infinite where they have none that helps."""
        gpus, cpus, memory = self.gpus[number], self.cpus[number], self.memory[number]
        at = -math.inf
        leaving = self._ends.get(number)
        if leaving is None:
            leaving = sorted((bound(holder, self.now), holder.run, holder) for holder in self.holders[number])
            self._ends[number] = leaving
        for end, _, holder in leaving:
            if gpus >= demand.gpus and cpus >= demand.cpus and memory >= demand.memory_bytes:
                return at
            at = end
            gpus += holder.demand.gpus
            cpus += holder.demand.cpus
            memory += holder.demand.memory_bytes
        fits = gpus >= demand.gpus and cpus >= demand.cpus and memory >= demand.memory_bytes
        return at if fits else math.inf


def bound(holder: Holder, now: float) -> float:
    """The moment from which others may count on its part, by its time limit; infinite without one.

    Never later than it truly is: for one that is about to leave that is now, and one that still starts cannot take
    longer than its limit from now.
    """
    if holder.leaving:
        return now
    if holder.limit_seconds is None:
        return math.inf
    return max(now, (now if holder.started_at is None else holder.started_at) + holder.limit_seconds)


def large_enough(room: Room, demand: Demand) -> bool:
    """Whether the node could take its part of the run if it were empty, and carries the labels."""
    labels = room.labels
    return (
        all(labels.get(name) == value for name, value in demand.labels)
        and room.total.get("GPU", 0.0) + _SLACK >= demand.gpus
        and room.total.get("CPU", 0.0) + _SLACK >= demand.cpus
        and room.total.get("memory", 0.0) + _SLACK >= demand.memory_bytes
    )
