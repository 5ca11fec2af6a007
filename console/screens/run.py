"""One run: what it is and how far it came, and below it one pane at a time, or more where there is room."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Horizontal

from console.render.cells import Cell, Spans, count, safe
from console.render.course import (
    ATTEMPT_COLUMNS,
    CHECKPOINT_COLUMNS,
    MOVE_COLUMNS,
    AttemptRow,
    attempt_lines,
    head_lines,
    run_facts,
)
from console.render.documents import run_document
from console.render.prose import paragraph
from console.render.work import RANK_COLUMNS, RankRow, progress_of
from console.screens.base import OfRuns, bindings_for
from console.screens.panes import FetchedPanes
from console.sources.runlog import RunLog
from console.state.work import ranks
from console.widgets.buffer import LineBuffer
from console.widgets.lines import Lines
from console.widgets.log import LogView
from console.widgets.plot import LinePlot
from console.widgets.reading import Reading
from console.widgets.table import VirtualTable
from jobs.errors import RaydeckError
from jobs.model import Progress, Run

POINTS = 600
TALL, WIDE = 40, 150

PANES: dict[str, tuple[str, ...]] = {
    "overview": ("facts", "plots"),
    "curve": ("plots",),
    "ranks": ("ranks", "run-log"),
    "attempts": ("attempts", "attempt"),
    "checkpoints": ("checkpoints", "note"),
    "events": ("moves", "note"),
    "release": ("release",),
}
"""Pane to the widgets that it shows."""
TALL_OVERVIEW = ("facts", "plots", "ranks", "run-log")
FOCUS = ("ranks", "attempts", "checkpoints", "moves", "release", "facts")
"""What takes the keys, the first that is shown."""


class RunScreen(OfRuns):
    """A run, live."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("everywhere", "table", "runs", "run")
    SCOPES = ("everywhere", "table", "runs", "run")
    AUTO_FOCUS = "#facts"

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run_id = run
        self._pane = "overview"
        self._panes = FetchedPanes(self)
        self._buffer = LineBuffer(5_000)
        self._points: list[Progress] = []
        self._rank_keys: list[str] = []
        self._attempt_keys: list[str] = []
        self._trouble = ""
        self._fetched: Run | None = None
        """The run as it was asked for, where it is not among those that are listed."""

    def body(self) -> ComposeResult:
        """Head, names of the panes, the panes."""
        yield Lines(self._head, id="run-head", most=2)
        yield Lines(self._names, id="run-panes", most=1)
        with Container(id="run-top"):
            with Reading(id="facts"):
                yield Lines(self._facts, id="fact-lines")
            with Horizontal(id="plots"):
                yield LinePlot("loss", id="loss", empty="no loss was reported yet", x_text=_step, y_text=_loss)
                yield LinePlot(
                    "throughput", id="throughput", empty="no throughput was reported yet", x_text=_step, y_text=count
                )
        yield VirtualTable(RANK_COLUMNS, id="ranks", empty="no rank has started")
        yield LogView(self._buffer, id="run-log", empty="no line yet")
        yield VirtualTable(ATTEMPT_COLUMNS, id="attempts", empty="no attempt yet: it waits")
        yield Lines(self._attempt, id="attempt")
        yield VirtualTable(CHECKPOINT_COLUMNS, id="checkpoints", empty="asking the controller …")
        yield VirtualTable(MOVE_COLUMNS, id="moves", empty="asking the controller …")
        yield Lines(self._note, id="note", most=3)
        with Reading(id="release"):
            yield Lines(self._panes.release_lines, id="release-lines", most=2000)

    @property
    def place(self) -> str:
        """Where one is."""
        return f"run {self.run_id}"

    @property
    def _run(self) -> Run | None:
        session = self.deck.session
        return session.work.runs.get(self.run_id, self._fetched) if session else None

    def begin(self) -> None:
        """Show what is known; fetch its course so far; begin to read its log."""
        session = self.deck.session
        assert session is not None
        self.deck.run_in_focus = self.run_id
        self.run_worker(self._fetch_course(), name="series", exit_on_error=False)
        log = RunLog(session, self.run_id, self._take, tail=500)
        self.run_worker(log.run(), name="run log", exit_on_error=False)
        self._show_pane()
        self.frame(set(), {self.run_id})

    async def _fetch_course(self) -> None:
        session = self.deck.session
        assert session is not None
        try:
            client = await session.controller()
            if self._run is None:  # one of ten thousand that wait, or one that ended long ago
                self._fetched = await client.run(self.run_id)
                session.work.run_changed(self._fetched, time.monotonic())
                self.frame(set(), {self.run_id})
            points = await client.series(self.run_id, POINTS)
        except RaydeckError as error:
            self._trouble = error.sentence
            self.query_one("#loss", LinePlot).clear(f"its course so far is not to be had: {error.sentence}")
            return
        seen = {point.step for point in points}
        self._points = [*points, *(point for point in self._points if point.step not in seen)]
        self._draw()

    def _take(self, lines: Sequence[str], rank: int | None) -> None:
        self._buffer.append(lines, rank)
        self.query_one("#run-log", LogView).grew()

    # --- panes --------------------------------------------------------------------------------------------------------

    def action_pane_next(self) -> None:
        """The next pane."""
        self._turn(1)

    def action_pane_previous(self) -> None:
        """The pane before."""
        self._turn(-1)

    def _turn(self, by: int) -> None:
        names = list(PANES)
        self._pane = names[(names.index(self._pane) + by) % len(names)]
        self._show_pane()

    def _show_pane(self) -> None:
        tall = self.size.height >= TALL
        shown = TALL_OVERVIEW if self._pane == "overview" and tall else PANES[self._pane]
        for name in {name for names in (*PANES.values(), TALL_OVERVIEW) for name in names}:
            self.query_one(f"#{name}").display = name in shown
        top = self.query_one("#run-top")
        top.display = "plots" in shown
        top.set_class(self._pane == "overview", "-overview")
        self.set_class(self.size.width >= WIDE, "-wide")
        self.set_class(tall, "-tall")
        self.query_one(
            f"#{next(name for name in FOCUS if name in shown)}" if self._pane != "curve" else "#facts"
        ).focus()
        for name in ("#run-panes", "#note"):
            self.query_one(name, Lines).touch()
        self._panes.follow(self._pane, self._run)

    def fit(self) -> None:
        """More room, or less."""
        self._show_pane()

    def _names(self, width: int) -> list[Spans]:
        cells: list[Cell] = [Cell(" ")]
        run = self._run
        for name in PANES:
            label = f"{name} {len(run.attempts)}" if name == "attempts" and run and len(run.attempts) > 1 else name
            cells.append(Cell(f"[{label}]" if name == self._pane else f" {label} ",
                              "key" if name == self._pane else "muted"))  # fmt: skip
        return [(*cells, Cell("  tab", "muted"))]

    # --- what they show -----------------------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self.deck.session.head_wall() if self.deck.session else 0.0

    def _head(self, width: int) -> list[Spans]:
        run = self._run
        if run is None:
            why = f": {safe(self._trouble)}" if self._trouble else "; asking the controller …"
            return [(Cell(f" {self.run_id} is not among the runs that are listed{why}", "warn"),)]
        return head_lines(run, self._now)

    def _facts(self, width: int) -> list[Spans]:
        run, session = self._run, self.deck.session
        if run is None or session is None:
            return []
        return run_facts(run, session.work.job(run.id).waiting, width, self._now)

    def _attempt(self, width: int) -> list[Spans]:
        run, key = self._run, self.query_one("#attempts", VirtualTable).cursor_key
        found = [attempt for attempt in run.attempts if str(attempt.number) == key] if run else []
        return [(), *attempt_lines(found[0], width)] if found else []

    def _draw(self) -> None:
        steps = [float(point.step) for point in self._points]
        unit = next((point.throughput_unit for point in reversed(self._points) if point.throughput_unit), "")
        self.query_one("#loss", LinePlot).set_series("loss", steps, [point.loss for point in self._points])
        self.query_one("#throughput", LinePlot).set_series(
            f"{safe(unit) or 'it'}/s", steps, [point.throughput for point in self._points]
        )

    def _rank_row(self, key: str) -> RankRow:
        run, session = self._run, self.deck.session
        assert run is not None
        assert session is not None
        rank = next((rank for rank in ranks(run) if str(rank.rank) == key), None)
        if rank is None:
            raise KeyError(key)
        names = [node.name for node in session.fleet.nodes.values() if node.ray_node_id == rank.node_id]
        return RankRow(rank, names[0] if names else rank.node_address)

    def _attempt_row(self, key: str) -> AttemptRow:
        run = self._run
        assert run is not None
        return AttemptRow(next(attempt for attempt in run.attempts if str(attempt.number) == key), self._now)

    def frame(self, nodes: set[str], runs: set[str]) -> None:
        """New figures."""
        super().frame(nodes, runs)
        for name in ("#run-head", "#run-panes", "#fact-lines"):
            self.query_one(name, Lines).touch()
        run = self._run
        if run is None or self.run_id not in runs:
            return
        point = progress_of(run)
        if point is not None and (not self._points or point.step != self._points[-1].step):
            # A restart goes on from a checkpoint: what was reported beyond it is another course.
            self._points = [one for one in self._points if one.step < point.step] + [point]
            self._draw()
        table = self.query_one("#ranks", VirtualTable)
        keys = [str(rank.rank) for rank in ranks(run)]
        if keys != self._rank_keys:
            self._rank_keys = keys
            table.set_rows(keys, self._rank_row)
            table.styles.height = min(max(2, len(keys) + 1), 9)
        table.touch(keys)
        self._frame_attempts(run)
        self._panes.follow(self._pane, run)

    def _frame_attempts(self, run: Run) -> None:
        table = self.query_one("#attempts", VirtualTable)
        keys = [str(attempt.number) for attempt in reversed(run.attempts)]
        if keys != self._attempt_keys:
            self._attempt_keys = keys
            table.set_rows(keys, self._attempt_row)
            table.styles.height = min(max(2, len(keys) + 1), max(5, self.size.height // 3))
        table.touch(keys)
        self.query_one("#attempt", Lines).touch()

    @on(VirtualTable.Highlighted)
    def _chosen(self) -> None:
        for name in ("#attempt", "#note"):
            self.query_one(name, Lines).touch()

    def _note(self, width: int) -> list[Spans]:
        """What has no room in the row under the cursor."""
        table = self.query_one("#moves" if self._pane == "events" else "#checkpoints", VirtualTable)
        text = self._panes.note(self._pane, table.cursor_key)
        return paragraph(text, width, style="muted", lead=(Cell(" "),)) if text else []

    # --- what keys are about ------------------------------------------------------------------------------------------

    def ask_again(self) -> None:
        """The pane anew."""
        self._panes.forget()
        self._panes.follow(self._pane, self._run)

    def selected_runs(self) -> Iterable[str]:
        """This run."""
        return (self.run_id,)

    def selected_release(self) -> tuple[str, str]:
        """This run's workflow."""
        return (self._run.workflow, "") if self._run else ("", "")

    def selected_node(self) -> str | None:
        """The node of the rank under the cursor."""
        table = self.query_one("#ranks", VirtualTable)
        return self._rank_row(table.cursor_key).node_name if table.display and table.cursor_key else None

    def copy_text(self) -> str:
        """The checkpoint's folder in that pane, else the run's name."""
        if self._pane == "checkpoints":
            row = self._panes.checkpoints.get(self.query_one("#checkpoints", VirtualTable).cursor_key or "")
            return row.path if row else ""
        return self.run_id

    def raw(self) -> Any:
        """The run as JSON; in the panes of checkpoints and of the release, that."""
        if self._pane == "checkpoints":
            row = self._panes.checkpoints.get(self.query_one("#checkpoints", VirtualTable).cursor_key or "")
            return row.model_dump(mode="json") if row else None
        if self._pane == "release" and self._panes.release is not None:
            return self._panes.release.model_dump(mode="json")
        return run_document(self._run) if self._run else None


def _step(value: float) -> str:
    return f"{value:.0f}"


def _loss(value: float) -> str:
    return f"{value:.3g}"
