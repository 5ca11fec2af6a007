"""Owns what ranks wait for: by the numbers of their collectives, and by their stacks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from jobs.looks import Collective, Frame, RankLook, Thread

SETTLED_SECONDS = 2.0
"""Ranks are looked at within about a second of each other; a collective that has lasted longer is one that waits."""
_WAITING_FILES = ("torch/distributed/distributed_c10d.py", "torch/distributed/_functional_collectives.py")
_WAITING_NATIVE = ("c10d::Work", "c10d::ProcessGroup", "gloo::", "nccl")
_NOT_OURS = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen")


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks whose main threads stand at the same place."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    """Innermost first; Python's own calls, or native ones where there are none."""
    collective: bool
    """They wait for other ranks there."""

    @property
    def where(self) -> str:
        """In words: ``all_reduce, from train.py:12``."""
        return place(self.frames)


@dataclass(slots=True)
class Waits:
    """Who waits for whom, as the collectives tell."""

    behind: dict[int, str] = field(default_factory=dict[int, str])
    """Ranks that somebody waits for and that wait for nobody, and why that is said."""
    waiting: set[int] = field(default_factory=set[int])
    """Ranks that wait for one that is known to be behind them."""
    circle: tuple[int, ...] = ()
    """Ranks that wait for each other, in a ring."""
    differ: dict[int, str] = field(default_factory=dict[int, str])
    """Ranks that call another operation than the others at the same number."""
    equal: str = ""
    """What all wait in, where all have called the same; empty otherwise."""


def main_thread(rank: RankLook) -> Thread | None:
    """The rank's own main thread; None where no stack is known."""
    own = [thread for thread in rank.threads if thread.pid is None]
    return next((thread for thread in own if thread.main), own[0] if own else None)


def grouped(ranks: Iterable[RankLook]) -> list[StackGroup]:
    """Ranks by where their main threads stand, the largest group first. Those without a stack are left out."""
    found: dict[tuple[tuple[str, str, int], ...], list[RankLook]] = {}
    for rank in ranks:
        if (thread := main_thread(rank)) is not None and thread.frames:
            key = tuple((frame.function, frame.file, frame.line) for frame in _shown(thread))
            found.setdefault(key, []).append(rank)
    groups = [_stack_group(members) for members in found.values()]
    return sorted(groups, key=lambda group: (-len(group.ranks), group.ranks))


def _stack_group(members: Sequence[RankLook]) -> StackGroup:
    threads = [thread for rank in members if (thread := main_thread(rank)) is not None]
    return StackGroup(
        tuple(sorted(rank.rank for rank in members)),
        tuple(_shown(threads[0])),
        any(_in_collective(frame) for thread in threads for frame in thread.frames),
    )


def _shown(thread: Thread) -> list[Frame]:
    return [frame for frame in thread.frames if not frame.native] or thread.frames


def _in_collective(frame: Frame) -> bool:
    if frame.native:
        return any(name in frame.function for name in _WAITING_NATIVE)
    return frame.file.endswith(_WAITING_FILES)


def place(frames: Sequence[Frame]) -> str:
    """The innermost call, and the innermost one of the user's own code: ``all_reduce, from main (train.py:12)``."""
    if not frames:
        return ""
    inner = frames[0]
    own = next(
        (frame for frame in frames if not frame.native and not any(part in frame.file for part in _NOT_OURS)), None
    )
    if own is None or own == inner:
        return _named(inner)
    return f"{inner.function}, from {_named(own)}"


def _named(frame: Frame) -> str:
    name = PurePath(frame.file).name
    at = f"{name}:{frame.line}" if frame.line else name
    return f"{frame.function} ({at})" if at else frame.function


def waits(ranks: Iterable[RankLook]) -> Waits:
    """Who waits for whom. Ranks that did not tell of their collectives are in nobody's way here."""
    groups: dict[str, dict[int, Collective]] = {}
    for rank in ranks:
        for each in rank.collectives:
            groups.setdefault(each.group, {})[rank.rank] = each
    found = Waits()
    lag: dict[int, list[str]] = {}
    edges: dict[int, set[int]] = {}
    for members in groups.values():
        _lagging(members, lag, edges)
        found.differ.update(_differing(members))
    if not _roots(edges):
        # A send may be left pending on purpose, so it is asked only where the collectives do not tell.
        for members in groups.values():
            for rank, each in members.items():
                if _waits(each) and each.peer is not None and each.peer != rank:
                    edges.setdefault(rank, set()).add(each.peer)
                    lag.setdefault(each.peer, []).append(f"rank {rank} waits for it in {each.operation}")
    found.waiting = set(edges)
    found.behind = {rank: "; ".join(lag[rank][:2]) for rank in sorted(_roots(edges))}
    if edges and not found.behind:
        found.circle = _circle(edges)
    if not edges and not found.differ:
        found.equal = _equal(groups)
    return found


def _waits(each: Collective) -> bool:
    return each.pending and (each.waiting_seconds is None or each.waiting_seconds >= SETTLED_SECONDS)


def _lagging(members: Mapping[int, Collective], lag: dict[int, list[str]], edges: dict[int, set[int]]) -> None:
    top = max(each.enqueued for each in members.values())
    first = next(each for each in members.values() if each.enqueued == top)
    for rank, each in members.items():
        if each.enqueued == top:
            continue
        ahead = {
            other for other, its in members.items() if its.enqueued > each.enqueued and _waits(its) and its.peer is None
        }
        for other in ahead:
            edges.setdefault(other, set()).add(rank)
        if ahead:
            called = "no collective" if not each.enqueued else f"{each.enqueued} collective{'s' * (each.enqueued != 1)}"
            others = f"{top} ({first.operation})" if first.operation else str(top)
            lag.setdefault(rank, []).append(f"it has called {called} of {_group(each)}, the others {others}")


def _roots(edges: Mapping[int, set[int]]) -> set[int]:
    return {rank for awaited in edges.values() for rank in awaited} - set(edges)


def _differing(members: Mapping[int, Collective]) -> dict[int, str]:
    top = max(each.enqueued for each in members.values())
    at_top = {
        rank: each for rank, each in members.items() if each.enqueued == top and _waits(each) and each.peer is None
    }
    calls = Counter(_call(each) for each in at_top.values())
    if len(calls) < 2:
        return {}
    usual, count = calls.most_common(1)[0]
    others = (
        "the others" if count > 1 else next(f"rank {rank}" for rank, each in at_top.items() if _call(each) == usual)
    )
    return {
        rank: f"collective {top} of {_group(each)} is {_call(each)} there, and {usual} on {others}"
        for rank, each in at_top.items()
        if _call(each) != usual
    }


def _call(each: Collective) -> str:
    # Other operations may have another size on each rank.
    return f"{each.operation} of {each.sizes}" if "all_reduce" in each.operation and each.sizes else each.operation


def _circle(edges: Mapping[int, set[int]]) -> tuple[int, ...]:
    seen: list[int] = []
    rank = min(edges)
    while rank not in seen:
        seen.append(rank)
        rank = min(edges[rank])
    ring = seen[seen.index(rank) :]
    turn = ring.index(min(ring))
    return (*ring[turn:], *ring[:turn])


def _equal(groups: Mapping[str, Mapping[int, Collective]]) -> str:
    for members in groups.values():
        first = next(iter(members.values()))
        if len(members) > 1 and first.enqueued and all(_waits(each) for each in members.values()):
            return f"collective {first.enqueued} of {_group(first)} ({first.operation})"
    return ""


def _group(each: Collective) -> str:
    return each.about or f"group {each.group}"
