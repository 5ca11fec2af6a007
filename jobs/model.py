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
    PREEMPTED = "preempted"
    """It saved and left its place to another run; it waits like a queued one, at its old place."""

    @property
    def ended(self) -> bool:
        """Nothing more will happen to a run in this state by itself; a restart can take it up again."""
        return self in ENDED

    @property
    def waiting(self) -> bool:
        """It holds nothing, and waits for the queue to let it go."""
        return self in WAITING


ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED})
WAITING = frozenset({RunState.QUEUED, RunState.PREEMPTED})

_OUT = frozenset(
    {RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.STOPPING, RunState.QUEUED, RunState.PREEMPTED}
)
"""Ways out of an attempt that has begun: an end, or back to the queue for another one."""

MOVES: dict[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.ADMITTED, RunState.STOPPED, RunState.FAILED}),
    RunState.PREEMPTED: frozenset({RunState.QUEUED, RunState.ADMITTED, RunState.STOPPED, RunState.FAILED}),
    RunState.ADMITTED: frozenset({RunState.STARTING}) | _OUT - {RunState.SUCCEEDED},
    RunState.STARTING: frozenset({RunState.RUNNING}) | _OUT,
    RunState.RUNNING: frozenset({RunState.SAVING}) | _OUT,
    RunState.SAVING: _OUT,
    RunState.STOPPING: _OUT - {RunState.STOPPING},
    # An ended run goes on only when somebody restarts it.
    RunState.SUCCEEDED: frozenset({RunState.QUEUED}),
    RunState.FAILED: frozenset({RunState.QUEUED}),
    RunState.STOPPED: frozenset({RunState.QUEUED}),
}
"""From each state to those that may follow it."""


