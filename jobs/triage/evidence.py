"""All that a triage may look at, as plain values. Whoever gathers it leaves out what could not be read, and says why.

Times are wall seconds by the head's clock: the gatherer takes each node's offset off before it hands a time in here.
``None`` and empty mean "not known", never "nothing". Every text is data from the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from jobs.alertview import Alert
from jobs.model import Move, Progress, Run
from jobs.nodeview import Hold
from jobs.queueview import Explanation, QueueView
from jobs.raymodel import RayJob
from jobs.release import Change
from jobs.wire import CheckpointRow, ControllerStatus
from probes.reading import Event, Facts, Health, Sample

TargetKind = Literal["run", "node", "gpu", "fleet"]


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked about."""

    kind: TargetKind = "fleet"
    name: str = ""
    """A run's id, a node's name, a GPU as ``gpu-1/3``; empty for the fleet."""

    @property
    def node(self) -> str:
        """The node that is asked about, for a node and a GPU; empty otherwise."""
        if self.kind == "node":
            return self.name
        return self.name.rpartition("/")[0] if self.kind == "gpu" else ""

    @property
    def gpu(self) -> int | None:
        """The GPU that is asked about."""
        index = self.name.rpartition("/")[2]
        return int(index) if self.kind == "gpu" and re.fullmatch(r"[0-9]{1,4}", index) else None


@dataclass(slots=True)
class Truth:
    """One thing that is so of a node: a word, why, and since when."""

    state: str = "unknown"
    reason: str = ""
    since: float | None = None


@dataclass(slots=True)
class LogLine:
    """One line, and where and when it was said."""

    text: str
    wall: float | None = None
    number: int | None = None
    """From 1, in its file."""


@dataclass(slots=True)
class NodeEvidence:
    """One machine."""

    name: str
    address: str = ""
    role: str = "worker"
    ssh: Truth = field(default_factory=Truth)
    """``up``, ``silent``, ``lost``, ``refused``, ``waiting``, ``connecting`` or ``unknown``."""
    ray: Truth = field(default_factory=Truth)
    """``alive``, ``dead``, ``absent`` (expected, and not in Ray) or ``unknown``."""
    driver: Truth = field(default_factory=Truth)
    """``ok``, ``none``, ``blocked``, ``error`` or ``unknown``."""
    facts: Facts | None = None
    sample: Sample | None = None
    health: Health | None = None
    events: list[Event] = field(default_factory=list[Event])
    """What its kernel and driver told lately; ``wall`` by the head's clock, 0 where that is not known."""
    kernel: list[LogLine] = field(default_factory=list[LogLine])
    """Lines of its kernel's log beside the events."""
    clock_offset_seconds: float | None = None
    """Its clock minus the head's."""
    holds: list[Hold] = field(default_factory=list[Hold])
    expected_gpus: int | None = None
    ray_gpus_total: float | None = None
    ray_gpus_used: float | None = None
    runs: list[str] = field(default_factory=list[str])
    versions: dict[str, str] = field(default_factory=dict[str, str])
    """What it runs on beside ``facts``: ``torch``, ``nccl``, ``ray``, ``image`` and so on."""
    raylet: list[LogLine] = field(default_factory=list[LogLine])
    """The end of its raylet's (or ``ray start``'s) log."""
    times_lost: int | None = None
    """How often it went away and came back within the last hour."""
    unread: list[str] = field(default_factory=list[str])
    """What of it could not be read, and why; a sentence each."""


@dataclass(slots=True)
class RankEvidence:
    """One process of the run's newest attempt."""

    rank: int
    node: str = ""
    gpu: int | None = None
    gpu_uuid: str = ""
    pid: int | None = None
    exit_code: int | None = None
    """Negative for a signal; None while it runs, or where it is not known."""
    ended_at: float | None = None
    last_step: int | None = None
    last_output_at: float | None = None
    log: list[LogLine] = field(default_factory=list[LogLine])
    """The end of its log, oldest line first."""
    log_path: str = ""
    log_bytes: int | None = None
    stack: str = ""
    """As py-spy prints it."""
    process_state: str = ""
    """The kernel's letter: ``R``, ``S``, ``D``, ``T`` (stopped), ``Z``; ``gone`` where there is no such process."""
    wchan: str = ""
    """The kernel function that it waits in."""
    collective_seq: int | None = None
    """The highest number among its collectives, by the flight recorder."""
    collective: str = ""
    """What that one is, such as ``all_reduce``."""
    cpu_percent: float | None = None
    """100 is one core."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Mean seconds a step that it spent on ``data``, ``compute``, ``collective``, ``checkpoint``."""
    unread: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Comparison:
    """Another run that should have come out alike."""

    run: str
    differences: list[Change] = field(default_factory=list[Change])
    """Of what the two were made of; ``old`` is the other run's."""
    loss_here: float | None = None
    loss_there: float | None = None
    step: int | None = None
    """The step that the two losses are of."""


