"""The runs of this cluster, and Ray's own jobs that raydeck did not start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from console.render.documents import job_document
from console.render.work import JOB_COLUMNS, JobRow
from console.screens.base import DeckScreen, bindings_for
from console.screens.run import RunScreen
from console.widgets.table import VirtualTable

EMPTY = "no run yet: S launches one"


class RunsScreen(DeckScreen):
    """Every run, the living ones first."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("everywhere", "table", "runs")
    SCOPES = ("everywhere", "table", "runs")

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[str] = []

    def body(self) -> ComposeResult:
        """The table."""
        yield VirtualTable(JOB_COLUMNS, id="runs", empty=EMPTY)

    @property
    def place(self) -> str:
        """Where one is."""
        return "runs"

    def on_mount(self) -> None:
        """Show what is known already."""
        self.frame(set(), set())

    def _row(self, key: str) -> JobRow:
        session = self.deck.session
        assert session is not None
        return JobRow(session.work.job(key), session.head_wall())

    def frame(self, nodes: set[str], runs: set[str]) -> None:
        """New figures, states or runs."""
        super().frame(nodes, runs)
        session = self.deck.session
        if session is None:
            return
        table = self.query_one(VirtualTable)
        keys = session.work.keys
        if keys != self._keys:
            self._keys = keys
            table.set_rows(keys, self._row)
        table.touch(keys)
        state = session.work.controller
        quiet = state.state in ("ok", "unknown", "connecting")
        table.message = "" if quiet else f"controller {state.state}: {state.reason}"

    @on(VirtualTable.Opened)
    def _opened(self, event: VirtualTable.Opened) -> None:
        session = self.deck.session
        if session is not None and event.key in session.work.runs:
            self.app.push_screen(RunScreen(event.key))
        else:
            self.deck.show_raw(self.raw())

    @on(VirtualTable.Highlighted)
    def _highlighted(self, event: VirtualTable.Highlighted) -> None:
        session = self.deck.session
        if session is not None and event.key in session.work.runs:
            self.deck.run_in_focus = event.key

    def selected_runs(self) -> Iterable[str]:
        """The marked runs, else the one under the cursor."""
        table = self.query_one(VirtualTable)
        if table.marked:
            return sorted(table.marked)
        return (table.cursor_key,) if table.cursor_key else ()

    def copy_text(self) -> str:
        """The run's name."""
        return self.query_one(VirtualTable).cursor_key or ""

    def raw(self) -> Any:
        """The run as JSON."""
        key, session = self.query_one(VirtualTable).cursor_key, self.deck.session
        if key is None or session is None:
            return None
        job = session.work.job(key)
        return job_document(job)

    def action_log(self) -> None:
        """The log of the run under the cursor."""
        key, session = self.query_one(VirtualTable).cursor_key, self.deck.session
        if key is not None and session is not None and key in session.work.runs:
            self.deck.open_log(key)
