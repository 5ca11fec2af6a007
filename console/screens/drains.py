"""The drains that go on and that ended last: how far each node is, what became of each run, what is to be chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Input

from console.render.cells import Spans
from console.render.drains import DRAIN_COLUMNS, RUN_COLUMNS, DrainRow, drain_lines, rows_of
from console.render.nodedocs import drain_document
from console.screens.base import DeckScreen, bindings_for
from console.screens.dialogs import ConfirmDialog, Confirmed
from console.screens.nodeforms import span
from console.widgets.lines import Lines
from console.widgets.table import VirtualTable
from jobs.nodeview import Drain, DrainRun

RUNS_SHOWN = 8
SCOPES = ("everywhere", "table", "drains", "upkeep")


class DrainsScreen(DeckScreen):
    """A row for each node of each drain; below, the runs of the one under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for(*SCOPES)
    SCOPES = SCOPES

    def __init__(self, node: str = "") -> None:
        """``node``: the one that the cursor goes to."""
        super().__init__()
        self._wanted = node
        self._rows: dict[str, DrainRow] = {}
        self._runs: dict[str, DrainRun] = {}
        self._second = 0

    def body(self) -> ComposeResult:
        """Nodes, runs, sentences."""
        yield VirtualTable(DRAIN_COLUMNS, id="drains", empty="no drain yet: D on the fleet's screen begins one")
        yield VirtualTable(RUN_COLUMNS, id="drain-runs", empty="no run of raydeck's had to leave")
        yield Lines(self._note, id="note", most=7)

    @property
    def place(self) -> str:
        """Where one is."""
        return "drains"

    def begin(self) -> None:
        """Show what is known already."""
        self.frame(set(), set())

    @property
    def _table(self) -> VirtualTable[DrainRow]:
        return self.query_one("#drains", VirtualTable)

    @property
    def _row(self) -> DrainRow | None:
        return self._rows.get(self._table.cursor_key or "")

    def _note(self, width: int) -> list[Spans]:
        row = self._row
        return drain_lines(row, width) if row is not None else []

    def frame(self, nodes: set[str], runs: set[str]) -> None:
        """A drain came on, or simply later."""
        super().frame(nodes, runs)
        session = self.deck.session
        if session is None:
            return
        table = self._table
        rows = rows_of(session.work.nodes.drains, session.head_wall())
        keys = list(rows)
        changed = {key for key, row in rows.items() if key not in self._rows or self._rows[key].part != row.part}
        renewed = keys != list(self._rows)
        self._rows = rows
        if renewed:
            table.set_rows(keys, lambda key: self._rows[key])
        table.styles.height = min(max(len(keys), 2), max(3, self.size.height // 3)) + 1
        table.touch(changed)
        if self._wanted and keys:
            at = next((key for key, row in rows.items() if row.part.node.name == self._wanted), None)
            if at is not None:
                table.move_to(at)
            self._wanted = ""
        second = int(session.now())
        if second != self._second:  # deadlines come nearer without any news
            self._second = second
            table.repaint_rows()
        self._show_runs()
        state = session.work.controller
        quiet = state.state in ("ok", "unknown", "connecting")
        table.message = "" if quiet else f"controller {state.state}: {state.reason}"

    def _show_runs(self) -> None:
        table, row = self.query_one("#drain-runs", VirtualTable), self._row
        runs = {f"{run.run}/{run.attempt}": run for run in row.part.runs} if row else {}
        changed = {key for key in runs if runs[key] != self._runs.get(key)}
        renewed = list(runs) != list(self._runs)
        self._runs = runs
        if renewed or not table.total_count:
            table.set_rows(list(runs), lambda key: self._runs[key])
            table.styles.height = min(max(len(runs), 1), RUNS_SHOWN) + (1 if runs else 2)
        table.touch(changed)
        table.display = row is not None
        self.query_one("#note", Lines).touch()

    @on(VirtualTable.Highlighted, "#drains")
    def _highlighted(self) -> None:
        self._show_runs()

    @on(VirtualTable.Opened)
    def _opened(self, event: VirtualTable.Opened) -> None:
        session = self.deck.session
        if event.table.id == "drain-runs":
            self.deck.open_run(self._runs[event.key].run)
        elif session is not None:
            name = self._rows[event.key].part.node.name
            if name in session.fleet.nodes:
                self.deck.open_node(name)

    # --- what keys are about ------------------------------------------------------------------------------------------

    def selected_drain(self) -> Drain | None:
        """The drain under the cursor."""
        return self._row.drain if self._row is not None else None

    def selected_node(self) -> str | None:
        """The node under the cursor."""
        return self._row.part.node.name if self._row is not None else None

    def selected_nodes(self) -> Iterable[str]:
        """The marked nodes, else the one under the cursor."""
        marked = [self._rows[key].part.node.name for key in self._rows if key in self._table.marked]
        return dict.fromkeys(marked) if marked else super().selected_nodes()

    def selected_runs(self) -> Iterable[str]:
        """The run under the cursor of the lower table."""
        table = self.query_one("#drain-runs", VirtualTable)
        return (self._runs[table.cursor_key].run,) if table.has_focus and table.cursor_key in self._runs else ()

    def copy_text(self) -> str:
        """The drain's id."""
        return self._row.drain.id if self._row is not None else ""

    def raw(self) -> Any:
        """The drain as JSON."""
        return drain_document(self._row.drain) if self._row is not None else None


@dataclass(frozen=True, slots=True)
class MoreTime(Confirmed):
    """The person said yes, and how much longer."""

    seconds: float


class WaitDialog(ConfirmDialog):
    """How much longer."""

    def detail(self) -> ComposeResult:
        """A line for the time."""
        yield Input("30m", placeholder="how much longer: 30m, 2h", id="more-time", compact=True)

    def accept(self, reason: str) -> None:
        """With the time, if it is one."""
        try:
            seconds = span(self.query_one("#more-time", Input).value)
        except ValueError as error:
            self.notify(str(error), severity="warning", markup=False)
            return
        self.dismiss(MoreTime(reason, seconds))
