"""The runs of this cluster, and Ray's own jobs that raydeck did not start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from console.render.cells import Cell, Spans, safe
from console.render.documents import job_document
from console.render.prose import paragraph
from console.render.work import JOB_COLUMNS, JobRow, why_text
from console.screens.base import OfRuns, bindings_for
from console.widgets.lines import Lines
from console.widgets.table import VirtualTable

EMPTY = "no run yet: S launches one"


class RunsScreen(OfRuns):
    """Every run, the living ones first."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("everywhere", "table", "runs")
    SCOPES = ("everywhere", "table", "runs")

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[str] = []
        self._second = 0

    def body(self) -> ComposeResult:
        """The table."""
        yield VirtualTable(JOB_COLUMNS, id="runs", empty=EMPTY)
        yield Lines(self._note, id="note", most=3)

    @property
    def place(self) -> str:
        """Where one is."""
        return "runs"

    def begin(self) -> None:
        """Show what is known already."""
        self.frame(set(), set())

    def _note(self, width: int) -> list[Spans]:
        """Why the run under the cursor is in its state: the table may have no room for it."""
        key = self.query_one(VirtualTable).cursor_key
        if key is None or self.deck.session is None:
            return []
        spans = why_text(self._row(key))
        style = spans[-1].style
        text = "".join(span.text for span in spans)
        return paragraph(text, width, style=style, lead=(Cell(f" {safe(key)}  ", "title"),), indent=1) if text else []

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
        if keys is not self._keys:
            self._keys = keys
            table.set_rows(keys, self._row)
        table.touch(runs)
        second = int(session.now())
        if second != self._second:  # ages move without any news
            self._second = second
            table.repaint_rows()
            self.query_one("#note", Lines).touch()
        state = session.work.controller
        quiet = state.state in ("ok", "unknown", "connecting")
        table.message = "" if quiet else f"controller {state.state}: {state.reason}"

    @on(VirtualTable.Opened)
    def _opened(self, event: VirtualTable.Opened) -> None:
        session = self.deck.session
        if session is not None and event.key in session.work.runs:
            self.deck.open_run(event.key)
        else:
            self.deck.show_raw(self.raw())

    @on(VirtualTable.Highlighted)
    def _highlighted(self, event: VirtualTable.Highlighted) -> None:
        session = self.deck.session
        if session is not None and event.key in session.work.runs:
            self.deck.run_in_focus = event.key
        self.query_one("#note", Lines).touch()

    def selected_runs(self) -> Iterable[str]:
        """The marked runs, else the one under the cursor."""
        table = self.query_one(VirtualTable)
        if table.marked:
            return sorted(table.marked)
        return (table.cursor_key,) if table.cursor_key else ()

    def run_under_cursor(self) -> str | None:
        """The run under the cursor."""
        return self.query_one(VirtualTable).cursor_key

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
