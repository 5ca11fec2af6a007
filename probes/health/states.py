"""What the engine keeps: a rule made ready to be judged, one rule on one thing, and the quick look at a thing."""

from __future__ import annotations

import operator
from collections import deque
from typing import Callable, Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from probes.health.rule import LEVELS, Entity, Measure, Rule
from probes.reading import Missing

FLAPS = 3
"""So often within half an hour a rule begins to fire on one thing, and it is said to flap."""

COMPARE: Dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
ABSENT = Missing("error", "nothing tells of it")

Key = Tuple[str, str, str]
"""Rule, kind and name of the entity."""


class Ready:
    """A rule with its comparisons looked up."""

    __slots__ = ("clears", "compare", "figure", "rank", "rule")

    def __init__(self, rule: Rule, rank: int) -> None:
        self.rule = rule
        self.compare, self.figure = COMPARE[rule.fires[0]], rule.fires[1]
        self.clears: Optional[Tuple[Callable[[float, float], bool], float]] = None
        if rule.clears is not None:
            self.clears = (COMPARE[rule.clears[0]], rule.clears[1])
        self.rank = (LEVELS.index(rule.level), rank)
        """The worst first; of equals the first in the table."""

    def clear(self, value: float) -> bool:
        if self.clears is None:
            return not self.compare(value, self.figure)
        compare, figure = self.clears
        return compare(value, figure)


class State:
    """One rule on one thing. All seconds are counted up by the steps, so that no clock can jump over them."""

    __slots__ = (
        "begun",
        "clear_for",
        "detail",
        "entity",
        "fired",
        "held",
        "missing",
        "missing_for",
        "pending_for",
        "ready",
        "since",
        "value",
    )

    def __init__(self, ready: Ready, entity: Entity) -> None:
        self.ready = ready
        self.entity = entity
        self.pending_for: Optional[float] = None
        self.since: Optional[float] = None
        """By the caller's clock; None while it does not fire."""
        self.clear_for: Optional[float] = None
        self.value: Measure = 0
        self.detail = ""
        self.fired = 0
        self.begun: Deque[float] = deque(maxlen=FLAPS)
        """When it began to fire, in seconds of the engine's own count."""
        self.held = False
        """It flaps: it goes on until it has been quiet for long."""
        self.missing = ""
        self.missing_for: Optional[float] = None

    @property
    def key(self) -> Key:
        """What names it."""
        return (self.ready.rule.id, self.entity.kind, self.entity.name)


class Mended(NamedTuple):
    """What somebody cleared: the figure, what stood behind it, and until when that is no news."""

    value: Measure
    detail: str
    until: float
    """In seconds of the engine's own count."""


class Glance:
    """One look at a thing of a kind: does the condition of any rule hold? Nearly never, and a fleet has many things."""

    __slots__ = ("_least", "_others")

    def __init__(self, rules: Sequence[Ready]) -> None:
        self._least: List[Tuple[str, float]] = []
        """Nearly all rules ask for "at least": these are compared without a call."""
        self._others: List[Tuple[str, Callable[[float, float], bool], float]] = []
        for ready in rules:
            if ready.compare is operator.ge:
                self._least.append((ready.rule.measure, ready.figure))
            else:
                self._others.append((ready.rule.measure, ready.compare, ready.figure))

    def stirs(self, measures: Mapping[str, Measure]) -> bool:
        """Whether any condition holds, whatever else its rule asks for."""
        get, absent, missing = measures.get, ABSENT, Missing
        for measure, figure in self._least:
            value = get(measure, absent)
            if value.__class__ is not missing and value >= figure:  # type: ignore[operator]
                return True
        for measure, compare, figure in self._others:
            value = get(measure, absent)
            if value.__class__ is not missing and compare(value, figure):  # type: ignore[arg-type]
                return True
        return False
