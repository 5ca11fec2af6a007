"""A sweep: every point with its state and its last loss, the best one marked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from console.render.cells import Spans
from console.render.documents import run_document
from console.render.sweep import POINT_COLUMNS, PointRow, best_of, goal_of, sweep_lines
from console.screens.base import AskingScreen, OfRuns, bindings_for
from console.widgets.lines import Lines
from console.widgets.table import VirtualTable
from jobs.client import ControllerClient
from jobs.model import Run

POINTS = 1000


class SweepScreen(AskingScreen, OfRuns):
    """One sweep, live."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("everywhere", "table", "runs")
    SCOPES = ("everywhere", "table", "runs")

    def __init__(self, sweep: str) -> None:
        super().__init__()
        self._sweep = sweep
        self._runs: dict[str, Run] = {}
        self._best = ""

    def body(self) -> ComposeResult:
        """Its summary, its points."""
        yield Lines(self._summary, id="sweep", most=2)
        yield VirtualTable(POINT_COLUMNS, id="points", empty="none of its runs is known yet")

    @property
    def place(self) -> str:
        """Where one is."""
        return f"sweep {self._sweep}"

    @property
    def _goal(self) -> str:
        return goal_of(self._runs.values())

    @property
    def _now(self) -> float:
        session = self.deck.session
        assert session is not None
        return session.head_wall()

    def _summary(self, width: int) -> list[Spans]:
        return sweep_lines(self._sweep, list(self._runs.values()), self._goal, self._now)

    async def ask(self, client: ControllerClient) -> None:
        """All its runs, also those that ended long ago."""
        runs = await client.runs(limit=POINTS, sweep=self._sweep)
        self._take(sorted(runs, key=lambda run: (run.submitted_at, run.id)))

    def _take(self, runs: Sequence[Run]) -> None:
        before = list(self._runs)
        self._runs.update((run.id, run) for run in runs)
        table = self.query_one("#points", VirtualTable)
        best, self._best = self._best, best_of(list(self._runs.values()), self._goal)
        if list(self._runs) != before:
            table.set_rows(list(self._runs), lambda key: PointRow(self._runs[key], key == self._best, self._now))
        table.touch({run.id for run in runs} | {best, self._best})
        self.query_one("#sweep", Lines).touch()

    def frame(self, nodes: set[str], runs: set[str]) -> None:
        """Some of its runs changed."""
        super().frame(nodes, runs)
        known = self.deck.session.work.runs if self.deck.session else {}
        mine = [known[key] for key in runs if key in known and known[key].sweep == self._sweep]
        if mine:
            self._take(mine)

    @on(VirtualTable.Opened)
    def _opened(self, event: VirtualTable.Opened) -> None:
        self.deck.open_run(event.key)

    def action_sweep(self) -> None:
        """It is open already."""

    def selected_runs(self) -> Iterable[str]:
        """The marked points' runs, else the one under the cursor."""
        table = self.query_one("#points", VirtualTable)
        if table.marked:
            return [key for key in self._runs if key in table.marked]
        return (table.cursor_key,) if table.cursor_key else ()

    def run_under_cursor(self) -> str | None:
        """The run under the cursor."""
        return self.query_one("#points", VirtualTable).cursor_key

    def copy_text(self) -> str:
        """The run's name."""
        return self.run_under_cursor() or ""

    def raw(self) -> Any:
        """The sweep as JSON: its runs, the best one named."""
        return {
            "sweep": self._sweep,
            "goal": self._goal,
            "best": self._best or None,
            "runs": [{**run_document(run), "parameters": run.parameters} for run in self._runs.values()],
        }
