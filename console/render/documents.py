"""Nodes, accelerators, runs and what belongs to them as the JSON that scripts read: stable names with units.

``null`` stands where something is not known, with why beside it. Names are only ever added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from console.render.fleet import BUSY_PERCENT, DeviceRow, gpu_level
from console.render.nodedocs import standing_document
from console.render.work import progress_of
from console.state.fleet import Node
from console.state.work import Job, WorkStore, status_of
from jobs.model import Move, Run
from jobs.queueview import Explanation, QueueView
from jobs.release import Change
from jobs.wire import CheckpointRow, ReleaseRow, Restarted, Rollback
from probes.reading import SAMPLE_COLUMNS, Missing


def node_document(node: Node, work: WorkStore, now: float) -> dict[str, Any]:
    """One node: ``name, address, role, ssh, ray, driver, gpu_count, gpus_busy, cordoned, holds, state, runs`` …"""
    levels = [gpu_level(node, index) for index in node.gpu_indexes]
    known = [level for level in levels if level is not None and not isinstance(level, Missing)]
    age = node.age_seconds(now)
    host = node.sample.host if node.sample else None
    return {
        "name": node.name,
        "address": node.address,
        "role": node.role,
        "ssh": node.ssh.state,
        "ssh_reason": node.ssh.reason,
        "ray": node.ray.state,
        "ray_reason": node.ray.reason,
        "ray_node_id": node.ray_node_id,
        "driver": node.driver.state,
        "driver_reason": node.driver.reason,
        "simulated": node.simulated,
        "gpu_count": len(node.gpu_indexes),
        "gpus_busy": sum(level >= BUSY_PERCENT for level in known) if known or not levels else None,
        "gpus_held": node.ray_gpus_used,
        **standing_document(node, work.nodes),
        "runs": work.runs_on(node.ray_node_id),
        "sample_age_seconds": None if age is None else round(age, 1),
        "cpu_percent": host.cpu_percent if host else None,
        "memory_used_bytes": host.memory_used_bytes if host else None,
        "memory_total_bytes": host.memory_total_bytes if host else None,
        "clock_offset_seconds": node.clock_offset_seconds,
        "missing": node.missing_because if node.sample is None else None,
    }


def gpu_document(node: Node, index: int, work: WorkStore, now: float) -> dict[str, Any]:
    """One accelerator: ``node, index, uuid, name, simulated, utilization_percent, …, run, rank, missing``."""
    facts = node.device(index)
    missing: dict[str, str] = {}
    body: dict[str, Any] = {
        "node": node.name,
        "index": index,
        "uuid": facts.uuid if facts else None,
        "name": facts.name if facts else None,
        "simulated": node.simulated,
    }
    for column in SAMPLE_COLUMNS:
        found = node.reading(index, column)
        body[column] = None if isinstance(found, Missing) else found
        if isinstance(found, Missing):
            missing[column] = f"{found.kind}: {found.reason}"
    for field in (
        "memory_total_bytes",
        "power_limit_watts",
        "ecc_corrected_count",
        "ecc_uncorrected_count",
        "mig_mode",
    ):
        body[field] = getattr(facts, field) if facts else None
        if facts and field in facts.missing:
            missing[field] = f"{facts.missing[field].kind}: {facts.missing[field].reason}"
    age = node.figures_age_seconds(now)
    holder = DeviceRow(node, index, work, now).holder
    body["age_seconds"] = None if age is None else round(age, 1)
    body["stale"] = node.stale(now)
    body["run"], body["rank"] = holder or (None, None)
    body["missing"] = missing
    return body


def run_document(run: Run) -> dict[str, Any]:
    """One run: ``id, workflow, release, state, reason, queue, priority, user, nodes, gpus, attempt, step, loss`` …"""
    point = progress_of(run)
    status = status_of(run)
    attempt = run.attempt
    return {
        "id": run.id,
        "workflow": run.workflow,
        "release": run.release,
        "state": run.state.value,
        "reason": run.reason,
        "queue": run.queue,
        "priority": run.priority,
        "user": run.user,
        "nodes": run.nodes,
        "gpus": run.gpus,
        "attempt": attempt.number if attempt else 0,
        "job_id": attempt.job_id if attempt else None,
        "step": point.step if point else None,
        "loss": point.loss if point else None,
        "throughput": point.throughput if point else None,
        "throughput_unit": point.throughput_unit if point else None,
        "checkpoint_step": status.checkpoint_step if status else None,
        "submitted_at": run.submitted_at,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "kind": run.kind,
        "failure": run.failure.value if run.failure else None,
        "retries": run.retries,
        "max_retry": run.max_retry,
        "not_before": run.not_before,
        "held": run.held.model_dump() if run.held else None,
        "after": run.after,
        "suspects": run.suspects,
        "sweep": run.sweep or None,
        "parameters": run.parameters,
        "rollback": run.rollback or None,
        "resume_step": attempt.resume_step if attempt else None,
        "excluded": attempt.excluded if attempt else [],
        "warnings": status.warnings if status else [],
        "run_directory": run.run_directory,
        "ranks": [rank.model_dump() for rank in status.ranks] if status else [],
    }


def job_document(job: Job) -> dict[str, Any]:
    """A run, or a job that raydeck did not start under the same names."""
    if job.run is not None:
        return run_document(job.run)
    foreign = job.ray_job
    return {
        "id": job.key,
        "workflow": None,
        "state": foreign.status.lower() if foreign else None,
        "reason": "not started by raydeck",
        "user": None,
        "job_id": (foreign.submission_id or foreign.job_id) if foreign else None,
        "entrypoint": foreign.entrypoint if foreign else None,
        "submitted_at": foreign.started_at if foreign else None,
        "started_at": foreign.started_at if foreign else None,
        "ended_at": foreign.ended_at if foreign else None,
    }


def queue_document(view: QueueView) -> dict[str, Any]:
    """The queues: ``queues, users, waiting`` (in order, held ones last) and the figures of the whole cluster."""
    return {
        "at": view.at,
        "queues": [use.model_dump() for use in view.queues],
        "users": [use.model_dump() for use in view.users],
        "waiting": [
            {
                "position": row.position,
                "run": row.run,
                "queue": row.queue,
                "priority": row.priority,
                "user": row.user,
                "nodes": row.nodes,
                "gpus": row.gpus,
                "since": row.since,
                "waited_seconds": round(max(0.0, view.at - row.since), 1),
                "kind": row.kind,
                "reason": row.sentence,
                "moved": row.moved,
                "estimated_start": row.estimated_start,
            }
            for row in view.waiting
        ],
        "waiting_total": view.waiting_total,
        "held_total": view.held_total,
        "active_runs": view.active_runs,
        "max_active_runs": view.max_active_runs,
        "accelerators": view.accelerators,
        "free_accelerators": view.free_accelerators,
        "foreign_accelerators": view.foreign_accelerators,
        "preemption": view.preemption,
        "backfill": view.backfill,
        "pass_seconds": view.pass_seconds,
    }


def explanation_document(told: Explanation) -> dict[str, Any]:
    """Why a run waits: ``position, ahead, blocked_by, would_start_if, estimated_start``, and what they rest on."""
    return {
        "run": told.run,
        "state": told.state.value,
        "sentence": told.sentence,
        "position": told.position,
        "ahead": [one.model_dump() for one in told.ahead],
        "ahead_total": told.ahead_total,
        "blocked_by": [one.model_dump() for one in told.blocked_by],
        "would_start_if": told.would_start_if,
        "nodes": [one.model_dump() for one in told.nodes],
        "estimated_start": told.estimated_start,
        "estimated_from": told.estimated_from,
    }


def move_document(move: Move, until: float | None) -> dict[str, Any]:
    """One step of a run from state to state; ``seconds`` is how long it then stayed, null for the newest."""
    return {
        "at": move.at,
        "attempt": move.attempt,
        "before": move.before.value if move.before else None,
        "after": move.after.value,
        "cause": move.cause,
        "actor": move.actor,
        "seconds": None if until is None else round(until - move.at, 3),
    }


def checkpoint_document(row: CheckpointRow) -> dict[str, Any]:
    """One checkpoint: ``step, complete, size_bytes, seconds, reason`` …"""
    return {
        "step": row.step,
        "complete": row.complete,
        "size_bytes": row.size_bytes,
        "seconds": row.seconds,
        "reason": row.reason,
        "path": row.path,
        "format": row.format,
        "written_at": row.written_at,
        "loss": row.loss,
        "world_size": row.world_size,
        "attempt": row.attempt,
        "in_use_by": row.in_use_by,
    }


def release_document(row: ReleaseRow) -> dict[str, Any]:
    """One release: ``id, workflow, created_at, user, outcome, last_good`` …"""
    return {
        "id": row.id,
        "workflow": row.workflow,
        "created_at": row.created_at,
        "user": row.user,
        "outcome": row.outcome or None,
        "last_good": row.last_good,
        "reason": row.reason,
        "runs": row.runs,
        "active": row.active,
        "last_run": row.last_run or None,
        "last_step": row.last_step,
        "loss": row.loss,
        "throughput": row.throughput,
        "throughput_unit": row.throughput_unit,
        "checkpoint_step": row.checkpoint_step,
        "checkpoint_run": row.checkpoint_run or None,
        "code_digest": row.code_digest,
        "data_version": row.data_version,
        "data_digest": row.data_digest,
        "seed": row.seed,
        "environment": row.environment,
        "config": row.config,
    }


def change_document(change: Change) -> dict[str, Any]:
    """One thing that differs between two releases: ``path, old, new``; null where one of them has nothing."""
    return {"path": change.path, "old": change.old, "new": change.new}


def restarted_document(done: Restarted) -> dict[str, Any]:
    """A restart: ``run`` (as everywhere), ``from_step`` (null from nothing), what was passed over and set aside."""
    return {
        "run": run_document(done.run),
        "from_step": done.from_step,
        "skipped": done.skipped,
        "set_aside": done.set_aside,
        "warnings": done.warnings,
    }


def rollback_document(done: Rollback) -> dict[str, Any]:
    """A rollback: ``id, workflow, at, user, reason, from_release, to_release, stopped, started, from_step`` …"""
    return {
        "id": done.id,
        "workflow": done.workflow,
        "at": done.at,
        "user": done.user,
        "reason": done.reason,
        "from_release": done.from_release or None,
        "to_release": done.to_release,
        "stopped": done.stopped,
        "started": done.started or None,
        "from_step": done.from_step,
        "from_run": done.from_run or None,
        "skipped": done.skipped,
        "undone_at": done.undone_at,
        "undone_by": done.undone_by or None,
    }


def sweep_document(sweep: str, runs: Sequence[Run], goal: str, best: str) -> dict[str, Any]:
    """A sweep: ``sweep, workflow, points, states`` (state to count), ``goal, best`` (a run), ``runs``."""
    return {
        "sweep": sweep,
        "workflow": runs[0].workflow if runs else None,
        "points": len(runs),
        "states": dict(Counter(run.state.value for run in runs)),
        "goal": goal,
        "best": best or None,
        "runs": [run_document(run) for run in runs],
    }
