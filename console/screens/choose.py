"""What the dialogs that choose from a table share: the table, and what the choice would do. They do nothing yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from console.render.cells import Cell, Column, Spans
from console.render.prose import paragraph
from console.widgets.lines import Lines
from console.widgets.table import VirtualTable
from jobs.errors import RaydeckError

Plan = TypeVar("Plan")
Answer = TypeVar("Answer")

MOST_ROWS = 12
PASSING_SECONDS = 0.15
"""So long the cursor stays on a row before the controller is asked about it."""


class PlanningDialog(ModalScreen[Answer | None], Generic[Answer, Plan]):
    """A table to choose from. What the row under the cursor would do is asked of the controller, and said below.

    Enter takes the choice, with the plan that was shown; pressed too early it waits for it. Escape changes nothing.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "cancel", "Cancel", show=False)]
    AUTO_FOCUS = "VirtualTable"
    HINT: ClassVar[str] = "enter: go on   esc: cancel"

    def __init__(self, title: str, columns: Sequence[Column[Any]], empty: str) -> None:
        super().__init__()
        self._title, self._columns, self._empty = title, columns, empty
        self._planned: tuple[str, Plan] | None = None
        self._said: list[tuple[str, str]] = [("asking the controller …", "muted")]
        self._asked: str | None = None
        """The row that the controller was asked about last."""
        self._wanted: str | None = None
        """The row that enter was pressed on before its plan was there."""
        self._loaded = self._early = False
        """Are the rows there? Was enter pressed before they were?"""

    # What a subclass says

    async def load(self) -> None:
        """Ask for the rows, and give them to the table."""
        raise NotImplementedError

    async def plan(self, key: str) -> Plan:
        """What this row would do."""
        raise NotImplementedError

    def plan_lines(self, plan: Plan) -> list[tuple[str, str]]:
        """That in words, each line with its style."""
        raise NotImplementedError

    def answer(self, key: str, plan: Plan) -> Answer:
        """What the dialog gives back for a row."""
        raise NotImplementedError

    def default(self) -> str | None:
        """What enter takes where no row is under the cursor."""
        return self.table.cursor_key

    # The dialog

    def compose(self) -> ComposeResult:
        """Title, table, what it would do, keys."""
        with Vertical(classes="dialog wide"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield VirtualTable(self._columns, id="choices", empty=self._empty)
            yield Lines(self._note, id="plan")
            yield Static(self.HINT, classes="dialog-hint")

    def on_mount(self) -> None:
        """Ask for the rows."""
        self.run_worker(self._load(), name="choices", group="choices", exit_on_error=False)

    @property
    def table(self) -> VirtualTable[Any]:
        """The choices."""
        return self.query_one("#choices", VirtualTable)

    def fit_table(self, rows: int) -> None:
        """As high as its rows, within reason."""
        self.table.styles.height = min(max(rows, 1), MOST_ROWS, max(3, self.size.height - 14)) + 1

    async def _load(self) -> None:
        try:
            await self.load()
        except RaydeckError as error:
            self.say([(str(error), "bad")])
            return
        self._loaded = True
        if self._early and (key := self.default()) is not None:
            self.take(key)

    def on_key(self, event: events.Key) -> None:
        """Enter, where there is no row yet or none at all: keys that are typed fast are not lost."""
        if event.key == "enter" and self.table.cursor_key is None:
            event.stop()
            self._early = True
            if self._loaded and (key := self.default()) is not None:
                self.take(key)

    def say(self, lines: list[tuple[str, str]]) -> None:
        """Other lines below the table."""
        self._said = lines
        self.query_one("#plan", Lines).touch()

    def _note(self, width: int) -> list[Spans]:
        return [line for text, style in self._said for line in paragraph(text, width, style=style, lead=(Cell(" "),))]

    def ask_plan(self, key: str) -> None:
        """Ask what this row would do; an answer to an earlier question is no longer wanted."""
        self._planned, self._asked = None, key
        self.run_worker(partial(self._plan, key), name="plan", group="plan", exclusive=True, exit_on_error=False)

    async def _plan(self, key: str) -> None:
        try:
            if self._wanted != key:  # the cursor may only be passing by
                await asyncio.sleep(PASSING_SECONDS)
            plan = await self.plan(key)
        except RaydeckError as error:
            self._wanted = self._asked = None
            self.say([(str(error), "bad")])
            return
        self._planned = (key, plan)
        self.say(self.plan_lines(plan))
        if self._wanted == key:
            self.dismiss(self.answer(key, plan))

    @on(VirtualTable.Highlighted)
    def _highlighted(self, event: VirtualTable.Highlighted) -> None:
        if event.key == self._asked:
            return
        self._wanted = None
        self.say([("asking what it would do …", "muted")])
        self.ask_plan(event.key)

    @on(VirtualTable.Opened)
    def _opened(self, event: VirtualTable.Opened) -> None:
        self.take(event.key)

    def take(self, key: str) -> None:
        """This row it is."""
        if self._planned is not None and self._planned[0] == key:
            self.dismiss(self.answer(key, self._planned[1]))
        else:
            self._wanted = key
            if self._asked != key:
                self.ask_plan(key)

    def action_cancel(self) -> None:
        """Nothing happens."""
        self.dismiss(None)
