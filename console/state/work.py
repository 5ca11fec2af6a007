"""Runs as the controller tells them, the queues, and Ray's own jobs; no I/O, no clock of its own.

Ten thousand runs may change in one burst: what is worked out for a run is worked out when it changes, and for it alone.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from console.state.alerts import AlertsState
from console.state.fleet import Finding, Truth
from console.state.nodes import NodesStore
from jobs.alertview import AlertsView
from jobs.model import Attempt, GangStatus, Rank, Run, RunState
from jobs.nodeview import NodesView
from jobs.queueview import QueueView, Waiting
from jobs.raymodel import RayJob
from jobs.wire import ControllerStatus

FAILED_SHOWN_SECONDS = 1800.0
ENDED_KEPT = 2_000
"""So many runs that have ended stay here; older ones are to be had from the controller."""

_OURS = re.compile(r"raydeck-(?P<run>.+)-a\d+")
"""What the controller calls its Ray jobs; see `jobs.model.job_id`."""

_Slot = tuple[str, int]
"""A Ray node's id and the index of an accelerator on it."""
_Place = tuple[int, float, str]
"""Where a run stands among all: its group, its time, its id."""


@dataclass(frozen=True, slots=True)
class Job:
    """One row of the runs screen: a run of ours, or a job that somebody else gave to Ray."""

    key: str
    run: Run | None = None
    ray_job: RayJob | None = None
    """For a job that raydeck did not start."""
    waiting: Waiting | None = None
    """Its place in the queue, for one of the first that wait."""


class Holders:
    """Who holds which accelerator, kept run by run."""

    def __init__(self) -> None:
        self._claims: dict[str, dict[_Slot, int]] = {}
        self._slots: dict[_Slot, dict[str, int]] = {}
        """Each slot's runs, in the order in which they said so. More than one only while news of one is on its way."""
        self._nodes: dict[str, dict[int, tuple[str, int]]] = {}

    def put(self, run: Run) -> None:
        """A run as it is now."""
        claims = dict(_claims(run))
        before = self._claims.get(run.id, {})
        if claims == before:
            return
        for slot in before.keys() - claims.keys():
            self._leave(run.id, slot)
        for slot, rank in claims.items():
            self._slots.setdefault(slot, {})[run.id] = rank
            self._nodes.setdefault(slot[0], {})[slot[1]] = (run.id, rank)
        if claims:
            self._claims[run.id] = claims
        else:
            del self._claims[run.id]

    def drop(self, run: str) -> None:
        """A run that is no longer known."""
        for slot in self._claims.pop(run, {}):
            self._leave(run, slot)

    def _leave(self, run: str, slot: _Slot) -> None:
        there, (node, index) = self._slots[slot], slot
        del there[run]
        if there:
            self._nodes[node][index] = next(reversed(there.items()))
            return
        del self._slots[slot], self._nodes[node][index]
        if not self._nodes[node]:
            del self._nodes[node]

    def on(self, node: str) -> dict[int, tuple[str, int]]:
        """Accelerator index to run and rank, on one node."""
        return self._nodes.get(node, {})


def _claims(run: Run) -> Iterator[tuple[_Slot, int]]:
    if run.state.ended:
        return
    for rank in ranks(run):
        if rank.node_id and rank.gpu.isdigit() and rank.exit_code is None:
            yield (rank.node_id, int(rank.gpu)), rank.rank


def _place(run: Run) -> _Place:
    """What holds something first, then what waits, then what is over; the newest first in each."""
    if run.state.ended:
        return 2, -(run.ended_at or run.submitted_at), run.id
    return int(run.state.waiting), -run.submitted_at, run.id


