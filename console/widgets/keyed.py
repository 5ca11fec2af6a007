"""Rows by key under a cursor: what is chosen, marked, filtered and sorted. How they are painted is the table's part.

It never holds rows: it holds keys, and asks for a row when it needs one.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Generic

from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.strip import Strip
from textual.timer import Timer

from console.render.cells import Column, Row
from console.widgets import events
from console.widgets.order import RowOrder
from console.widgets.paint import PaintedView

SLICE_SECONDS = 0.008
"""For so long a filter or a sort may work before keys are looked at."""
AT_ONCE_ROWS = 256
"""So few rows are filtered and sorted at once, without a task."""
RESORT_SECONDS = 1.0
SOON_SECONDS = 0.1
RETEXT_SECONDS = 0.25
"""Touched rows are looked at by a standing filter for one slice in so many seconds: 3 % of a core at most."""


class KeyedView(PaintedView, Generic[Row], can_focus=True):
    """The half of `VirtualTable` that knows keys and no cells. Its first line on screen is the heading's."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "cursor(1)", "down", show=False, id="table.down"),
        Binding("k,up", "cursor(-1)", "up", show=False, id="table.up"),
        Binding("g,home", "first", "first row", show=False, id="table.first"),
        Binding("G,end", "last", "last row", show=False, id="table.last"),
        Binding("ctrl+d", "page(0.5)", "half a page down", show=False, id="table.half_page_down"),
        Binding("ctrl+u", "page(-0.5)", "half a page up", show=False, id="table.half_page_up"),
        Binding("pagedown", "page(1)", "page down", show=False, id="table.page_down"),
        Binding("pageup", "page(-1)", "page up", show=False, id="table.page_up"),
        Binding("space", "mark", "mark", show=False, id="table.mark"),
        Binding("enter", "open", "open", show=False, id="table.open"),
    ]

    message: reactive[str] = reactive("", layout=False, repaint=False)
    """What stands in the way of showing rows (loading, failed and why). Over rows it takes the bottom line."""
    message_style: reactive[str] = reactive("info")

    Highlighted = events.Highlighted
    Opened = events.Opened
    Marked = events.Marked
    Arranged = events.Arranged

    def __init__(self, columns: Sequence[Column[Row]], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.marked: set[str] = set()
        """The keys that are marked. Change them with `toggle_mark`, `mark_all` and `clear_marks`."""
        self._order: RowOrder[Row] = RowOrder(columns)
        self._cursor = 0
        self._cursor_key: str | None = None
        self._chosen = False
        """Has the operator moved the cursor? Until then it stays on the first row while rows come in above it."""
        self._strips: dict[str, Strip] = {}
        """Lines as painted, without cursor, by key; scrolling by a line then paints one line and not all."""
        self._counts = (0, 0)
        self._owed = False
        """Have rows changed on screen that are painted only when the order is known?"""
        self._resort_timer: Timer | None = None
        self._resorted_at = 0.0
        self._retext_timer: Timer | None = None

    # Rows

    def set_rows(self, keys: Sequence[str], row_of: Callable[[str], Row]) -> None:
        """All rows, in their own order. The cursor stays on its key, marks stay on keys that are still there.

        Args:
            keys: Unique.
            row_of: Called when a row is painted, filtered or sorted. It may raise `KeyError` for a row that went
                since; that row is then shown as gone.
        """
        self._order.set_rows(keys, row_of)
        self._strips.clear()
        if self.marked:
            kept = self.marked.intersection(self._order.keys)
            if len(kept) != len(self.marked):
                self.marked = kept
                self._tell_marks()
        self.refresh()
        self._rearrange()

    def touch(self, keys: Iterable[str]) -> None:
        """The contents of these rows changed: those on screen are painted again; the order follows."""
        changed = keys if isinstance(keys, (set, frozenset)) else set(keys)
        if not changed:
            return
        for key in [key for key in self._strips if key in changed]:
            del self._strips[key]
        self._order.touch(changed)
        if self._order.stale_values and self._resort_timer is None:
            wait = max(0.001, self._resorted_at + RESORT_SECONDS - time.monotonic())
            self._resort_timer = self.set_timer(wait, self._resort)
            if wait < SOON_SECONDS:  # rows are about to change places: paint once, when they have
                self._owed = True
        if self._order.stale_texts and self._retext_timer is None:
            self._retext_timer = self.set_interval(RETEXT_SECONDS, self._retext)
        if self._owed:
            return
        top = self._top
        lines = [y for y, key in enumerate(self._order.view[top : top + self._page]) if key in changed]
        if len(lines) * 2 > self._page:
            self.refresh()
        elif lines:
            width = self.size.width
            self.refresh(*(Region(0, y + 1, width, 1) for y in lines))

    def repaint_rows(self) -> None:
        """Time went on: what is on screen is painted again. Nothing is looked up for rows that are not."""
        self._strips.clear()
        self.refresh()

    @property
    def visible_count(self) -> int:
        """Rows that pass the filter."""
        return len(self._order.view)

    @property
    def total_count(self) -> int:
        """All rows."""
        return len(self._order.keys)

    @property
    def view(self) -> Sequence[str]:
        """The keys that pass the filter, in the order shown."""
        return self._order.view

    # Cursor

    @property
    def cursor_key(self) -> str | None:
        """The key of the row under the cursor; ``None`` if no row is shown."""
        return self._cursor_key

    def move_to(self, key: str) -> bool:
        """Put the cursor on this key. False: no such row is shown."""
        try:
            position = self._order.view.index(key)
        except ValueError:
            return False
        self._move(position)
        return True

    def _move(self, position: int) -> None:
        view = self._order.view
        if not view:
            return
        self._chosen = True
        position = min(max(position, 0), len(view) - 1)
        old, self._cursor = self._cursor, position
        self._refresh_row(old)
        self._refresh_row(position)
        self._show_cursor()
        self._tell_cursor()

    def _show_cursor(self) -> None:
        top, page = self._top, max(1, self._page)
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False, force=True)
        elif self._cursor >= top + page:
            self.scroll_to(y=self._cursor - page + 1, animate=False, force=True)

    def _tell_cursor(self) -> None:
        view = self._order.view
        key = view[self._cursor] if view else None
        if key != self._cursor_key:
            self._cursor_key = key
            if key is not None:
                self.post_message(self.Highlighted(self, key))

    def action_cursor(self, rows: int) -> None:
        """Move the cursor by so many rows."""
        self._move(self._cursor + rows)

    def action_first(self) -> None:
        """Move to the first row."""
        self._move(0)

    def action_last(self) -> None:
        """Move to the last row."""
        self._move(len(self._order.view) - 1)

    def action_page(self, pages: float) -> None:
        """Move by so many screens, and the screen with the cursor."""
        rows = int(self._page * pages)
        self.scroll_to(y=self.scroll_offset.y + rows, animate=False, force=True)
        self._move(self._cursor + rows)

    def action_open(self) -> None:
        """Say that the row under the cursor is to be opened."""
        if self._cursor_key is not None:
            self._chosen = True
            self.post_message(self.Opened(self, self._cursor_key))

    # Marks

    def toggle_mark(self) -> None:
        """Mark the row under the cursor, or take its mark off."""
        if self._cursor_key is None:
            return
        self.marked ^= {self._cursor_key}
        self._strips.pop(self._cursor_key, None)
        self._refresh_row(self._cursor)
        self._tell_marks()

    def mark_all(self) -> None:
        """Mark every row that passes the filter."""
        self.marked |= set(self._order.view)
        self._marks_changed()

    def clear_marks(self) -> None:
        """Take all marks off, also those of rows that the filter hides."""
        self.marked.clear()
        self._marks_changed()

    def action_mark(self) -> None:
        """Mark the row and go on to the next."""
        self.toggle_mark()
        self._move(self._cursor + 1)

    def _marks_changed(self) -> None:
        self._strips.clear()
        self.refresh()
        self._tell_marks()

    def _tell_marks(self) -> None:
        self.post_message(self.Marked(self, frozenset(self.marked)))

    # Order

    @property
    def sort_key(self) -> str | None:
        """The key of the column that is sorted by; ``None`` for the order of `set_rows`."""
        column = self._order.sort_column
        return None if column is None else column.key

    @property
    def sort_reverse(self) -> bool:
        """Is the order turned around?"""
        return self._order.reverse

    @property
    def filter_text(self) -> str:
        """The filter as given to `set_filter`."""
        return self._order.filter_text

    def sort_by(self, column_key: str | None, reverse: bool = False) -> None:
        """Sort by a column; ``None`` gives the order of `set_rows` back."""
        self._order.sort_by(column_key, reverse)
        self.refresh()
        self._rearrange()

    def next_sort(self) -> None:
        """Sort by the next column that can be sorted by; after the last comes the order of `set_rows`."""
        self._step_sort(1)

    def previous_sort(self) -> None:
        """Sort by the column before."""
        self._step_sort(-1)

    def reverse_sort(self) -> None:
        """Turn the order around."""
        self.sort_by(self.sort_key, not self._order.reverse)

    def _step_sort(self, by: int) -> None:
        ring = [None, *(column.key for column in self._order.sortable)]
        self.sort_by(ring[(ring.index(self.sort_key) + by) % len(ring)], self._order.reverse)

    def set_filter(self, text: str) -> None:
        """Show only rows whose painted text has ``text`` in it, whatever the case; ``!text``: those that do not."""
        self._order.set_filter(text)
        self.refresh()
        self._rearrange()

    def _rearrange(self) -> None:
        """Filter and sort: at once if that is little work, else in slices between which keys are served."""
        if self._order.missing() > AT_ONCE_ROWS and self.is_attached:
            self.run_worker(self._work(), group="order", exclusive=True, exit_on_error=True)
            return
        if self.is_attached:
            self.workers.cancel_group(self, "order")
        for _ in self._order.steps():
            pass
        if len(self._order.stale_texts) <= AT_ONCE_ROWS:
            for _ in self._order.refresh_texts():
                pass
        self._arranged()

    async def _work(self) -> None:
        until = time.perf_counter() + SLICE_SECONDS
        for _ in self._order.steps():
            if time.perf_counter() > until:
                await asyncio.sleep(0)
                until = time.perf_counter() + SLICE_SECONDS
        self._arranged()

    def _resort(self) -> None:
        self._resort_timer = None
        self._resorted_at = time.monotonic()
        self._rearrange()

    def _retext(self) -> None:
        until = time.perf_counter() + SLICE_SECONDS
        steps = self._order.refresh_texts()
        while self._order.stale_texts and time.perf_counter() < until:
            next(steps, None)
        if not self._order.stale_texts and self._retext_timer is not None:
            self._retext_timer.stop()
            self._retext_timer = None
        self._rearrange()

    def _arranged(self) -> None:
        """Another `view` is there: find the cursor's key again, on the same line of the screen if that can be."""
        before = self._order.view
        line = self._cursor - self._top
        self._order.arrange()
        view = self._order.view
        counts = (len(view), len(self._order.keys))
        if self._owed:
            self._owed = False
            self.refresh()
        if view == before and counts == self._counts:
            return
        self._counts = counts
        position = self._cursor
        if not self._chosen:
            position = 0
        elif self._cursor_key is not None:
            try:
                position = view.index(self._cursor_key)
            except ValueError:  # gone: its neighbour; hidden by the filter: the first that is not
                position = 0 if self._order.has(self._cursor_key) else self._cursor
        self._cursor = min(max(position, 0), max(0, len(view) - 1))
        self._resize_virtual()
        if 0 <= line < max(1, self._page) and self._top != self._cursor - line:
            self.scroll_to(y=max(0, self._cursor - line), animate=False, force=True)
        self._show_cursor()
        self.refresh()
        self._tell_cursor()
        self.post_message(self.Arranged(self, *counts))

    # Screen

    @property
    def _top(self) -> int:
        """The position in the view of the first row on screen."""
        return self.scroll_offset.y

    @property
    def _page(self) -> int:
        """How many rows have room on screen."""
        return max(0, self.scrollable_content_region.height - 1 - self._message_lines)

    @property
    def _message_lines(self) -> int:
        return 1 if self.message and self._order.view else 0

    def _resize_virtual(self) -> None:
        self.virtual_size = Size(self.size.width, len(self._order.view) + 1 + self._message_lines)

    def _refresh_row(self, position: int) -> None:
        y = position - self._top + 1
        if 0 < y < self.size.height:
            self.refresh(Region(0, y, self.size.width, 1))

    def watch_message(self) -> None:
        """Another message: it may take a line, or give it back."""
        self._resize_virtual()
        self._show_cursor()
        self.refresh()

    def palette_changed(self) -> None:
        """Lines in old colours are void."""
        self._strips.clear()

    def on_resize(self) -> None:
        """Another size: other columns, and the cursor may have been left outside."""
        self._resize_virtual()
        self._show_cursor()
