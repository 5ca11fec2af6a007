"""When a run is likely to start: the pass, played forward from one expected end to the next. Never a promise."""

from __future__ import annotations

import math
from dataclasses import replace

from jobs.controller.schedule.desk import Block, Desk
from jobs.controller.schedule.order import ordered
from jobs.controller.schedule.types import Holder, Situation, Waiter

EVENTS = 60
"""So many ends are played forward."""
POSITIONS = 200
"""Behind so many nothing is said: each of them makes it less likely to be true."""
LEAVING_SECONDS = 60.0
"""What a run takes to save and leave, about."""
OVERDUE = 0.1
"""A run that has taken longer than usual is taken to need a tenth of the usual time more."""


def estimate(waiter: Waiter, situation: Situation) -> tuple[float | None, str]:
    """Seconds since 1970 and what that rests on, or None and why nothing can be said."""
    if situation.rooms is None:
        return None, "Ray does not answer"
    order = [each for each in ordered(situation.waiting, situation.rules) if not each.held or each is waiter]
    place = next(index for index, each in enumerate(order) if each is waiter)
    if place >= POSITIONS:
        return None, f"{place} are ahead of it, too many to tell"
    waiting = tuple(order[: place + 1])
    now, limits, past = situation.now, False, False
    ends = {holder.run: end(holder, now) for holder in situation.holding}
    holding = {holder.run: holder for holder in situation.holding}
    for _ in range(EVENTS):
        here = replace(situation, waiting=waiting, holding=tuple(holding.values()), now=now)
        started, block = _started(here, waiter.run)
        if block is None:
            return now, _basis(limits, past)
        holding.update((holder.run, holder) for holder in started)
        ends.update((holder.run, end(holder, now)) for holder in started)
        gone = {holder.run for holder in started}
        waiting = tuple(each for each in waiting if each.run not in gone)
        back = [each.not_before for each in waiting if each.not_before is not None and each.not_before > now]
        soonest = min([*ends.values(), *back], default=math.inf)
        if soonest == math.inf:
            return None, _nothing_tells(
                here, waiter, block, [holding[run] for run, at in ends.items() if at == soonest]
            )
        now = max(now, soonest)
        ended = {run for run, at in ends.items() if at <= now}
        limits = limits or any(holding[run].expected_seconds is None for run in ended)
        past = past or any(holding[run].expected_seconds is not None for run in ended)
        for run in ended:
            del holding[run], ends[run]
        waiting = tuple(
            replace(each, after=tuple(name for name in each.after if name not in ended)) for each in waiting
        )
    return None, f"more than {EVENTS} others have to end before, too many to tell"


def _nothing_tells(situation: Situation, waiter: Waiter, block: Block, endless: list[Holder]) -> str:
    """Why the estimate ends here: what it waits for has no end that anybody knows of."""
    if block.kind in ("cordon", "suspected", "never"):
        return "nothing tells when the nodes that it needs can be used"
    if block.kind == "after":
        return f"nothing tells when {', '.join(block.names)} will have ended"
    if block.kind == "order" and not endless:
        return f"nothing tells when {block.names[0] if block.names else 'those ahead'} can start"
    if block.kind == "queue_quota" or (block.kind == "order" and block.about == "queue"):
        who = [holder.run for holder in endless if holder.queue == waiter.queue]
    elif block.kind == "active_runs":
        who = [holder.run for holder in endless]
    elif block.kind == "sweep":
        who = [holder.run for holder in endless if holder.sweep == waiter.sweep]
    elif block.kind in ("user_quota", "user_runs") or (block.kind == "order" and block.about in ("user", "runs")):
        who = [holder.run for holder in endless if holder.user == waiter.user]
    else:
        desk = Desk(situation)
        nodes = {desk.pool.rooms[number].node_id for number in desk.pool.usable((waiter.demand, waiter.excluded))}
        who = [holder.run for holder in endless if not nodes.isdisjoint(holder.nodes)]
    if not who and any(room.foreign.get("GPU") or room.foreign.get("CPU") for room in situation.rooms or ()):
        return "nothing tells when work that raydeck did not start gives back what it holds"
    if not who:
        return "nothing tells when what it waits for comes"
    names = who[0] if len(who) == 1 else f"{who[0]} and {len(who) - 1} more"
    return f"{names} {'has' if len(who) == 1 else 'have'} no time limit, and no such run has ended here yet"


def _started(situation: Situation, run: str) -> tuple[list[Holder], Block | None]:
    """Those that one pass lets go, as holders that run from now on; and what is in the way of ``run``, if anything."""
    desk = Desk(situation)
    started: list[Holder] = []
    for waiter in situation.waiting:
        block = desk.first(waiter)
        if waiter.run == run:
            return started, block
        if block is None:
            started.append(desk.start(waiter, desk.choose(waiter)))
        elif desk.competes(waiter):
            desk.stay(waiter, block)
    raise AssertionError(f"{run} does not wait")


def end(holder: Holder, now: float) -> float:
    """When it is likely to end; infinite where nothing tells."""
    if holder.leaving:
        return now + LEAVING_SECONDS
    begun = holder.started_at if holder.started_at is not None else now
    hard = math.inf if holder.limit_seconds is None else begun + holder.limit_seconds
    if holder.expected_seconds is None:
        return max(now, hard) if hard < math.inf else hard
    usual = begun + holder.expected_seconds
    if usual <= now:
        usual = now + max(1.0, OVERDUE * holder.expected_seconds)
    return max(now, min(usual, hard))


def _basis(limits: bool, past: bool) -> str:
    if limits and past:
        return "an estimate, from time limits and from how long such runs took"
    if limits:
        return "an estimate, from time limits: others may end earlier"
    return "an estimate, from how long such runs took" if past else "an estimate: nothing is in its way"
