"""The log of a run: all ranks together, or one; follow, pause, jump, search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.worker import Worker

from console.render.cells import Cell, Spans, safe
from console.screens.base import DeckScreen, bindings_for
from console.sources.runlog import RunLog, rank_files
from console.widgets.buffer import LineBuffer
from console.widgets.lines import Lines
from console.widgets.log import LogView


class LogScreen(DeckScreen):
    """A run's log."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("everywhere", "log")
    SCOPES = ("everywhere", "log")
    PROMPT = "search: a word or a regular expression"

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run_id = run
        self._buffer = LineBuffer()
        self._rank: int | None = None
        self._reading: Worker[None] | None = None

    def body(self) -> ComposeResult:
        """One line that says what is shown, and the log."""
        yield Lines(self._what, id="log-head", most=1)
        yield LogView(self._buffer, id="log", empty="nothing has been written yet")

    @property
    def place(self) -> str:
        """Where one is."""
        return f"log {self._run_id}"

    def begin(self) -> None:
        """Begin to read."""
        session = self.deck.session
        assert session is not None
        reader = RunLog(session, self._run_id, self._take)
        self._reading = self.run_worker(reader.run(), name="log", exit_on_error=False)

    def _take(self, lines: Sequence[str], rank: int | None) -> None:
        self._buffer.append(lines, rank)
        self.query_one(LogView).grew()

    @property
    def _ranks(self) -> list[int]:
        session = self.deck.session
        run = session.work.runs.get(self._run_id) if session else None
        return [file.rank for file in rank_files(session, run)] if session and run else []

    def _what(self, width: int) -> list[Spans]:
        session = self.deck.session
        run = session.work.runs.get(self._run_id) if session else None
        view = self.query_one(LogView)
        ranks = "all ranks" if self._rank is None else f"rank {self._rank}"
        where = "following" if view.follow else "paused"
        return [
            (
                Cell(f" {safe(self._run_id)} ", "title"),
                Cell(f"{run.state.value}  " if run else "gone  ", "muted"),
                Cell(f"{ranks} of {len(self._ranks)}  ", "accent"),
                Cell(f"{self._buffer.total} lines  ", "muted"),
                Cell(where, "ok" if view.follow else "warn"),
                Cell(f"  {safe(view.status)}" if view.status else "", "muted"),
            )
        ]

    def frame(self, nodes: set[str], runs: set[str]) -> None:
        """The run's state, the number of lines."""
        super().frame(nodes, runs)
        self.query_one("#log-head", Lines).touch()

    @on(LogView.Moved)
    def _moved(self) -> None:
        self.query_one("#log-head", Lines).touch()

    def filter_text(self, text: str) -> None:
        """Search."""
        self.query_one(LogView).search(text)

    def action_search(self) -> None:
        """Ask what to search for; the last text stands there."""
        self.prompt.open(self.PROMPT, self.prompt.value)

    def action_rank_next(self) -> None:
        """One rank alone, the next, …, all again."""
        self._show_rank(1)

    def action_rank_previous(self) -> None:
        """The rank before."""
        self._show_rank(-1)

    def _show_rank(self, step: int) -> None:
        choices: list[int | None] = [None, *self._ranks]
        at = choices.index(self._rank) if self._rank in choices else 0
        self._rank = choices[(at + step) % len(choices)]
        self._buffer.show_ranks(None if self._rank is None else [self._rank, None])
        self.query_one(LogView).source = self._buffer
        self.query_one("#log-head", Lines).touch()

    def selected_runs(self) -> Iterable[str]:
        """This run."""
        return (self._run_id,)
