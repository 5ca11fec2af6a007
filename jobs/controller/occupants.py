"""Who is on a node that raydeck did not start, from Ray's state API: actors, tasks, placement groups."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from jobs.controller.rayside import RaySide
from jobs.errors import Refused
from jobs.nodeview import Other
from jobs.rayapi import RayApi
from jobs.raymodel import amounts, number, text
from jobs.rayside.values import HOLD_PREFIX, WATCH_PREFIX

OURS = re.compile(r"raydeck-.+-a\d+")
"""Submission ids of raydeck's own jobs; see `jobs.model.job_id`."""
_INTERNAL = "_ray_internal"
EVERY_JOB = 1_000_000
"""An older gang of ours must not be taken for somebody else's: all that Ray remembers are looked at."""
TASKS = 500
"""So many running tasks of one node are told of."""
_GONE = frozenset({"DEAD", "REMOVED"})


async def occupants(api: RayApi, node_ids: Sequence[str]) -> dict[str, list[Other]]:
    """By node: what others run or hold there. Raises `Unreachable` or `Refused`."""
    if not node_ids:
        return {}
    jobs, actors, groups = await asyncio.gather(
        api.jobs(EVERY_JOB), api.state("actors", {"state": "ALIVE"}), api.state("placement_groups")
    )
    tasks = await asyncio.gather(
        *(api.state("tasks", {"state": "RUNNING", "node_id": node_id}, TASKS) for node_id in node_ids)
    )
    submitted = {job.job_id: job.submission_id for job in jobs if job.job_id}
    found: dict[str, list[Other]] = {node_id: [] for node_id in node_ids}
    for row in actors:
        node, name = text(row, "node_id"), text(row, "name")
        job = submitted.get(text(row, "job_id")) or text(row, "job_id")
        if node in found and not OURS.fullmatch(job) and not name.startswith((_INTERNAL, WATCH_PREFIX)):
            found[node].append(_other("actor", text(row, "actor_id"), name or text(row, "class_name"), job, row))
    for node, running in zip(node_ids, tasks, strict=True):
        for row in running:
            job = submitted.get(text(row, "job_id")) or text(row, "job_id")
            # An actor's method is its actor's, and what raydeck itself asks of a node is over at once.
            if text(row, "type") == "NORMAL_TASK" and not OURS.fullmatch(job) and text(row, "name") != "raydeck":
                found[node].append(_other("task", text(row, "task_id"), text(row, "name"), job, row))
    for row in groups:
        job = submitted.get(text(row, "creator_job_id")) or text(row, "creator_job_id")
        if text(row, "state") in _GONE or OURS.fullmatch(job) or text(row, "name").startswith(HOLD_PREFIX):
            continue
        for node, gpus, cpus in _bundles(row, found):
            made = _other("placement group", text(row, "placement_group_id"), text(row, "name"), job, row)
            found[node].append(made.model_copy(update={"gpus": gpus, "cpus": cpus}))
    return found


def _bundles(row: dict[str, Any], nodes: dict[str, list[Other]]) -> list[tuple[str, float, float]]:
    """What a group holds on each of these nodes."""
    held: dict[str, tuple[float, float]] = {}
    for bundle in row.get("bundles") or ():
        node, asked = text(bundle, "node_id"), amounts(bundle.get("unit_resources"))
        if node in nodes:
            gpus, cpus = held.get(node, (0.0, 0.0))
            held[node] = (gpus + asked.get("GPU", 0.0), cpus + asked.get("CPU", 0.0))
    return [(node, gpus, cpus) for node, (gpus, cpus) in held.items()]


def _other(kind: str, ray_id: str, name: str, job: str, row: dict[str, Any]) -> Other:
    asked = amounts(row.get("required_resources"))
    pid, began = number(row.get("pid") or row.get("worker_pid")), number(row.get("start_time_ms"))
    return Other(
        kind=kind,
        id=ray_id,
        name=name,
        job=job,
        pid=int(pid) if pid else None,
        gpus=asked.get("GPU", 0.0),
        cpus=asked.get("CPU", 0.0),
        since=began / 1000 if began else None,
    )


async def end(api: RayApi, hand: RaySide, other: Other) -> str:
    """End what raydeck did not start; what was done, in words. Raises `Unreachable`, or `Refused` if it cannot be."""
    if other.kind == "actor":
        await hand.kill_actor(other.id)
        return "it was killed"
    if other.kind == "placement group":
        await hand.remove_group(other.id)
        return "it was removed"
    jobs = {job.submission_id for job in await api.jobs() if job.submission_id}
    if other.job in jobs:
        await api.stop(other.job)
        return f"its job {other.job} was asked to stop"
    raise Refused(
        f"a {other.kind} of job {other.job or 'unknown'} cannot be ended through Ray: that job was not submitted"
    )
