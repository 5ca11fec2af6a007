"""What those ahead keep of the quotas that they wait for, or that they have and cannot use yet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from jobs.controller.schedule.quotas import Quotas
from jobs.controller.schedule.types import Waiter


@dataclass(slots=True)
class Kept:
    """What those ahead keep of a quota."""

    run: str
    """The first of them."""
    amount: float = 0.0
    """What those take that have the quota, and wait for room."""
    whole: bool = False
    """One of them waits for the quota itself: all of the rest is kept."""
    start: float = math.inf
    """By when the first of them gets what it waits for, by the time limits of others. What those do not tell is minus
    infinity: never late enough for anybody to pass.
    """


class Keeping:
    """What is kept of the quotas of the queues, or of those of the users, in the course of one pass."""

    def __init__(self, quotas: Quotas, whose: Literal["queue", "user"]) -> None:
        self.whose: Literal["queue", "user"] = whose
        self.kept: dict[str, Kept] = {}
        """By the queue's or the user's name."""
        self._quotas = quotas
        self._used, self._most = (
            (quotas.queue, quotas.queue_most) if whose == "queue" else (quotas.user, quotas.user_most)
        )
        self._back_at: dict[tuple[str, float], float] = {}

    def started(self) -> None:
        """One was let go: what was known of when a quota comes back is no longer so."""
        self._back_at.clear()

    def part(self, name: str, waiter: Waiter, start: float) -> None:
        """It has the quota, and takes its part of it by ``start``, when it has room."""
        if self._most(name) == math.inf:
            return
        there = self.kept.get(name)
        if there is None:
            there = self.kept[name] = Kept(waiter.run)
        there.amount += waiter.demand.accelerators
        there.start = min(there.start, start if start < math.inf else -math.inf)

    def whole(self, name: str, waiter: Waiter) -> None:
        """It keeps all that is left, if it is short of the quota or one ahead of it waits for that."""
        short = self._used[name] - self._most(name) + waiter.demand.accelerators
        there = self.kept.get(name)
        if short > 0:
            start = self._comes_back(name, short)
        elif there is None or short + there.amount <= 0:
            return
        else:
            start = -math.inf
        if there is None:
            there = self.kept[name] = Kept(waiter.run)
        there.whole = True
        there.start = min(there.start, start)

    def _comes_back(self, name: str, short: float) -> float:
        """By when so much of it comes back."""
        known = self._back_at.get((name, short))
        if known is None:
            holders = [each for each in self._quotas.holding if getattr(each, self.whose) == name]
            known = self._quotas.free_at(holders, short)
            known = self._back_at[name, short] = known if known < math.inf else -math.inf
        return known
