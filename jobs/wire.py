"""Requests, replies and events between the console and the controller.

HTTP on a Unix socket, JSON bodies. Who is asking is not in the request: the kernel says it (SO_PEERCRED).

====== ================================ ====================================================================
GET    /v1/status                       `ControllerStatus`
GET    /v1/runs                         ``{"runs": [Run, …]}``, newest first; ``?limit=N`` (default 200), ``?sweep=ID``
GET    /v1/runs/{run}                   `Run`
GET    /v1/runs/{run}/series            ``{"points": [Progress, …]}``, thinned to ``?points=N`` (default 600)
GET    /v1/runs/{run}/moves             ``{"moves": [Move, …]}``, oldest first
GET    /v1/runs/{run}/explain           `Explanation`
GET    /v1/runs/{run}/checkpoints       ``{"checkpoints": [CheckpointRow, …]}``, in the order of their steps
GET    /v1/runs/{run}/validation        `jobs.validationview.Report`: of a validation, what it has found so far
POST   /v1/runs/{run}/look              ``{"look": ID}``: have all ranks of a run looked at (`jobs.looks`)
GET    /v1/runs/{run}/looks/{look}      `jobs.looks.Look`: what that has brought so far
GET    /v1/queue                        `QueueView`; ``?offset=N&limit=N`` (default 0 and 200) of those that wait
GET    /v1/releases                     ``{"releases": [ReleaseRow, …]}``, newest first; ``?workflow=NAME``
GET    /v1/rollbacks                    ``{"rollbacks": [Rollback, …]}``, newest first; ``?workflow=NAME``
GET    /v1/audit                        ``{"entries": [AuditEntry, …]}``, newest first; ``?limit=N``; with
                                        ``?verify=1`` also ``"broken"``: where its chain breaks, empty if it holds
GET    /v1/events                       NDJSON for as long as the caller listens: first ``Snapshot``, then
                                        ``RunChanged``, ``QueueChanged`` …, ``Heartbeat`` at least every 2 s
PUT    /v1/packages/{digest}            the code that a launch refers to (zip); idempotent; 201 new, 200 known
POST   /v1/runs                         `LaunchRequest` → ``{"runs": [Run, …]}``: one, or all of a sweep
                                        (201; 200 when the request id is known already)
POST   /v1/runs/{run}/stop              `StopRequest` → `Run`
POST   /v1/runs/{run}/restart           `RestartRequest` → `Restarted`
POST   /v1/runs/{run}/arrange           `ArrangeRequest` → `Run`
POST   /v1/workflows/{workflow}/rollback `RollbackRequest` → `Rollback`
POST   /v1/rollbacks/{rollback}/undo    `UndoRequest` → `Rollback`
GET    /v1/nodes                        `NodesView`: nodes that are held, and drains
GET    /v1/drains                       ``{"drains": [Drain, …]}``, newest first; ``?limit=N``
POST   /v1/nodes/cordon                 `CordonRequest` → `NodesReply`
POST   /v1/nodes/uncordon               `UncordonRequest` → `NodesReply`
POST   /v1/nodes/drain                  `DrainRequest` → `NodesReply`
POST   /v1/drains/{drain}/decide        `DecideRequest` → `Drain`: stop it, or choose what follows its deadline
POST   /v1/nodes/retire                 `RetireRequest` → `NodesReply`
POST   /v1/nodes/permit                 `PermitRequest` → `Permit`: before something is done to a node over SSH
POST   /v1/permits/{permit}/done        `PermitDone` → `Permit`: what came of it
GET    /v1/recording/index              `jobs.recordview.RecordingIndex`: which minutes are recorded
GET    /v1/recording                    the segments of ``?since=…&until=…`` as they are (`jobs.recording`)
GET    /v1/alerts                       `AlertsView`: what fires, and the silences
GET    /v1/alerts/history               ``{"alerts": [Alert, …]}``, newest first, ended ones too; ``?limit=N``
POST   /v1/alerts/acknowledge           `AcknowledgeRequest` → `AlertsReply`
POST   /v1/alerts/silence               `SilenceRequest` → `AlertsReply`
POST   /v1/silences/{silence}/end       `EndSilenceRequest` → `AlertsReply`
POST   /v1/alerts/clear                 `ClearRequest` → `AlertsReply`
POST   /v1/alerts/test                  `TestRequest` → `TestReply`
====== ================================ ====================================================================

A refusal is ``{"error": {"sentence": …, "hint": …, "mistakes": [Mistake, …]}}`` with status 400 (makes no sense), 403
(not allowed), 404 (no such thing), 409 (wrong state) or 503 (Ray does not answer).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from jobs.alertview import AlertsChanged, AlertsView
from jobs.model import Run
from jobs.nodeview import DrainPolicy, NodeRef, NodesPlan, NodesView
from jobs.queueview import QueueView

PROTOCOL = 4


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Mistake(_Message):
    """One thing wrong in a file, where it stands, and what may have been meant."""

    file: str
    line: int
    """From 1."""
    column: int
    """From 1."""
    message: str
    suggestion: str = ""
    """The nearest known key or value; empty if none is near."""


class ControllerStatus(_Message):
    """Who serves this cluster."""

    protocol: int = PROTOCOL
    version: str
    code_digest: str
    pid: int
    user: str
    host: str
    python: str
    started_at: float
    dashboard: str
    ray: str
    """``ok``, or in words why Ray does not answer the controller."""
    ray_version: str = ""
    metadata_store: str
    supervised_by: str
    """``systemd`` or ``none``."""
    you: str
    """The user that the kernel says is asking."""
    role: str
    """What that user may do: ``viewer``, ``submitter``, ``operator`` or ``admin``."""
    runs_active: int = 0
    warnings: list[str] = Field(default_factory=list)
    """What is wrong with the controller's own memory: a journal that cannot be written, a backup that is not made."""


