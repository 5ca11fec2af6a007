"""Runs as the controller tells them, and Ray's own jobs; no I/O, no clock of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from console.state.fleet import Finding, Truth
from jobs.model import GangStatus, Rank, Run, RunState, job_id
from jobs.raymodel import RayJob
from jobs.wire import ControllerStatus

FAILED_SHOWN_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Job:
    """One row of the runs screen: a run of ours, or a job that somebody else gave to Ray."""

    key: str
    run: Run | None = None
    ray_job: RayJob | None = None
    """For a job that raydeck did not start."""


class WorkStore:
    """Every run by id, and which of them changed since somebody last asked."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.ray_jobs: dict[str, RayJob] = {}
        self.controller = Truth("unknown")
        """``ok``, ``absent``, ``down``, ``refused``, ``connecting``; with a sentence."""
        self.status: ControllerStatus | None = None
        self.heard_at: float | None = None
        """When the controller last said anything, monotonic seconds of this machine."""
        self.clock_offset_seconds = 0.0
        """The head's clock less this machine's: a run's times are in the head's."""
        self.changed: set[str] = set()
        self._hold: dict[str, dict[int, tuple[str, int]]] = {}

    def take_changed(self) -> set[str]:
        """The keys of rows that changed since the last call."""
        changed, self.changed = self.changed, set()
        return changed

    # --- from the controller ------------------------------------------------------------------------------------------

    def controller_state(self, state: str, reason: str, at: float) -> None:
        """How the way to the controller stands."""
        self.controller.move(state, reason, at)

    def snapshot(self, status: ControllerStatus, runs: Iterable[Run], at: float) -> None:
        """All that the controller knows now."""
        self.status, self.heard_at = status, at
        fresh = {run.id: run for run in runs}
        self.changed.update(fresh.keys() | self.runs.keys())
        self.runs = fresh
        self._find_holders()

    def run_changed(self, run: Run, at: float) -> None:
        """A run as it is now."""
        self.heard_at = at
        self.runs[run.id] = run
        self.changed.add(run.id)
        self._find_holders()

    def heartbeat(self, ray: str, at: float) -> None:
        """The controller lives."""
        self.heard_at = at
        if self.status is not None:
            self.status.ray = ray

    # --- from Ray -----------------------------------------------------------------------------------------------------

    def take_ray_jobs(self, jobs: Iterable[RayJob]) -> None:
        """Ray's list of jobs; those that are attempts of our runs are left out."""
        ours = {job_id(run.id, attempt.number) for run in self.runs.values() for attempt in run.attempts}
        fresh = {job.key: job for job in jobs if job.submission_id not in ours}
        self.changed.update(key for key, job in fresh.items() if self.ray_jobs.get(key) != job)
        self.ray_jobs = fresh

    # --- what is asked of it ------------------------------------------------------------------------------------------

    @property
    def keys(self) -> list[str]:
        """The rows of the runs screen: what is not over first, then the newest first, foreign jobs last."""
        ordered = sorted(self.runs.values(), key=lambda run: (run.state.ended, -run.submitted_at))
        return [run.id for run in ordered] + list(self.ray_jobs)

    def job(self, key: str) -> Job:
        """One row."""
        return Job(key, run=self.runs.get(key), ray_job=self.ray_jobs.get(key))

    def _find_holders(self) -> None:
        hold: dict[str, dict[int, tuple[str, int]]] = {}
        for run in self.runs.values():
            for rank in ranks(run):
                if not run.state.ended and rank.node_id and rank.gpu.isdigit() and rank.exit_code is None:
                    hold.setdefault(rank.node_id, {})[int(rank.gpu)] = (run.id, rank.rank)
        self._hold = hold

    def holders(self, ray_node_id: str) -> dict[int, tuple[str, int]]:
        """Accelerator index on a node to the run and rank that hold it."""
        return self._hold.get(ray_node_id, {})

    def runs_on(self, ray_node_id: str) -> list[str]:
        """The runs that have a process on a node."""
        return sorted({run for run, _ in self.holders(ray_node_id).values()})

    def findings(self, head_wall: float) -> list[Finding]:
        """What needs someone among the runs and the controller; by the head's clock."""
        found: list[Finding] = []
        if self.controller.state == "absent":
            found.append(Finding("info", "no controller on this cluster: nothing can be changed (O starts one)"))
        elif self.controller.state not in ("ok", "unknown", "connecting"):
            found.append(Finding("critical", f"controller: {self.controller.reason or self.controller.state}"))
        if self.status is not None and self.controller.state == "ok" and self.status.ray != "ok":
            found.append(Finding("critical", f"the controller cannot reach Ray: {self.status.ray}"))
        for run in self.runs.values():
            age = head_wall - (run.ended_at or head_wall)
            if run.state is RunState.FAILED and age < FAILED_SHOWN_SECONDS:
                found.append(Finding("warning", f"{run.id} failed: {run.reason}", run.id))
        return found


def status_of(run: Run) -> GangStatus | None:
    """What the newest attempt's gang says."""
    return run.attempt.status if run.attempt else None


def ranks(run: Run) -> list[Rank]:
    """The processes of the newest attempt."""
    status = status_of(run)
    return status.ranks if status else []
