"""Runs as text and as JSON: all of them, one, its events, its checkpoints, a sweep."""

from __future__ import annotations

import time
from typing import Any

from console.cli import output
from console.cli.opened import controlled, opened, repeated, with_controller
from console.render.cells import safe
from console.render.course import CHECKPOINT_COLUMNS, MOVE_COLUMNS, SavedRow, move_rows
from console.render.documents import (
    checkpoint_document,
    job_document,
    move_document,
    run_document,
    sweep_document,
)
from console.render.sweep import POINT_COLUMNS, PointRow, best_of, goal_of, sweep_lines
from console.render.work import JOB_COLUMNS, JobRow
from console.settings import Context
from console.state.work import Job
from jobs.errors import Refused

SETTLE_SECONDS = 8.0
"""How long an answer may wait for Ray, whose own jobs are listed too."""
SWEEP_AT_MOST = 1_000
MOMENTS = ("_at", "not_before")
NO_RUN = "no run yet; `raydeck launch lm` launches a sample"


async def runs(context: Context, sweep: str, as_json: bool, watch: bool) -> int:
    """Every run, and Ray's own jobs; with ``sweep`` the runs of that one alone."""
    async with opened(context, probes=False, ray=not sweep) as session:
        await with_controller(session)
        client = await session.controller()
        if not sweep:
            await session.until(lambda: session.fleet.ray.state != "unknown", SETTLE_SECONDS)

        async def show() -> None:
            if sweep:
                jobs = [Job(run.id, run) for run in await client.runs(SWEEP_AT_MOST, sweep)]
            else:
                jobs = [session.work.job(key) for key in session.work.keys]
            if as_json:
                output.documents([job_document(job) for job in jobs], watch)
            else:
                now = session.head_wall()
                output.columns(JOB_COLUMNS, [JobRow(job, now) for job in jobs], NO_RUN)

        return await repeated(watch, show)


async def show(context: Context, run: str, as_json: bool) -> int:
    """One run."""
    async with controlled(context) as (_, client):
        document = run_document(await client.run(run))
    if as_json:
        output.document(document)
        return output.DONE
    ranks = document.pop("ranks")
    for name, value in document.items():
        output.say(f"{name:<16} {_moment(value) if name.endswith(MOMENTS) else _value(value)}")
    output.table(ranks, ("rank", "node_address", "gpu", "pid", "exit_code"), "no rank has started")
    return output.DONE


def _moment(wall: float | None) -> str:
    return "-" if wall is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall))


def _value(value: Any) -> str:
    if value is None or value in ([], {}):
        return "-"
    if isinstance(value, dict):
        return safe(", ".join(f"{name} {each}" for name, each in value.items()))  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return safe(", ".join(str(each) for each in value))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    return safe(str(value))


async def events(context: Context, run: str, as_json: bool) -> int:
    """Each step that a run made from state to state, with cause and actor."""
    async with controlled(context) as (session, client):
        moves = await client.moves(run)
        now = session.head_wall()
    if as_json:
        untils = [*(move.at for move in moves[1:]), None]
        output.document([move_document(move, until) for move, until in zip(moves, untils, strict=True)])
    else:
        output.columns(MOVE_COLUMNS, move_rows(moves, now)[::-1], f"nothing is known of the course of {run}")
    return output.DONE


async def checkpoints(context: Context, run: str, as_json: bool) -> int:
    """A run's checkpoints, in the order of their steps."""
    async with controlled(context) as (session, client):
        found = await client.checkpoints(run)
        now = session.head_wall()
    if as_json:
        output.document([checkpoint_document(row) for row in found])
    else:
        output.columns(CHECKPOINT_COLUMNS, [SavedRow(row, now) for row in found], f"{run} has no checkpoint yet")
    return output.DONE


async def sweep(context: Context, identity: str, as_json: bool, watch: bool) -> int:
    """A sweep: how many points stand where, which is the best, and each of them."""
    async with controlled(context) as (session, client):

        async def show() -> None:
            found = sorted(await client.runs(SWEEP_AT_MOST, identity), key=lambda run: (run.submitted_at, run.id))
            if not found:
                raise Refused(f"there is no sweep {identity}", "`raydeck runs --json` has the sweep of each run")
            goal = goal_of(found)
            best = best_of(found, goal)
            if as_json:
                (output.line if watch else output.document)(sweep_document(identity, found, goal, best))
                return
            now = session.head_wall()
            output.lines(sweep_lines(identity, found, goal, now))
            output.columns(POINT_COLUMNS, [PointRow(run, run.id == best, now) for run in found], "")

        return await repeated(watch, show)


async def audit(context: Context, limit: int, verify: bool, as_json: bool) -> int:
    """What was asked for; or whether anybody has changed what stands there."""
    async with controlled(context) as (_, client):
        if verify:
            broken = await client.audit_broken()
            if as_json:
                output.document({"whole": not broken, "broken": broken or None})
            else:
                output.say(safe(broken) or "the audit log is whole: every entry carries the hash of the one before")
            return output.FAILED if broken else output.DONE
        entries = [entry.model_dump() for entry in await client.audit(limit)]
    if as_json:
        output.document(entries)
    else:
        for entry in entries:
            entry["at"] = _moment(entry["at"])
        output.table(
            entries, ("seq", "at", "user", "action", "target", "allowed", "reason"), "nothing was asked for yet"
        )
    return output.DONE