class LaunchRequest(_Message):
    """Launch what a workflow file says. ``request_id`` makes a repeat the same request."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    workflow_text: str
    """The file as it was read, so that the controller checks it itself."""
    workflow_file: str = "workflow.yaml"
    """The name that mistakes are reported under."""
    package: str = ""
    """The digest of an uploaded package; empty uses one of the samples that ship with raydeck."""
    overlay: str = ""
    queue: str = ""
    """Instead of the workflow's own."""
    priority: str = ""
    """Instead of the workflow's own."""
    hold: bool = False
    """Have it wait until it is released."""
    dry_run: bool = False


class StopRequest(_Message):
    """End a run: ask the gang to save and leave, wait, then stop the job."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    reason: str = ""
    now: bool = False
    """Do not ask, do not wait."""


class RestartRequest(_Message):
    """Have a run try again from one of its checkpoints; one that still runs saves and leaves first."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    reason: str = ""
    from_step: int | None = Field(default=None, ge=0)
    """A complete checkpoint of the run; 0 begins from nothing; None takes the newest complete one."""
    dry_run: bool = False


class Restarted(_Message):
    """What a restart does, or (for a dry run) would do."""

    run: Run
    from_step: int | None = None
    """The checkpoint that it begins from; None from nothing."""
    skipped: list[str] = Field(default_factory=list)
    """Newer checkpoints that are passed over, with why."""
    set_aside: list[int] = Field(default_factory=list)
    """Steps of complete checkpoints beyond the chosen one; they are renamed, not deleted."""
    warnings: list[str] = Field(default_factory=list)
    """Such as a changed world size."""


class ArrangeRequest(_Message):
    """Change how a run waits. What is not given stays as it is."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    reason: str = ""
    priority: str | None = None
    queue: str | None = None
    hold: bool | None = None
    """True keeps it waiting, False releases it."""
    place: Literal["first", "last", "before", "after", "own"] | None = None
    """Among all that wait; ``own`` gives it back the place that is its by priority and time."""
    other: str = ""
    """For ``before`` and ``after``: the run that is meant."""


class RollbackRequest(_Message):
    """Put an earlier release of a workflow in the place of what runs now."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    reason: str = ""
    to: str = ""
    """A release's id; empty takes the last good one before the one that runs (or ran last)."""
    dry_run: bool = False


class UndoRequest(_Message):
    """Take a rollback back: stop what it started, restart what it stopped."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    reason: str = ""
    dry_run: bool = False


class Rollback(_Message):
    """One rollback: what it stopped, what it started, and from where."""

    id: str
    workflow: str
    at: float
    user: str
    reason: str = ""
    from_release: str = ""
    """What ran, or ran last."""
    to_release: str
    stopped: list[str] = Field(default_factory=list)
    """Runs that were stopped for it; they save first."""
    started: str = ""
    """The run that it started; it waits until those have ended."""
    from_step: int | None = None
    """The checkpoint that run begins from; None from nothing."""
    from_run: str = ""
    """The run whose checkpoint that is."""
    skipped: list[str] = Field(default_factory=list)
    """Newer checkpoints that are passed over, with why."""
    undone_at: float | None = None
    undone_by: str = ""


class CordonRequest(_Message):
    """Keep new work off nodes. A repeat by the same person renews the reason and the end of their hold."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    nodes: list[NodeRef] = Field(min_length=1, max_length=4096)
    reason: str = ""
    seconds: float | None = Field(default=None, gt=0)
    """When it ends by itself, from now; None: when somebody takes it back."""
    gpus: bool = False
    """Hold idle GPUs in Ray too, against work that raydeck does not start: best effort."""
    dry_run: bool = False


class UncordonRequest(_Message):
    """Take holds back. A drain of the node stops with them."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    nodes: list[NodeRef] = Field(min_length=1, max_length=4096)
    of: str = ""
    """Whose holds; empty: one's own."""
    reason: str = ""
    dry_run: bool = False


