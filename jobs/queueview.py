"""What the controller says about waiting: the queues as they are, and exactly why a run has not started."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from jobs.model import RunState


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore")


class QueueUse(_Message):
    """One queue: what it may hold, what it holds, what waits."""

    name: str
    priority: str = "normal"
    max_accelerators: int | None = None
    """None: no quota."""
    used_accelerators: int = 0
    running: int = 0
    waiting: int = 0
    waiting_accelerators: int = 0
    default: bool = False


class UserUse(_Message):
    """One user's part."""

    user: str
    used_accelerators: int = 0
    max_accelerators: int | None = None
    running: int = 0
    waiting: int = 0


class Waiting(_Message):
    """One run that waits, with the one sentence that matters most."""

    run: str
    position: int | None
    """From 1; None for one that is held: it has no place until it is released."""
    queue: str
    priority: str
    user: str
    nodes: int
    gpus: int
    since: float
    sentence: str
    """Why it waits."""
    kind: str
    """The kind of its first `Blocker`."""
    moved: bool = False
    """Somebody gave it this place by hand."""
    estimated_start: float | None = None


class QueueView(_Message):
    """All queues, and those that wait, in order."""

    at: float
    queues: list[QueueUse] = Field(default_factory=list)
    users: list[UserUse] = Field(default_factory=list)
    waiting: list[Waiting] = Field(default_factory=list)
    """The page that was asked for; in events the first 200."""
    waiting_total: int = 0
    held_total: int = 0
    active_runs: int = 0
    max_active_runs: int = 0
    accelerators: int | None = None
    """In all, on nodes that are alive; None while Ray does not tell."""
    free_accelerators: int | None = None
    foreign_accelerators: int | None = None
    """Held by work that raydeck did not start."""
    preemption: bool = False
    backfill: bool = True
    pass_seconds: float | None = None
    """What the last scheduling pass took."""


BlockerKind = Literal[
    "hold", "after", "back_off", "queue_quota", "user_quota", "user_runs", "active_runs", "sweep", "cordon",
    "suspected", "resources", "order", "ray", "never",
]  # fmt: skip


class Blocker(_Message):
    """One thing that is in a run's way."""

    kind: BlockerKind
    sentence: str
    would_start_if: str = ""
    """What would have to change."""
    names: list[str] = Field(default_factory=list)
    """The runs, nodes, queue or user that it is about."""


class NodeNote(_Message):
    """One node, from the point of view of a run that waits."""

    node: str
    usable: bool
    """It could take its part of the run now."""
    sentence: str


class Ahead(_Message):
    """A run that goes first."""

    run: str
    user: str
    queue: str
    priority: str
    gpus: int
    sentence: str
    """Why it is ahead, and why it has not started itself."""


class Explanation(_Message):
    """Why a run waits, exactly."""

    run: str
    state: RunState
    sentence: str
    """The answer in one sentence; for a run that does not wait, that it does not."""
    position: int | None = None
    ahead: list[Ahead] = Field(default_factory=list)
    """The first 20 of them."""
    ahead_total: int = 0
    blocked_by: list[Blocker] = Field(default_factory=list)
    """All of it, what matters most first; empty for a run that does not wait."""
    would_start_if: list[str] = Field(default_factory=list)
    nodes: list[NodeNote] = Field(default_factory=list)
    """At most 64, usable ones first."""
    estimated_start: float | None = None
    """Seconds since 1970; an estimate, never a promise."""
    estimated_from: str = ""
    """What the estimate rests on, or why there is none."""
