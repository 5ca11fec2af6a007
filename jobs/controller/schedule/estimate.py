"""When a run is likely to start: the pass, played forward from one expected end to the next. Never a promise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jobs.controller.schedule.desk import Block, Desk
from jobs.controller.schedule.order import ordered
from jobs.controller.schedule.types import Holder, Situation, Waiter

EVENTS = 60
"""So many ends are played forward."""
FORESEEN = 20
"""For so many of the first it is worked out all at once."""
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
    course = _Course(situation, tuple(order[: place + 1]))
    for _ in range(EVENTS):
        here = course.here()
        started, block = _started(here, waiter.run)
        if block is None:
            return course.now, _basis(course.limits, course.past)
        course.begin(started)
        if not course.go_on():
            return None, _nothing_tells(here, waiter, block, list(course.holding.values()))
    return None, f"more than {EVENTS} others have to end before, too many to tell"


def foresee(situation: Situation) -> dict[str, float]:
    """When each of the first that wait is likely to start, as far as it can be told."""
    if situation.rooms is None:
        return {}
    order = [each for each in ordered(situation.waiting, situation.rules) if not each.held]
    course = _Course(situation, tuple(order[:FORESEEN]))
    found: dict[str, float] = {}
    for _ in range(FORESEEN):
        started, _none = _started(course.here(), None)
        found.update((holder.run, course.now) for holder in started)
        course.begin(started)
        if not course.waiting or not course.go_on():
            break
    return found


@dataclass(slots=True)
class _Course:
    """What holds and waits, played forward from end to end."""

    situation: Situation
    waiting: tuple[Waiter, ...]
    now: float = field(init=False)
    holding: dict[str, Holder] = field(init=False)
    ends: dict[str, float] = field(init=False)
    limits: bool = False
    """An end on the way came from a time limit."""
    past: bool = False
    """An end on the way came from how long such runs took."""

    def __post_init__(self) -> None:
        self.now = self.situation.now
        self.holding = {holder.run: holder for holder in self.situation.holding}
        self.ends = {holder.run: end(holder, self.now) for holder in self.situation.holding}

    def here(self) -> Situation:
        """As it is at this point."""
        return replace(self.situation, waiting=self.waiting, holding=tuple(self.holding.values()), now=self.now)

    def begin(self, started: Sequence[Holder]) -> None:
        """These hold from now on."""
        for holder in started:
            self.holding[holder.run] = holder
            self.ends[holder.run] = end(holder, self.now)
        self.waiting = tuple(each for each in self.waiting if each.run not in self.holding)

    def go_on(self) -> bool:
        """To the next moment at which something may change; false where nothing tells of one."""
        now = self.now
        back = [each.not_before for each in self.waiting if each.not_before is not None and each.not_before > now]
        soonest = min([*self.ends.values(), *back], default=math.inf)
        if soonest == math.inf:
            return False
        self.now = max(now, soonest)
        ended = {run for run, at in self.ends.items() if at <= self.now}
        self.limits = self.limits or any(self.holding[run].expected_seconds is None for run in ended)
        self.past = self.past or any(self.holding[run].expected_seconds is not None for run in ended)
        for run in ended:
            del self.holding[run], self.ends[run]
        self.waiting = tuple(
            replace(each, after=tuple(name for name in each.after if name not in ended)) for each in self.waiting
        )
        return True


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


def _started(situation: Situation, run: str | None) -> tuple[list[Holder], Block | None]:
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
    return started, None


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
