"""Requests, replies and events between the console and the controller.

HTTP on a Unix socket, JSON bodies. Who is asking is not in the request: the kernel says it (SO_PEERCRED).

====== ============================ ========================================================================
GET    /v1/status                   `ControllerStatus`
GET    /v1/runs                     ``{"runs": [Run, …]}``, newest first; ``?limit=N`` (default 200)
GET    /v1/runs/{run}               `Run`
GET    /v1/runs/{run}/series        ``{"points": [Progress, …]}``, thinned to ``?points=N`` (default 600)
GET    /v1/releases                 ``{"releases": [Release, …]}``; ``?workflow=NAME``
GET    /v1/audit                    ``{"entries": [AuditEntry, …]}``, newest first; ``?limit=N``; with ``?verify=1``
                                    also ``"broken"``: where its chain of hashes breaks, empty if it holds
GET    /v1/events                   NDJSON for as long as the caller listens: first ``Snapshot``, then ``RunChanged`` …,
                                    ``Heartbeat`` at least every 2 s
PUT    /v1/packages/{digest}        the code that a launch refers to (zip); idempotent; 201 new, 200 known
POST   /v1/runs                     `LaunchRequest` → `Run` (201; 200 when the request id is known already)
POST   /v1/runs/{run}/stop          `StopRequest` → `Run`
====== ============================ ========================================================================

A refusal is ``{"error": {"sentence": …, "hint": …, "mistakes": [Mistake, …]}}`` with status 400 (makes no sense), 403
(not allowed), 404 (no such thing), 409 (wrong state) or 503 (Ray does not answer).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from jobs.model import Run

PROTOCOL = 1


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
    priority: str = ""
    dry_run: bool = False


class StopRequest(_Message):
    """End a run: ask the gang to save and leave, wait, then stop the job."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    reason: str = ""
    now: bool = False
    """Do not ask, do not wait."""


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


class RunChanged(_Message):
    """A run as it is now."""

    event: Literal["run"] = "run"
    run: Run


class Heartbeat(_Message):
    """The controller lives, and what it knows of Ray."""

    event: Literal["heartbeat"] = "heartbeat"
    at: float
    ray: str


Event = Annotated[Snapshot | RunChanged | Heartbeat, Field(discriminator="event")]
