"""Why a run waits, in words: from the same pass that decides, so that it is never another opinion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobs.controller.schedule.desk import Block, Desk
from jobs.controller.schedule.estimate import estimate
from jobs.controller.schedule.fits import accelerators, count, lack, wanted
from jobs.controller.schedule.order import key, ordered
from jobs.controller.schedule.quotas import queue_quota, user_quota
from jobs.controller.schedule.types import Holder, Room, Situation, Waiter
from jobs.model import RunState
from jobs.queueview import Ahead, Blocker, Explanation, NodeNote
from jobs.spans import span
from jobs.values import PRIORITIES

AHEAD_SHOWN = 20
NODES_SHOWN = 64
NAMES_SHOWN = 6
LOOKED_AT = 64
"""Of the nodes that are full: who holds them is named for so many."""

_WORDS = {value: word for word, value in PRIORITIES.items()}


def explain(run: str, state: RunState, situation: Situation) -> Explanation:
    """All that is in a run's way, who is ahead, and what would have to change."""
    order = ordered(situation.waiting, situation.rules)
    waiter = next((each for each in order if each.run == run), None)
    if waiter is None:
        return Explanation(run=run, state=state, sentence=_not_waiting(run, state))
    desk = Desk(situation)
    before: list[tuple[Waiter, Block | None]] = []
    for each in order:
        if each is waiter:
            break
        before.append((each, step(desk, each)))
    # As everybody sees it on the page, first; then whatever else there is.
    first = desk.first(waiter)
    blocks = [] if first is None else [first, *(block for block in desk.blocks(waiter) if block != first)]
    blockers = [blocker(desk, waiter, block) for block in blocks]
    ahead = [(each, block) for each, block in before if not each.held]
    position = None if waiter.held else len(ahead) + 1
    start, told = (None, "it is held") if waiter.held else estimate(waiter, situation)
    return Explanation(
        run=run,
        state=state,
        sentence=blockers[0].sentence if blockers else "nothing is in its way: it starts at once",
        position=position,
        ahead=[_ahead(desk, waiter, each, block) for each, block in ahead[:AHEAD_SHOWN]],
        ahead_total=len(ahead),
        blocked_by=blockers,
        would_start_if=[each.would_start_if for each in blockers if each.would_start_if],
        nodes=_notes(desk, waiter),
        estimated_start=start,
        estimated_from=told,
    )


def step(desk: Desk, waiter: Waiter) -> Block | None:
    """What the pass does with one run: let it go, or have it wait for what its first block says."""
    block = desk.first(waiter)
    if block is None:
        desk.start(waiter, desk.choose(waiter))
    elif desk.competes(waiter):
        desk.stay(waiter, block)
    return block


def _not_waiting(run: str, state: RunState) -> str:
    if state.ended:
        return f"{run} does not wait: it has ended ({state.value})"
    return f"{run} does not wait: it is {state.value}"


def blocker(desk: Desk, waiter: Waiter, block: Block) -> Blocker:
    """A block in words."""
    sentence, change, names = _say(desk, waiter, block)
    return Blocker(kind=block.kind, sentence=sentence, would_start_if=change, names=list(names))


