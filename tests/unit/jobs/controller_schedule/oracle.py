"""What any plan has to keep, checked from the situation alone and with none of the scheduler's own parts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from jobs.controller.schedule.types import Demand, Holder, Plan, Room, Situation, Waiter
from tests.unit.jobs.controller_schedule.parts import let_go

SLACK = 1e-6


def in_order(situation: Situation) -> list[Waiter]:
    """A level of priority is worth ``ageing``; a place by hand goes before that; the older one decides."""
    ageing = situation.rules.ageing

    def stand(waiter: Waiter) -> float:
        return waiter.submitted_at - waiter.priority / 100 * ageing if waiter.place is None else waiter.place

    return sorted(situation.waiting, key=lambda each: (stand(each), each.submitted_at, each.run))


def gated(waiter: Waiter, now: float) -> bool:
    """It does not ask for anything yet."""
    return bool(waiter.held or waiter.after) or (waiter.not_before is not None and waiter.not_before > now)


def serves(room: Room, waiter: Waiter) -> bool:
    """Whether the node could take its part of the run if it were empty."""
    asked = waiter.demand
    return (
        not room.cordoned
        and room.name not in waiter.excluded
        and all(room.labels.get(name) == value for name, value in asked.labels)
        and all(
            room.total.get(name, 0.0) + SLACK >= amount
            for name, amount in (("GPU", asked.gpus), ("CPU", asked.cpus), ("memory", asked.memory_bytes))
        )
    )


def free(rooms: Iterable[Room], holders: Iterable[Holder]) -> dict[str, list[float]]:
    """GPUs, CPUs and bytes of memory by node id."""
    left = {
        room.node_id: [room.total.get(name, 0.0) - room.foreign.get(name, 0.0) for name in ("GPU", "CPU", "memory")]
        for room in rooms
    }
    for holder in holders:
        for node in holder.nodes:
            if node in left:
                for index, amount in enumerate(_each(holder.demand)):
                    left[node][index] -= amount
    return left


def _each(asked: Demand) -> tuple[float, float, float]:
    return asked.gpus, asked.cpus, float(asked.memory_bytes)


def has_room(waiter: Waiter, rooms: Sequence[Room], holders: Sequence[Holder]) -> bool:
    left = free(rooms, holders)
    asked = _each(waiter.demand)
    fitting = sum(
        serves(room, waiter)
        and all(has + SLACK >= amount for has, amount in zip(left[room.node_id], asked, strict=True))
        for room in rooms
    )
    return fitting >= waiter.demand.nodes


def quota_of_queue(situation: Situation, name: str) -> float:
    named = {queue.name: queue.max_accelerators for queue in situation.rules.queues}
    most = named.get(name)
    return math.inf if most is None else most


def quota_of_user(situation: Situation, name: str) -> float:
    most = situation.rules.user_quotas.get(name, situation.rules.limits.max_accelerators_per_user)
    return math.inf if most is None else most


def lacking(waiter: Waiter, situation: Situation, holders: Sequence[Holder]) -> set[str]:
    """Which quotas and limits keep it from joining these holders."""
    limits, asked = situation.rules.limits, waiter.demand.accelerators
    found: set[str] = set()
    if asked > 0:
        used = sum(each.demand.accelerators for each in holders if each.queue == waiter.queue)
        if used + asked > quota_of_queue(situation, waiter.queue) + SLACK:
            found.add("queue")
        used = sum(each.demand.accelerators for each in holders if each.user == waiter.user)
        if used + asked > quota_of_user(situation, waiter.user) + SLACK:
            found.add("user")
    most = limits.max_active_runs_per_user
    if most is not None and sum(each.user == waiter.user for each in holders) >= most:
        found.add("user_runs")
    if len(holders) >= limits.max_active_runs:
        found.add("active")
    most = waiter.sweep_parallel if waiter.sweep else None
    if most is not None and sum(each.sweep == waiter.sweep for each in holders) >= most:
        found.add("sweep")
    return found


def impossible(waiter: Waiter, situation: Situation) -> bool:
    """Nothing that runs could end would let it start as the cluster is now."""
    rooms = situation.rooms or ()
    return (
        waiter.demand.accelerators > quota_of_queue(situation, waiter.queue)
        or waiter.demand.accelerators > quota_of_user(situation, waiter.user)
        or sum(serves(room, waiter) for room in rooms) < waiter.demand.nodes
    )


@dataclass(frozen=True)
class Turn:
    """One that competes, when its turn comes: after all ahead of it had theirs."""

    waiter: Waiter
    holders: list[Holder]
    """With the runs that this pass lets go ahead of it."""
    started: Holder | None
    lacks: frozenset[str]
    room: bool


def turns(situation: Situation, plan: Plan) -> Iterator[Turn]:
    """All that compete, in order."""
    nodes = {start.run: start.node_ids for start in plan.starts}
    holders = list(situation.holding)
    for waiter in in_order(situation):
        if gated(waiter, situation.now):
            continue
        started = None
        if waiter.run in nodes:
            started = let_go(waiter, nodes[waiter.run], situation.now)
        lacks = frozenset(lacking(waiter, situation, holders))
        yield Turn(waiter, list(holders), started, lacks, has_room(waiter, situation.rooms or (), holders))
        if started is not None:
            holders.append(started)


def check(situation: Situation, plan: Plan) -> None:
    """Raises `AssertionError` with what the plan breaks."""
    if situation.rooms is None:
        assert not plan.starts, "Ray does not tell its nodes, and a run is let go"
        assert not plan.preemptions, "Ray does not tell its nodes, and a run has to leave"
        return
    _check_starts(situation, plan)
    seen = list(turns(situation, plan))
    _check_progress(situation, seen)
    _check_delay(situation, seen)
    _check_marks(situation, plan, seen)
    _check_preemptions(situation, plan)


def _check_starts(situation: Situation, plan: Plan) -> None:
    waiting = {each.run: each for each in situation.waiting}
    rooms = {each.node_id: each for each in situation.rooms or ()}
    runs = [start.run for start in plan.starts]
    assert len(set(runs)) == len(runs), f"let go twice: {runs}"
    holders = list(situation.holding)
    for start in plan.starts:
        assert start.run in waiting, f"{start.run} does not wait"
        waiter = waiting[start.run]
        assert not gated(waiter, situation.now), f"{start.run} is held, waits for another or backs off"
        assert len(set(start.node_ids)) == len(start.node_ids) == waiter.demand.nodes, f"{start} is no whole gang"
        for node in start.node_ids:
            assert serves(rooms[node], waiter), f"{start.run} is not to go to {node}"
        holders.append(let_go(waiter, start.node_ids, situation.now))
    touched = {node for start in plan.starts for node in start.node_ids}
    for node, left in free(rooms.values(), holders).items():
        assert node not in touched or min(left) >= -SLACK, f"{node} gives out more than it has: {left}"
    _check_quotas(situation, plan, holders)


def _check_quotas(situation: Situation, plan: Plan, holders: Sequence[Holder]) -> None:
    begun = {start.run for start in plan.starts}
    fresh = [each for each in holders if each.run in begun and each.demand.accelerators > 0]
    queues: defaultdict[str, float] = defaultdict(float)
    users: defaultdict[str, float] = defaultdict(float)
    for each in holders:
        queues[each.queue] += each.demand.accelerators
        users[each.user] += each.demand.accelerators
    for each in fresh:
        assert queues[each.queue] <= quota_of_queue(situation, each.queue) + SLACK, f"queue {each.queue} has too much"
        assert users[each.user] <= quota_of_user(situation, each.user) + SLACK, f"user {each.user} has too much"
    if begun:
        limits = situation.rules.limits
        assert len(holders) <= limits.max_active_runs, "too many runs at once"
        runs = Counter(each.user for each in holders)
        sweeps = Counter(each.sweep for each in holders if each.sweep)
        for waiter in situation.waiting:
            if waiter.run not in begun:
                continue
            most = limits.max_active_runs_per_user
            assert most is None or runs[waiter.user] <= most, f"{waiter.user} has too many runs"
            if waiter.sweep and waiter.sweep_parallel is not None:
                assert sweeps[waiter.sweep] <= waiter.sweep_parallel, f"{waiter.sweep} has too many runs"


def _check_progress(situation: Situation, seen: Sequence[Turn]) -> None:
    """Who can start, starts, unless one ahead of it waits for what it would take."""
    blocked: list[Turn] = []
    for turn in seen:
        able = turn.room and not turn.lacks
        assert turn.started is None or able, f"{turn.waiter.run} starts without {sorted(turn.lacks) or 'room'}"
        if turn.started is None and able:
            assert any(_competes(situation, ahead, turn.waiter) for ahead in blocked), (
                f"{turn.waiter.run} could start, and nobody ahead of it waits for what it takes"
            )
        if turn.started is None and not impossible(turn.waiter, situation):
            blocked.append(turn)


def _competes(situation: Situation, ahead: Turn, waiter: Waiter) -> bool:
    if ahead.lacks & {"sweep", "user_runs", "active"}:
        return False
    both = ahead.waiter.demand.accelerators > 0 and waiter.demand.accelerators > 0
    if both and (ahead.waiter.queue == waiter.queue or ahead.waiter.user == waiter.user):
        return True
    if ahead.lacks:
        return False
    if ahead.waiter.user == waiter.user and situation.rules.limits.max_active_runs_per_user is not None:
        return True
    return any(serves(room, waiter) and serves(room, ahead.waiter) for room in situation.rooms or ())


# --- nobody behind delays one ahead -----------------------------------------------------------------------------------


def ends_at_the_soonest(holder: Holder, now: float) -> float:
    """By its time limit; one that leaves may be gone at once."""
    if holder.leaving:
        return now
    if holder.limit_seconds is None:
        return math.inf
    begun = now if holder.started_at is None else holder.started_at
    return max(now, begun + holder.limit_seconds)


def _ready(turn: Turn, situation: Situation, holders: Sequence[Holder]) -> bool:
    """Whether what it waits for is there beside these holders.

    A place among all active runs is not kept for it: as a rule whoever gives it room gives that back too. Nor is one of
    its sweep: which of a sweep's runs goes first is all the same.
    """
    lacks = lacking(turn.waiter, situation, holders) - {"active", "sweep"}
    quotas = turn.lacks & {"queue", "user"}
    if quotas:
        return not quotas & lacks
    return not lacks and has_room(turn.waiter, situation.rooms or (), holders)


def known_start(turn: Turn, situation: Situation) -> float:
    """When it gets what it waits for if all run until their limits; infinite where those do not help."""
    ends = sorted({ends_at_the_soonest(each, situation.now) for each in turn.holders} - {math.inf})
    for end in ends:
        if _ready(turn, situation, [each for each in turn.holders if ends_at_the_soonest(each, situation.now) > end]):
            return end
    return math.inf


def _check_delay(situation: Situation, seen: Sequence[Turn]) -> None:
    for index, turn in enumerate(seen):
        behind = [other.started for other in seen[index + 1 :] if other.started is not None]
        reserves = turn.started is None and not turn.lacks & {"sweep", "user_runs", "active"}
        if not behind or not reserves or (turn.room and not turn.lacks) or impossible(turn.waiter, situation):
            continue
        known = known_start(turn, situation) if situation.rules.backfill else math.inf
        lasting = [
            each for each in behind if known == math.inf or ends_at_the_soonest(each, situation.now) > known + SLACK
        ]
        if not lasting:
            continue
        # Whoever of the others ends, and whenever: it starts as soon as it would without those that passed it.
        for size in range(len(turn.holders) + 1):
            for left in combinations(turn.holders, size):
                if _ready(turn, situation, left):
                    assert _ready(turn, situation, [*left, *lasting]), (
                        f"{[each.run for each in lasting]} may delay {turn.waiter.run}, which could start beside "
                        f"{[each.run for each in left]} alone, at {known - situation.now} s"
                    )


def _check_marks(situation: Situation, plan: Plan, seen: Sequence[Turn]) -> None:
    """A start is marked as backfilled exactly if it passed one that waits for room."""
    marks = {start.run: start.backfilled for start in plan.starts}
    passed = False
    for turn in seen:
        if turn.started is not None:
            assert marks[turn.waiter.run] or not passed, f"{turn.waiter.run} is not marked as backfilled"
            assert passed or not marks[turn.waiter.run] or _held_back(seen, turn), (
                f"{turn.waiter.run} is marked as backfilled, and passed nobody"
            )
        elif not turn.lacks and not turn.room and not impossible(turn.waiter, situation):
            passed = True


def _held_back(seen: Sequence[Turn], turn: Turn) -> bool:
    """One ahead has room and is kept from it by another one ahead."""
    ahead = seen[: seen.index(turn)]
    return any(other.started is None and not other.lacks for other in ahead)


def _check_preemptions(situation: Situation, plan: Plan) -> None:
    if not plan.preemptions:
        return
    assert situation.rules.preemption, "preemption is off"
    holding = {each.run: each for each in situation.holding}
    waiting = {each.run: each for each in situation.waiting}
    begun = {start.run for start in plan.starts}
    runs = [each.run for each in plan.preemptions]
    assert len(set(runs)) == len(runs), f"asked to leave twice: {runs}"
    for name in {each.for_run for each in plan.preemptions}:
        waiter = waiting[name]
        assert name not in begun, f"{name} starts, and others leave for it"
        assert not gated(waiter, situation.now), f"others leave for {name}, which does not compete"
        chosen = [holding[each.run] for each in plan.preemptions if each.for_run == name]
        for victim in chosen:
            assert victim.preemptible, f"{victim.run} cannot leave"
            assert not victim.leaving, f"{victim.run} leaves already"
            assert victim.priority < waiter.priority, f"{victim.run} has no lower priority than {name}"
        stay = [each for each in situation.holding if not each.leaving]
        for kept in [None, *chosen]:
            gone = {each.run for each in chosen if each is not kept}
            left = [each for each in stay if each.run not in gone]
            fits = not lacking(waiter, situation, left) and has_room(waiter, situation.rooms or (), left)
            if kept is None:
                assert fits, f"{name} cannot start even when {sorted(gone)} have left"
            else:
                assert not fits, f"{kept.run} leaves for nothing"
