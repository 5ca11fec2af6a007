"""Short ways to write down a situation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jobs.controller.schedule.plan import schedule
from jobs.controller.schedule.types import Demand, Holder, Room, Situation, Waiter
from jobs.controller.schedule.why import explain
from jobs.model import RunState
from jobs.queueview import Blocker, Explanation
from jobs.spec import Limits, Queue, Scheduler

NOW = 1_700_000_000.0
GB = 10**9
OPEN = Scheduler()
"""No quota, backfill, no preemption."""


def demand(
    nodes: int = 1, gpus: float = 1, cpus: float = 1, memory_gb: int = 0, labels: dict[str, str] | None = None
) -> Demand:
    return Demand(nodes, gpus, cpus, memory_gb * GB, tuple(sorted((labels or {}).items())))


def waits(run: str, asked: Demand | None = None, *, ago: float = 0.0, **rest: Any) -> Waiter:
    """One that was submitted ``ago`` seconds before `NOW`."""
    given: dict[str, Any] = {"user": "ann", "queue": "default", "priority": 0, **rest}
    return Waiter(run=run, demand=asked or demand(), submitted_at=NOW - ago, **given)


def holds(run: str, on: str, asked: Demand | None = None, *, since: float | None = 60.0, **rest: Any) -> Holder:
    """One that holds the nodes named in ``on`` since so many seconds; None: it starts."""
    names = tuple(f"id-{name}" for name in on.split())
    given: dict[str, Any] = {"user": "ann", "queue": "default", "priority": 0, **rest}
    given.setdefault("submitted_at", NOW - 3600.0)
    started = None if since is None else NOW - since
    return Holder(run=run, demand=asked or demand(len(names)), nodes=names, started_at=started, **given)


def room(name: str, gpus: float = 4, cpus: float = 16, memory_gb: int = 64, foreign: float = 0, **rest: Any) -> Room:
    total = {"GPU": float(gpus), "CPU": float(cpus), "memory": float(memory_gb * GB)}
    return Room(f"id-{name}", name, total, {"GPU": float(foreign)} if foreign else {}, **rest)


def rooms(count: int, gpus: float = 4, **rest: Any) -> tuple[Room, ...]:
    """``n1``, ``n2`` and so on."""
    return tuple(room(f"n{number + 1}", gpus, **rest) for number in range(count))


def at(
    waiting: Sequence[Waiter] = (),
    holding: Sequence[Holder] = (),
    nodes: Sequence[Room] | None = None,
    rules: Scheduler = OPEN,
    **rest: Any,
) -> Situation:
    """A situation at `NOW`, on two nodes with 4 GPUs each if no others are given."""
    return Situation(
        waiting=tuple(waiting),
        holding=tuple(holding),
        rooms=tuple(rooms(2) if nodes is None else nodes),
        rules=rules,
        now=NOW,
        **rest,
    )


def queues(*named: Queue, limits: Limits | None = None, **rest: Any) -> Scheduler:
    return Scheduler(queues=list(named), limits=limits or Limits(), **rest)


def started(situation: Situation) -> dict[str, tuple[str, ...]]:
    """What the plan lets go: run to names of nodes."""
    names = {each.node_id: each.name for each in situation.rooms or ()}
    return {start.run: tuple(names[node] for node in start.node_ids) for start in schedule(situation).starts}


def preempted(situation: Situation) -> list[tuple[str, str]]:
    """Who leaves for whom, by name."""
    return sorted((each.run, each.for_run) for each in schedule(situation).preemptions)


def why(run: str, situation: Situation) -> Explanation:
    return explain(run, RunState.QUEUED, situation)


def blockers(run: str, situation: Situation) -> dict[str, Blocker]:
    """By their kind, in their order."""
    return {each.kind: each for each in why(run, situation).blocked_by}


def let_go(waiter: Waiter, nodes: Sequence[str], started_at: float | None) -> Holder:
    """The holder that a waiting run becomes."""
    return Holder(
        run=waiter.run,
        user=waiter.user,
        queue=waiter.queue,
        priority=waiter.priority,
        demand=waiter.demand,
        nodes=tuple(nodes),
        started_at=started_at,
        limit_seconds=waiter.limit_seconds,
        expected_seconds=waiter.expected_seconds,
        preemptible=started_at is not None,
        sweep=waiter.sweep,
        submitted_at=waiter.submitted_at,
        place=waiter.place,
    )


def begun(holder: Holder, now: float) -> Holder:
    return replace(holder, started_at=now, preemptible=True)
