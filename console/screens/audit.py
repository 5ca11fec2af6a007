"""The audit log: every request, allowed or refused, and whether the log itself holds."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from console.render.audit import AUDIT_COLUMNS, AuditRow, chain_line
from console.render.cells import Cell, Spans
from console.render.prose import paragraph
from console.screens.base import AskingScreen, bindings_for
from console.widgets.lines import Lines
from console.widgets.table import VirtualTable
from jobs.client import ControllerClient
from jobs.wire import AuditEntry

ENTRIES = 500


class AuditScreen(AskingScreen):
    """Who asked for what."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("everywhere", "table")
    SCOPES = ("everywhere", "table")
    PERIOD_SECONDS = 3.0

    def __init__(self) -> None:
        super().__init__()
        self._entries: dict[str, AuditEntry] = {}
        self._broken: str | None = None
        self._verify = True

    def body(self) -> ComposeResult:
        """Whether the chain holds, and the entries."""
        yield Lines(self._chain, id="chain", most=1)
        yield VirtualTable(AUDIT_COLUMNS, id="entries", empty="nothing was asked for yet")
        yield Lines(self._note, id="note", most=3)

    @property
    def place(self) -> str:
        """Where one is."""
        return "audit"

    def _chain(self, width: int) -> list[Spans]:
        refused = sum(not entry.allowed for entry in self._entries.values())
        return [chain_line(self._broken, len(self._entries), refused)]

    def _note(self, width: int) -> list[Spans]:
        entry = self._entries.get(self.query_one(VirtualTable).cursor_key or "")
        if entry is None or not entry.reason:
            return []
        style = "" if entry.allowed else "bad"
        return paragraph(entry.reason, width, style=style, lead=(Cell(f" {entry.seq}  ", "title"),))

    @on(VirtualTable.Highlighted)
    def _highlighted(self) -> None:
        self.query_one("#note", Lines).touch()

    async def ask(self, client: ControllerClient) -> None:
        """The newest ones; the first time, also whether the chain of hashes holds."""
        entries = await client.audit(ENTRIES)
        fresh = {str(entry.seq): entry for entry in entries}
        if fresh.keys() != self._entries.keys():
            self._entries = fresh
            self.query_one(VirtualTable).set_rows(list(fresh), self._row)
        self.query_one("#chain", Lines).touch()
        if self._verify:
            self._broken = await client.audit_broken()
            self._verify = False
            self.query_one("#chain", Lines).touch()

    def _row(self, key: str) -> AuditRow:
        session = self.deck.session
        assert session is not None
        return AuditRow(self._entries[key], session.head_wall())

    def copy_text(self) -> str:
        """The entry in a line."""
        entry = self._entries.get(self.query_one(VirtualTable).cursor_key or "")
        if entry is None:
            return ""
        allowed = "allowed" if entry.allowed else "refused"
        return f"{entry.seq} {entry.user} {entry.action} {entry.target} {allowed}: {entry.reason}"

    def raw(self) -> Any:
        """The entry as JSON."""
        entry = self._entries.get(self.query_one(VirtualTable).cursor_key or "")
        return entry.model_dump(mode="json") if entry else None
