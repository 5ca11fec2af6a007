"""Which runs should save and leave for one of higher priority: enough of them, and as little lost as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobs.controller.schedule.desk import Desk
from jobs.controller.schedule.order import key, ordered
from jobs.controller.schedule.pool import Pool
from jobs.controller.schedule.types import Holder, Situation, Waiter

LOOKED_AT = 500
"""Of those of lower priority, the cheapest so many."""
PRUNED = 16


def victims(situation: Situation, waiter: Waiter) -> list[Holder] | None:
    """Those that should be asked to leave; empty if enough leave already; None if that would not let it start."""
    own = key(waiter, situation.rules)
    leaving = [holder for holder in situation.holding if holder.leaving]
    if leaving and _starts(situation, waiter, leaving):
        return []
    candidates = [
        holder
        for holder in situation.holding
        # Behind it in the queue too: else it would come back at once, and be asked to leave again.
        if holder.preemptible
        and not holder.leaving
        and holder.priority < waiter.priority
        and key(holder, situation.rules) > own
    ]
    candidates.sort(key=lambda holder: _cost(holder, situation.now))
    chosen = _for_room(situation, waiter, leaving, candidates[:LOOKED_AT])
    if chosen is None:
        return None
    chosen += _for_quota(situation, waiter, [*leaving, *chosen], candidates)
    if not _starts(situation, waiter, [*leaving, *chosen]):
        return None
    # What turned out not to be needed stays, the dearest first.
    for holder in sorted(chosen, key=lambda holder: _cost(holder, situation.now), reverse=True)[:PRUNED]:
        fewer = [each for each in chosen if each is not holder]
        if fewer and _starts(situation, waiter, [*leaving, *fewer]):
            chosen = fewer
    return chosen


def _for_room(
    situation: Situation, waiter: Waiter, leaving: Sequence[Holder], candidates: Sequence[Holder]
) -> list[Holder] | None:
    """The cheapest that make room on enough nodes, node by node; None if not enough nodes can be had."""
    pool = _without(situation, leaving).pool
    shape = (waiter.demand, waiter.excluded)
    free = set(pool.with_room(shape))
    by_node: dict[int, list[Holder]] = {}
    for holder in candidates:
        for node in holder.nodes:
            if (number := pool.index.get(node)) is not None:
                by_node.setdefault(number, []).append(holder)
    costs: list[tuple[tuple[float, ...], int, list[Holder]]] = []
    for number in pool.usable(shape):
        needed = [] if number in free else _enough(pool, number, waiter, by_node.get(number, []))
        if needed is not None:
            worst = max((holder.priority for holder in needed), default=-(10**9))
            costs.append(((worst, sum(_loss(h, situation.now) for h in needed), len(needed)), number, needed))
    if len(costs) < waiter.demand.nodes:
        return None
    costs.sort(key=lambda each: each[:2])
    return list({holder.run: holder for _, _, needed in costs[: waiter.demand.nodes] for holder in needed}.values())


def _enough(pool: Pool, number: int, waiter: Waiter, candidates: Sequence[Holder]) -> list[Holder] | None:
    """The first of these, and none that is not needed, whose parts make room on one node; None if all are too few."""
    demand = waiter.demand

    def fits(gone: Sequence[Holder]) -> bool:
        return (
            pool.gpus[number] + sum(each.demand.gpus for each in gone) >= demand.gpus
            and pool.cpus[number] + sum(each.demand.cpus for each in gone) >= demand.cpus
            and pool.memory[number] + sum(each.demand.memory_bytes for each in gone) >= demand.memory_bytes
        )

    chosen: list[Holder] = []
    for holder in candidates:
        chosen.append(holder)
        if fits(chosen):
            break
    else:
        return None
    for holder in list(reversed(chosen)):
        fewer = [each for each in chosen if each is not holder]
        if fits(fewer):
            chosen = fewer
    return chosen


def _for_quota(
    situation: Situation, waiter: Waiter, gone: Sequence[Holder], candidates: Sequence[Holder]
) -> list[Holder]:
    """Beside those that go, the cheapest of its own queue that give back what it is short of in the queue's quota."""
    quotas = _without(situation, gone).quotas
    short = quotas.queue[waiter.queue] + waiter.demand.accelerators - quotas.queue_most(waiter.queue)
    names = {holder.run for holder in gone}
    more: list[Holder] = []
    for holder in candidates:
        if short > 0 and holder.queue == waiter.queue and holder.run not in names:
            more.append(holder)
            short -= holder.demand.accelerators
    return more


def _starts(situation: Situation, waiter: Waiter, gone: Sequence[Holder]) -> bool:
    """Whether it starts once these have left, with all that wait ahead of it having had their turn."""
    desk = _without(situation, gone)
    for each in ordered(situation.waiting, situation.rules):
        if each.run == waiter.run:
            return desk.first(waiter) is None
        block = desk.first(each)
        if block is None:
            desk.start(each, desk.choose(each))
        elif desk.competes(each):
            desk.stay(each, block)
    return False


def _without(situation: Situation, gone: Sequence[Holder]) -> Desk:
    names = {holder.run for holder in gone}
    return Desk(replace(situation, holding=tuple(each for each in situation.holding if each.run not in names)))


def _cost(holder: Holder, now: float) -> tuple[float, float, str]:
    return holder.priority, _loss(holder, now), holder.run


def _loss(holder: Holder, now: float) -> float:
    """Accelerator-seconds that are lost at the worst: since it last saved, or began."""
    since = holder.saved_at if holder.saved_at is not None else holder.started_at
    return 0.0 if since is None else max(0.0, now - since) * max(1.0, holder.demand.accelerators)
