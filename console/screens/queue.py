"""The queues: what each holds and has waiting, then all that wait, in order, with why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from console.render.cells import Spans
from console.render.prose import number
from console.render.queue import WAITING_COLUMNS, WaitingRow, queue_lines, waiting_note
from console.screens.base import OfRuns, bindings_for
from console.sources.waiting import PAGE, WaitingList
from console.widgets.lines import Lines
from console.widgets.table import VirtualTable
from jobs.errors import RaydeckError
from jobs.queueview import QueueView

PAGE_SECONDS = 2.0
"""How often one page of what events do not bring is asked for anew."""
NEAR_THE_END = 20
"""So many rows before the last known one the next page is asked for."""


class QueueScreen(OfRuns):
    """Who waits for what."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("everywhere", "table", "runs")
    SCOPES = ("everywhere", "table", "runs")

    def __init__(self) -> None:
        super().__init__()
        self._list = WaitingList()
        self._view: QueueView | None = None
        self._keys: list[str] = []
        self._second = 0

    def body(self) -> ComposeResult:
        """The queues, those that wait."""
        yield Lines(self._queues, id="queues", most=30)
        yield VirtualTable(WAITING_COLUMNS, id="waiting", empty="nothing waits")
        yield Lines(self._note, id="note", most=3)

    @property
    def place(self) -> str:
        """Where one is."""
        return "queue"

    def begin(self) -> None:
        """Show what is known already."""
        self.frame(set(), set())
        self.set_interval(PAGE_SECONDS, self._next_page)

    @property
    def _table(self) -> VirtualTable[WaitingRow]:
        return self.query_one("#waiting", VirtualTable)

    def _queues(self, width: int) -> list[Spans]:
        return queue_lines(self._view, width, max(4, self.size.height // 3))

    def _note(self, width: int) -> list[Spans]:
        session, key = self.deck.session, self._table.cursor_key
        if session is None or key is None or key not in self._keys:
            return []
        return waiting_note(self._list.row(key), width, session.head_wall())

    def _row(self, key: str) -> WaitingRow:
        session = self.deck.session
        assert session is not None
        return WaitingRow(self._list.row(key), session.head_wall())

    def frame(self, nodes: set[str], runs: set[str]) -> None:
        """Another state of the queues, or simply later."""
        super().frame(nodes, runs)
        session = self.deck.session
        if session is None:
            return
        view = session.work.queue
        if view is not None and view is not self._view:
            self._view = view
            self._show(self._list.take(view))
            self.query_one("#queues", Lines).touch()
        second = int(session.now())
        if second != self._second:
            self._second = second
            self._table.repaint_rows()
            self.query_one("#note", Lines).touch()
        self._tell()

    def _show(self, changed: set[str]) -> None:
        keys = self._list.keys
        if keys != self._keys:
            self._keys = keys
            self._table.set_rows(keys, self._row)
        if changed:
            self._table.touch(changed)

    def _tell(self) -> None:
        session, table = self.deck.session, self._table
        state = session.work.controller if session else None
        if state is not None and state.state not in ("ok", "unknown", "connecting"):
            table.message = f"controller {state.state}: {state.reason}"
        elif self._view is None:
            table.message = "the controller has not told its queues yet"
        elif not self._list.complete:
            more = "more are on their way" if self._list.wanted else "G goes on"
            table.message = f"the first {number(len(self._keys))} of {number(self._list.total)}: {more}"
        else:
            table.message = ""

    # --- more than events bring ---------------------------------------------------------------------------------------

    def _next_page(self) -> None:
        if self.is_current and self._list.wanted:
            self.run_worker(self._load, name="page", group="page", exclusive=True, exit_on_error=False)

    async def _load(self) -> None:
        session = self.deck.session
        if session is None:
            return
        try:
            client = await session.controller()
            self._show(await self._list.load(client))
            for _ in range(self._list.total // PAGE + 1):  # runs that move meanwhile may keep it from being whole
                if self._list.complete:
                    break
                self._show(await self._list.load(client))
        except RaydeckError as error:
            self.notify(error.sentence, severity="warning", markup=False)
            self._list.wanted = False
        self._tell()

    def _want_more(self) -> None:
        if not self._list.wanted and not self._list.complete:
            self._list.wanted = True
            self._next_page()

    def filter_text(self, text: str) -> None:
        """Show only what has this text: all that wait have to be known for that."""
        super().filter_text(text)
        if text:
            self._want_more()

    @on(VirtualTable.Highlighted)
    def _highlighted(self, event: VirtualTable.Highlighted) -> None:
        self.deck.run_in_focus = event.key
        self.query_one("#note", Lines).touch()
        if event.key in self._keys[-NEAR_THE_END:]:
            self._want_more()

    # --- what keys are about ------------------------------------------------------------------------------------------

    @on(VirtualTable.Opened)
    def _opened(self, event: VirtualTable.Opened) -> None:
        self.deck.open_run(event.key)

    def action_why(self) -> None:
        """Why the run waits: the short answer, without a look at the cluster."""
        if key := self.run_under_cursor():
            self.deck.explain(key)

    def selected_runs(self) -> Iterable[str]:
        """The marked runs in their order, else the one under the cursor."""
        table = self._table
        if table.marked:
            return [key for key in self._keys if key in table.marked]
        return (table.cursor_key,) if table.cursor_key else ()

    def run_under_cursor(self) -> str | None:
        """The run under the cursor."""
        return self._table.cursor_key

    def copy_text(self) -> str:
        """The run's name."""
        return self._table.cursor_key or ""

    def raw(self) -> Any:
        """What is told of the run under the cursor, as JSON."""
        key = self._table.cursor_key
        return self._list.row(key).model_dump(mode="json") if key is not None and key in self._keys else None
