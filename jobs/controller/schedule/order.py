"""Who goes first: priority, then time, and a place that was given by hand.

A level of priority (100) is worth `Scheduler.ageing` of waiting. So the order of any two never changes by time alone:
whoever waits long enough is ahead of everything that comes after, and nothing starves.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobs.controller.schedule.types import Holder, Waiter
from jobs.spec import Scheduler

LEVEL = 100
"""Between ``low``, ``normal`` and ``high``."""


def key(waiter: Waiter | Holder, rules: Scheduler) -> float:
    """Where it stands; a smaller one goes first. In seconds since 1970, moved by what its priority is worth."""
    if waiter.place is not None:
        return waiter.place
    return waiter.submitted_at - waiter.priority * (rules.ageing / LEVEL)


def ordered(waiting: Sequence[Waiter], rules: Scheduler) -> list[Waiter]:
    """All that wait, the first one first; the older one, then the name, decides between equals."""
    ageing = rules.ageing / LEVEL
    keyed = [
        (w.submitted_at - w.priority * ageing if w.place is None else w.place, w.submitted_at, w.run, w)
        for w in waiting
    ]
    keyed.sort()
    return [each[3] for each in keyed]


def place(order: Sequence[tuple[str, float]], where: str, other: str = "") -> float:
    """A key for ``first``, ``last``, ``before`` or ``after`` another run, given the others and their keys in order.

    Raises `ValueError`, in words, for one that is not among them, and where two stand too close for one between.
    """
    keys = [value for _, value in order]
    if not keys:
        raise ValueError("nobody else waits")
    if where == "first":
        return keys[0] - 1.0
    if where == "last":
        return keys[-1] + 1.0
    index = next((i for i, (run, _) in enumerate(order) if run == other), None)
    if index is None:
        raise ValueError(f"{other or 'a run without a name'} does not wait")
    if where == "before":
        low, high = (keys[index - 1] if index else keys[0] - 2.0), keys[index]
    else:
        low, high = keys[index], (keys[index + 1] if index + 1 < len(keys) else keys[-1] + 2.0)
    middle = (low + high) / 2
    if not low < middle < high:
        raise ValueError(f"there is no room left {where} {other}: it stands too close to its neighbour")
    return middle