@dataclass(slots=True)
class RunEvidence:
    """A run, as it is recorded."""

    run: Run
    moves: list[Move] = field(default_factory=list[Move])
    explanation: Explanation | None = None
    """Why it waits, where it does."""
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """The workflow with every default in its place."""
    differences: list[Change] = field(default_factory=list[Change])
    """From its workflow's last good release to this one's."""
    last_good_release: str = ""
    comparison: Comparison | None = None
    checkpoints: list[CheckpointRow] = field(default_factory=list[CheckpointRow])
    course: list[Progress] = field(default_factory=list[Progress])
    """Of the newest attempt, oldest first, by the head's clock."""
    baseline_throughput: float | None = None
    """What it, or a good run like it, had; in the course's unit."""
    baseline_checkpoint_seconds: float | None = None
    driver_log: list[LogLine] = field(default_factory=list[LogLine])
    """The end of the log of the attempt's driver (the Ray job's own output)."""
    driver_log_path: str = ""
    output_bytes: int | None = None
    """What the ranks' logs hold together."""


@dataclass(slots=True)
class FileEvidence:
    """A path that the run needs, as it is on one node."""

    path: str
    node: str = ""
    purpose: str = ""
    """``data``, ``output``, ``log``, ``checkpoint``, ``cache``."""
    exists: bool | None = None
    owner: str = ""
    mode: str = ""
    """As ``ls`` writes it: ``drwxr-xr-x``."""
    user: str = ""
    """Who has to use it."""
    readable: bool | None = None
    writable: bool | None = None
    """By that user."""
    free_bytes: int | None = None
    total_bytes: int | None = None
    inodes_free: int | None = None
    reason: str = ""
    """Why it could not be looked at."""


@dataclass(slots=True)
class PortEvidence:
    """One try to reach a port of a node from another one."""

    source: str
    node: str
    port: int
    result: str
    """``open``, ``refused``, ``no answer``, ``no route`` or ``no such name``."""
    purpose: str = ""
    milliseconds: float | None = None


@dataclass(slots=True)
class Replica:
    """One copy of a service."""

    id: str
    node: str = ""
    state: str = ""
    """``RUNNING``, ``STARTING``, ``UNHEALTHY`` and so on, as Ray Serve says it."""
    reason: str = ""
    p95_milliseconds: float | None = None
    gpu_percent: float | None = None


@dataclass(slots=True)
class ServeEvidence:
    """A service on the cluster."""

    name: str
    status: str = ""
    """``RUNNING``, ``DEPLOYING``, ``UNHEALTHY``, ``DEPLOY_FAILED``."""
    message: str = ""
    proxies: dict[str, str] = field(default_factory=dict[str, str])
    """Node to the state of its entry (``HEALTHY`` …)."""
    route: str = ""
    routes: list[str] = field(default_factory=list[str])
    """What the entries serve."""
    port: int | None = None
    port_result: str = ""
    """As in `PortEvidence.result`."""
    health_status: int | None = None
    """HTTP status of its health check."""
    gateway_status: int | None = None
    """HTTP status through the gateway or load balancer."""
    replicas: list[Replica] = field(default_factory=list[Replica])
    target_replicas: int | None = None
    p95_milliseconds: float | None = None
    """Within so long 95 of 100 answers came."""
    answers: int | None = None
    """Of so many that is said."""
    answers_seconds: float | None = None
    """They are those of so many seconds; None: all since its replicas began."""
    limit_milliseconds: float | None = None
    """What the cluster file promises."""
    queued: float | None = None
    """Requests that no replica has taken yet."""


@dataclass(slots=True)
class Evidence:
    """Everything that could be gathered on one question, at one moment."""

    now: float
    target: Target = field(default_factory=Target)
    nodes: dict[str, NodeEvidence] = field(default_factory=dict[str, NodeEvidence])
    run: RunEvidence | None = None
    ranks: list[RankEvidence] = field(default_factory=list[RankEvidence])
    runs: list[Run] = field(default_factory=list[Run])
    """For a node, a GPU and the fleet: the runs that are or were on it lately."""
    job: RayJob | None = None
    controller: ControllerStatus | None = None
    controller_reason: str = ""
    """Why the controller does not answer; empty if it does, or was not asked."""
    queue: QueueView | None = None
    alerts: list[Alert] = field(default_factory=list[Alert])
    serve: ServeEvidence | None = None
    files: list[FileEvidence] = field(default_factory=list[FileEvidence])
    ports: list[PortEvidence] = field(default_factory=list[PortEvidence])
    unread: list[str] = field(default_factory=list[str])
    """What could not be gathered, and why; a sentence each."""


def lines(text: str, wall: float | None = None, first: int | None = 1) -> list[LogLine]:
    """A log's text as lines; ``first`` is the number of its first one, None where that is not known."""
    found = text.splitlines()
    return [LogLine(line, wall, None if first is None else first + at) for at, line in enumerate(found)]


def texts(log: Iterable[LogLine]) -> str:
    """The lines as one text."""
    return "\n".join(line.text for line in log)
