"""A sweep as rows, one for each of its points, and in a few lines. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from console.render.cells import Cell, Column, Spans, age, glyph, safe
from console.render.prose import number
from console.render.work import (
    age_of,
    figure_style,
    loss_text,
    parameters_text,
    progress_of,
    run_state,
    throughput_text,
)
from jobs.model import Run, RunState


@dataclass(frozen=True, slots=True)
class PointRow:
    """What a row of a sweep is painted from."""

    run: Run
    best: bool
    now_wall: float


def loss_of(run: Run) -> float | None:
    """The last loss that it reported, if that is a number."""
    point = progress_of(run)
    return point.loss if point and point.loss is not None and math.isfinite(point.loss) else None


def goal_of(runs: Iterable[Run]) -> str:
    """What makes one of them better, by what its launch said."""
    return next((run.sweep_goal for run in runs if run.sweep_goal), "minimize")


def best_of(runs: Sequence[Run], goal: str) -> str:
    """The run with the best last loss so far; empty while none reported one."""
    known = [(loss, run.id) for run in runs if (loss := loss_of(run)) is not None]
    if not known:
        return ""
    return (max if goal == "maximize" else min)(known)[1]


def _figure(text: str | None) -> Cell:
    return Cell("-", "muted") if text is None else Cell(text, figure_style(text))


def _of_point(row: PointRow, what: str) -> str | None:
    point = progress_of(row.run)
    if point is None:
        return None
    return {"step": str(point.step), "loss": loss_text(point), "throughput": throughput_text(point)}[what]


POINT_COLUMNS: tuple[Column[PointRow], ...] = (
    Column("best", "", 6, lambda row: Cell(f"{glyph('✓', '+')} best" if row.best else "", "ok")),
    Column("point", "POINT", 22, lambda row: Cell(parameters_text(row.run), "title"), grow=True,
           sort=lambda row: parameters_text(row.run)),
    Column("state", "STATE", 11, lambda row: run_state(row.run), sort=lambda row: row.run.state.value),
    Column("loss", "LOSS", 9, lambda row: _figure(_of_point(row, "loss")), align="right",
           sort=lambda row: loss_of(row.run)),
    Column("step", "STEP", 7, lambda row: _figure(_of_point(row, "step")), align="right",
           sort=lambda row: point.step if (point := progress_of(row.run)) else None),
    Column("throughput", "THROUGHPUT", 14, lambda row: _figure(_of_point(row, "throughput")), align="right", drop=2),
    Column("age", "TOOK", 6, lambda row: Cell(
        "-" if row.run.started_at is None else age(age_of(row.run, row.now_wall)), "muted"), align="right", drop=1),
    Column("run", "RUN", 18, lambda row: Cell(safe(row.run.id), "muted"), sort=lambda row: row.run.id, drop=3),
    Column("why", "WHY", 12, lambda row: Cell(safe(row.run.reason),
                                              "bad" if row.run.state is RunState.FAILED else "muted"), grow=True,
           drop=4),
)  # fmt: skip


def sweep_lines(sweep: str, runs: Sequence[Run], goal: str, now_wall: float) -> list[Spans]:
    """How many points stand where, and which is the best so far."""
    if not runs:
        return [(Cell(f" {safe(sweep)}", "title"), Cell("  none of its runs is known yet", "muted"))]
    counts = Counter(run.state.value for run in runs)
    states = ", ".join(f"{number(amount)} {state}" for state, amount in counts.most_common())
    first: Spans = (
        Cell(f" {safe(sweep)}  ", "title"),
        Cell(f"{safe(runs[0].workflow)}  ", "accent"),
        Cell(f"{number(len(runs))} points: {states}", ""),
    )
    best = next((run for run in runs if run.id == best_of(runs, goal)), None)
    over = all(run.state.ended for run in runs)
    if best is None:
        return [first, (Cell(" none of them has reported a loss yet", "muted"),)]
    said = f" best{'' if over else ' so far'} ({goal} the last loss): "
    return [first, (Cell(said, "muted"), Cell(f"{parameters_text(best)}  loss {loss_of(best):.4f}  ", "ok"),
                    Cell(safe(best.id), "muted"))]  # fmt: skip
