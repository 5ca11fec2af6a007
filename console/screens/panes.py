"""What a run's panes fetch, when a pane opens and again when the run moves: moves, checkpoints, its release."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING

from console.render.cells import Cell, Spans
from console.render.course import MoveRow, SavedRow, checkpoint_key, move_rows
from console.render.prose import listed, paragraph
from console.render.releases import release_lines
from console.state.work import status_of
from console.widgets.lines import Lines
from console.widgets.table import VirtualTable
from jobs.errors import RaydeckError
from jobs.model import Run
from jobs.wire import CheckpointRow, ReleaseRow

if TYPE_CHECKING:
    from console.screens.run import RunScreen


class FetchedPanes:
    """The three panes of one run screen that have to be asked for."""

    FETCHED = frozenset({"checkpoints", "events", "release"})

    def __init__(self, screen: RunScreen) -> None:
        self._screen = screen
        self._fetched: dict[str, Hashable] = {}
        """Pane to the state of the run that it was fetched for."""
        self.checkpoints: dict[str, CheckpointRow] = {}
        self._moves: dict[str, MoveRow] = {}
        self.release: ReleaseRow | None = None
        self._release_trouble = ""

    def follow(self, pane: str, run: Run | None) -> None:
        """Fetch what this pane shows, unless it is there and nothing about it has changed."""
        if pane not in self.FETCHED or run is None:
            return
        state = self._state(pane, run)
        if self._fetched.get(pane) != state:
            self._fetched[pane] = state
            self._screen.run_worker(
                partial(self._fetch, pane, run), name=pane, group=f"pane {pane}", exclusive=True, exit_on_error=False
            )

    def forget(self) -> None:
        """What is there is to be asked for again."""
        self._fetched.clear()

    @staticmethod
    def _state(pane: str, run: Run) -> Hashable:
        """What of a run has to change before a pane is asked for again."""
        status = status_of(run)
        if pane == "checkpoints":
            return run.state, len(run.attempts), status.checkpoint_step if status else None
        if pane == "events":
            return run.state, len(run.attempts), run.reason
        return run.release, run.state.ended

    async def _fetch(self, pane: str, run: Run) -> None:
        session = self._screen.deck.session
        if session is None:
            return
        try:
            client = await session.controller()
            if pane == "checkpoints":
                self._take_checkpoints(await client.checkpoints(run.id))
            elif pane == "events":
                self._take_moves(move_rows(await client.moves(run.id), session.head_wall()))
            else:
                rows = await client.releases(run.workflow)
                self.release = next((row for row in rows if row.id == run.release), None)
                self._release_trouble = "" if self.release else f"the controller has no release {run.release}"
        except RaydeckError as error:
            self._fetched.pop(pane, None)
            self._failed(pane, str(error))
        else:
            self._failed(pane, self._release_trouble if pane == "release" else "")
        self._screen.query_one("#release-lines", Lines).touch()

    def _failed(self, pane: str, text: str) -> None:
        if pane == "release":
            self._release_trouble = text
            return
        table = self._table(pane)
        table.message_style = "bad"
        table.message = text

    def _table(self, pane: str) -> VirtualTable[object]:
        return self._screen.query_one("#moves" if pane == "events" else "#checkpoints", VirtualTable)

    def _take_checkpoints(self, rows: list[CheckpointRow]) -> None:
        self.checkpoints = {checkpoint_key(row): row for row in reversed(rows)}
        table = self._table("checkpoints")
        table.empty = "no checkpoint yet"
        table.set_rows(list(self.checkpoints), self._saved)

    def _saved(self, key: str) -> SavedRow:
        session = self._screen.deck.session
        assert session is not None
        return SavedRow(self.checkpoints[key], session.head_wall())

    def _take_moves(self, rows: list[MoveRow]) -> None:
        self._moves = {str(len(rows) - number): row for number, row in enumerate(rows)}
        table = self._table("events")
        table.empty = "no event is recorded"
        table.set_rows(list(self._moves), self._moves.__getitem__)

    def note(self, pane: str, key: str | None) -> str:
        """What has no room in a row: why a checkpoint cannot be used, and its folder; the whole cause of a move."""
        if pane == "events":
            move = self._moves[key].move if key in self._moves else None
            return f"{move.after.value}: {move.cause}" if move and move.cause else ""
        row = self.checkpoints.get(key or "")
        if row is None:
            return ""
        used = f"in use by {listed(row.in_use_by)}" if row.in_use_by else ""
        return "   ".join(text for text in (row.reason, used, row.path) if text)

    def release_lines(self, width: int) -> list[Spans]:
        """The release pane."""
        session = self._screen.deck.session
        if self._release_trouble:
            return paragraph(self._release_trouble, width, style="bad", lead=(Cell(" "),))
        if self.release is None or session is None:
            return [(Cell(" asking the controller …", "muted"),)]
        return release_lines(self.release, width, session.head_wall())
