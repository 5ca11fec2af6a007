"""What queues, users and sweeps may hold, and hold, during one pass."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from jobs.controller.schedule.pool import bound
from jobs.controller.schedule.types import Holder, Waiter
from jobs.spec import Scheduler


def user_quota(rules: Scheduler, user: str) -> int | None:
    """The most accelerators that the user may hold; None for no quota."""
    own = rules.user_quotas.get(user)
    return rules.limits.max_accelerators_per_user if own is None else own


def queue_quota(rules: Scheduler, queue: str) -> int | None:
    """The most accelerators that the queue may hold; None for no quota, or for a queue that is no longer there."""
    found = rules.queue(queue)
    return None if found is None else found.max_accelerators


class Quotas:
    """The sums, from admission to end."""

    def __init__(self, rules: Scheduler, holding: Sequence[Holder], now: float) -> None:
        self.rules = rules
        self.now = now
        self.holding = list(holding)
        self.queue: defaultdict[str, float] = defaultdict(float)
        self.user: defaultdict[str, float] = defaultdict(float)
        self.user_runs: defaultdict[str, int] = defaultdict(int)
        self.sweep: defaultdict[str, int] = defaultdict(int)
        self.active = 0
        self._queue_most: dict[str, float] = {}
        self._user_most: dict[str, float] = {}
        for holder in holding:
            self._add(holder)

    def _add(self, holder: Holder) -> None:
        self.queue[holder.queue] += holder.demand.accelerators
        self.user[holder.user] += holder.demand.accelerators
        self.user_runs[holder.user] += 1
        self.active += 1
        if holder.sweep:
            self.sweep[holder.sweep] += 1

    def take(self, holder: Holder) -> None:
        """A run that was let go counts from now on."""
        self.holding.append(holder)
        self._add(holder)

    def allow(self, waiter: Waiter) -> bool:
        """Whether its queue and its user may hold that much more."""
        asked = waiter.demand.accelerators
        return (
            self.queue[waiter.queue] + asked <= self.queue_most(waiter.queue)
            and self.user[waiter.user] + asked <= self.user_most(waiter.user)
        ) or not asked

    def queue_most(self, queue: str) -> float:
        """The queue's quota, infinite without one."""
        most = self._queue_most.get(queue)
        if most is None:
            quota = queue_quota(self.rules, queue)
            most = self._queue_most[queue] = math.inf if quota is None else float(quota)
        return most

    def user_most(self, user: str) -> float:
        """The user's quota, infinite without one."""
        most = self._user_most.get(user)
        if most is None:
            quota = user_quota(self.rules, user)
            most = self._user_most[user] = math.inf if quota is None else float(quota)
        return most

    def free_at(self, holders: Sequence[Holder], short: float) -> float:
        """By when these have given ``short`` accelerators back, by their time limits; infinite where they have none."""
        for end, _, holder in sorted((bound(each, self.now), each.run, each) for each in holders):
            short -= holder.demand.accelerators
            if short <= 0:
                return end
        return math.inf
