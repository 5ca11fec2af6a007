"""All queues at a glance, and a page of those that wait, each with the one sentence that matters most."""

from __future__ import annotations

from collections import Counter, defaultdict

from jobs.controller.schedule.desk import Block, Desk
from jobs.controller.schedule.order import ordered
from jobs.controller.schedule.plan import go_through
from jobs.controller.schedule.quotas import user_quota
from jobs.controller.schedule.types import Plan, Situation, Waiter
from jobs.controller.schedule.why import blocker
from jobs.queueview import Blocker, QueueUse, QueueView, UserUse, Waiting
from jobs.spec import Queue
from jobs.values import PRIORITIES

_OWN_WORDS = frozenset({"after", "back_off"})
"""Kinds whose sentence is about this run alone."""
_WORDS = {value: word for word, value in PRIORITIES.items()}


def view(situation: Situation, offset: int, limit: int) -> QueueView:
    """The queues, and ``limit`` of those that wait from ``offset`` on; held ones come last, without a position."""
    return passed(situation, offset, limit)[1]


def passed(situation: Situation, offset: int, limit: int) -> tuple[Plan, QueueView]:
    """One pass, and what it looks like."""
    rows: list[Waiting] = []
    said: dict[object, Blocker] = {}
    place = 0

    def tell(desk: Desk, waiter: Waiter, block: Block | None) -> bool:
        nonlocal place
        if waiter.held:
            return True
        place += 1
        if block is None:
            # What was found for those ahead is no longer true of those behind.
            said.clear()
        if not offset < place <= offset + limit:
            return place < offset + limit
        if block is None:
            rows.append(_row(waiter, place, "starts now", ""))
            return True
        # Many wait for the same thing, and it takes the same words.
        same: tuple[object, ...] = (block, waiter.demand, waiter.excluded)
        if block.kind != "resources":
            same += (waiter.queue, waiter.user, waiter.sweep, waiter.limit_seconds)
        told = blocker(desk, waiter, block) if block.kind in _OWN_WORDS else said.get(same)
        if told is None:
            told = said[same] = blocker(desk, waiter, block)
        rows.append(_row(waiter, place, told.sentence, told.kind))
        return True

    plan = go_through(situation, tell)
    held = [each for each in situation.waiting if each.held]
    if held and len(rows) < limit:
        free = len(situation.waiting) - len(held)
        for waiter in ordered(held, situation.rules)[max(0, offset - free) :]:
            if len(rows) < limit:
                rows.append(_row(waiter, None, f"it is held by {waiter.held}", "hold"))
    return plan, _summed(situation, rows, len(held))


def _summed(situation: Situation, rows: list[Waiting], held: int) -> QueueView:
    rooms, limits = situation.rooms, situation.rules.limits
    gpus = None if rooms is None else round(sum(room.total.get("GPU", 0.0) for room in rooms))
    foreign = None if rooms is None else sum(room.foreign.get("GPU", 0.0) for room in rooms)
    ours = sum(holder.demand.accelerators for holder in situation.holding)
    return QueueView(
        at=situation.now,
        queues=_queues(situation),
        users=_users(situation),
        waiting=rows,
        waiting_total=len(situation.waiting),
        held_total=held,
        active_runs=len(situation.holding),
        max_active_runs=limits.max_active_runs,
        accelerators=gpus,
        free_accelerators=None if gpus is None or foreign is None else max(0, round(gpus - foreign - ours)),
        foreign_accelerators=None if foreign is None else round(foreign),
        preemption=situation.rules.preemption,
        backfill=situation.rules.backfill,
    )


def _row(waiter: Waiter, position: int | None, sentence: str, kind: str) -> Waiting:
    return Waiting(
        run=waiter.run,
        position=position,
        queue=waiter.queue,
        priority=_WORDS.get(waiter.priority, str(waiter.priority)),
        user=waiter.user,
        nodes=waiter.demand.nodes,
        gpus=round(waiter.demand.accelerators),
        since=waiter.submitted_at,
        sentence=sentence,
        kind=kind,
        moved=waiter.place is not None,
    )


def _queues(situation: Situation) -> list[QueueUse]:
    rules = situation.rules
    used: defaultdict[str, float] = defaultdict(float)
    running: Counter[str] = Counter()
    for holder in situation.holding:
        used[holder.queue] += holder.demand.accelerators
        running[holder.queue] += 1
    asked: defaultdict[str, float] = defaultdict(float)
    waiting: Counter[str] = Counter()
    # Ten thousand are counted by what they have in common first.
    for (name, demand), count in Counter((waiter.queue, waiter.demand) for waiter in situation.waiting).items():
        asked[name] += count * demand.accelerators
        waiting[name] += count
    queues = list(rules.queues)
    named = {queue.name for queue in queues}
    # The default queue need not be in the file, and one that was taken out of it may still have runs.
    for name in dict.fromkeys((rules.default_queue, *running, *waiting)):
        if name not in named:
            queues.append(Queue(name=name))
    return [
        QueueUse(
            name=queue.name,
            priority=queue.priority,
            max_accelerators=queue.max_accelerators,
            used_accelerators=round(used[queue.name]),
            running=running[queue.name],
            waiting=waiting[queue.name],
            waiting_accelerators=round(asked[queue.name]),
            default=queue.name == rules.default_queue,
        )
        for queue in queues
    ]


def _users(situation: Situation) -> list[UserUse]:
    used: defaultdict[str, float] = defaultdict(float)
    running: Counter[str] = Counter()
    for holder in situation.holding:
        used[holder.user] += holder.demand.accelerators
        running[holder.user] += 1
    waiting = Counter(waiter.user for waiter in situation.waiting)
    return [
        UserUse(
            user=user,
            used_accelerators=round(used[user]),
            max_accelerators=user_quota(situation.rules, user),
            running=running[user],
            waiting=waiting[user],
        )
        for user in sorted(set(running) | set(waiting))
    ]
