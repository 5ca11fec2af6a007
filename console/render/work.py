"""Columns of runs and of ranks; what a run's state is called and how it is painted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from console.render.cells import Cell, Column, Spans, age, count, safe, state_cell
from console.render.queue import waiting_state
from console.state.work import Job, retries_text, status_of
from jobs.model import Progress, Rank, Run, RunState
from jobs.raymodel import RayJob

RAY_STATES = {
    "PENDING": "starting",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "STOPPED": "stopped",
}


NO_NUMBERS = frozenset({"NaN", "Inf", "-Inf"})


@dataclass(frozen=True, slots=True)
class JobRow:
    """What a row of runs is painted from."""

    job: Job
    now_wall: float
    """The head's clock, seconds since 1970: a run's times are in it."""


def progress_of(run: Run) -> Progress | None:
    """The newest point of a run's course."""
    status = status_of(run)
    return status.progress if status else None


def age_of(run: Run, now_wall: float) -> float:
    """Seconds since it was submitted, or how long it took where it has ended."""
    return max(0.0, (run.ended_at or now_wall) - (run.started_at or run.submitted_at))


def gpus_text(run: Run) -> str:
    """Nodes × accelerators on each."""
    return f"{run.nodes}×{run.gpus // run.nodes}" if run.nodes and run.gpus % run.nodes == 0 else f"{run.gpus}"


def run_state(run: Run) -> Cell:
    """A run's state: sign and word."""
    return waiting_state(run.state, run.held is not None)


def _of_run(write: Callable[[Run], Cell], foreign: Callable[[RayJob], Cell] | None = None) -> Callable[[JobRow], Cell]:
    def cell(row: JobRow) -> Cell:
        if row.job.run is not None:
            return write(row.job.run)
        return foreign(row.job.ray_job) if foreign and row.job.ray_job is not None else Cell("-", "muted")

    return cell


def _progress(write: Callable[[Progress], str | None]) -> Callable[[JobRow], Cell]:
    def of(run: Run) -> Cell:
        point = progress_of(run)
        text = write(point) if point else None
        return Cell("-", "muted") if text is None else Cell(text, figure_style(text))

    return _of_run(of)


def figure_style(text: str) -> str:
    """A figure that is not a number stands out."""
    return "bad" if text in NO_NUMBERS else ""


def loss_text(point: Progress) -> str | None:
    """The loss, four digits; the word where it is not a number."""
    if point.loss is None or math.isfinite(point.loss):
        return None if point.loss is None else f"{point.loss:.4f}"
    return "NaN" if math.isnan(point.loss) else "Inf" if point.loss > 0 else "-Inf"


def throughput_text(point: Progress) -> str | None:
    """What it gets done in a second, with its unit."""
    if point.throughput is None:
        return None
    return f"{count(point.throughput)} {safe(point.throughput_unit) or 'it'}/s"


def checkpoint_text(run: Run) -> str:
    """The newest complete checkpoint's step."""
    status = status_of(run)
    step = status.checkpoint_step if status else None
    if step is None and run.attempt and run.attempt.outcome:
        step = run.attempt.outcome.checkpoint_step
    return "none" if step is None else str(step)


def _sort_progress(take: Callable[[Progress], float | None]) -> Callable[[JobRow], Any]:
    def key(row: JobRow) -> float:
        point = progress_of(row.job.run) if row.job.run else None
        value = take(point) if point else None
        return -1.0 if value is None else value

    return key


def parameters_text(run: Run) -> str:
    """Its point of a sweep: ``learning_rate=0.001 width=64``; empty for one that is of no sweep."""
    names = [path.rpartition(".")[2] for path in run.parameters]
    if len(set(names)) < len(names):  # two paths that end in one word
        names = list(run.parameters)
    return " ".join(
        f"{safe(name)}={safe(str(value))}" for name, value in zip(names, run.parameters.values(), strict=True)
    )


def why_text(row: JobRow) -> Spans:
    """Why a run is in its state, after its point of a sweep; for a foreign job, its entrypoint."""
    run = row.job.run
    if run is None:
        return (Cell(safe(row.job.ray_job.entrypoint) if row.job.ray_job else "", "muted"),)
    lead = (Cell(f"{parameters_text(run)}  ", "accent"),) if run.parameters else ()
    return (*lead, _why(run, row))


