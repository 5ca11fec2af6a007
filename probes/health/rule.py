"""What a rule of health is, what it looks at, and what it finds. Values only; no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Dict, Mapping, NamedTuple, Tuple, Union

from probes.reading import Missing

CRITICAL = "critical"
WARNING = "warning"
INFO = "info"
LEVELS = (CRITICAL, WARNING, INFO)

Measure = Union[int, float, Missing]
"""A figure, or why there is none. One that is missing neither fires a rule nor clears it."""


class Entity(NamedTuple):
    """What a rule is judged on."""

    kind: str
    """``gpu``, ``node``, ``mount``, ``run``, ``queue`` or ``cluster``."""
    name: str
    """As people write it: ``gpu-1/3``, ``gpu-1``, ``gpu-1:/data``, a run's id, a queue's name, ``cluster``."""
    node: str = ""
    """The node that it is of; empty for runs, queues and the cluster."""
    run: str = ""
    """The run that it works for at the moment, or is; empty if none."""


@dataclass(frozen=True)
class Rule:
    """One condition that needs someone.

    All texts may hold ``{name}`` (the entity), ``{value}``, ``{detail}`` and ``{advice}`` (what this very value asks
    for: see `probes.health.figures.advice`).
    """

    id: str
    """Dotted: what it is on, then what: ``gpu.lost``."""
    of: str
    """The kind of entity."""
    level: str
    measure: str
    """The name of the figure that it looks at."""
    fires: Tuple[str, float]
    """``(">=", 97.0)``; the comparison is one of ``< <= > >= == !=``."""
    title: str
    cause: str
    action: str
    clears: Tuple[str, float] | None = None
    """What the figure must be to clear it, where that is not just the contrary of ``fires`` (hysteresis)."""
    for_seconds: float = 0.0
    """So long it must hold before it fires."""
    clear_seconds: float = 0.0
    """So long it must have been clear before it ends."""
    when: str = ""
    """A measure that must be above 0 for the condition to hold (under load, while a run holds it)."""
    latch: bool = False
    """Stays until somebody clears it after a repair."""
    key: str = ""
    """The console's key that acts on it."""
    family: str = ""
    """Of one family on one entity only the worst is shown; the default is the rule's id."""
    hidden_by: Tuple[str, ...] = ()
    """Families that, firing on the entity, its node, its run or the cluster, make this one a consequence that is not
    shown. For a rule on a node: also on something of that node."""
    source: str = ""
    """Where the condition and its figures come from."""
    at_once: bool = False
    """Also in the first seconds in which a node is seen, when most rules wait."""


@dataclass
class Seen:
    """All that is known of one entity at one moment."""

    entity: Entity
    measures: Dict[str, Measure] = field(default_factory=dict)
    details: Dict[str, str] = field(default_factory=dict)
    """Measure to what stands behind the figure, with place and time: for ``{detail}`` and as evidence."""
    beside: Dict[str, float] = field(default_factory=dict)
    """Figures that no rule looks at, for the comparisons of `probes.health.fleet`."""
    calm: bool = False
    """The engine found no condition that holds, and needs not look again. Who changes a figure here makes it False."""


@dataclass(frozen=True)
class Thresholds:
    """What a cluster file changes in the rules."""

    off: Tuple[str, ...] = ()
    """Rules that are not judged."""
    fires: Mapping[str, float] = field(default_factory=dict)
    """Rule to the figure from which it fires; one that clears apart keeps its distance."""
    for_seconds: Mapping[str, float] = field(default_factory=dict)
    clear_seconds: Mapping[str, float] = field(default_factory=dict)
    levels: Mapping[str, str] = field(default_factory=dict)

    def of(self, rule: Rule) -> Rule:
        """The rule as it is in force."""
        figure = self.fires.get(rule.id, rule.fires[1])
        clears = rule.clears
        return replace(
            rule,
            level=self.levels.get(rule.id, rule.level),
            fires=(rule.fires[0], figure),
            clears=None if clears is None else (clears[0], clears[1] + (figure - rule.fires[1])),
            for_seconds=self.for_seconds.get(rule.id, rule.for_seconds),
            clear_seconds=self.clear_seconds.get(rule.id, rule.clear_seconds),
        )