def _say(desk: Desk, waiter: Waiter, block: Block) -> tuple[str, str, Sequence[str]]:
    situation = desk.situation
    rules, limits = situation.rules, situation.rules.limits
    match block.kind:
        case "hold":
            who = waiter.held.partition(":")[0]
            return f"it is held by {waiter.held}", f"{who} or an operator releases it", [who]
        case "after":
            ends = "ends" if len(block.names) == 1 else "end"
            return f"it waits for {_list(block.names)} to end", f"{_list(block.names)} {ends}", block.names
        case "back_off":
            left = max(0.0, (waiter.not_before or 0.0) - situation.now)
            return f"its last attempt failed; it tries again in {span(left)}", f"{span(left)} pass", []
        case "ray":
            return f"Ray does not tell its nodes: {situation.silent}", "Ray answers the controller again", []
        case "sweep":
            most = waiter.sweep_parallel or 0
            return (
                f"{count(most, 'run')} of its sweep may hold something at once, and as many do",
                f"another run of the sweep {waiter.sweep} ends",
                [waiter.sweep],
            )
        case "user_runs":
            most = limits.max_active_runs_per_user or 0
            return (
                f"{waiter.user} has {count(most, 'active run')}, and more are not allowed to one user",
                f"one of {waiter.user}'s runs ends",
                [waiter.user],
            )
        case "active_runs":
            most = limits.max_active_runs
            verb = "is" if most == 1 else "are"
            return f"{count(most, 'run')} {verb} active, the most that may be", "any of them ends", []
        case "queue_quota":
            holders = [each for each in situation.holding if each.queue == waiter.queue]
            quota = queue_quota(rules, waiter.queue) or 0
            return _quota(f"queue {waiter.queue}", quota, desk.quotas.queue[waiter.queue], waiter, block, holders)
        case "user_quota":
            holders = [each for each in situation.holding if each.user == waiter.user]
            quota = user_quota(rules, waiter.user) or 0
            return _quota(f"user {waiter.user}", quota, desk.quotas.user[waiter.user], waiter, block, holders)
        case "order":
            return _order(desk, waiter, block)
        case "cordon":
            names = _list(block.names)
            return (
                f"it needs {wanted(waiter.demand)}, and {names} {_is(block.names)} cordoned",
                f"{names} {_is(block.names)} uncordoned",
                block.names,
            )
        case "suspected":
            return (
                f"it is kept off {_list(block.names)}, suspected twice, and too few nodes are left for it",
                "a node comes back or is added, or it is launched anew",
                block.names,
            )
        case "never" if block.about:
            quota = queue_quota(rules, waiter.queue) if block.about == "queue" else user_quota(rules, waiter.user)
            whose = f"queue {waiter.queue}" if block.about == "queue" else f"user {waiter.user}"
            asked = waiter.demand.accelerators
            return (
                f"it asks for {accelerators(asked)}, and the quota of {whose} is {quota}",
                f"the quota of {whose} is raised to {asked:g}",
                [whose.partition(" ")[2]],
            )
        case "never":
            able = sum(not lack(room, waiter.demand) for room in situation.rooms or ())
            return (
                f"it needs {wanted(waiter.demand)}, and of the nodes that are alive only {able} can ever hold that",
                "such nodes are added, or come back",
                [],
            )
        case "resources":
            return _resources(desk, waiter)


def _quota(
    whose: str, quota: int, held: float, waiter: Waiter, block: Block, holders: Sequence[Holder]
) -> tuple[str, str, Sequence[str]]:
    names = [each.run for each in holders if each.demand.accelerators]
    sentence = (
        f"the quota of {whose} is {accelerators(quota)}, {held:g} {'is' if held == 1 else 'are'} held"
        f"{f' by {_list(names)}' if names else ''}, and it asks for {waiter.demand.accelerators:g}"
    )
    change = f"{accelerators(block.short)} of {whose} come free, or its quota is raised to {quota + block.short:g}"
    return sentence, change, names


def _order(desk: Desk, waiter: Waiter, block: Block) -> tuple[str, str, Sequence[str]]:
    names = _list(block.names) or "many others"
    if block.about == "many":
        return "very many that ask for other things are ahead of it", "some of those start", block.names
    what = {
        "runs": f"one of the runs that {waiter.user} may have active",
        "queue": f"the quota of queue {waiter.queue}",
        "user": f"the quota of user {waiter.user}",
    }.get(block.about, "the room that it would take")
    limit = _why_not_past(desk, waiter, block)
    if len(block.names) > 1:
        limit = limit.replace("that one", "those")
    waits = "waits" if len(block.names) == 1 else "wait"
    starts = "starts" if len(block.names) == 1 else "start"
    told = f"{names} {_is(block.names)} ahead and {waits} for {what}"
    return f"{told}; {limit}" if limit else told, f"{names} {starts}", block.names


def _why_not_past(desk: Desk, waiter: Waiter, block: Block) -> str:
    """Why it does not pass those ahead; empty where nothing could let it."""
    if block.about == "runs":
        return ""
    if not desk.situation.rules.backfill:
        return "none passes another here: backfill is off"
    if waiter.limit_seconds is None:
        return "it has no time limit, so it could hold that one up"
    return f"with its limit of {span(waiter.limit_seconds)} it could hold that one up"