class WorkStore:
    """Every run by id, and which of them changed since somebody last asked."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.ray_jobs: dict[str, RayJob] = {}
        self.queue: QueueView | None = None
        """The queues, and the first of those that wait; None until a controller told it."""
        self.nodes = NodesStore()
        """Nodes that are kept free of work, and the drains."""
        self.alerts = AlertsState()
        """What fires, by the controller and by this console's own look."""
        self.controller = Truth("unknown")
        """``ok``, ``absent``, ``down``, ``refused``, ``connecting``; with a sentence."""
        self.status: ControllerStatus | None = None
        self.heard_at: float | None = None
        """When the controller last said anything, monotonic seconds of this machine."""
        self.clock_offset_seconds = 0.0
        """The head's clock less this machine's: a run's times are in the head's."""
        self.changed: set[str] = set()
        self.queue_changed = False
        self._waiting: dict[str, Waiting] = {}
        self._holders = Holders()
        self._places: dict[str, _Place] = {}
        self._order: list[_Place] = []
        self._keys: list[str] | None = None
        self._ended = 0
        self._noted: set[str] = set()
        """Runs with something to find, so that nobody has to look through all of them."""

    def take_changed(self) -> set[str]:
        """The keys of rows that changed since the last call."""
        changed, self.changed = self.changed, set()
        return changed

    def take_queue_changed(self) -> bool:
        """Did the queues change since the last call?"""
        changed, self.queue_changed = self.queue_changed, False
        return changed

    # --- from the controller ------------------------------------------------------------------------------------------

    def controller_state(self, state: str, reason: str, at: float) -> None:
        """How the way to the controller stands."""
        self.controller.move(state, reason, at)

    def snapshot(
        self,
        status: ControllerStatus,
        runs: Iterable[Run],
        at: float,
        queue: QueueView | None = None,
        nodes: NodesView | None = None,
        alerts: AlertsView | None = None,
    ) -> None:
        """All that the controller knows now."""
        self.status, self.heard_at = status, at
        fresh = {run.id: run for run in runs}
        for key in self.runs.keys() - fresh.keys():
            self._drop(key)
        for run in fresh.values():
            self._put(run)
        self._bound()
        self._set_queue(queue)
        self.nodes.take(nodes)
        self.alerts.take(alerts)

    def run_changed(self, run: Run, at: float) -> None:
        """A run as it is now."""
        self.heard_at = at
        self._put(run)
        self._bound()

    def take_queue(self, queue: QueueView, at: float) -> None:
        """The queues as they are now."""
        self.heard_at = at
        self._set_queue(queue)

    def take_nodes(self, nodes: NodesView, at: float) -> None:
        """The held nodes and the drains as they are now."""
        self.heard_at = at
        self.nodes.take(nodes)

    def take_alerts(self, alerts: AlertsView, at: float) -> None:
        """All that fires as it is now."""
        self.heard_at = at
        self.alerts.take(alerts)

    def _set_queue(self, queue: QueueView | None) -> None:
        self.queue, self.queue_changed = queue, True
        self._waiting = {one.run: one for one in queue.waiting} if queue else {}

    def heartbeat(self, ray: str, at: float) -> None:
        """The controller lives."""
        self.heard_at = at
        if self.status is not None:
            self.status.ray = ray

    # --- from Ray -----------------------------------------------------------------------------------------------------

    def take_ray_jobs(self, jobs: Iterable[RayJob]) -> None:
        """Ray's list of jobs; those that are attempts of our runs are left out."""
        fresh = {job.key: job for job in jobs if not self._ours(job)}
        self.changed.update(key for key, job in fresh.items() if self.ray_jobs.get(key) != job)
        self.changed.update(self.ray_jobs.keys() - fresh.keys())
        if fresh.keys() != self.ray_jobs.keys():
            self._keys = None
        self.ray_jobs = fresh

    def _ours(self, job: RayJob) -> bool:
        """An attempt of a run that is here, or one that is over of a run that is no longer here."""
        found = _OURS.fullmatch(job.submission_id or "")
        return found is not None and (found["run"] in self.runs or job.status not in ("PENDING", "RUNNING"))

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _put(self, run: Run) -> None:
        before, place = self._places.get(run.id), _place(run)
        if place != before:
            if before is not None:
                self._forget_place(before)
            insort(self._order, place)
            self._places[run.id] = place
            self._ended += place[0] == 2
            self._keys = None
        self.runs[run.id] = run
        self.changed.add(run.id)
        self._holders.put(run)
        if run.state is RunState.FAILED or run.retries or (not run.state.ended and _warnings(run)):
            self._noted.add(run.id)
        else:
            self._noted.discard(run.id)

    def _drop(self, key: str) -> None:
        self._forget_place(self._places.pop(key))
        self._keys = None
        del self.runs[key]
        self.changed.add(key)
        self._holders.drop(key)
        self._noted.discard(key)

    def _forget_place(self, place: _Place) -> None:
        del self._order[bisect_left(self._order, place)]
        self._ended -= place[0] == 2

    def _bound(self) -> None:
        while self._ended > ENDED_KEPT:
            self._drop(self._order[-1][2])

    # --- what is asked of it ------------------------------------------------------------------------------------------

    @property
    def keys(self) -> list[str]:
        """The rows of the runs screen: what is not over first, then the newest first, foreign jobs last.

        The same list until its rows are others; not to be changed.
        """
        if self._keys is None:
            self._keys = [place[2] for place in self._order] + list(self.ray_jobs)
        return self._keys

    def job(self, key: str) -> Job:
        """One row."""
        return Job(key, self.runs.get(key), self.ray_jobs.get(key), self._waiting.get(key))

    def holders(self, ray_node_id: str) -> dict[int, tuple[str, int]]:
        """Accelerator index on a node to the run and rank that hold it."""
        return self._holders.on(ray_node_id)

    def runs_on(self, ray_node_id: str) -> list[str]:
        """The runs that have a process on a node."""
        return sorted({run for run, _ in self.holders(ray_node_id).values()})

    def findings(self, head_wall: float) -> list[Finding]:
        """What needs someone among the runs and the controller; by the head's clock. To wait is no finding."""
        found: list[Finding] = []
        if self.controller.state == "absent":
            found.append(Finding("info", "no controller on this cluster: nothing can be changed (O starts one)"))
        elif self.controller.state not in ("ok", "unknown", "connecting"):
            found.append(Finding("critical", f"controller: {self.controller.reason or self.controller.state}"))
        if self.status is not None and self.controller.state == "ok" and self.status.ray != "ok":
            text = f"the controller cannot reach Ray: {self.status.ray}"
            found.append(Finding("critical", text, about="cluster"))
        found += self.nodes.findings()
        for key in sorted(self._noted):
            found += run_findings(self.runs[key], head_wall)
        return found


