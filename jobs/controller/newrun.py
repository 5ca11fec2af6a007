"""A release as a run that has not begun: what its driver will be told, and its record. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.controller.record import Record
from jobs.model import Held, Launch, Move, Run, RunState
from jobs.spec import Cluster, ControlNode, Paths, Scheduler, Workflow, resolve_roots


@dataclass(frozen=True, slots=True)
class NewRun:
    """One run to be, beside what its workflow says."""

    id: str
    release: str
    package: str
    """The digest of the archive that goes to Ray."""
    user: str
    queue: str
    priority: str
    at: float
    """When it was submitted."""
    cause: str
    """Why there is this run, in words."""
    reason: str = ""
    """What is to be known while it waits."""
    queued_at: float | None = None
    """When it counts as queued, where that is another time."""
    held: Held | None = None
    sweep: str = ""
    sweep_goal: str = ""
    sweep_parallel: int | None = None
    parameters: dict[str, Any] | None = None


def record(workflow: Workflow, cluster: Cluster, new: NewRun) -> Record:
    """The run, waiting. Raises `Refused` where a folder cannot be made absolute."""
    launch = plan(workflow, cluster, new.id)
    run = Run(
        id=new.id,
        workflow=workflow.name,
        release=new.release,
        state=RunState.QUEUED,
        reason=new.reason,
        queue=new.queue,
        priority=new.priority,
        user=new.user,
        nodes=launch.nodes,
        gpus=workflow.resources.accelerators,
        kind=workflow.kind,
        run_directory=launch.run_directory,
        held=new.held,
        max_retry=workflow.training.max_retry,
        sweep=new.sweep,
        sweep_goal=new.sweep_goal,
        parameters=new.parameters or {},
        max_duration_seconds=workflow.max_duration,
        submitted_at=new.at,
        queued_at=new.queued_at,
    )
    return Record(
        run=run,
        launch=launch,
        package=new.package,
        silence_timeout_seconds=workflow.silence_timeout,
        retry_backoff_seconds=workflow.retry_backoff,
        sweep_parallel=new.sweep_parallel,
        unwritten=[Move(at=new.at, after=RunState.QUEUED, cause=new.cause, actor=new.user)],
    )


def plan(workflow: Workflow, cluster: Cluster, run_id: str) -> Launch:
    """All that the driver of its first attempt is told. Raises `Refused` where a folder cannot be made absolute."""
    roots = resolve_roots(workflow, cluster)
    resources = workflow.resources
    return Launch(
        run=run_id,
        attempt=1,
        workflow=workflow.name,
        kind=workflow.kind,
        script=workflow.script,
        nodes=resources.nodes,
        processes_per_node=workflow.processes_per_node,
        gpus_per_node=float(resources.accelerators_per_node),
        cpus_per_node=float(resources.cpu_cores_per_node),
        memory_bytes_per_node=int(resources.memory_gb_per_node * 1e9),
        run_directory=f"{roots.output_root}/{workflow.name}/{run_id}",
        data_root=roots.data_root,
        config={**workflow.training.model_dump(mode="json"), "seed": workflow.seed},
        environment=dict(workflow.env),
        checkpoint_interval_steps=workflow.training.checkpoint_interval_steps,
        node_labels=dict(workflow.pool),
        start_timeout_seconds=workflow.start_timeout,
        stop_grace_seconds=workflow.stop_grace,
        metrics_interval_seconds=workflow.observability.metrics_interval_seconds,
        keep_last=workflow.checkpoints.keep_last,
        keep_every=workflow.checkpoints.keep_every,
    )


def without_file(store: Path) -> Cluster:
    """What holds where no cluster file says anything: everything lies below the store."""
    return Cluster(
        name="unnamed",
        control_nodes=[ControlNode(host="localhost")],
        storage=Paths(output_path=str(store / "output"), dataset_path=str(store / "data")),
        scheduler=Scheduler(),
    )
