"""The releases of all workflows: who made them, how their runs fared, what is different between two."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from console.render.releases import RELEASE_COLUMNS, ShownRelease, newest_first
from console.screens.base import AskingScreen, bindings_for
from console.screens.pages import difference_page, release_page
from console.widgets.table import VirtualTable
from jobs.client import ControllerClient
from jobs.wire import ReleaseRow


class ReleasesScreen(AskingScreen):
    """The history."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("everywhere", "table", "releases")
    SCOPES = ("everywhere", "table", "releases")

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[str, ReleaseRow] = {}

    def body(self) -> ComposeResult:
        """The table."""
        yield VirtualTable(RELEASE_COLUMNS, id="releases", empty="no release yet: each launch records one")

    @property
    def place(self) -> str:
        """Where one is."""
        return "releases"

    async def ask(self, client: ControllerClient) -> None:
        """All of them, the newest first."""
        rows = newest_first(await client.releases())
        before, self._rows = self._rows, {row.id: row for row in rows}
        table = self.query_one(VirtualTable)
        if list(before) != list(self._rows):
            table.set_rows(list(self._rows), self._row)
        table.touch({key for key, row in self._rows.items() if before.get(key) != row})

    def _row(self, key: str) -> ShownRelease:
        session = self.deck.session
        assert session is not None
        return ShownRelease(self._rows[key], session.head_wall())

    def _under_cursor(self) -> ReleaseRow | None:
        return self._rows.get(self.query_one(VirtualTable).cursor_key or "")

    @on(VirtualTable.Opened)
    def _opened(self, event: VirtualTable.Opened) -> None:
        row, session = self._rows.get(event.key), self.deck.session
        if row is not None and session is not None:
            self.app.push_screen(release_page(session, row))

    def action_difference(self) -> None:
        """The two marked ones; with one marked, that one and the one under the cursor. The older one stands left."""
        chosen = {key for key in self.query_one(VirtualTable).marked if key in self._rows}
        under = self._under_cursor()
        if len(chosen) < 2 and under is not None:
            chosen.add(under.id)
        if len(chosen) != 2:
            self.notify("mark two releases (space), or one and go to the other", severity="warning")
            return
        new, old = newest_first(self._rows[key] for key in chosen)
        self.app.push_screen(difference_page(old, new))

    def selected_release(self) -> tuple[str, str]:
        """The release under the cursor, and its workflow."""
        row = self._under_cursor()
        return (row.workflow, row.id) if row else ("", "")

    def copy_text(self) -> str:
        """The release's id."""
        return self.query_one(VirtualTable).cursor_key or ""

    def raw(self) -> Any:
        """The release as JSON."""
        row = self._under_cursor()
        return row.model_dump(mode="json") if row else None