class DrainRequest(_Message):
    """Cordon nodes and move the work off them."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    nodes: list[NodeRef] = Field(min_length=1, max_length=4096)
    reason: str = ""
    policy: DrainPolicy = DrainPolicy()
    dry_run: bool = False


class DecideRequest(_Message):
    """What becomes of a drain that goes on."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    decision: Literal["cancel", "wait", "stop", "give_up"]
    """``cancel`` ends it as it stands, the nodes stay cordoned; ``wait`` gives each node ``seconds`` more; ``stop``
    ends what has not left, at once; ``give_up`` gives up the nodes that are not empty."""
    seconds: float = Field(default=1800.0, gt=0)
    reason: str = ""


class RetireRequest(_Message):
    """Take a drained node out of Ray, by Ray's own drain. Only starting Ray there again brings it back."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    nodes: list[NodeRef] = Field(min_length=1, max_length=4096)
    reason: str = ""
    deadline_seconds: float = Field(default=600.0, gt=0)
    """What Ray is told; it ends nothing by itself at that time."""
    dry_run: bool = False


class NodesReply(_Message):
    """What a request about nodes does, and how they stand after it (unchanged for a dry run)."""

    plan: NodesPlan
    view: NodesView
    drain: str = ""
    """The drain that it began."""


class PermitRequest(_Message):
    """May I do this to a node over SSH? It is authorised and audited before it is done."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    node: NodeRef
    action: Literal["ray start", "ray stop", "end processes"]
    detail: str = ""
    """What exactly: the command, or the processes."""
    reason: str = ""


class Permit(_Message):
    """The controller's word that it may be done."""

    id: str
    node: str
    action: str
    user: str
    at: float
    outcome: str = ""
    """What came of it; empty as long as nobody has said."""


class PermitDone(_Message):
    """What came of it."""

    ok: bool
    outcome: str


class Release(_Message):
    """One immutable version of a workflow."""

    id: str
    workflow: str
    created_at: float
    user: str
    config: dict[str, Any]
    """The workflow file with every default in its place."""
    code_digest: str
    environment: dict[str, str] = Field(default_factory=dict)
    data_version: str = ""
    data_digest: str = ""
    """SHA-256 of the data's manifest file, where the workflow names one that the head can read."""
    seed: int | None = None


class ReleaseRow(Release):
    """A release, and how its runs fared."""

    runs: int = 0
    active: list[str] = Field(default_factory=list)
    """Its runs that have not ended."""
    last_run: str = ""
    outcome: str = ""
    """The state of its newest run; empty if it was never run."""
    reason: str = ""
    """Why that one is in this state."""
    last_good: bool = False
    """The newest release of its workflow of which a run succeeded; what a rollback goes to by itself."""
    last_step: int | None = None
    loss: float | None = None
    """The last one that its newest run reported."""
    throughput: float | None = None
    throughput_unit: str = ""
    checkpoint_step: int | None = None
    """The newest complete checkpoint of its newest run that has one."""
    checkpoint_run: str = ""


class CheckpointRow(_Message):
    """One checkpoint of a run."""

    step: int
    path: str
    format: str = "raydeck"
    """``raydeck``, ``dcp`` (torch.distributed.checkpoint), ``huggingface`` or ``lightning``."""
    complete: bool
    reason: str = ""
    """Why it is not complete, or was set aside; empty for one that can be used."""
    written_at: float | None = None
    size_bytes: int | None = None
    seconds: float | None = None
    """How long it took to write."""
    loss: float | None = None
    world_size: int | None = None
    attempt: int | None = None
    in_use_by: list[str] = Field(default_factory=list)
    """Runs that began from it and have no checkpoint of their own yet; it is not deleted."""


class AuditEntry(_Message):
    """One action that was asked for, allowed or not. Each carries the hash of the one before."""

    seq: int
    at: float
    user: str
    action: str
    target: str
    allowed: bool
    reason: str
    hash: str


class Snapshot(_Message):
    """All that is true now; replaces what the listener knew."""

    event: Literal["snapshot"] = "snapshot"
    status: ControllerStatus
    runs: list[Run]
    """All that hold something, the first of those that wait, and the newest that ended."""
    queue: QueueView | None = None
    nodes: NodesView | None = None
    alerts: AlertsView | None = None


class RunChanged(_Message):
    """A run as it is now."""

    event: Literal["run"] = "run"
    run: Run


class QueueChanged(_Message):
    """The queues as they are now; at most once a second."""

    event: Literal["queue"] = "queue"
    queue: QueueView


class NodesChanged(_Message):
    """The nodes that are held, and the drains, as they are now; at most twice a second."""

    event: Literal["nodes"] = "nodes"
    nodes: NodesView


class Heartbeat(_Message):
    """The controller lives, and what it knows of Ray."""

    event: Literal["heartbeat"] = "heartbeat"
    at: float
    ray: str


Event = Annotated[
    Snapshot | RunChanged | QueueChanged | NodesChanged | AlertsChanged | Heartbeat, Field(discriminator="event")
]
