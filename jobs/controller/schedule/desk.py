"""One pass over those that wait: what is in each one's way, and what its waiting keeps from those behind it.

Plan, page and explanation all ask this, so that they never disagree.

A run that waits for room reserves: one behind it may start only where it cannot delay it. That is certain in two
cases: on a node that keeps room for all that reserve it, or that none of them can use; and where the one ahead starts
at a moment that the time limits of others give, and the one behind has to end by its own time limit before that.
A run that waits for a quota keeps that quota, and no nodes: they are for those that may start. Neither a place in its
sweep nor one of the cluster's active runs is kept for anybody: those come back with every end.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from jobs.controller.schedule.keeping import Keeping, Kept
from jobs.controller.schedule.pool import Pool, large_enough
from jobs.controller.schedule.quotas import Quotas
from jobs.controller.schedule.types import Holder, Shape, Situation, Waiter
from jobs.queueview import BlockerKind

RESERVATIONS = 32
"""So many that wait for room are protected one by one; behind them only what touches none of the others may pass."""
SHAPES = 256
"""So many different demands are looked at in one pass, the first ones first: it stays bounded, whatever is asked."""
APART = frozenset({"hold", "after", "back_off"})
"""In the way of a run that does not compete for what is free: nothing is kept for it."""
MARGIN_SECONDS = 120.0
"""What a run may take beyond its time limit: to start, to save and to leave."""


class Block(NamedTuple):
    """One thing in a run's way. Words are made of it only for those who read them."""

    kind: BlockerKind
    names: tuple[str, ...] = ()
    """Runs that are ahead and keep what it would take, or nodes."""
    about: str = ""
    """For ``order`` what those ahead keep (``queue``, ``user``, ``runs``, ``room``); for ``never`` whose quota."""
    short: float = 0.0
    """How many accelerators are missing from a quota."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """A run that waits for room."""

    run: str
    shape: Shape
    nodes: frozenset[int]
    """All that it could use."""


_Sums = tuple[list[float], list[float], list[float]]


@dataclass(slots=True)
class Desk:
    """The state of one pass."""

    situation: Situation
    pool: Pool = field(init=False)
    quotas: Quotas = field(init=False)
    reserved: list[Reserved] = field(default_factory=list[Reserved])
    queues: Keeping = field(init=False)
    users: Keeping = field(init=False)
    slots: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The runs of each user that wait for room: each will be an active one. Kept where users have a limit of those."""
    limits: bool = field(init=False)
    """Whether any that waits has a time limit: else nobody asks when another one starts."""
    beyond: set[int] = field(default_factory=set[int])
    """Nodes that runs could use that wait for room and are not protected one by one."""
    beyond_by: str = ""
    """The first of those."""
    _reserved_nodes: set[int] = field(default_factory=set[int])
    _start_of: dict[Shape, float] = field(default_factory=dict[Shape, float])
    _starts: list[float] | None = None
    """When those that reserve start at the latest, sorted; None until somebody asks."""
    _sums: dict[int, _Sums] = field(default_factory=dict[int, _Sums])
    _full: dict[Shape, Block] = field(default_factory=dict[Shape, Block])
    """What was found to have no room; it stays so for the rest of the pass."""
    _firsts: dict[object, Block] = field(default_factory=dict[object, Block])
    _behind: dict[tuple[Shape, int], Block] = field(default_factory=dict[tuple[Shape, int], Block])
    """What would have room, if it did not belong to those ahead."""
    _beyond_shapes: set[Shape] = field(default_factory=set[Shape])

    def __post_init__(self) -> None:
        situation = self.situation
        self.pool = Pool(situation.rooms or (), situation.holding, situation.now)
        self.quotas = Quotas(situation.rules, situation.holding, situation.now)
        self.queues, self.users = Keeping(self.quotas, "queue"), Keeping(self.quotas, "user")
        self.limits = any(waiter.limit_seconds is not None for waiter in situation.waiting)

    # --- what is in the way -------------------------------------------------------------------------------------------

    def competes(self, waiter: Waiter) -> bool:
        """Whether it would take what is free: not while it is held, waits for another run's end, or backs off."""
        if waiter.held or waiter.after:
            return False
        return waiter.not_before is None or waiter.not_before <= self.situation.now

    def first(self, waiter: Waiter) -> Block | None:
        """What matters most of what is in its way; None for one that can start now.

        What stopped one stops all behind it that are like it: in the course of a pass things only get fewer.
        """
        if self.situation.rooms is None or not self.competes(waiter):
            return next(self.blocks(waiter), None)
        block = self._firsts.get(waiter.alike)
        if block is None:
            block = next(self.blocks(waiter), None)
            if block is not None:
                self._firsts[waiter.alike] = block
        return block

    def blocks(self, waiter: Waiter) -> Iterator[Block]:
        """All that is in its way, what matters most first; nothing for one that can start now."""
        if waiter.held:
            yield Block("hold")
        if waiter.after:
            yield Block("after", waiter.after)
        if waiter.not_before is not None and waiter.not_before > self.situation.now:
            yield Block("back_off")
        if self.situation.rooms is None:
            yield Block("ray")
        limits, quotas, user = self.situation.rules.limits, self.quotas, waiter.user
        if waiter.sweep and waiter.sweep_parallel is not None and quotas.sweep[waiter.sweep] >= waiter.sweep_parallel:
            yield Block("sweep")
        most_runs = limits.max_active_runs_per_user
        if most_runs is not None:
            ahead = self.slots.get(user, ())
            if quotas.user_runs[user] >= most_runs:
                yield Block("user_runs")
            elif quotas.user_runs[user] + len(ahead) >= most_runs:
                yield Block("order", tuple(ahead), "runs")
        accelerators = waiter.demand.accelerators
        if accelerators > 0:
            most, used = quotas.queue_most(waiter.queue), quotas.queue[waiter.queue]
            block = self._quota(waiter, "queue", most, used, self.queues.kept.get(waiter.queue))
            if block is not None:
                yield block
            most, used = quotas.user_most(user), quotas.user[user]
            block = self._quota(waiter, "user", most, used, self.users.kept.get(user))
            if block is not None:
                yield block
        if quotas.active >= limits.max_active_runs:
            yield Block("active_runs")
        if self.situation.rooms is not None:
            block = self._room(waiter)
            if block is not None:
                yield block
                if block.kind == "resources":
                    # Also what comes free belongs to those first.
                    names = tuple(self._in_front(waiter.shape))
                    if names:
                        yield Block("order", names, "room")

    def _quota(
        self, waiter: Waiter, whose: Literal["queue", "user"], most: float, used: float, kept: Kept | None
    ) -> Block | None:
        accelerators = waiter.demand.accelerators
        if accelerators > most:
            return Block("never", about=whose)
        if used + accelerators > most:
            return Block("queue_quota" if whose == "queue" else "user_quota", short=used + accelerators - most)
        if kept is None or (not kept.whole and used + kept.amount + accelerators <= most):
            return None
        return None if self._ends_by(waiter, kept.start) else Block("order", (kept.run,), whose)

    def _ends_by(self, waiter: Waiter, start: float) -> bool:
        limit = waiter.limit_seconds
        return (
            self.situation.rules.backfill and limit is not None and self.situation.now + limit + MARGIN_SECONDS <= start
        )

    def _room(self, waiter: Waiter) -> Block | None:
        shape = waiter.shape
        known = self._full.get(shape)
        if known is not None:
            return known
        if not self.pool.knows(shape) and self.pool.seen_shapes >= SHAPES:
            return Block("order", (self.beyond_by,) if self.beyond_by else (), "many")
        usable, needed = self.pool.usable(shape), waiter.demand.nodes
        if len(usable) < needed:
            found = self._full[shape] = self._out_of_reach(waiter, len(usable))
            return found
        exempt = self._waiting_past(waiter)
        known = self._behind.get((shape, exempt))
        if known is not None:
            return known
        free = self.pool.with_room(shape)
        if len(free) < needed:
            found = self._full[shape] = Block("resources")
            return found
        if len(self._harmless(waiter, free)) < needed:
            found = self._behind[shape, exempt] = Block("order", tuple(self._in_front(shape)), "room")
            return found
        return None

    def _out_of_reach(self, waiter: Waiter, usable: int) -> Block:
        """Not enough nodes could ever take it as things stand: whose doing is that?"""
        able = [room for room in self.pool.rooms if large_enough(room, waiter.demand)]
        cordoned = tuple(room.name for room in able if room.cordoned and room.name not in waiter.excluded)
        suspected = tuple(room.name for room in able if room.name in waiter.excluded)
        if cordoned and usable + len(cordoned) >= waiter.demand.nodes:
            return Block("cordon", cordoned)
        if suspected:
            return Block("suspected", suspected)
        return Block("never")

    def _in_front(self, shape: Shape) -> Iterator[str]:
        nodes = set(self.pool.usable(shape))
        for each in self.reserved:
            if not nodes.isdisjoint(each.nodes):
                yield each.run
        if self.beyond_by and not nodes.isdisjoint(self.beyond):
            yield self.beyond_by

    # --- where it may go ----------------------------------------------------------------------------------------------

    def _harmless(self, waiter: Waiter, numbers: list[int]) -> list[int]:
        """Of these nodes, those where it takes nothing from a run that is ahead and waits for room."""
        if not self.reserved:
            return numbers
        demand, pool = waiter.demand, self.pool
        if not self.situation.rules.backfill:
            taken = self._reserved_nodes | self.beyond
            return [number for number in numbers if number not in taken]
        exempt = self._waiting_past(waiter)
        gpus, cpus, memory = self._kept(exempt)
        return [
            number
            for number in numbers
            if number not in self.beyond
            and pool.gpus[number] - demand.gpus >= gpus[number]
            and pool.cpus[number] - demand.cpus >= cpus[number]
            and pool.memory[number] - demand.memory_bytes >= memory[number]
        ]

    def _waiting_past(self, waiter: Waiter) -> int:
        """How many of those ahead, the last ones to start, cannot start before this one has to be gone."""
        if waiter.limit_seconds is None or not self.reserved:
            return 0
        if self._starts is None:
            self._starts = sorted(map(self._known_start, self.reserved))
        gone = self.situation.now + waiter.limit_seconds + MARGIN_SECONDS
        return len(self._starts) - bisect_left(self._starts, gone)

    def start_of(self, reserved: Reserved) -> float:
        """By when it can start, as far as time limits tell; infinite where they do not."""
        known = self._start_of.get(reserved.shape)
        if known is None:
            demand = reserved.shape[0]
            times = sorted(self.pool.free_at(reserved.nodes, demand))
            known = times[demand.nodes - 1] if len(times) >= demand.nodes else math.inf
            self._start_of[reserved.shape] = known
        return known

    def _known_start(self, reserved: Reserved) -> float:
        """For comparison: what is not known is never late enough for anybody to pass."""
        start = self.start_of(reserved)
        return start if start < math.inf else -math.inf

    def _kept(self, exempt: int) -> _Sums:
        """What has to stay free on each node for those ahead, but for so many that start last.

        A node that has no room for one of them at this moment is not to be touched either: it may be the next that has.
        """
        known = self._sums.get(exempt)
        if known is None:
            size = len(self.pool.rooms)
            known = self._sums[exempt] = ([-math.inf] * size, [-math.inf] * size, [-math.inf] * size)
            for each in sorted(self.reserved, key=self._known_start)[: len(self.reserved) - exempt]:
                _add(known, each)
        return known

    # --- what follows -------------------------------------------------------------------------------------------------

    def choose(self, waiter: Waiter) -> list[int]:
        """The nodes that it goes to; only for one that nothing blocks."""
        free = self._harmless(waiter, self.pool.with_room(waiter.shape))
        return self.pool.best(free, waiter.demand)

    def start(self, waiter: Waiter, numbers: list[int]) -> Holder:
        """It holds these from now on."""
        holder = Holder(
            run=waiter.run,
            user=waiter.user,
            queue=waiter.queue,
            priority=waiter.priority,
            demand=waiter.demand,
            nodes=tuple(self.pool.rooms[number].node_id for number in numbers),
            started_at=self.situation.now,
            limit_seconds=waiter.limit_seconds,
            expected_seconds=waiter.expected_seconds,
            sweep=waiter.sweep,
        )
        self.pool.take(numbers, holder)
        self.quotas.take(holder)
        self._start_of.clear()
        self._starts = None
        self.queues.started()
        self.users.started()
        return holder

    def stay(self, waiter: Waiter, block: Block) -> None:
        """It goes on waiting, and what it waits for is kept from those behind it; not while no nodes could take it."""
        if block.kind in ("queue_quota", "user_quota") or (block.kind == "order" and block.about in ("queue", "user")):
            if self._has_nodes(waiter):
                self.queues.whole(waiter.queue, waiter)
                self.users.whole(waiter.user, waiter)
        elif block.kind == "resources" or (block.kind == "order" and block.about == "room"):
            # What waits for room was found to have nodes that could take it.
            start = self._reserve(waiter)
            if self.situation.rules.limits.max_active_runs_per_user is not None:
                self.slots.setdefault(waiter.user, []).append(waiter.run)
            self.queues.part(waiter.queue, waiter, start)
            self.users.part(waiter.user, waiter, start)

    def _has_nodes(self, waiter: Waiter) -> bool:
        """Whether enough nodes could take it; also where that is not looked at any more."""
        looked = self.pool.knows(waiter.shape) or self.pool.seen_shapes < SHAPES
        return not looked or len(self.pool.usable(waiter.shape)) >= waiter.demand.nodes

    def _reserve(self, waiter: Waiter) -> float:
        """Keep room for it; gives by when it can start, infinite where that cannot be told."""
        shape = waiter.shape
        if shape in self._beyond_shapes:
            return math.inf
        if len(self.reserved) < RESERVATIONS:
            nodes = frozenset(self.pool.usable(shape))
            new = Reserved(waiter.run, shape, nodes)
            self.reserved.append(new)
            self._reserved_nodes |= nodes
            self._starts = None
            # Those sums that leave nobody out just grow; the others are made again when they are asked for.
            self._sums = {0: sums} if (sums := self._sums.get(0)) is not None else {}
            if 0 in self._sums:
                _add(self._sums[0], new)
            return self.start_of(new) if self.limits else math.inf
        self._beyond_shapes.add(shape)
        self.beyond.update(self.pool.usable(shape))
        self.beyond_by = self.beyond_by or waiter.run
        return math.inf


def _add(sums: _Sums, reserved: Reserved) -> None:
    """Keep its part free on each node that it could use."""
    demand = reserved.shape[0]
    for kept, asked in zip(sums, (demand.gpus, demand.cpus, float(demand.memory_bytes)), strict=True):
        for number in reserved.nodes:
            before = kept[number]
            kept[number] = asked if before == -math.inf else before + asked
