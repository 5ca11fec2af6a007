"""The nodes during one pass: what is free on each, who could use it, and when what is held there comes back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from jobs.controller.schedule.types import Demand, Holder, Room, Shape

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
        """Nodes that take work and differ in nothing but what is free: most of a cluster's are of a few kinds."""
        for number, room in enumerate(rooms):
            if room.cordoned:
                continue
            total = room.total
            kind = (
                total.get("GPU"), total.get("CPU"), total.get("memory"),
                frozenset(item for item in room.labels.items() if not item[0].startswith(_OWN)),
            )  # fmt: skip
            self._alike.setdefault(kind, []).append(number)
        self._steps: dict[int, list[tuple[float, float, float, float]]] = {}
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
            self._steps.pop(number, None)

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
            rooms, known = self.rooms, []
            for numbers in self._alike.values():
                if own or large_enough(rooms[numbers[0]], demand):
                    known += numbers
            if excluded:
                known = [number for number in known if rooms[number].name not in excluded]
            if own:
                known = [number for number in known if large_enough(rooms[number], demand)]
            self._usable[shape] = known
        return known

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
        rooms = self.rooms
        ranked = sorted(
            numbers, key=lambda number: (rooms[number].avoid, self.gpus[number], self.cpus[number], rooms[number].name)
        )
        return ranked[: demand.nodes]

    def free_at(self, numbers: Iterable[int], demand: Demand) -> list[float]:
        """By when each of these nodes has room, by the time limits of those on it; infinite where that never comes."""
        gpus, cpus, memory = demand.gpus, demand.cpus, demand.memory_bytes
        found: list[float] = []
        for number in numbers:
            for at, has_gpus, has_cpus, has_memory in self._steps.get(number) or self._course(number):
                if has_gpus >= gpus and has_cpus >= cpus and has_memory >= memory:
                    found.append(at)
                    break
            else:
                found.append(math.inf)
        return found

    def _course(self, number: int) -> list[tuple[float, float, float, float]]:
        """What this node has free from when on: now, and after each of those on it has ended."""
        gpus, cpus, memory = self.gpus[number], self.cpus[number], self.memory[number]
        steps = self._steps[number] = [(-math.inf, gpus, cpus, memory)]
        for end, _, holder in sorted((bound(holder, self.now), holder.run, holder) for holder in self.holders[number]):
            gpus += holder.demand.gpus
            cpus += holder.demand.cpus
            memory += holder.demand.memory_bytes
            steps.append((end, gpus, cpus, memory))
        return steps


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
