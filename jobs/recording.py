"""A recording of a fleet as bytes: segments, chunks and records; reading them back, whatever end they have.

A recording is one segment after the other, and so is a ``.rdrec`` file. A segment is a minute or two, whole in itself:
`MAGIC`, a head, everything that is true at its start (a keyframe), then changes in chunks of a few seconds. A chunk has
its length, a checksum and the times of its first and last record in front, so that an index is made without reading
what is inside. A torn or damaged chunk ends its segment; the next segment begins anew.

`jobs.recordwriter` writes them. Nothing in a file is trusted: sizes are bounded, and nonsense is a `BadRecording`.
"""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import ValidationError

from jobs.difference import patched
from jobs.errors import Refused
from jobs.lanes import Shape, put_varint, sample_from, template_of, unpacked, varint
from jobs.recordview import Mark, SegmentInfo
from probes.reading import Facts, Health, Sample, WireError, decode

MAGIC = b"\x89RDREC1\n"
SUFFIX = ".rdrec"
_HEAD = struct.Struct(">2sBxIIdd")
"""Sign, kind, length, checksum, time of the first and of the last record."""
_SIGN = b"rC"
CHUNK_LIMIT_BYTES = 32 * 1024 * 1024
INFLATED_LIMIT_BYTES = 128 * 1024 * 1024
"""Of one segment."""
MARKS_LIMIT_BYTES = 4 * 1024 * 1024
LANES_LIMIT = 100_000
LARGEST_TIME = 1e12
TICKS_PER_SECOND = 100
"""Times of records are kept to a hundredth of a second."""

START, KEYFRAME, CHANGES, MARKS = range(4)
"""Kinds of chunks."""
NAME, SHAPE, SAMPLE, REST, FACTS, HEALTH, STATE, VIEW, RUN = range(9)
"""Kinds of records: the first seven are about a node."""


class BadRecording(Refused):
    """What was given is no recording, or not one that can be read."""


class Record(NamedTuple):
    """One entry of a segment."""

    kind: int
    at: float
    name: str
    """The node; empty for views and runs."""
    body: bytes


def chunk(kind: int, body: bytes, first: float, last: float) -> bytes:
    """A chunk as it stands in a file."""
    packed = zlib.compress(body, 6)
    head = _HEAD.pack(_SIGN, kind, len(packed), 0, first, last)
    return _HEAD.pack(_SIGN, kind, len(packed), zlib.crc32(packed, zlib.crc32(head)), first, last) + packed


def put_record(out: bytearray, kind: int, ticks: int, node: int, body: bytes) -> None:
    """Append one record. ``ticks``: since the record before it in this chunk, below 0 for an earlier one."""
    out.append(kind)
    put_varint(out, ticks << 1 if ticks >= 0 else (-ticks << 1) - 1)
    put_varint(out, node)
    put_varint(out, len(body))
    out += body


class Chunk(NamedTuple):
    """Where a chunk's body stands, and from when to when it goes."""

    kind: int
    start: int
    end: int
    first: float
    last: float


@dataclass
class Segment:
    """One segment of a recording, as far as it is whole."""

    data: memoryview
    start: int
    seq: int
    since: float
    until: float
    end: int
    chunks: list[Chunk]
    marks: list[Mark]
    torn: bool = False
    """Something stands behind its last whole chunk that is none."""

    def info(self, complete: bool = True) -> SegmentInfo:
        """What an index says of it."""
        return SegmentInfo(seq=self.seq, since=self.since, until=self.until, bytes=self.end - self.start,
                           complete=complete, marks=self.marks)  # fmt: skip

    @cached_property
    def records(self) -> list[tuple[bool, Record]]:
        """Every record, with whether it is part of the keyframe. Raises `BadRecording`."""
        out: list[tuple[bool, Record]] = []
        names: dict[int, str] = {}
        room = INFLATED_LIMIT_BYTES
        for each in self.chunks:
            if each.kind in (KEYFRAME, CHANGES):
                body = inflated(self.data[each.start : each.end], room)
                room -= len(body)
                try:
                    _parse(body, each.first, names, each.kind == KEYFRAME, out)
                except (ValueError, IndexError, KeyError) as error:
                    raise BadRecording(f"minute {self.seq} of the recording cannot be read: {error}") from error
        return out

    @cached_property
    def by_node(self) -> dict[str, list[Record]]:
        """The records about each node, in their order."""
        out: dict[str, list[Record]] = {}
        for _, record in self.records:
            if record.name:
                out.setdefault(record.name, []).append(record)
        return out

    def forget(self) -> None:
        """Let go of what was unpacked; it is unpacked again when it is asked for."""
        self.__dict__.pop("records", None)
        self.__dict__.pop("by_node", None)


