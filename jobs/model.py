"""Runs, attempts and what a gang tells of itself: plain values, and the table of moves that a run may make."""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class RunState(str, Enum):
    """Where a run stands. `MOVES` has the ways from one to the next."""

    QUEUED = "queued"
    ADMITTED = "admitted"
    STARTING = "starting"
    RUNNING = "running"
    SAVING = "saving"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        """Nothing more will happen to a run in this state."""
        return self in ENDED


ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED})

MOVES: dict[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.ADMITTED, RunState.STOPPED, RunState.FAILED}),
    RunState.ADMITTED: frozenset({RunState.STARTING, RunState.STOPPING, RunState.STOPPED, RunState.FAILED}),
    RunState.STARTING: frozenset(
        {RunState.RUNNING, RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPING, RunState.STOPPED}
    ),
    RunState.RUNNING: frozenset(
        {RunState.SAVING, RunState.STOPPING, RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED}
    ),
    RunState.SAVING: frozenset({RunState.STOPPING, RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED}),
    RunState.STOPPING: frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED}),
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.STOPPED: frozenset(),
}
"""From each state to those that may follow it."""


class _Value(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Rank(_Value):
    """One process of a gang, and where it runs."""

    rank: int
    node_id: str = ""
    """Ray's id of the node."""
    node_address: str = ""
    gpu: str = ""
    """What Ray gave it: the accelerator's index on the node, empty without one."""
    pid: int | None = None
    exit_code: int | None = None


class Progress(_Value):
    """One point of a run's course, as the script reported it."""

    step: int
    loss: float | None = None
    throughput: float | None = None
    """In ``throughput_unit`` a second, summed over the whole gang by the script."""
    throughput_unit: str = ""
    wall: float = 0.0
    """When, by the clock of rank 0's node, seconds since 1970."""


class GangStatus(_Value):
    """What the driver of an attempt says while it lives; it writes this file anew each second."""

    phase: str = "placing"
    """``placing`` (waiting for the placement group), ``starting``, ``running``, ``saving``, ``ended``."""
    detail: str = ""
    """Why it is still in this phase, for the screen."""
    ranks: list[Rank] = Field(default_factory=list)
    progress: Progress | None = None
    checkpoint_step: int | None = None
    """The newest complete checkpoint."""
    wall: float = 0.0


class Outcome(_Value):
    """How an attempt ended, written once by its driver before it exits."""

    verdict: str
    """``succeeded``, ``failed`` or ``stopped``."""
    reason: str = ""
    """One sentence; for a failure it names the first rank that failed, its node and its exit code."""
    first_failing_rank: int | None = None
    exit_codes: dict[int, int | None] = Field(default_factory=dict)
    checkpoint_step: int | None = None
    survivors: list[int] = Field(default_factory=list)
    """Process ids that were still alive after the sweep; empty is the promise."""
    wall: float = 0.0


class Launch(_Value):
    """All that an attempt's driver is told, as JSON in the environment variable ``RAYDECK_LAUNCH``.

    It holds no secret: Ray shows a job's environment to everybody.
    """

    run: str
    attempt: int
    workflow: str
    script: list[str]
    """The entrypoint and its arguments, relative to ``workload/`` in the package."""
    nodes: int
    processes_per_node: int
    gpus_per_node: float
    cpus_per_node: float
    memory_bytes_per_node: int = 0
    """0 asks Ray for none."""
    run_directory: str
    """``<output_root>/<workflow>/<run>``, on storage that all nodes share."""
    data_root: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    """The resolved ``training`` section, given to the script as JSON in ``RAYDECK_CONFIG``."""
    environment: dict[str, str] = Field(default_factory=dict)
    """The workflow's ``env``; references to secrets stand unresolved and are resolved on the node."""
    checkpoint_interval_steps: int = 0
    excluded_node_ids: list[str] = Field(default_factory=list)
    """Ray nodes that this attempt must keep off (cordoned, suspected)."""
    node_labels: dict[str, str] = Field(default_factory=dict)
    """The pool: Ray node labels that each node of the gang must carry."""
    start_timeout_seconds: float = 300.0
    stop_grace_seconds: float = 30.0
    """How long ranks may take to save and leave after they were asked to."""
    metrics_interval_seconds: float = 30.0
    resume_from_step: int | None = None

    @property
    def attempt_directory(self) -> str:
        """Where this attempt's own files are: ``rank-R.log``, ``status.json``, ``progress.jsonl``, ``outcome.json``."""
        return f"{self.run_directory}/attempt-{self.attempt}"


class Attempt(_Value):
    """One try of a run: one Ray job."""

    number: int
    job_id: str
    """Ray's submission id, made from the run's id and the number, so that submitting twice is submitting once."""
    state: RunState = RunState.ADMITTED
    reason: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    status: GangStatus | None = None
    outcome: Outcome | None = None


class Run(_Value):
    """One launch of a release."""

    id: str
    workflow: str
    release: str
    state: RunState
    reason: str = ""
    """Why it is in this state, in words."""
    queue: str = "default"
    priority: str = "normal"
    user: str = ""
    nodes: int
    gpus: int
    """In all, over all its nodes."""
    kind: str = "train"
    run_directory: str = ""
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    attempts: list[Attempt] = Field(default_factory=list)

    @property
    def attempt(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None


def job_id(run: str, attempt: int) -> str:
    """Ray's submission id of an attempt: letters, digits and dashes only (others break Ray's job API)."""
    return f"raydeck-{run}-a{attempt}"
