"""The fleet as it was: a recording taken into the same stores that live figures go into, at any moment of it.

No I/O and no clock of its own: the moment is what it was told to go to, seconds since 1970 by the head's clock, and all
times in these stores are by that clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from console.state.fleet import HISTORY_COLUMNS, STALE_AFTER_SECONDS, FleetStore, Node, Truth
from console.state.history import SECONDS, History
from console.state.work import WorkStore
from jobs.alertview import AlertsView
from jobs.model import Move, Progress, Run, RunState
from jobs.nodeview import NodesView
from jobs.queueview import QueueView
from jobs.raymodel import RayJob
from jobs.recording import BadRecording, Changed, NodeThen, Player, Segment, courses_of, samples_of
from jobs.recordview import Mark
from jobs.wire import ControllerStatus
from probes.reading import Sample

NO_SSH = "this is a recording made on the head, which does not use SSH"
HELD_SECONDS = 20.0
"""A figure stands until the next one for so long at most; then there is a gap."""
GAP_SECONDS = 15.0
"""So long without a record is said."""
COURSE_SECONDS = 600.0
STEP_SECONDS = 5.0

_MEMBERSHIPS = itertools.count(1_000_000, 1_000_000)
"""No two stores have the same count of changes, so that a screen sees that it looks at another one."""
_JOBS: TypeAdapter[list[RayJob]] = TypeAdapter(list[RayJob])

_Model = TypeVar("_Model", bound=BaseModel)
_Rings = dict[int, dict[str, History]]


class RecordedHistory(_Rings):
    """A node's last ten minutes, made of the recording when somebody looks at them."""

    def __init__(self, timeline: Timeline, name: str) -> None:
        super().__init__()
        self._timeline, self._name = timeline, name
        self._made_of = (-1, -1)

    def _make(self) -> None:
        made_of = (int(self._timeline.at), self._timeline.size_bytes)
        if made_of != self._made_of:
            self._made_of = made_of
            self.clear()
            self.update(self._timeline.history(self._name))

    def get(self, key: int, default: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The rings of one accelerator."""
        self._make()
        return super().get(key, default)

    def items(self) -> Any:
        """All of them."""
        self._make()
        return super().items()


class RecordedFleet(FleetStore):
    """A fleet whose history is not collected on the way, since one may have jumped."""

    def __init__(self) -> None:
        super().__init__()
        self.membership = next(_MEMBERSHIPS)

    def _remember(self, node: Node, sample: Sample) -> None:
        return


class Timeline:
    """A recording, as far as it is here, and the moment that is looked at."""

    def __init__(self, roster: Iterable[Node] = ()) -> None:
        """``roster``: nodes that are known anyway, so that one without a record is seen to have none."""
        self.at = 0.0
        self.fleet = RecordedFleet()
        self.work = WorkStore()
        self.marks: list[Mark] = []
        """What happened in what is here, in the order of time."""
        self._roster = {node.name: node for node in roster}
        self._parts: list[Segment] = []
        self._player: Player | None = None

    # --- what is here -------------------------------------------------------------------------------------------------

    def take(self, parts: Iterable[Segment]) -> None:
        """More of the recording; of a minute that is here already what is longer counts."""
        known = {part.seq: part for part in self._parts}
        for part in parts:
            before = known.get(part.seq)
            if before is None or part.until >= before.until:
                known[part.seq] = part
        self._parts = [known[seq] for seq in sorted(known)]
        self._mark()
        if self._player is not None:
            # It grew at its end only: whatever was read of it stands where it stood.
            self._player.segment = known[self._player.segment.seq]

    def _mark(self) -> None:
        self.marks = sorted((mark for part in self._parts for mark in part.marks), key=lambda mark: mark.at)

    def let_go(self, seconds: float) -> None:
        """Forget what is further away than this, and what was unpacked of the rest."""
        shown = self._player.segment if self._player is not None else None
        kept = [part for part in self._parts
                if part is shown or (part.until >= self.at - seconds and part.since <= self.at + seconds)]  # fmt: skip
        for part in self._parts:
            if not self.at - SECONDS <= part.until <= self.at + SECONDS:
                part.forget()
        self._parts = kept or self._parts[-1:]
        self._mark()

    @property
    def size_bytes(self) -> int:
        """How much of it is here."""
        return sum(part.end - part.start for part in self._parts)

    @property
    def sequence(self) -> set[int]:
        """Which minutes are here, by their number."""
        return {part.seq for part in self._parts}

    @property
    def span(self) -> tuple[float, float]:
        """From when to when there is something here; nothing: 0 and 0."""
        if not self._parts:
            return 0.0, 0.0
        return min(part.since for part in self._parts), max(part.until for part in self._parts)

    def covers(self, at: float) -> bool:
        """Is the minute of this moment here?"""
        return any(part.since <= at <= part.until for part in self._parts)

    @property
    def gap_seconds(self) -> float:
        """For how long nothing was recorded at this moment; 0 while something was."""
        player = self._player
        quiet = 0.0 if player is None else self.at - player.segment.until
        return quiet if quiet > GAP_SECONDS else 0.0

    # --- going --------------------------------------------------------------------------------------------------------

    def seek(self, at: float) -> None:
        """To any moment, with stores made anew. Raises `BadRecording` where what is recorded of it cannot be read."""
        part = self._part(at)
        if part is None:
            raise BadRecording("nothing is recorded of that time")
        self._remember_names()
        self.at = at
        self.fleet, self.work = RecordedFleet(), WorkStore()
        for name in self._roster:
            self._node(name)
        self._player = Player(part)
        self._apply(self._player.forward(at))

    def moved(self, at: float) -> Timeline:
        """The same recording at another moment, in stores of its own: it can be made in a thread. Raises as `seek`."""
        other = Timeline({**self._roster, **self.fleet.nodes}.values())
        other._parts, other.marks = list(self._parts), self.marks
        other.seek(at)
        return other

    def near(self, at: float) -> bool:
        """Is it but a step from here, within the same minute?"""
        part = self._part(at)
        return self._player is not None and part is self._player.segment and 0 <= at - self.at <= STEP_SECONDS

    def advance(self, at: float) -> None:
        """On to a later moment, the stores being the same. Raises `BadRecording`."""
        part = self._part(at)
        if self._player is None or part is None or at < self.at:
            self.seek(at)
            return
        self.at = at
        if part.seq != self._player.segment.seq:
            self._player = Player(part)
        self._apply(self._player.forward(at))

    def _part(self, at: float) -> Segment | None:
        """The minute of this moment, else the one before it. Where the clock went back what was told last counts."""
        if not self._parts:
            return None
        before = [part for part in self._parts if part.since <= at]
        if not before:
            return min(self._parts, key=lambda part: part.since)
        return max(before, key=lambda part: (part.seq if part.until >= at else -1, part.since, part.seq))

    def _remember_names(self) -> None:
        """A node that was seen once stays in the list: a screen may be open on it."""
        for name, node in self.fleet.nodes.items():
            self._roster[name] = node

    # --- into the stores ----------------------------------------------------------------------------------------------

    def _node(self, name: str) -> Node:
        node = self.fleet.nodes.get(name)
        if node is None:
            known = self._roster.get(name)
            node = Node(name, known.address if known else "", known.role if known else "worker",
                        known.expected_gpus if known else None)  # fmt: skip
            node.ssh = Truth("none", NO_SSH)
            if known is not None:
                node.ray_node_id, node.ray_address = known.ray_node_id, known.ray_address
            node.history = RecordedHistory(self, name)
            self.fleet.add(node)
        return node

    def _apply(self, changed: Changed) -> None:
        player = self._player
        assert player is not None
        for name in player.nodes:
            self._node(name)
        for name in changed.facts:
            then = player.nodes[name]
            if (facts := then.facts()) is not None:
                self.fleet.take_facts(name, facts, then.facts_at)
        for name in changed.samples:
            then = player.nodes[name]
            if (sample := then.sample()) is not None and then.sampled_at is not None:
                self.fleet.take_sample(name, sample, then.sampled_at)
        for name in changed.health:
            then = player.nodes[name]
            if (health := then.health()) is not None:
                self.fleet.take_health(name, health, then.health_at or self.at)
        for name in changed.states:
            self._take_states(player.nodes[name])
        for name in player.runs:  # in their order: of two that claim a GPU the later one has it
            if name in changed.runs:
                self.work.run_changed(_valid(Run, player.runs[name]), self.at)
        for name in changed.views:  # after the runs: among Ray's jobs are those that are attempts of them
            self._take_view(name, player.views[name])
        self.work.heard_at = self.at
        self._hold(player)

    def _hold(self, player: Player) -> None:
        """Where samples are kept further apart than screens call fresh, each one stands until the next is due."""
        pace = (player.views.get("pace") or {}).get("seconds", 1.0)
        if not isinstance(pace, (int, float)) or pace < STALE_AFTER_SECONDS / 2:
            return
        for name, then in player.nodes.items():
            if then.sampled_at is not None:
                self.fleet.nodes[name].sampled_at = min(self.at, then.sampled_at + pace)

    def _take_states(self, then: NodeThen) -> None:
        node = self.fleet.nodes[then.name]
        truths = {"ssh": node.ssh, "ray": node.ray, "driver": node.driver}
        for what, (state, reason, since) in then.states.items():
            truth = truths.get(what)
            if truth is not None:
                truth.move(state, reason, since)
                truth.since = since
        self.fleet.changed.add(then.name)

    def _take_view(self, kind: str, body: Any) -> None:
        if kind == "queue":
            self.work.take_queue(_valid(QueueView, body), self.at)
        elif kind == "nodes":
            self.work.take_nodes(_valid(NodesView, body), self.at)
        elif kind == "alerts":
            self.work.take_alerts(_valid(AlertsView, body), self.at)
        elif kind == "status":
            self.work.status = _valid(ControllerStatus, body)
        elif kind == "jobs":
            try:
                self.work.take_ray_jobs(_JOBS.validate_python(body))
            except ValidationError as error:
                raise _unreadable("Ray's jobs", error) from error
        elif kind == "cluster":
            self._take_cluster(_valid(_Cluster, body))

    def _take_cluster(self, cluster: _Cluster) -> None:
        fleet = self.fleet
        fleet.ray_answers("ok" if cluster.ray == "ok" else "down", "" if cluster.ray == "ok" else cluster.ray, self.at)
        fleet.ray_read_at, fleet.ray_version = self.at, cluster.version
        for told in cluster.nodes:
            node = self._node(told.name)
            node.address, node.role = told.address or node.address, told.role
            node.ray_node_id, node.ray_address = told.node_id, told.address
            node.ray_gpus_total, node.ray_gpus_used = told.gpus_total, told.gpus_used
            node.ray_cpus_total, node.ray_cpus_used = told.cpus_total, told.cpus_used
            fleet.changed.add(told.name)

    # --- what was before ----------------------------------------------------------------------------------------------

    def history(self, name: str) -> _Rings:
        """The last ten minutes of a node's accelerators. Raises `BadRecording`."""
        rings: _Rings = {}
        last: dict[int, list[float | None]] | None = None
        first, place = 0.0, 0
        for at, values in self._figures(name, self.at - SECONDS):
            if last is None:
                first = at  # seconds are counted from here, so that one sample a second falls into one second each
            else:
                _push(rings, last, round(at - first) - place)
                place = round(at - first)
            last = values
        if last is not None:
            _push(rings, last, max(1, round(self.at - first) - place))
        return rings

    def _figures(self, name: str, since: float) -> Iterator[tuple[float, dict[int, list[float | None]]]]:
        """Each sample as the figures that history keeps, by accelerator."""
        node = self.fleet.nodes.get(name)
        for at, then in samples_of(self._near(since), name, since, self.at):
            sample = then.sample()
            if sample is None:
                continue
            fresh = sample.devices_age_seconds <= STALE_AFTER_SECONDS
            found: dict[int, list[float | None]] = {}
            for index in sample.index:
                device = node.device(index) if node is not None else None
                total = device.memory_total_bytes if device is not None else None
                row: list[float | None] = []
                for column in HISTORY_COLUMNS:
                    wanted = "memory_used_bytes" if column == "memory_percent" else column
                    value = sample.reading(index, wanted) if fresh else None
                    number = float(value) if isinstance(value, (int, float)) else None
                    if column == "memory_percent" and number is not None:
                        number = 100.0 * number / total if total else None
                    row.append(number)
                found[index] = row
            yield at, found

    def _near(self, since: float) -> list[Segment]:
        return [part for part in self._parts if part.until >= since and part.since <= self.at]

    def course(self, run: str) -> tuple[list[Progress], list[Move]]:
        """What a run reported in the ten minutes before, and its moves from state to state. Raises `BadRecording`."""
        points: dict[int, Progress] = {}
        moves: list[Move] = []
        before: RunState | None = None
        for at, body in courses_of(self._near(self.at - COURSE_SECONDS), run, self.at):
            found = _valid(Run, body)
            attempt = found.attempt
            point = attempt.status.progress if attempt is not None and attempt.status is not None else None
            if point is not None:
                points[point.step] = point
            if before is not None and found.state is not before:
                number = attempt.number if attempt is not None else 0
                moves.append(Move(at=at, attempt=number, before=before, after=found.state, cause=found.reason))
            before = found.state
        return [points[step] for step in sorted(points)], moves


class _ClusterNode(BaseModel):
    """A node as Ray had it."""

    name: str
    address: str = ""
    role: str = "worker"
    node_id: str = ""
    gpus_total: float | None = None
    gpus_used: float | None = None
    cpus_total: float | None = None
    cpus_used: float | None = None


class _Cluster(BaseModel):
    """What the controller knew of Ray."""

    ray: str = "ok"
    version: str = ""
    nodes: Sequence[_ClusterNode] = ()


def _push(rings: _Rings, values: dict[int, list[float | None]], seconds: int) -> None:
    held = min(seconds, int(HELD_SECONDS)) if seconds <= HELD_SECONDS else 1
    for index in {**rings, **values}:
        row = values.get(index) or [None] * len(HISTORY_COLUMNS)
        of = rings.setdefault(index, {column: History() for column in HISTORY_COLUMNS})
        for column, value in zip(HISTORY_COLUMNS, row, strict=True):
            ring = of[column]
            for second in range(seconds):
                ring.push(value if second < held else None)


def _valid(model: type[_Model], body: Any) -> _Model:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _unreadable(model.__name__.strip("_"), error) from error


def _unreadable(what: str, error: ValidationError) -> BadRecording:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return BadRecording(f"what is recorded cannot be read: {what} {where}: {first['msg']}")