def inflated(body: bytes | memoryview, limit: int) -> bytes:
    """What a chunk holds. Raises `BadRecording` for more than so many bytes."""
    opened = zlib.decompressobj()
    try:
        out = opened.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadRecording(f"a part of the recording cannot be unpacked: {error}") from error
    if len(out) > limit:
        raise BadRecording("a part of the recording is larger than any that raydeck writes")
    return out


def _parse(body: bytes, first: float, names: dict[int, str], key: bool, out: list[tuple[bool, Record]]) -> None:
    at, ticks = 0, 0
    while at < len(body):
        kind = body[at]
        step, at = varint(body, at + 1)
        node, at = varint(body, at)
        length, at = varint(body, at)
        ticks += step >> 1 if not step & 1 else -((step + 1) >> 1)
        end = at + length
        if end > len(body):
            raise ValueError("a record goes beyond its chunk")
        if kind == NAME:
            names[node] = body[at:end].decode("utf-8")
        elif kind <= RUN:  # a newer raydeck may tell of more
            name = names[node] if kind <= STATE else ""
            out.append((key, Record(kind, first + ticks / TICKS_PER_SECOND, name, body[at:end])))
        at = end


def segments(data: bytes | memoryview) -> list[Segment]:
    """Every segment that stands in these bytes, in their order. What is torn or damaged is left out, and never raised.

    Raises `BadRecording` where there is not even one.
    """
    view = memoryview(data)
    whole = bytes(data) if isinstance(data, memoryview) else data
    found: list[Segment] = []
    at = whole.find(MAGIC)
    while at >= 0:
        segment = _segment(view, at)
        if segment is not None:
            found.append(segment)
        at = whole.find(MAGIC, segment.end if segment is not None else at + len(MAGIC))
    if not found:
        raise BadRecording("no minute of a recording stands in it")
    return found


def _segment(view: memoryview, start: int) -> Segment | None:
    chunks: list[Chunk] = []
    marks: list[Mark] = []
    seq, since, at = -1, 0.0, start + len(MAGIC)
    while (found := _chunk(view, at)) is not None:
        try:
            if found.kind == START:
                head = json.loads(inflated(view[found.start : found.end], MARKS_LIMIT_BYTES))
                seq, since = int(head["seq"]), found.first
            elif found.kind == MARKS:
                for raw in json.loads(inflated(view[found.start : found.end], MARKS_LIMIT_BYTES)):
                    with contextlib.suppress(ValidationError):  # a newer version may mark more
                        marks.append(Mark.model_validate(raw))
        except (BadRecording, ValueError, LookupError, TypeError, OverflowError, RecursionError):
            break
        chunks.append(found)
        at = found.end
    if seq < 0 or all(each.kind not in (KEYFRAME, CHANGES) for each in chunks):
        return None
    until = max([since, *(each.last for each in chunks if each.kind == CHANGES)])
    torn = at < len(view) and bytes(view[at : at + len(MAGIC)]) != MAGIC
    return Segment(view, start, seq, since, until, at, chunks, marks, torn)


def _chunk(view: memoryview, at: int) -> Chunk | None:
    body = at + _HEAD.size
    if body > len(view):
        return None
    sign, kind, length, checksum, first, last = _HEAD.unpack_from(view, at)
    if sign != _SIGN or length > CHUNK_LIMIT_BYTES or body + length > len(view):
        return None
    if not (0 <= first < LARGEST_TIME and 0 <= last < LARGEST_TIME):
        return None
    head = _HEAD.pack(_SIGN, kind, length, 0, first, last)
    if zlib.crc32(view[body : body + length], zlib.crc32(head)) != checksum:
        return None
    return Chunk(kind, body, body + length, first, last)


