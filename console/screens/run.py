"""One run: its course, its attempts, its ranks with node and accelerator, the end of its log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from console.render.cells import Cell, Spans, age, count, safe, state_cell
from console.render.documents import run_document
from console.render.work import (
    RANK_COLUMNS,
    RankRow,
    age_of,
    checkpoint_text,
    gpus_text,
    loss_text,
    progress_of,
    throughput_text,
)
from console.screens.base import DeckScreen, bindings_for
from console.sources.runlog import RunLog
from console.state.work import ranks, status_of
from console.widgets.buffer import LineBuffer
from console.widgets.lines import Lines
from console.widgets.log import LogView
from console.widgets.plot import LinePlot
from console.widgets.table import VirtualTable
from jobs.errors import RaydeckError
from jobs.model import Progress, Run

POINTS = 600


class RunScreen(DeckScreen):
    """A run, live."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("everywhere", "table", "runs", "run")
    SCOPES = ("everywhere", "table", "runs", "run")
    AUTO_FOCUS = "#ranks"

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run_id = run
        self._buffer = LineBuffer(5_000)
        self._points: list[Progress] = []
        self._rank_keys: list[str] = []

    def body(self) -> ComposeResult:
        """Head, two plots, ranks, the end of the log."""
        yield Lines(self._head, id="run-head")
        with Horizontal(id="plots"):
            yield LinePlot("loss", id="loss", empty="no loss was reported yet", x_text=_step, y_text=_loss)
            yield LinePlot(
                "throughput", id="throughput", empty="no throughput was reported yet", x_text=_step, y_text=count
            )
        yield VirtualTable(RANK_COLUMNS, id="ranks", empty="no rank has started")
        yield LogView(self._buffer, id="run-log", empty="no line yet")

    @property
    def place(self) -> str:
        """Where one is."""
        return f"run {self._run_id}"

    @property
    def _run(self) -> Run | None:
        session = self.deck.session
        return session.work.runs.get(self._run_id) if session else None

    def on_mount(self) -> None:
        """Show what is known; fetch its course so far; begin to read its log."""
        session = self.deck.session
        assert session is not None
        self.deck.run_in_focus = self._run_id
        self.run_worker(self._fetch_course(), name="series", exit_on_error=False)
        log = RunLog(session, self._run_id, self._take, tail=500)
        self.run_worker(log.run(), name="run log", exit_on_error=False)
        self.frame(set(), {self._run_id})

    async def _fetch_course(self) -> None:
        session = self.deck.session
        assert session is not None
        try:
            points = await (await session.controller()).series(self._run_id, POINTS)
        except RaydeckError as error:
            self.query_one("#loss", LinePlot).clear(f"its course so far is not to be had: {error.sentence}")
            return
        seen = {point.step for point in points}
        self._points = [*points, *(point for point in self._points if point.step not in seen)]
        self._draw()

    def _take(self, lines: Sequence[str], rank: int | None) -> None:
        self._buffer.append(lines, rank)
        self.query_one("#run-log", LogView).grew()

    def _head(self, width: int) -> list[Spans]:
        run = self._run
        if run is None:
            return [(Cell(f" {self._run_id} is gone from the controller's list", "warn"),)]
        now = self.deck.session.head_wall() if self.deck.session else run.submitted_at
        status, point = status_of(run), progress_of(run)
        first: Spans = (
            Cell(" "),
            state_cell(run.state.value),
            Cell(f"  {safe(run.workflow)}  ", "accent"),
            Cell(
                f"release {run.release}  {gpus_text(run)} GPUs  by {safe(run.user)}  for {age(age_of(run, now))}",
                "muted",
            ),
        )
        figures = [
            f"step {point.step}" if point else "no step yet",
            f"loss {loss_text(point) or '?'}" if point else "",
            (throughput_text(point) or "") if point else "",
            f"checkpoint {checkpoint_text(run)}",
            f"attempt {run.attempt.number} ({run.attempt.job_id})" if run.attempt else "",
        ]
        second: Spans = (Cell(" " + "   ".join(part for part in figures if part)),)
        detail = run.reason or (status.detail if status else "")
        lines = [first, second]
        if detail:
            lines.append((Cell(f" {safe(detail)}", "bad" if run.state.value == "failed" else "muted"),))
        for attempt in run.attempts[:-1][-2:]:
            lines.append((Cell(f" attempt {attempt.number}: {attempt.state.value}, {safe(attempt.reason)}", "muted"),))
        return lines

    def _draw(self) -> None:
        steps = [float(point.step) for point in self._points]
        unit = next((point.throughput_unit for point in reversed(self._points) if point.throughput_unit), "")
        self.query_one("#loss", LinePlot).set_series("loss", steps, [point.loss for point in self._points])
        self.query_one("#throughput", LinePlot).set_series(
            f"{safe(unit) or 'it'}/s", steps, [point.throughput for point in self._points]
        )

    def _row(self, key: str) -> RankRow:
        run, session = self._run, self.deck.session
        assert run is not None
        assert session is not None
        rank = next(rank for rank in ranks(run) if str(rank.rank) == key)
        names = [node.name for node in session.fleet.nodes.values() if node.ray_node_id == rank.node_id]
        return RankRow(rank, names[0] if names else rank.node_address)

    def frame(self, nodes: set[str], runs: set[str]) -> None:
        """New figures."""
        super().frame(nodes, runs)
        self.query_one("#run-head", Lines).touch()
        run = self._run
        if run is None or self._run_id not in runs:
            return
        point = progress_of(run)
        if point is not None and (not self._points or point.step > self._points[-1].step):
            self._points.append(point)
            self._draw()
        table = self.query_one("#ranks", VirtualTable)
        keys = [str(rank.rank) for rank in ranks(run)]
        if keys != self._rank_keys:
            self._rank_keys = keys
            table.set_rows(keys, self._row)
            table.styles.height = min(max(2, len(keys) + 1), 9)
        table.touch(keys)

    def selected_runs(self) -> Iterable[str]:
        """This run."""
        return (self._run_id,)

    def selected_node(self) -> str | None:
        """The node of the rank under the cursor."""
        key = self.query_one("#ranks", VirtualTable).cursor_key
        return self._row(key).node_name if key else None

    def action_log(self) -> None:
        """The whole log."""
        self.deck.open_log(self._run_id)

    def copy_text(self) -> str:
        """The run's name."""
        return self._run_id

    def raw(self) -> Any:
        """The run as JSON."""
        return run_document(self._run) if self._run else None


def _step(value: float) -> str:
    return f"{value:.0f}"


def _loss(value: float) -> str:
    return f"{value:.3g}"
