"""Decides which of the runs that wait may go now, and which of those that run should leave for one that waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobs.controller.schedule.desk import APART, SHAPES, Block, Desk
from jobs.controller.schedule.order import ordered
from jobs.controller.schedule.preempt import victims
from jobs.controller.schedule.types import Plan, Preemption, Situation, Start, Waiter

STARTS = 64
"""So many runs are let go in one pass; the next pass goes on. Each of them is written to the disk first."""
TRIED = 8
"""For so many of the first that are blocked it is looked at whether others should leave."""


def schedule(situation: Situation) -> Plan:
    """One pass."""
    return go_through(situation, lambda desk, waiter, block: False)


def go_through(situation: Situation, tell: Callable[[Desk, Waiter, Block | None], bool]) -> Plan:
    """One pass that tells of each run at its turn, with what is in its way first, before anything follows from it.

    It ends behind the last run that could start, once ``tell`` wants to hear of no more.
    """
    desk = Desk(situation)
    starts: list[Start] = []
    blocked: list[tuple[Waiter, Block]] = []
    rooms, preemption = situation.rooms, situation.rules.preemption
    order = ordered(situation.waiting, situation.rules)
    last, more = _last_hope(desk, order), True
    for number, waiter in enumerate(order):
        if number > last and not more and (len(blocked) >= TRIED or not preemption):
            break
        block = desk.first(waiter)
        if block is None and len(starts) >= STARTS:
            break
        more = tell(desk, waiter, block)
        if rooms is None:
            continue
        if block is not None:
            if block.kind in APART:
                continue
            desk.stay(waiter, block)
            if len(blocked) < TRIED:
                blocked.append((waiter, block))
            continue
        numbers = desk.choose(waiter)
        desk.start(waiter, numbers)
        nodes = tuple(rooms[number].node_id for number in numbers)
        starts.append(Start(waiter.run, nodes, backfilled=bool(desk.reserved)))
    leave = preemption and not starts and rooms is not None
    return Plan(tuple(starts), _preemptions(situation, blocked) if leave else ())


def _last_hope(desk: Desk, order: Sequence[Waiter]) -> int:
    """The place of the last run that has room and the quotas, whatever else is in its way; -1 if none has.

    In the course of a pass both only get less, so behind it nobody starts.
    """
    shapes = {waiter.shape for waiter in order}
    if len(shapes) > SHAPES:
        return len(order)  # that many are not all looked at in one pass
    roomy = {shape for shape in shapes if len(desk.pool.with_room(shape)) >= shape[0].nodes}
    if not roomy:
        return -1
    for number in range(len(order) - 1, -1, -1):
        waiter = order[number]
        if waiter.shape in roomy and desk.competes(waiter) and desk.quotas.allow(waiter):
            return number
    return -1


def _preemptions(situation: Situation, blocked: list[tuple[Waiter, Block]]) -> tuple[Preemption, ...]:
    """For the first that is blocked by what others of lower priority hold."""
    for waiter, block in blocked:
        if block.kind not in ("resources", "queue_quota"):
            continue
        chosen = victims(situation, waiter)
        if chosen is not None:
            return tuple(Preemption(holder.run, waiter.run) for holder in chosen)
    return ()
