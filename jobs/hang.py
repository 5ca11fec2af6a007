"""Owns the judgement on a run that does not go on: which rank is behind, and why that is believed. Pure.

`culprit` takes what the status tells (`RankState`) as well as what a look found (`RankLook`); the more, the surer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from jobs.looks import (
    Collective,
    Frame,
    Look,
    NodeLook,
    RankLook,
    RankState,
    Thread,
    ask,
    read_looks,
    states_of,
)
from jobs.waiting import StackGroup, Waits, grouped, waits

__all__ = [
    "Behind", "Collective", "Frame", "Look", "NodeLook", "RankLook", "RankState", "StackGroup", "Thread", "Why", "ask",
    "culprit", "grouped", "read_looks", "states_of",
]  # fmt: skip

STUCK_SECONDS = 3.0
"""For a moment every process that reads a file may be in state D, or held by whoever looks at its stack."""
SILENT_SECONDS = 5.0
MOVING_SECONDS = 8.0
"""While a rank has told a step within that time, ranks differ because they were looked at one after the other."""
_MAX_NAMED = 8
_MAX_GROUPS = 6


class Why(str, Enum):
    """What the belief rests on; the strongest reason."""

    GONE = "gone"
    STOPPED = "stopped"
    SILENT = "silent"
    """Its node does not answer."""
    SEQUENCE = "sequence"
    """It has called fewer collectives than those that wait for it."""
    DIFFERENT = "different"
    """It calls another collective than the others."""
    STUCK = "stuck"
    """The kernel does not let go of it: storage, or a driver."""
    CIRCLE = "circle"
    """Ranks wait for each other."""
    STEP = "step"
    STACK = "stack"
    """It stands somewhere else than the others."""
    EQUAL = "equal"
    """All wait equally, and none is to blame."""


_WEIGHT = {
    Why.GONE: 6, Why.STOPPED: 6, Why.SILENT: 5, Why.SEQUENCE: 5, Why.DIFFERENT: 5, Why.STUCK: 4, Why.STEP: 3,
    Why.STACK: 2,
}  # fmt: skip
_CONFIDENCE = {6: 0.95, 5: 0.9, 4: 0.8, 3: 0.7, 2: 0.5}


@dataclass(frozen=True, slots=True)
class Behind:
    """Who the others wait for."""

    ranks: tuple[int, ...]
    """Empty where all wait equally."""
    nodes: tuple[str, ...]
    """Theirs."""
    why: Why
    sentence: str
    """For a person: who, where, and the reasons."""
    evidence: tuple[str, ...]
    """What is known beside that, a sentence each."""
    confidence: float
    """From 0 to 1."""


@dataclass(frozen=True, slots=True)
class _Point:
    why: Why
    text: str


_ORDER = [Why.STEP, Why.SEQUENCE, Why.DIFFERENT, Why.GONE, Why.SILENT, Why.STOPPED, Why.STUCK, Why.STACK]
"""In which order reasons are told."""


_SEVERAL = (
    ("its process is", "their processes are"),
    ("its process has", "their processes have"),
    ("its process hangs", "their processes hang"),
    ("holds its process", "holds their processes"),
    ("its node has", "their node has"),
    ("it has called", "they have called"),
    ("it stands", "they stand"),
)
"""How a reason of one rank is said of several."""


def culprit(ranks: Sequence[RankLook] | Sequence[RankState]) -> Behind | None:
    """Who is behind in a run that does not go on; None where nobody can tell from what is known.

    As long as a rank tells new steps, only the state of a process is taken for a reason. It does not find out whether
    the run goes on: of one with long steps it may name the rank that is slow at this moment.
    """
    known = sorted(ranks, key=lambda rank: rank.rank)
    if all(rank.exit_code is not None for rank in known):
        return None
    looks = [rank for rank in known if isinstance(rank, RankLook)]
    moving = any(rank.step_seconds is not None and rank.step_seconds < MOVING_SECONDS for rank in known)
    between, stacks = (Waits(), []) if moving else (waits(looks), grouped(looks))
    points: dict[int, list[_Point]] = {rank.rank: [] for rank in known}

    def add(found: Iterable[tuple[int, str]], why: Why) -> None:
        for rank, text in found:
            points[rank].append(_Point(why, text))

    for why, find in _STATES:
        add(((rank.rank, text) for rank in known if (text := find(rank))), why)
    add(((rank, text) for rank, text in between.behind.items() if rank in points), Why.SEQUENCE)
    add(between.differ.items(), Why.DIFFERENT)
    # Who waits for a rank that is behind is not behind itself, whatever its step or stack.
    free = points.keys() - between.waiting if not moving else set[int]()
    add(((rank, text) for rank, text in _by_step(known) if rank in free), Why.STEP)
    add(((rank, text) for rank, text in _by_stack(stacks, len(known)) if rank in free), Why.STACK)
    top = max((_weight(reasons) for reasons in points.values()), default=0)
    evidence = _evidence(known, stacks, between)
    if not top:
        return _nobody(known, between, stacks, evidence)
    named = [rank for rank in known if _weight(points[rank.rank]) == top]
    strongest = max((point.why for point in points[named[0].rank]), key=lambda why: _WEIGHT[why])
    if between.circle and top <= _WEIGHT[Why.STEP]:
        return _nobody(known, between, stacks, evidence)
    reasons = _told([points[rank.rank] for rank in named])
    verb = ("does" if len(named) == 1 else "do") + " not go on"
    if len(known) > len(named):
        verb = ("is" if len(named) == 1 else "are") + " behind"
    confidence = _CONFIDENCE[top] if len(named) * 2 <= len(known) or top > _WEIGHT[Why.STUCK] else 0.4
    return Behind(
        tuple(rank.rank for rank in named),
        tuple(dict.fromkeys(rank.node for rank in named if rank.node)),
        strongest,
        f"{_who(named)} {verb}: {'; '.join(reasons)}",
        tuple(evidence),
        confidence,
    )


def _gone(rank: RankState) -> str:
    if rank.exit_code is not None:
        how = f"exit code {rank.exit_code}" if rank.exit_code >= 0 else f"signal {-rank.exit_code}"
        return f"its process has ended ({how})"
    if rank.state in ("Z", "X") or (isinstance(rank, RankLook) and rank.missing):
        return "its process is not there any more"
    return ""


def _stopped(rank: RankState) -> str:
    if rank.state == "T":
        return "its process is stopped (state T)"
    if rank.state == "t" and (rank.state_seconds or 0.0) >= STUCK_SECONDS:
        return "a debugger holds its process (state t)"
    return ""


def _silent(rank: RankState) -> str:
    if rank.silent_seconds is None or rank.silent_seconds < SILENT_SECONDS or rank.exit_code is not None:
        return ""
    return f"its node has not answered for {_seconds(rank.silent_seconds)}"


def _stuck(rank: RankState) -> str:
    at = f" in {rank.wchan}" if rank.wchan else ""
    call = f", {rank.call}" if isinstance(rank, RankLook) and rank.call else ""
    if rank.state == "D" and (rank.state_seconds or 0.0) >= STUCK_SECONDS:
        return f"its process hangs in the kernel{at} (state D for {_seconds(rank.state_seconds or 0.0)}{call})"
    if isinstance(rank, RankLook) and rank.stuck:
        return f"of its threads {len(rank.stuck)} hang{'s' * (len(rank.stuck) == 1)} in the kernel ({rank.stuck[0]})"
    return ""


_STATES: tuple[tuple[Why, Callable[[RankState], str]], ...] = (
    (Why.GONE, _gone),
    (Why.STOPPED, _stopped),
    (Why.SILENT, _silent),
    (Why.STUCK, _stuck),
)


def _by_step(ranks: Sequence[RankState]) -> list[tuple[int, str]]:
    """Those with the lowest step, where others have a higher one. Who tells no step is not known to be behind."""
    steps = {rank.rank: rank.step for rank in ranks if rank.step is not None}
    if len(set(steps.values())) < 2:
        return []
    lowest = min(steps.values())
    others = sorted({step for step in steps.values() if step != lowest})
    told = f"{others[0]}" if len(others) == 1 else f"{others[0]} to {others[-1]}"
    rest = "the others" if sum(step != lowest for step in steps.values()) > 1 or len(ranks) == 2 else "another one"
    if len(ranks) == 2:
        rest = "the other"
    return [(rank, f"last step {lowest}, {rest} {told}") for rank, step in steps.items() if step == lowest]


def _by_stack(stacks: Sequence[StackGroup], ranks: int) -> list[tuple[int, str]]:
    """Those that stand somewhere else than most: outside of a collective where most are in one, else the odd ones."""
    seen = sum(len(group.ranks) for group in stacks)
    inside = [group for group in stacks if group.collective]
    waiting = sum(len(group.ranks) for group in inside)
    if waiting and waiting * 2 >= seen:
        odd = [group for group in stacks if not group.collective]
    elif not inside and stacks and seen > 2 and len(stacks[0].ranks) * 3 >= 2 * seen:
        odd = list(stacks[1:])
    else:
        odd = list(stacks) if ranks == 1 else []
    return [(rank, f"it stands in {group.where}") for group in odd for rank in group.ranks]


def _weight(reasons: Iterable[_Point]) -> int:
    return max((_WEIGHT[point.why] for point in reasons), default=0)


def _told(reasons: Sequence[Sequence[_Point]]) -> list[str]:
    """The reasons of all that are named, each kind once."""
    told: list[str] = []
    for why in _ORDER:
        texts = [point.text for points in reasons for point in points if point.why is why]
        different = list(dict.fromkeys(texts))
        if different:
            more = f" (and {len(different) - 1} more of that kind)" if len(different) > 1 else ""
            told.append((different[0] if len(reasons) == 1 else _of_several(different[0])) + more)
    return told


def _of_several(text: str) -> str:
    for one, several in _SEVERAL:
        text = text.replace(one, several, 1)
    return text


def _nobody(
    ranks: Sequence[RankState], between: Waits, stacks: Sequence[StackGroup], evidence: list[str]
) -> Behind | None:
    if between.circle:
        after = (*between.circle[1:], between.circle[0])
        ring = ", ".join(f"rank {rank} for rank {next_}" for rank, next_ in zip(between.circle, after, strict=True))
        named = [rank for rank in ranks if rank.rank in between.circle]
        nodes = tuple(dict.fromkeys(rank.node for rank in named if rank.node))
        sentence = f"{_who(named)} wait for each other: {ring}"
        return Behind(between.circle, nodes, Why.CIRCLE, sentence, tuple(evidence), 0.8)
    told = sum(bool(rank.collectives) for rank in ranks if isinstance(rank, RankLook))
    network = "none is behind: look at the network between them"
    if between.equal and told == len(ranks):
        sentence = f"all {len(ranks)} ranks wait equally in {between.equal}, {network}"
        return Behind((), (), Why.EQUAL, sentence, tuple(evidence), 0.8)
    standing = sum(len(group.ranks) for group in stacks if group.collective)
    if len(ranks) > 1 and standing == len(ranks):
        sentence = f"all {len(ranks)} ranks wait for each other in {stacks[0].where}, and {network}"
        return Behind((), (), Why.EQUAL, sentence, tuple(evidence), 0.5)
    return None


def _evidence(ranks: Sequence[RankState], stacks: Sequence[StackGroup], between: Waits) -> list[str]:
    found: list[str] = []
    for group in stacks[:_MAX_GROUPS]:
        found.append(f"{_numbers(group.ranks)} stand{'s' * (len(group.ranks) == 1)} in {group.where}")
    if between.equal:
        found.append(f"all that told wait in {between.equal}")
    for rank in ranks:
        if isinstance(rank, RankLook) and rank.call:
            found.append(f"rank {rank.rank} is in the system call {rank.call}")
    quiet = [rank for rank in ranks if rank.step_seconds is not None]
    if quiet:
        longest = max(quiet, key=lambda rank: rank.step_seconds or 0.0)
        found.append(f"the oldest last step is rank {longest.rank}'s, {_seconds(longest.step_seconds or 0.0)} ago")
    untold = [rank.rank for rank in ranks if isinstance(rank, RankLook) and rank.recorder_problem]
    if untold:
        found.append(f"{_numbers(untold)} told nothing of collectives")
    return found


def _who(ranks: Sequence[RankState]) -> str:
    """``rank 3 (gpu-2, GPU 1)``, ``ranks 8 to 15 (gpu-2)``."""
    nodes = list(dict.fromkeys(rank.node for rank in ranks if rank.node))
    if len(ranks) == 1:
        nodes += [f"GPU {ranks[0].gpu}"] if ranks[0].gpu else []
    shown = ", ".join(nodes[:_MAX_NAMED]) + (f" and {len(nodes) - _MAX_NAMED} more" if len(nodes) > _MAX_NAMED else "")
    return _numbers([rank.rank for rank in ranks]) + (f" ({shown})" if shown else "")


def _numbers(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0 to 3 and 7``."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], rank
        else:
            runs.append((rank, rank))
    parts = [
        part
        for low, high in runs
        for part in ([f"{low} to {high}"] if high > low + 1 else map(str, range(low, high + 1)))
    ]
    shown = parts[:_MAX_NAMED] + ([f"{len(parts) - _MAX_NAMED} more"] if len(parts) > _MAX_NAMED else [])
    text = ", ".join(shown[:-1]) + (" and " if len(shown) > 1 else "") + shown[-1]
    return f"rank{'s' * (len(ranks) != 1)} {text}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