# --- what was true ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class NodeThen:
    """One node as it was at a moment."""

    name: str
    shape: Shape | None = None
    lanes: list[int] = field(default_factory=list[int])
    blank: frozenset[int] = frozenset()
    rest: dict[str, Any] = field(default_factory=dict[str, Any])
    sampled_at: float | None = None
    facts_line: bytes = b""
    facts_at: float = 0.0
    health_body: dict[str, Any] = field(default_factory=dict[str, Any])
    health_at: float | None = None
    states: dict[str, tuple[str, str, float]] = field(default_factory=dict[str, tuple[str, str, float]])
    """``ssh``, ``ray``, ``driver`` to the state, why, and since when."""
    _template: Sample | None = None

    def take(self, record: Record) -> None:
        """One record about this node. Raises what `BadRecording` is made of."""
        if record.kind == SAMPLE:
            self.lanes, self.blank = unpacked(record.body, self.lanes)
            self.sampled_at = record.at
            return
        if record.kind == FACTS:
            self.facts_line, self.facts_at = record.body, record.at
            return
        body = json.loads(record.body)
        if record.kind == SHAPE:
            self.shape = Shape(tuple(map(int, body["index"])), tuple(map(str, body["columns"])))
            if self.shape.lanes > LANES_LIMIT:
                raise ValueError("more figures than any node has")
            self.lanes = [0] * self.shape.lanes
        elif record.kind == REST:
            self.rest, self._template = patched(self.rest, body), None
        elif record.kind == HEALTH:
            self.health_body, self.health_at = patched(self.health_body, body), record.at
        elif record.kind == STATE:
            what, state, reason, since = body
            self.states[str(what)] = (str(state), str(reason), float(since))

    def sample(self) -> Sample | None:
        """Its newest sample; None if there was none."""
        if self.shape is None or self.sampled_at is None:
            return None
        with _Readable(self.name):
            if self._template is None:
                self._template = template_of(self.rest)
            return sample_from(self.shape, self.lanes, self.blank, self._template, self.sampled_at)

    def facts(self) -> Facts | None:
        """What it was."""
        found = self._line(self.facts_line) if self.facts_line else None
        return found if isinstance(found, Facts) else None

    def health(self) -> Health | None:
        """What health rules saw of it last."""
        found = self._line(json.dumps(self.health_body).encode()) if self.health_body else None
        return found if isinstance(found, Health) else None

    def _line(self, line: bytes) -> object:
        with _Readable(self.name):
            return decode(line)


class _Readable:
    """Whatever a damaged or foreign record makes go wrong, as a `BadRecording` that names what it is about."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        wrong = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, WireError)
        if isinstance(error, wrong):
            raise BadRecording(f"what is recorded of {self._name} cannot be read: {error}") from error


@dataclass(slots=True)
class Changed:
    """What is other than before."""

    samples: set[str] = field(default_factory=set[str])
    facts: set[str] = field(default_factory=set[str])
    health: set[str] = field(default_factory=set[str])
    states: set[str] = field(default_factory=set[str])
    views: set[str] = field(default_factory=set[str])
    runs: set[str] = field(default_factory=set[str])


class Player:
    """Goes through one segment in time. What it says is what was true at the moment it has come to."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.nodes: dict[str, NodeThen] = {}
        self.views: dict[str, Any] = {}
        """``nodes``, ``alerts``, ``queue``, ``cluster``, ``jobs``, ``status`` as JSON."""
        self.runs: dict[str, Any] = {}
        self._next = 0

    def forward(self, until: float) -> Changed:
        """To this moment (seconds since 1970, head's clock); the keyframe is always taken. Raises `BadRecording`."""
        changed = Changed()
        into = {SAMPLE: changed.samples, FACTS: changed.facts, HEALTH: changed.health, STATE: changed.states}
        records = self.segment.records
        with _Readable("this minute"):
            while self._next < len(records):
                key, record = records[self._next]
                if record.at > until and not key:
                    break
                self._next += 1
                if record.kind == VIEW:
                    self._take(self.views, record, changed.views)
                elif record.kind == RUN:
                    self._take(self.runs, record, changed.runs)
                else:
                    node = self.nodes.get(record.name)
                    if node is None:
                        node = self.nodes[record.name] = NodeThen(record.name)
                    node.take(record)
                    if record.kind in into:
                        into[record.kind].add(record.name)
        return changed

    @staticmethod
    def _take(into: dict[str, Any], record: Record, changed: set[str]) -> None:
        name, change = json.loads(record.body)
        into[str(name)] = patched(into.get(str(name)), change)
        changed.add(str(name))


def samples_of(parts: Sequence[Segment], node: str, since: float, until: float) -> Iterator[tuple[float, NodeThen]]:
    """One node's samples in order of time, each as the node was then. Raises `BadRecording`."""
    last = since
    for part in parts:
        then = NodeThen(node)
        for record in part.by_node.get(node, ()):
            if record.at > until and record.kind == SAMPLE:
                break
            with _Readable(node):
                then.take(record)
            if record.kind == SAMPLE and record.at > last:  # a keyframe tells again what the minute before it had
                last = record.at
                yield record.at, then


def courses_of(parts: Sequence[Segment], run: str, until: float) -> Iterator[tuple[float, Any]]:
    """One run as it was after each of its records, in order of time, as JSON. Raises `BadRecording`."""
    start = f"[{json.dumps(run)},".encode()
    last = 0.0
    for part in parts:
        body: Any = None
        with _Readable(run):
            for _, record in part.records:
                if record.kind != RUN or not record.body.startswith(start) or record.at > until:
                    continue
                body = patched(body, json.loads(record.body)[1])
                if record.at >= last:
                    last = record.at
                    yield record.at, body
