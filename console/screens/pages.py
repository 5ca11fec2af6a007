"""Pages over a screen: something long to read that has to be asked for first. Opens at once, and says that it asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from console.render.cells import Cell, Spans
from console.render.course import attempt_lines, head_lines, run_facts
from console.render.prose import heading, paragraph
from console.render.queue import explanation_lines
from console.render.releases import difference_lines, release_lines
from console.sources.session import Session
from console.widgets.lines import Lines, Source
from jobs.errors import RaydeckError
from jobs.wire import ReleaseRow

READING_KEYS: list[BindingType] = [
    Binding("j,down", "scroll(1)", show=False),
    Binding("k,up", "scroll(-1)", show=False),
    Binding("ctrl+d,pagedown", "scroll(10)", show=False),
    Binding("ctrl+u,pageup", "scroll(-10)", show=False),
    Binding("g,home", "scroll(-100000)", show=False),
    Binding("G,end", "scroll(100000)", show=False),
]


class PageDialog(ModalScreen[None]):
    """A page that is asked for when it opens, and again with ``^r``."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "close", "Close", show=False),
        Binding("ctrl+r,f5", "ask", show=False),
        Binding("c", "copy", show=False),
        *READING_KEYS,
    ]

    def __init__(self, title: str, ask: Callable[[], Awaitable[Source]]) -> None:
        super().__init__()
        self._title, self._ask = title, ask
        self._source: Source = lambda width: [(Cell(" asking the controller …", "muted"),)]

    def compose(self) -> ComposeResult:
        """Title, page, keys."""
        with Vertical(classes="dialog page"):
            yield Static(self._title, classes="dialog-title", markup=False)
            with VerticalScroll(classes="dialog-body", can_focus=False):
                yield Lines(self._lines, id="page", most=2000)
            yield Static("esc: close   j k: scroll   ^r: ask again   c: copy", classes="dialog-hint")

    def on_mount(self) -> None:
        """Ask."""
        self.action_ask()

    def action_ask(self) -> None:
        """Ask, behind the page."""
        self.run_worker(self._fill, name="page", group="page", exclusive=True, exit_on_error=False)

    async def _fill(self) -> None:
        try:
            self._source = await self._ask()
        except RaydeckError as error:
            text = str(error)
            self._source = lambda width: paragraph(text, width, style="bad", lead=(Cell(" "),))
        self.query_one("#page", Lines).touch()

    def _lines(self, width: int) -> list[Spans]:
        return list(self._source(width))

    def action_scroll(self, lines: int) -> None:
        """Up or down."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_copy(self) -> None:
        """To the clipboard, by OSC 52."""
        lines = self._source(10_000)
        self.app.copy_to_clipboard("\n".join("".join(cell.text for cell in line) for line in lines))
        self.notify("copied")

    def action_close(self) -> None:
        """Back."""
        self.dismiss(None)


def explain_page(session: Session, key: str) -> PageDialog:
    """Why a run waits, as the controller works it out; of one that does not wait, what became of it."""

    async def ask() -> Source:
        run = session.work.runs.get(key)
        if run is None or run.state.waiting:
            told = await (await session.controller()).explain(key)
            if told.state.waiting or run is None:
                return lambda width: explanation_lines(told, width, session.head_wall())
        found = run

        def lines(width: int) -> list[Spans]:
            now = session.head_wall()
            out = [*head_lines(found, now), (), *run_facts(found, None, width, now)]
            for attempt in reversed(found.attempts):
                out += heading(f"Attempt {attempt.number}: {attempt.state.value}") + attempt_lines(attempt, width)
            return out

        return lines

    return PageDialog(f"Why: {key}", ask)


def release_page(session: Session, row: ReleaseRow) -> PageDialog:
    """All about one release."""

    async def ask() -> Source:
        rows = await (await session.controller()).releases(row.workflow)
        fresh = next((one for one in rows if one.id == row.id), row)
        return lambda width: release_lines(fresh, width, session.head_wall())

    return PageDialog(f"Release {row.id}", ask)


def difference_page(old: ReleaseRow, new: ReleaseRow) -> PageDialog:
    """Two releases side by side."""

    async def ask() -> Source:
        return lambda width: difference_lines(old, new, width)

    return PageDialog(f"From {old.id} to {new.id}", ask)