def _why(run: Run, row: JobRow) -> Cell:
    if run.state is RunState.FAILED:
        kind = f"{run.failure.value}: " if run.failure else ""
        return Cell(kind + safe(run.reason), "bad")
    if run.state.ended:
        return Cell(safe(run.reason), "muted")
    tried = f"{retries_text(run)}: " if run.retries else ""
    status = status_of(run)
    if run.state.waiting:
        said = row.job.waiting.sentence if row.job.waiting else run.reason
        return Cell(tried + safe(said), "muted")
    if status and status.warnings:
        return Cell(safe(status.warnings[0]), "warn")
    return Cell(tried + safe((status.detail if status else "") or run.reason), "muted")


JOB_COLUMNS: tuple[Column[JobRow], ...] = (
    Column(
        "id",
        "RUN",
        18,
        _of_run(lambda run: Cell(safe(run.id), "title"), lambda job: Cell(safe(job.key), "muted")),
        sort=lambda row: row.job.key,
        grow=True,
    ),
    Column(
        "state",
        "STATE",
        11,
        _of_run(
            run_state,
            lambda job: state_cell(RAY_STATES.get(job.status, "unknown"), job.status.lower()),
        ),
        sort=lambda row: row.job.run.state.value if row.job.run else "zz",
    ),
    Column(
        "workflow",
        "WORKFLOW",
        12,
        _of_run(lambda run: Cell(safe(run.workflow)), lambda job: Cell("not raydeck's", "info")),
        sort=lambda row: row.job.run.workflow if row.job.run else "",
        drop=3,
    ),
    Column(
        "gpus",
        "GPUS",
        6,
        _of_run(lambda run: Cell(gpus_text(run))),
        align="right",
        sort=lambda row: row.job.run.gpus if row.job.run else 0,
    ),
    Column(
        "step",
        "STEP",
        7,
        _progress(lambda point: str(point.step)),
        align="right",
        sort=_sort_progress(lambda p: p.step),
    ),
    Column("loss", "LOSS", 8, _progress(loss_text), align="right", sort=_sort_progress(lambda p: p.loss)),
    Column(
        "throughput",
        "THROUGHPUT",
        14,
        _progress(throughput_text),
        align="right",
        sort=_sort_progress(lambda p: p.throughput),
        drop=1,
    ),
    Column("checkpoint", "CKPT", 7, _of_run(lambda run: Cell(checkpoint_text(run), "muted")), align="right", drop=5),
    Column(
        "user",
        "USER",
        8,
        _of_run(lambda run: Cell(safe(run.user), "muted")),
        sort=lambda r: r.job.run.user if r.job.run else "",
        drop=6,
    ),
    Column(
        "age",
        "AGE",
        6,
        lambda row: _age(row),
        align="right",
        sort=lambda row: -_begun(row),
    ),
    Column("why", "WHY", 20, why_text, grow=True, drop=4),
)


def _begun(row: JobRow) -> float:
    if row.job.run is not None:
        return row.job.run.submitted_at
    return (row.job.ray_job.started_at if row.job.ray_job else None) or 0.0


def _age(row: JobRow) -> Cell:
    if row.job.run is not None:
        return Cell(age(age_of(row.job.run, row.now_wall)), "muted")
    job = row.job.ray_job
    if job is None or job.started_at is None:
        return Cell("-", "muted")
    return Cell(age(max(0.0, (job.ended_at or row.now_wall) - job.started_at)), "muted")


@dataclass(frozen=True, slots=True)
class RankRow:
    """What a row of ranks is painted from."""

    rank: Rank
    node_name: str


RANK_COLUMNS: tuple[Column[RankRow], ...] = (
    Column(
        "rank", "RANK", 5, lambda row: Cell(str(row.rank.rank), "title"), align="right", sort=lambda row: row.rank.rank
    ),
    Column("node", "NODE", 24, lambda row: Cell(safe(row.node_name)), sort=lambda row: row.node_name),
    Column("address", "ADDRESS", 15, lambda row: Cell(safe(row.rank.node_address), "muted"), drop=1),
    Column("gpu", "GPU", 4, lambda row: Cell(row.rank.gpu or "-"), align="right", sort=lambda row: row.rank.gpu),
    Column(
        "pid", "PID", 8, lambda row: Cell("-" if row.rank.pid is None else str(row.rank.pid), "muted"), align="right"
    ),
    Column("exit", "EXIT", 8, lambda row: _exit(row.rank), sort=lambda row: row.rank.exit_code or 0),
)


def _exit(rank: Rank) -> Cell:
    if rank.exit_code is None:
        return Cell("running" if rank.pid else "-", "busy" if rank.pid else "muted")
    if rank.exit_code < 0:
        return Cell(f"signal {-rank.exit_code}", "bad")
    return Cell(str(rank.exit_code), "ok" if rank.exit_code == 0 else "bad")
