"""What the queue decides from, and what it decides. Plain values: no clock, no file, no network below this folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from jobs.spec import Scheduler


@dataclass(frozen=True, slots=True)
class Demand:
    """What a run asks for, on each of so many different nodes."""

    nodes: int
    gpus: float = 0.0
    cpus: float = 0.0
    memory_bytes: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    """Node labels that each of them must carry, sorted."""
    accelerators: float = field(init=False, repr=False, compare=False)
    """In all: what quotas count."""
    _hash: int = field(init=False, repr=False, compare=False)
    """A pass looks demands up tens of thousands of times."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "accelerators", self.nodes * self.gpus)
        object.__setattr__(self, "_hash", hash((self.nodes, self.gpus, self.cpus, self.memory_bytes, self.labels)))

    def __hash__(self) -> int:
        return self._hash


Shape = tuple[Demand, tuple[str, ...]]
"""What a run asks for, and the nodes that it is kept off."""


@lru_cache(maxsize=4096)
def _shape(demand: Demand, excluded: tuple[str, ...]) -> Shape:
    return demand, excluded


@lru_cache(maxsize=65536)
def _alike(shape: Shape, queue: str, user: str, limit_seconds: float | None, sweep: str) -> object:
    return object()


@dataclass(frozen=True, slots=True)
class Waiter:
    """A run that waits."""

    run: str
    user: str
    queue: str
    priority: int
    """On the scale of `jobs.values.priority_value`: its own, or its queue's."""
    submitted_at: float
    demand: Demand
    place: float | None = None
    """Given by hand, on the scale of `order.key`."""
    held: str = ""
    """Who holds it and why; empty if nobody does."""
    after: tuple[str, ...] = ()
    """Runs that have not ended yet and have to."""
    not_before: float | None = None
    excluded: tuple[str, ...] = ()
    """Nodes by name that it is kept off, since they were suspected twice."""
    limit_seconds: float | None = None
    """The most that it will run, by its own time limit."""
    expected_seconds: float | None = None
    """What runs of its workflow took so far (their median)."""
    sweep: str = ""
    sweep_parallel: int | None = None
    shape: Shape = field(init=False, repr=False, compare=False)
    alike: object = field(init=False, repr=False, compare=False)
    """The same one for all that are stopped by the same: a pass looks that up ten thousand times."""

    def __post_init__(self) -> None:
        # What is equal is one object, made once for many passes: to find it again takes a glance.
        shape = _shape(self.demand, self.excluded)
        user, queue = sys.intern(self.user), sys.intern(self.queue)
        object.__setattr__(self, "demand", shape[0])
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "user", user)
        object.__setattr__(self, "queue", queue)
        object.__setattr__(self, "alike", _alike(shape, queue, user, self.limit_seconds, self.sweep))


@dataclass(frozen=True, slots=True)
class Holder:
    """A run that was admitted and has not ended: it holds its demand on its nodes."""

    run: str
    user: str
    queue: str
    priority: int
    demand: Demand
    nodes: tuple[str, ...]
    """Ray node ids; empty where Ray chose and has not said yet."""
    started_at: float | None = None
    """Since when it runs; None while it starts."""
    limit_seconds: float | None = None
    """What is left of its time limit counts from ``started_at``."""
    expected_seconds: float | None = None
    preemptible: bool = False
    """It runs, can save, and nobody has asked it to end."""
    leaving: bool = False
    """It was asked to end already."""
    sweep: str = ""
    submitted_at: float = 0.0
    """Where it would wait again if it had to leave."""
    place: float | None = None
    saved_at: float | None = None
    """When it last saved: what a preemption would lose counts from here (or from ``started_at``)."""


@dataclass(frozen=True, slots=True)
class Room:
    """A node that Ray has alive."""

    node_id: str
    name: str
    total: Mapping[str, float]
    """By Ray's resource name: ``GPU``, ``CPU``, ``memory`` in bytes."""
    foreign: Mapping[str, float] = field(default_factory=dict[str, float])
    """What work holds that raydeck did not start."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    cordoned: str = ""
    """Who cordoned it and why; empty for one that takes work."""
    avoid: bool = False
    """It takes work only where no other has room: it is to be emptied soon."""
    address: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """Let this run go, on these nodes."""

    run: str
    node_ids: tuple[str, ...]
    backfilled: bool = False
    """It passed a run that waits for room."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """Have this run save and leave."""

    run: str
    for_run: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What one pass decides."""

    starts: tuple[Start, ...] = ()
    preemptions: tuple[Preemption, ...] = ()


@dataclass(frozen=True, slots=True)
class Situation:
    """All that one pass looks at."""

    waiting: tuple[Waiter, ...]
    """In any order."""
    holding: tuple[Holder, ...]
    rooms: tuple[Room, ...] | None
    """None while Ray does not tell its nodes: then nothing is let go."""
    rules: Scheduler
    now: float
    """Seconds since 1970."""
    silent: str = ""
    """Why Ray does not tell, in words."""