def _resources(desk: Desk, waiter: Waiter) -> tuple[str, str, Sequence[str]]:
    pool, demand = desk.pool, waiter.demand
    shape = (demand, waiter.excluded)
    free = pool.with_room(shape)
    able = set(free)
    full = [number for number in pool.usable(shape) if number not in able]
    missing = demand.nodes - len(free)
    names = list(dict.fromkeys(each.run for number in full[:LOOKED_AT] for each in pool.holders[number]))
    foreign = any(pool.rooms[number].foreign.get("GPU", 0.0) > 0 for number in full[:LOOKED_AT])
    ready = (
        f"{_list([pool.rooms[number].name for number in free])} could take it" if free else "no node has room for it"
    )
    sentence = f"it needs {wanted(demand)}; {ready}"
    if demand.nodes > 1 and free:
        sentence += f", {count(missing, 'more node')} {'has' if missing == 1 else 'have'} to"
    who = [f"{_list(names)} {'holds' if len(names) == 1 else 'hold'} what is missing"] if names else []
    if foreign:
        who.append("work that raydeck did not start holds some of it")
    where = _list([pool.rooms[number].name for number in full])
    asked = wanted(replace(demand, nodes=1)).removeprefix("1 node with ")
    change = f"{asked} come free on {count(missing, 'node')} of {where}"
    return "; ".join([sentence, *who]), change, names


def _ahead(desk: Desk, waiter: Waiter, other: Waiter, block: Block | None) -> Ahead:
    why = _goes_first(desk, waiter, other)
    state = "it starts now" if block is None else blocker(desk, other, block).sentence
    return Ahead(
        run=other.run,
        user=other.user,
        queue=other.queue,
        priority=_WORDS.get(other.priority, str(other.priority)),
        gpus=round(other.demand.accelerators),
        sentence=f"{why}; {state}",
    )


def _goes_first(desk: Desk, waiter: Waiter, other: Waiter) -> str:
    if other.place is not None or waiter.place is not None:
        return "put ahead by hand"
    if other.priority > waiter.priority:
        return "higher priority"
    if other.priority < waiter.priority:
        gap = key(waiter, desk.situation.rules) - key(other, desk.situation.rules)
        return f"lower priority, but it has waited longer by more than that is worth ({span(max(gap, 1.0))})"
    return "it came earlier"


def _notes(desk: Desk, waiter: Waiter) -> list[NodeNote]:
    rooms = desk.situation.rooms or ()
    free = set(desk.pool.with_room((waiter.demand, waiter.excluded)))
    notes = [_note(desk, waiter, number, room, number in free) for number, room in enumerate(rooms)]
    notes.sort(key=lambda note: (not note.usable, note.node))
    return notes[:NODES_SHOWN]


def _note(desk: Desk, waiter: Waiter, number: int, room: Room, free: bool) -> NodeNote:
    pool, demand = desk.pool, waiter.demand
    never = lack(room, demand)
    if never:
        return NodeNote(node=room.name, usable=False, sentence=never)
    if room.cordoned:
        return NodeNote(node=room.name, usable=False, sentence=f"it is cordoned by {room.cordoned}")
    if room.name in waiter.excluded:
        return NodeNote(node=room.name, usable=False, sentence="it was suspected twice in this run")
    gpus = room.total.get("GPU", 0.0)
    parts = [f"{max(0.0, round(pool.gpus[number], 3)):g} of {count(gpus, 'GPU')} free"] if gpus else []
    if pool.cpus[number] < demand.cpus:
        parts.append(f"{max(0.0, round(pool.cpus[number], 3)):g} of {count(room.total.get('CPU', 0.0), 'CPU')} free")
    if pool.memory[number] < demand.memory_bytes:
        parts.append(f"{max(0.0, pool.memory[number]) / 1e9:.3g} GB of memory free")
    names = [each.run for each in pool.holders[number]]
    if names:
        parts.append(f"held by {_list(names)}")
    foreign = room.foreign.get("GPU", 0.0)
    if foreign:
        parts.append(f"{count(foreign, 'GPU')} held by work that raydeck did not start")
    return NodeNote(node=room.name, usable=free, sentence="; ".join(parts) or "it has room")


def _list(names: Sequence[str]) -> str:
    shown = list(names[:NAMES_SHOWN])
    rest = len(names) - len(shown)
    if rest > 0:
        shown.append(f"{rest} more")
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
