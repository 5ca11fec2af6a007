"""What the controller's own watchers tell of the nodes: the newest of each, and what the rules measure on it.

Node ids of Ray come and go; what is measured belongs to a name.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from probes.health.measures import NodeMeasures
from probes.health.rule import Measure, Seen
from probes.reading import Event, Facts, Fault, Health, Line, Missing, Sample

EVENTS_KEPT = 200
SILENT_INTERVALS = 3.0
"""A node that has told nothing for so many intervals has no figures any more."""
SILENT_AT_LEAST_SECONDS = 10.0


@dataclass(slots=True)
class Watched:
    """One node, as its own probe tells of it."""

    name: str
    node_id: str
    measures: NodeMeasures
    facts: Facts | None = None
    sample: Sample | None = None
    health: Health | None = None
    told_at: float | None = None
    """Monotonic seconds of the head."""
    clock_offset_seconds: float | None = None
    gone: str = ""
    """Why its probe is not there; empty while it is."""
    events: deque[Event] = field(default_factory=lambda: deque[Event](maxlen=EVENTS_KEPT))
    """The newest that the kernel or the driver told, their time by the node's clock."""


@dataclass(slots=True)
class NodeFacts:
    """What is known of a node beside what its own probe tells."""

    expected_gpus: int | None = None
    runs: dict[int, str] = field(default_factory=dict[int, str])
    """GPU index to the run that holds it."""
    failed: dict[int, str] = field(default_factory=dict[int, str])
    """GPU index to a run that worked there and has just failed."""
    cordoned: bool = False
    writable: tuple[str, ...] = ()
    """Paths that runs must be able to write."""
    told: dict[str, Measure] = field(default_factory=dict[str, Measure])
    words: dict[str, str] = field(default_factory=dict[str, str])


class WatchedFleet:
    """All nodes that are watched. Takes what `jobs.controller.health.watchers` brings."""

    def __init__(self, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self.nodes: dict[str, Watched] = {}
        """By name."""
        self._names: dict[str, str] = {}
        self.trouble = "they are not watched yet"
        """Why no node can be watched; empty while they can."""
        self.taps: list[Callable[[str, Line, float], None]] = []
        """Who else takes each line: the node's name, the line, the head's monotonic seconds."""

    def know(self, names: Mapping[str, str]) -> None:
        """Ray's living nodes that are to be watched: id to name."""
        self._names = dict(names)
        for name in [name for name in self.nodes if name not in names.values()]:
            del self.nodes[name]
        for node_id, name in names.items():
            there = self.nodes.get(name)
            if there is None:
                self.nodes[name] = Watched(name, node_id, NodeMeasures())
            else:
                there.node_id = node_id

    def line(self, node_id: str, line: Line, text: str) -> None:
        """Something that a node's probe said."""
        node = self._node(node_id)
        if node is None:
            return
        now = self._clock()
        if isinstance(line, Sample):
            node.sample, node.told_at, node.gone = line, now, ""
            node.measures.take_sample(line, now)
        elif isinstance(line, Facts):
            node.facts = line
            node.measures.take_facts(line)
        elif isinstance(line, Health):
            node.health = line
            node.events.extend(line.events)
            node.measures.take_health(line, now)
        elif isinstance(line, Fault):
            node.gone = line.reason
        for tap in self.taps:
            tap(node.name, line, now)

    def clock(self, node_id: str, offset_seconds: float, round_trip_ms: float) -> None:
        """How far its clock is ahead of the head's."""
        node = self._node(node_id)
        if node is not None:
            node.clock_offset_seconds = offset_seconds

    def gone(self, node_id: str, why: str) -> None:
        """Its probe has ended."""
        node = self._node(node_id)
        if node is not None and not (node.gone and why.startswith("its probe has ended")):
            node.gone = why

    def blind(self, why: str) -> None:
        """No node can be watched at the moment."""
        self.trouble = why

    def unwatched(self) -> dict[str, str]:
        """Name to why there are no figures of it."""
        now = self._clock()
        return {node.name: why for node in self.nodes.values() if (why := self._why_not(node, now))}

    def blind_spots(self) -> list[str]:
        """What cannot be seen, and on which nodes: a sentence for each reason."""
        where: dict[tuple[str, Missing], list[str]] = {}
        for node in self.nodes.values():
            for what, why in (node.health.blind if node.health is not None else {}).items():
                where.setdefault((what, why), []).append(node.name)
        return [
            f"{what.replace('_', ' ')}: {why.reason} (on {_listed(sorted(names))})"
            for (what, why), names in sorted(where.items())
        ]

    def silent_seconds(self, node: Watched) -> float | None:
        """How old its newest figures are; None if there never were any."""
        return None if node.told_at is None else self._clock() - node.told_at

    def seen(self, now: float, facts: Mapping[str, NodeFacts]) -> list[Seen]:
        """What the rules are to judge: each node, its GPUs, its file systems. ``facts``: by node."""
        found: list[Seen] = []
        for name, known in facts.items():
            node = self.nodes.get(name)
            measures = node.measures if node is not None else NodeMeasures()
            found += measures.seen(
                now,
                node=name,
                expected_gpus=known.expected_gpus if node is not None and node.sample is not None else None,
                runs=known.runs,
                failed=known.failed,
                cordoned=known.cordoned,
                writable=known.writable,
                told=known.told,
                words=known.words,
            )
        return found

    def _node(self, node_id: str) -> Watched | None:
        return self.nodes.get(self._names.get(node_id, ""))

    def _why_not(self, node: Watched, now: float) -> str:
        limit = max(SILENT_INTERVALS * self._interval, SILENT_AT_LEAST_SECONDS)
        if self.trouble:
            return self.trouble
        if node.told_at is None:
            return node.gone or "its probe has not told anything yet"
        age = now - node.told_at
        return (node.gone or f"its probe has told nothing for {age:.0f} s") if age > limit else ""


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
