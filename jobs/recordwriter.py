"""Writes a recording: what is worth keeping, when a segment begins, how old ones go. Used by one thread; no clock.

Small fleets keep every sample; of a large one each node's samples come less often, so that an hour of a thousand nodes
with eight accelerators each stays below 60 MB. What changes in kind (a driver that blocks, a GPU that is lost, a run
that fails) is kept in any case. A process that is killed loses what was not flushed: a few seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jobs.difference import difference
from jobs.lanes import Lane, Shape, lanes_of, packed, rest_of, shape_of
from jobs.recordfiles import SegmentFiles
from jobs.recording import (
    CHANGES,
    FACTS,
    HEALTH,
    KEYFRAME,
    MARKS,
    NAME,
    REST,
    RUN,
    SAMPLE,
    SHAPE,
    STATE,
    TICKS_PER_SECOND,
    VIEW,
    chunk,
    put_record,
)
from jobs.recordmarks import alert_marks, event_marks, run_mark, state_mark
from jobs.recordthin import essence, health_body, kept_runs, rank_count, run_essence
from jobs.recordview import Mark, SegmentInfo
from probes.reading import Facts, Health, Sample, encode

KEEP_SECONDS = 3600.0
KEEP_BYTES = 200 * 1000 * 1000
SEGMENT_SECONDS = 60.0
"""Twice as long for a fleet that is thinned: what is true at its start is half of what it takes."""
FLUSH_SECONDS = 5.0
CHUNK_BYTES = 256 * 1024
HOUR_BYTES = 55 * 1000 * 1000
"""What an hour may take; a fleet that takes more has its samples thinned further."""
LANES_PER_SECOND = 16_000
"""So many figures a second are kept of all nodes together: two hundred samples of eight accelerators."""
LARGEST_LANE = 2**72
"""Beyond it lanes cannot be told apart from damage. A node may be hostile."""
BACKWARDS_SECONDS = 60.0
"""A clock that goes back by less than this is taken to stand; by more, a new segment begins."""
HEALTH_SECONDS = 60.0
HEARD_SECONDS = 120.0
"""A node without a sample for longer takes no room from the others."""
RUNS_PER_SECOND = 20.0
RANKS_PER_SECOND = 500.0
"""So many runs a second are kept that only came further, and no more than have so many ranks together."""
GAP_SECONDS = 30.0
PACE = "pace"
"""The view that says how far apart a node's samples are kept, so that one is not called old before the next is due."""
VIEW_SECONDS: Mapping[str, float] = {"queue": 5.0, "cluster": 2.0, "jobs": 5.0}
"""These are kept at most so often; the others with each change."""
MARKS_PER_SEGMENT = 200

What = Literal["ssh", "ray", "driver"]


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=str).encode()


@dataclass(slots=True)
class _Node:
    """What was written of a node last: the next is told as a difference to it."""

    number: int
    heard_at: float
    shape: Shape | None = None
    lanes: list[Lane] = field(default_factory=list[Lane])
    base: list[int] = field(default_factory=list[int])
    rest: dict[str, Any] = field(default_factory=dict[str, Any])
    sample: Sample | None = None
    sampled_at: float = 0.0
    facts: bytes = b""
    facts_at: float = 0.0
    health: dict[str, Any] = field(default_factory=dict[str, Any])
    health_at: float = 0.0
    states: dict[str, tuple[str, str, float]] = field(default_factory=dict[str, tuple[str, str, float]])