class Failure(str, Enum):
    """What kind of failure ended an attempt."""

    APPLICATION = "application error"
    OUT_OF_MEMORY = "out of memory"
    NODE_LOST = "node lost"
    DRIVER = "driver or GPU fault"
    COMMUNICATION = "communication time-out"
    DATA = "data or storage"
    CHECKPOINT = "checkpoint unusable"
    START_TIMEOUT = "not started in time"
    SILENCE = "no step progress"
    TIME_LIMIT = "time limit"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class _Value(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Move(_Value):
    """One step of a run from one state to another."""

    at: float
    """Seconds since 1970, by the head's clock."""
    attempt: int = 0
    """0 before the first one."""
    before: RunState | None = None
    """None for the launch itself."""
    after: RunState
    cause: str = ""
    """In words."""
    actor: str = ""
    """The user who asked for it; ``raydeck`` where it follows from what was seen."""


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
    step: int | None = None
    """The last step that it told; None if it tells none. All that follows comes from its node each second, in a large
    gang every five: None or empty where it is not known. `jobs.hang.states_of` makes ages of it."""
    step_wall: float | None = None
    """When it told that, by its node's clock, seconds since 1970."""
    step_at: float | None = None
    """The same by the clock of the driver's node, as all that follow: told by an age, so no clock offset is in it."""
    own_seconds: float | None = None
    """Of a step, those that it did not wait for other ranks, the mean of its last ones; only some scripts say it."""
    output_at: float | None = None
    """When it printed last, or since when it is known not to."""
    state: str = ""
    """The kernel's letter for its process: R, S, D, T, t, Z."""
    state_at: float | None = None
    """Since when each look has found it in that state."""
    wchan: str = ""
    """The kernel function that it waits in."""
    cpu: float | None = None
    """How many cores it uses."""
    silent_at: float | None = None
    """Since when its node's agent has not answered; None if it does. Then the rest is from before."""


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
    checkpoint_seconds: float | None = None
    """How long that one took to write; None where its format does not say."""
    environment: dict[str, str] = Field(default_factory=dict)
    """What the ranks run on: ``python``, ``torch``, ``cuda``, ``nccl``, ``driver``, ``ray``. The nodes' common
    value, or each value with its nodes where they differ."""
    warnings: list[str] = Field(default_factory=list)
    """What an operator should know although it goes on: a loss that is not a number, a disk that fills up."""
    wall: float = 0.0


class Outcome(_Value):
    """How an attempt ended, written once by its driver before it exits."""

    verdict: str
    """``succeeded``, ``failed`` or ``stopped``."""
    reason: str = ""
    """One sentence; for a failure it names the first rank that failed, its node and its exit code."""
    first_failing_rank: int | None = None
    exit_codes: dict[int, int | None] = Field(default_factory=dict)
    failure: Failure | None = None
    """For a failed one: of which kind."""
    evidence: str = ""
    """The line that the kind was told from; empty where it follows from an exit code alone."""
    signature: str = ""
    """The error with its numbers and addresses taken out: two attempts with the same one failed in the same way."""
    suspects: list[str] = Field(default_factory=list)
    """Names of nodes that may be to blame."""
    last_step: int | None = None
    """The last step that it reported."""
    checkpoint_step: int | None = None
    survivors: list[int] = Field(default_factory=list)
    """Process ids that were still alive after the sweep; empty is the promise."""
    unanswered: list[str] = Field(default_factory=list)
    """Names of nodes that could not be asked whether anything still lives there."""
    wall: float = 0.0


class Launch(_Value):
    """All that an attempt's driver is told, as JSON in the environment variable ``RAYDECK_LAUNCH``.

    It holds no secret: Ray shows a job's environment to everybody.
    """

    run: str
    attempt: int
    workflow: str
    kind: str = "train"
    """``train``: ranks under torchrun; ``ray``: one command on the head of the job."""
    script: list[str]
    """``train``: the script and its arguments, relative to ``workload/``; ``ray``: the command, run in there."""
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
    node_ids: list[str] = Field(default_factory=list)
    """The Ray nodes that the queue chose for it, one for each node of the gang; empty leaves it to Ray."""
    previous_nodes: dict[str, str] = Field(default_factory=dict)
    """Where earlier attempts of this run had processes: Ray node id to name. Nothing of them may live by now."""
    node_labels: dict[str, str] = Field(default_factory=dict)
    """The pool: Ray node labels that each node of the gang must carry."""
    start_timeout_seconds: float = 300.0
    stop_grace_seconds: float = 30.0
    """How long ranks may take to save and leave after they were asked to."""
    metrics_interval_seconds: float = 30.0
    resume_from_step: int | None = None
    resume_path: str = ""
    """The checkpoint's folder, absolute; it may be another run's. Empty for one that begins from nothing."""
    set_aside_after: int | None = None
    """Checkpoints of this run beyond this step belong to a course that was left: rename them before anything starts."""
    keep_last: int | None = None
    """How many of the newest complete checkpoints stay; None keeps all."""
    keep_every: int | None = None
    """And beside those each whose step is a multiple of this."""

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
    failure: Failure | None = None
    resume_step: int | None = None
    """The checkpoint that it began from; None from nothing."""
    resume_run: str = ""
    """The run whose checkpoint that is, where it is another one's."""
    skipped: list[str] = Field(default_factory=list)
    """Newer checkpoints that were passed over, a sentence each."""
    nodes: list[str] = Field(default_factory=list)
    """The nodes that the queue chose for it, by name."""
    excluded: list[str] = Field(default_factory=list)
    """The nodes that it was kept off, by name."""


class Held(_Value):
    """Somebody wants a waiting run to stay where it is."""

    user: str
    at: float
    reason: str = ""


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
    failure: Failure | None = None
    """Why its newest attempt failed; None while nothing failed."""
    held: Held | None = None
    after: list[str] = Field(default_factory=list)
    """Runs that have to end before it may start: those that it takes the place of."""
    not_before: float | None = None
    """The back-off after a failed attempt; seconds since 1970."""
    max_retry: int = 0
    retries: int = 0
    """How many of them are spent."""
    suspects: dict[str, int] = Field(default_factory=dict)
    """Nodes by name, and how often one was suspected; from the second time on the run is kept off it."""
    sweep: str = ""
    """The sweep that it is one point of."""
    sweep_goal: str = ""
    """``minimize`` or ``maximize``: what makes one of its runs better than another."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """That point: path below ``training`` to value."""
    rollback: str = ""
    """The rollback that started it."""
    resume_run: str = ""
    """The run whose checkpoint its first attempt begins from, where that is another one."""
    max_duration_seconds: float | None = None
    submitted_at: float
    queued_at: float | None = None
    """Its place in the queue counts from here, also after it was preempted or failed; a restart of an ended run begins
    anew. None: from ``submitted_at``."""
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
