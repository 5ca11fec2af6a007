"""The alerts of before, those that ended too; and all of one alert as a page over a screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from console.render.alertdocs import alert_document
from console.render.alerts import HISTORY_COLUMNS, AlertRow, alert_lines, alert_row
from console.render.cells import Spans
from console.screens.base import AskingScreen, DeckScreen, bindings_for
from console.widgets.table import VirtualTable
from jobs.alertview import Alert
from jobs.client import ControllerClient

HISTORY = 500


class AlertHistoryScreen(AskingScreen):
    """The newest alerts, those that ended too."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("everywhere", "table")
    SCOPES = ("everywhere", "table")

    def __init__(self) -> None:
        super().__init__()
        self._alerts: dict[str, Alert] = {}

    def body(self) -> ComposeResult:
        """Which."""
        yield VirtualTable(HISTORY_COLUMNS, id="alerts", empty="asking the controller …")

    @property
    def place(self) -> str:
        """Where one is."""
        return "alerts: history"

    async def ask(self, client: ControllerClient) -> None:
        """The newest ones."""
        found = {each.id: each for each in await client.alert_history(HISTORY)}
        table = self.query_one(VirtualTable)
        table.empty = "nothing has fired yet"
        if found != self._alerts or not table.total_count:
            self._alerts = found
            table.set_rows(list(found), self._history_row)

    def _history_row(self, key: str) -> AlertRow:
        session = self.deck.session
        assert session is not None
        alert = self._alerts[key]
        return alert_row(alert, session.work.alerts.silence(alert.silenced_by), session.head_wall())

    @on(VirtualTable.Opened)
    def _opened(self, event: VirtualTable.Opened) -> None:
        if event.key in self._alerts:
            open_page(self, self._history_row(event.key))

    def copy_text(self) -> str:
        """The alert in a line."""
        alert = self._alerts.get(self.query_one(VirtualTable).cursor_key or "")
        return alert.title if alert is not None else ""

    def raw(self) -> Any:
        """The alert as JSON."""
        alert = self._alerts.get(self.query_one(VirtualTable).cursor_key or "")
        return alert_document(alert) if alert is not None else None


def open_page(screen: DeckScreen, row: AlertRow) -> None:
    """All of one, over the screen."""
    from console.screens.pages import PageDialog

    async def page() -> Callable[[int], list[Spans]]:
        return lambda width: alert_lines(row, width)

    title = "Silence" if row.line is None else "Alert" if row.alert is not None else "Seen from this console"
    screen.deck.push_screen(PageDialog(title, page))