class Writer:
    """One recording in one folder. ``at`` is seconds since 1970 by this machine's clock. Raises `OSError`."""

    def __init__(
        self,
        folder: Path,
        *,
        keep_seconds: float = KEEP_SECONDS,
        keep_bytes: int = KEEP_BYTES,
        segment_seconds: float = SEGMENT_SECONDS,
        flush_seconds: float = FLUSH_SECONDS,
        lanes_per_second: float = LANES_PER_SECOND,
        hour_bytes: float = HOUR_BYTES,
    ) -> None:
        """Goes on with what stands in the folder, a torn end included. It makes the folder, for this user alone."""
        self._keep_seconds = keep_seconds
        self._segment_seconds, self._flush_seconds = segment_seconds, flush_seconds
        self._lanes_per_second, self._hour_bytes = lanes_per_second, hour_bytes
        self._slower = 1.0
        self._gap = 1.0
        """How far apart a node's samples are kept, on the whole."""
        self._interval = 0.0
        self._ranks = 0
        self._nodes: dict[str, _Node] = {}
        self._views: dict[str, tuple[Any, float]] = {}
        self._later: dict[str, tuple[Any, float]] = {}
        self._runs: dict[str, tuple[dict[str, Any], float]] = {}
        self._now = 0.0
        self._pending = bytearray()
        self._pending_kind = CHANGES
        self._pending_first = self._pending_last = 0.0
        self._marks: list[Mark] = []
        """Of this segment, those that are not in the file yet."""
        self._marked = 0
        self._flushed_at = 0.0
        self._files = SegmentFiles(
            folder, keep_seconds=keep_seconds, keep_bytes=keep_bytes, most=keep_seconds / segment_seconds + 2
        )

    # --- what is told -------------------------------------------------------------------------------------------------

    @property
    def interval_seconds(self) -> float:
        """How often a node's sample is kept; 0 where every one is."""
        near = self._now - HEARD_SECONDS
        lanes = sum(node.shape.lanes for node in self._nodes.values() if node.shape and node.sampled_at >= near)
        seconds = lanes / self._lanes_per_second * self._slower
        return seconds if seconds > 1.2 else 0.0

    def take_sample(self, name: str, sample: Sample, at: float) -> bool:
        """One second of a node; False if it was not kept."""
        node = self._node(name, at)
        before = node.sample
        if (
            before is not None
            and self._now - node.sampled_at < self._interval * 0.95
            and sample.driver.state == before.driver.state
            and sample.missing == before.missing
        ):
            return False
        shape, lanes = shape_of(sample), lanes_of(sample, self._now)
        another = shape != node.shape
        row, base = packed(lanes, [0] * shape.lanes if another else node.base)
        if not -LARGEST_LANE < min(base) <= max(base) < LARGEST_LANE:
            raise ValueError(f"a figure of {name} is larger than any that a device has")
        rest = rest_of(sample, self._now, node.rest)
        change = difference(node.rest, rest)
        if before is not None and (gap := self._now - node.sampled_at) < GAP_SECONDS:
            self._gap += 0.05 * (gap - self._gap)
        # All of it before anything is written: after a refusal of the disk the next minute begins with it.
        node.shape, node.lanes, node.base, node.rest = shape, lanes, base, rest
        node.sample, node.sampled_at = sample, self._now
        if another:
            self._put(SHAPE, node.number, _json({"index": shape.index, "columns": shape.columns}))
            self._interval = self.interval_seconds
        if change is not None:
            self._put(REST, node.number, _json(change))
        self._put(SAMPLE, node.number, row)
        return True

    def take_facts(self, name: str, facts: Facts, at: float) -> None:
        """What seldom changes of a node."""
        node, line = self._node(name, at), encode(facts).encode()
        if line != node.facts:
            node.facts, node.facts_at = line, self._now
            self._put(FACTS, node.number, line)

    def take_health(self, name: str, health: Health, at: float) -> None:
        """What health rules see of a node. Of a large fleet, what merely drifts is kept once a minute."""
        node, body = self._node(name, at), health_body(health)
        self._take_marks(event_marks(name, health.events, self._now))
        if (
            self._interval
            and self._now - node.health_at < HEALTH_SECONDS
            and not health.events
            and essence(body) == essence(node.health)
        ):
            return
        if (change := difference(node.health, body)) is not None:
            self._put(HEALTH, node.number, _json(change))
        node.health, node.health_at = body, self._now

    def take_state(self, name: str, what: What, state: str, reason: str, at: float, since: float | None = None) -> None:
        """One of a node's three truths; ``since``: when it became so, if that is known better than ``at``."""
        node = self._node(name, at)
        before = node.states.get(what)
        if before is not None and before[:2] == (state, reason):
            return
        if before is not None and before[0] != state:
            self._take_marks(state_mark(name, what, state, reason, self._now))
        kept = since if since is not None else before[2] if before is not None and before[0] == state else self._now
        node.states[what] = (state, reason, kept)
        self._put(STATE, node.number, _json([what, state, reason, kept]))

    def take_view(self, kind: str, body: Any, at: float) -> None:
        """What the controller tells of all: ``runs`` (a list of those that changed), ``queue``, ``nodes``, ``alerts``,
        ``cluster``, ``jobs``, ``status``; each as JSON (``model_dump(mode="json")``)."""
        self._move(at)
        if kind == "runs":
            for run in body:
                self._take_run(run)
            return
        before, told_at = self._views.get(kind, (None, 0.0))
        if self._now - told_at < VIEW_SECONDS.get(kind, 0.0):
            self._later[kind] = (body, self._now)
            return
        self._later.pop(kind, None)
        if kind == "alerts":
            self._take_marks(alert_marks(before, body, self._now))
        if (change := difference(before, body)) is not None:
            self._put(VIEW, 0, _json([kind, change]))
        self._views[kind] = (body, self._now)

    def _take_run(self, run: dict[str, Any]) -> None:
        name = str(run["id"])
        before, told_at = self._runs.get(name, (None, 0.0))
        if before is not None and run_essence(before) == run_essence(run):
            if self._now - told_at < max(len(self._runs) / RUNS_PER_SECOND, self._ranks / RANKS_PER_SECOND) - 1:
                return
        elif before is None or before.get("state") != run.get("state"):
            self._take_marks(run_mark(before, run, self._now))
        if (change := difference(before, run)) is not None:
            self._put(RUN, 0, _json([name, change]))
        self._ranks += rank_count(run) - rank_count(before)
        self._runs.pop(name, None)  # the order is that of the newest change
        self._runs[name] = (run, self._now)

    def _take_marks(self, marks: Sequence[Mark]) -> None:
        kept = marks[: MARKS_PER_SEGMENT - self._marked]
        self._marked += len(kept)
        self._marks += kept
        self._files.tell(kept)

    # --- segments and chunks ------------------------------------------------------------------------------------------

    def tick(self, at: float) -> None:
        """Call it each second or so: writes what is due, and lets go of what is too old."""
        if self._files.open is None:
            self._files.let_go(at)
            return
        self._move(at)
        for kind, (body, _) in list(self._later.items()):
            self.take_view(kind, body, at)
        if self._now - self._flushed_at >= self._flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Write what was told so far: from here on it survives the end of this process."""
        self._flushed_at = self._now
        told = self._views.get(PACE, ({"seconds": 1.0}, 0.0))[0]["seconds"]
        if self._files.open is not None and abs(self._gap - told) > told / 4:
            pace = {"seconds": round(self._gap, 1)}
            self._put(VIEW, 0, _json([PACE, [0, pace]]))
            self._views[PACE] = (pace, self._now)
        self._write_pending()
        if self._marks:
            marks, self._marks = self._marks, []
            body = _json([mark.model_dump() for mark in marks])
            self._files.write(chunk(MARKS, body, marks[0].at, marks[-1].at), self._now)

    def close(self) -> None:
        """Write the rest, and let go of the file."""
        self.flush()
        self._files.end()

    def give_up(self) -> None:
        """After an `OSError`: what was not written is lost, and the next entry begins a segment."""
        begun = self._pending_kind == CHANGES
        self._pending, self._pending_kind, self._marks = bytearray(), CHANGES, []
        self._files.give_up(begun)

    def index(self) -> list[SegmentInfo]:
        """All segments, oldest first; the last one may still be written."""
        return self._files.index()

    @property
    def writing(self) -> bool:
        """Is there a file that what comes next goes into?"""
        return self._files.open is not None

    def path(self, seq: int) -> Path:
        """The file of a segment."""
        return self._files.path(seq)

    def _node(self, name: str, at: float) -> _Node:
        self._move(at)
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node(len(self._nodes) + 1, self._now)
            self._put(NAME, node.number, name.encode("utf-8", "replace"))
        node.heard_at = self._now
        return node

    def _move(self, at: float) -> None:
        """To this moment: a new segment where the old one is a minute long, or the clock went back."""
        back = at < self._now - BACKWARDS_SECONDS
        if back:
            self.flush()
            self._now = at
            for node in self._nodes.values():  # what is known came before now, whatever the clock said then
                node.sampled_at, node.health_at = min(node.sampled_at, at), min(node.health_at, at)
                node.facts_at, node.heard_at = min(node.facts_at, at), min(node.heard_at, at)
            self._views = {kind: (body, min(told_at, at)) for kind, (body, told_at) in self._views.items()}
            self._runs = {name: (run, min(told_at, at)) for name, (run, told_at) in self._runs.items()}
        self._now = max(self._now, at)
        current = self._files.open
        long = self._segment_seconds * (2 if self._interval else 1)
        if current is None or back or self._now - current.since >= long:
            self._begin_segment()

    def _put(self, kind: int, node: int, body: bytes, at: float | None = None) -> None:
        at = self._now if at is None else at
        if not self._pending:
            self._pending_first = self._pending_last = at
        ticks = round((at - self._pending_first) * TICKS_PER_SECOND)
        put_record(self._pending, kind, ticks - round((self._pending_last - self._pending_first) * TICKS_PER_SECOND),
                   node, body)  # fmt: skip
        self._pending_last = at
        if len(self._pending) > CHUNK_BYTES:
            self._write_pending()

    def _write_pending(self) -> None:
        if self._pending:
            body, self._pending = bytes(self._pending), bytearray()
            last = max(self._pending_last, self._pending_first)
            self._files.write(chunk(self._pending_kind, body, self._pending_first, last), self._now)

    def _begin_segment(self) -> None:
        self.flush()
        if (done := self._files.end()) is not None:
            self._pace(done)
        self._marked = 0
        self._pending_kind = KEYFRAME
        self._files.begin(self._now)
        self._keyframe()

    def _pace(self, done: SegmentInfo) -> None:
        """Thin further where a minute took more than its part of an hour; take that back where it took far less."""
        seconds = done.until - done.since
        if seconds >= self._segment_seconds / 2:
            share = done.bytes * 3600 / seconds / self._hour_bytes
            self._slower = min(8.0, max(1.0, self._slower * (share if share > 1 else 0.8 if share < 0.6 else 1.0)))

    def _keyframe(self) -> None:
        """All that is true, with the times at which it was told."""
        old = self._now - self._keep_seconds
        kept = {name: node for name, node in self._nodes.items() if node.heard_at >= old}
        self._nodes = kept
        for number, (name, node) in enumerate(kept.items(), 1):
            node.number = number
            self._put(NAME, number, name.encode("utf-8", "replace"))
            if node.facts:
                self._put(FACTS, number, node.facts, node.facts_at)
            if node.shape is not None:
                self._put(SHAPE, number, _json({"index": node.shape.index, "columns": node.shape.columns}))
                self._put(REST, number, _json([0, node.rest]))
                row, node.base = packed(node.lanes, [0] * node.shape.lanes)
                self._put(SAMPLE, number, row, node.sampled_at)
            if node.health:
                self._put(HEALTH, number, _json([0, node.health]), node.health_at)
            for what, (state, reason, since) in node.states.items():
                self._put(STATE, number, _json([what, state, reason, since]))
        for kind, (body, told_at) in self._views.items():
            self._put(VIEW, 0, _json([kind, [0, body]]), told_at)
        self._runs = kept_runs(self._runs)
        self._ranks = sum(rank_count(run) for run, _ in self._runs.values())
        for name, (run, told_at) in self._runs.items():
            self._put(RUN, 0, _json([name, [0, run]]), told_at)
        self._write_pending()
        self._pending_kind = CHANGES
        self._interval = self.interval_seconds