def run_findings(run: Run, head_wall: float) -> list[Finding]:
    """What needs someone about one run: that it failed, and how; what its gang warns of; that it had to try again."""
    if run.state is RunState.FAILED:
        if head_wall - (run.ended_at or head_wall) >= FAILED_SHOWN_SECONDS:
            return []
        kind = f" ({run.failure.value})" if run.failure else ""
        tried = f" after {retries_text(run)}" if run.retries else ""
        return [Finding("warning", f"{run.id} failed{kind}{tried}: {run.reason}", run.id, "run failed")]
    if run.state.ended:
        return []
    found = [Finding("warning", f"{run.id}: {text}", run.id, _about(text)) for text in _warnings(run)]
    broken = failed_attempt(run)
    if run.retries and broken is not None and head_wall - (broken.ended_at or head_wall) < FAILED_SHOWN_SECONDS:
        kind = f" ({broken.failure.value})" if broken.failure else ""
        doing = "waits to try again" if run.state.waiting else "tries again"
        text = f"{run.id} {doing}, {retries_text(run)}; attempt {broken.number} failed{kind}: {broken.reason}"
        found.append(Finding("info", text, run.id, "run tries again"))
    return found


def _about(warning: str) -> str:
    return "run figures" if "not a number" in warning or "infinite" in warning else ""


def failed_attempt(run: Run) -> Attempt | None:
    """The newest attempt that failed."""
    return next((attempt for attempt in reversed(run.attempts) if attempt.state is RunState.FAILED), None)


def retries_text(run: Run) -> str:
    """How many of its retries are spent: ``retry 1 of 3``."""
    return f"retry {run.retries} of {run.max_retry}"


def _warnings(run: Run) -> list[str]:
    status = status_of(run)
    return status.warnings if status else []


def status_of(run: Run) -> GangStatus | None:
    """What the newest attempt's gang says."""
    return run.attempt.status if run.attempt else None


def ranks(run: Run) -> list[Rank]:
    """The processes of the newest attempt."""
    status = status_of(run)
    return status.ranks if status else []
