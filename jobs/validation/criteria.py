"""When a figure is good enough, and what most of several say. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from math import floor, inf
from statistics import median
from typing import TypeVar

from jobs.validationview import Figure, Verdict

FAIL_BELOW, WARN_BELOW = 0.75, 0.90
"""Of what it was, or of what its like have."""
CPU_FAIL_BELOW, CPU_WARN_BELOW = 0.50, 0.75
"""Processors that are shared with others vary by that much by themselves (measured: medians of 69 to 82 GFLOP/s)."""
PEERS_AT_LEAST = 3

T = TypeVar("T", bound=Hashable)


def judge_rate(figure: Figure, cpu: bool) -> tuple[Verdict, str]:
    """A figure's verdict, and what it was judged by.

    Below the floor, or far below the baseline or its peers, is a fail. Without any of them it passes, and that is said.
    """
    fail, warn = (CPU_FAIL_BELOW, CPU_WARN_BELOW) if cpu else (FAIL_BELOW, WARN_BELOW)
    if figure.floor is not None and _share(figure, figure.floor) < 1.0:
        least = "at least" if figure.higher_is_better else "at most"
        return "fail", f"{least} {figure.floor:.3g} {figure.unit}"
    shares = {
        name: _share(figure, other)
        for name, other in (("its baseline", figure.baseline), ("its peers' median", figure.peers))
        if other
    }
    if not shares:
        least = "no reference" if figure.floor is None else f"its floor {figure.floor:.3g} {figure.unit}"
        return "pass", least
    name, share = min(shares.items(), key=lambda item: item[1])
    # Rounded down: what fails below 75 % is never said to have 75 %.
    told = "far more" if share == inf else f"{floor(share * 100)}%"
    words = f"{told} of {name}; warn below {warn:.0%}, fail below {fail:.0%}"
    return ("fail" if share < fail else "warn" if share < warn else "pass"), words


def _share(figure: Figure, other: float) -> float:
    """How good it is beside another: 1 is as good, less is worse."""
    value = figure.value
    if not figure.higher_is_better:
        value, other = other, value
    return value / other if other > 0 else inf


def majority(facts: Mapping[str, T]) -> tuple[T | None, list[str]]:
    """What more than half of them say, and who says something else; None and all of them where there is no such."""
    if not facts:
        return None, []
    common, count = Counter(facts.values()).most_common(1)[0]
    if count * 2 <= len(facts):
        return None, list(facts)
    return common, [name for name, value in facts.items() if value != common]


def peers_of(values: Mapping[str, float]) -> dict[str, float]:
    """For each the median of the others; nothing where there are fewer than three in all."""
    if len(values) < PEERS_AT_LEAST:
        return {}
    return {name: median(value for other, value in values.items() if other != name) for name in values}
