"""Nodes, accelerators and runs as the JSON that scripts read: stable names with units, ``null`` and why."""

from __future__ import annotations

from typing import Any

from console.render.fleet import BUSY_PERCENT, DeviceRow, gpu_level
from console.render.work import progress_of
from console.state.fleet import Node
from console.state.work import Job, WorkStore, status_of
from jobs.model import Run
from probes.reading import SAMPLE_COLUMNS, Missing


def node_document(node: Node, work: WorkStore, now: float) -> dict[str, Any]:
    """One node: ``name, address, role, ssh, ray, driver, gpu_count, gpus_busy, cordoned, holds, runs`` …"""
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
        "cordoned": False,
        "holds": [],
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
