"""A view of a log of any length: asks its source for the lines on screen and paints them. Painting never searches.

The text is made safe and secrets are painted over here, at the last moment; the source keeps lines as they were.
"""

import re
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.timer import Timer

from console.render.cells import Cell, count, fit, glyph, safe
from console.widgets.buffer import LineBuffer, LineSource, LogLine
from console.widgets.logline import fold_of, plain_strip, shown, strip_of
from console.widgets.paint import PaintedView
from console.widgets.search import compiled, find

FRAME_SECONDS = 1 / 15
SIDEWAYS = 8


_ScreenRow = tuple[LogLine, int | None]
"""What stands on a line of the screen: a line of the log, and which of its folds if lines are folded."""


class _Frame(NamedTuple):
    """All that painting needs, asked for once for all lines of the screen."""

    size: Size
    width: int
    height: int
    top: int
    status: str
    rows: list[_ScreenRow]


class LogView(PaintedView, can_focus=True):
    """Lines of a source, following its end until one scrolls up."""

    DEFAULT_CSS = """
    LogView {
        overflow-y: hidden;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "lines(1)", "down", show=False, id="log.down"),
        Binding("k,up", "lines(-1)", "up", show=False, id="log.up"),
        Binding("g,home", "top", "oldest line", show=False, id="log.first"),
        Binding("G,end", "bottom", "newest line, and follow", show=False, id="log.last"),
        Binding("ctrl+d", "page(0.5)", "half a page down", show=False, id="log.half_page_down"),
        Binding("ctrl+u", "page(-0.5)", "half a page up", show=False, id="log.half_page_up"),
        Binding("pagedown", "page(1)", "page down", show=False, id="log.page_down"),
        Binding("pageup", "page(-1)", "page up", show=False, id="log.page_up"),
        Binding("left", f"sideways(-{SIDEWAYS})", "to the left", show=False, id="log.left"),
        Binding("right", f"sideways({SIDEWAYS})", "to the right", show=False, id="log.right"),
        Binding("f", "follow", "follow", show=False, id="log.follow"),
        Binding("w", "wrap", "wrap", show=False, id="log.wrap"),
        Binding("n", "next_match", "next match", show=False, id="log.next_match"),
        Binding("N", "previous_match", "match before", show=False, id="log.previous_match"),
    ]

    follow: reactive[bool] = reactive(True, repaint=False)
    """Stay at the newest line."""
    wrap: reactive[bool] = reactive(False)
    """Fold long lines instead of scrolling sideways."""

    class Moved(Message):
        """Following began or ended, or a search came to an end: what `LogView.status` says may have changed."""

        def __init__(self, log: "LogView") -> None:
            self.log = log
            super().__init__()

        @property
        def control(self) -> "LogView":
            return self.log

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, LogView.Moved) and message.log is self.log

    def __init__(
        self,
        source: LineSource | None = None,
        *,
        id: str | None = None,  # noqa: A002
        empty: str = "no lines yet",
    ) -> None:
        """A log view.

        Args:
            source: Where lines come from; may be set later.
            id: The widget's id.
            empty: What is said while there is no line.
        """
        super().__init__(id=id)
        self.empty = empty
        self._source: LineSource = source or LineBuffer(1)
        self._left = 0
        self._dropped = 0
        self._paused_at = 0
        """Lines there had been, dropped ones too, when following ended."""
        self._timer: Timer | None = None
        self._pattern: re.Pattern[str] | None = None
        self._found: int | None = None
        """The line of the current match, as position plus dropped."""
        self._search_note = ""
        self._frame: _Frame | None = None

    # The source

    @property
    def source(self) -> LineSource:
        """Where lines come from."""
        return self._source

    @source.setter
    def source(self, source: LineSource) -> None:
        self._source = source
        self._dropped = source.dropped()
        self._found = None
        self._search_note = ""
        self._left = 0
        self.follow = True
        self._catch_up()

    def grew(self) -> None:
        """The source has more lines. May be called as often as it likes: it is painted 15 times a second at most."""
        if self._timer is None and self.is_attached:
            self._timer = self.set_timer(FRAME_SECONDS, self._catch_up)

    def _catch_up(self) -> None:
        self._timer = None
        gone = self._source.dropped() - self._dropped
        self._dropped += gone
        self._resize_virtual()
        if self.follow:
            self._to_end()
        elif gone > 0:  # stay on the same line while the front falls out
            self.scroll_to(y=max(0, self._top - gone), animate=False, force=True)
        self._repaint()

    def _resize_virtual(self) -> None:
        lines = self._source.count()
        # A folded line takes several lines of the screen, so the last one must be able to stand at the top.
        spare = max(0, self._page - 1) if self.wrap else self._status_lines
        size = Size(self.size.width, lines + spare)
        if size != self.virtual_size:
            # Not the reactive: that would lay out the whole screen at each frame, for a log that only grew.
            self.set_reactive(LogView.virtual_size, size)  # type: ignore[arg-type]
            self._scroll_update(size)

    # Moving

    @property
    def _top(self) -> int:
        return self.scroll_offset.y

    @property
    def _page(self) -> int:
        """Lines of the screen for the log."""
        return max(1, self.scrollable_content_region.height - self._status_lines)

    @property
    def _status_lines(self) -> int:
        return 1 if self.status else 0

    def _to_end(self) -> None:
        if self.wrap:
            rows = self._folded_from_end()
            self.scroll_to(
                y=max(0, self._source.count() - len({id(line) for line, _ in rows})), animate=False, force=True
            )
        else:
            self.scroll_to(y=max(0, self._source.count() - self._page), animate=False, force=True)

    def watch_follow(self, follow: bool) -> None:
        """Following began or ended."""
        if follow:
            self._search_note = ""
        else:
            self._paused_at = self._source.count() + self._source.dropped()
        if self.is_attached:
            self._resize_virtual()
            if follow:
                self._to_end()
            self._repaint()
        self.post_message(self.Moved(self))

    def watch_wrap(self) -> None:
        """Folding began or ended: the line at the top stays there."""
        self._left = 0
        self._frame = None
        self._resize_virtual()
        if self.follow:
            self._to_end()

    def on_resize(self) -> None:
        """Another size."""
        self._resize_virtual()
        if self.follow:
            self._to_end()

    def scroll_to_line(self, position: int) -> None:
        """Put the line at this position in the middle of the screen, and stop following."""
        self.follow = False
        self._resize_virtual()
        self.scroll_to(y=max(0, position - self._page // 2), animate=False, force=True)

    def action_lines(self, lines: int) -> None:
        """Scroll by so many lines. Up: stop following."""
        if lines < 0 or not self.follow:
            self.follow = False
            top = min(self._top + lines, max(0, self._source.count() - (1 if self.wrap else self._page)))
            self.scroll_to(y=max(0, top), animate=False, force=True)

    def action_page(self, pages: float) -> None:
        """Scroll by so many screens."""
        self.action_lines(int(self._page * pages))

    def action_top(self) -> None:
        """Go to the oldest line that is still there."""
        self.follow = False
        self.scroll_to(y=0, animate=False, force=True)

    def action_bottom(self) -> None:
        """Go to the newest line and follow."""
        self.follow = True
        self._to_end()

    def action_follow(self) -> None:
        """Follow, or stop following."""
        self.follow = not self.follow

    def action_wrap(self) -> None:
        """Fold long lines, or stop folding."""
        self.wrap = not self.wrap

    def action_sideways(self, cells: int) -> None:
        """Scroll sideways, where lines are not folded."""
        if not self.wrap:
            self._left = max(0, self._left + cells)
            self._repaint()

    def _on_mouse_scroll_up(self, event: object) -> None:
        self.action_lines(-3)

    def _on_mouse_scroll_down(self, event: object) -> None:
        self.action_lines(3)

    # Search

    @property
    def status(self) -> str:
        """What is to be said about where one is: paused and how much is new, and how the search went."""
        parts: list[str] = []
        if not self.follow:
            new = self._source.count() + self._source.dropped() - self._paused_at
            parts.append(f"paused, {count(new)} new line{'s'[new == 1 :]}, f follows")
            if total := self._source.count():
                parts.append(f"{(self._top + 1) * 100 // total}%")
        if self._search_note:
            parts.append(self._search_note)
        return glyph(" · ", " | ").join(parts)

    def search(self, pattern: str, *, regex: bool = True) -> None:
        """Go to the next line, from the top of the screen on, that has this pattern; lines are coloured where it is.

        See `compiled` for what a pattern means. An empty one ends the search.
        """
        self._found = None
        self._search_note = ""
        self.workers.cancel_group(self, "search")
        self._pattern = compiled(pattern, regex=regex) if pattern else None
        self._repaint()
        if pattern:
            self._look(self._top, 1)

    def action_next_match(self) -> None:
        """Go to the next match."""
        self._look_on(1)

    def action_previous_match(self) -> None:
        """Go to the match before."""
        self._look_on(-1)

    def _look_on(self, step: int) -> None:
        if self._pattern is None:
            return
        if self._found is None:
            self._look(self._top, step)
        else:
            self._look(self._found - self._source.dropped() + step, step)

    def _look(self, start: int, step: int) -> None:
        pattern = self._pattern
        if pattern is not None:
            self._note("searching")
            self.run_worker(self._find(pattern, start, step), group="search", exclusive=True)

    def _note(self, text: str) -> None:
        self._search_note = text
        self._resize_virtual()
        self._repaint()
        self.post_message(self.Moved(self))

    async def _find(self, pattern: re.Pattern[str], start: int, step: int) -> None:
        found = await find(self._source, pattern, start, step)
        if found is None:
            self._note(f"no match for {safe(pattern.pattern)}")
            return
        self._found, around = found
        position = self._found - self._source.dropped()
        self.scroll_to_line(position)  # before the note is set: it ends following, which may clear the note
        line = self._source.lines(position, position + 1)
        number = line[0].number if line and line[0].number else position + 1
        self._note(f"{'search went around, ' if around else ''}match in line {number}, n next, N before")

    # Painting

    def palette_changed(self) -> None:
        """Nothing is kept between frames."""

    def _repaint(self) -> None:
        self._frame = None
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Another top line."""
        self._frame = None
        super().watch_scroll_y(old_value, new_value)

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        frame = self._frame
        if frame is None or frame.size != self.size:
            frame = self._frame = self._framed()
        width = frame.width
        if frame.status and y == frame.height - 1:
            return self.palette.strip([Cell(fit(f" {frame.status}", width), "key")], width, "cursor")
        if y >= len(frame.rows):
            text = self.empty if y == 0 else ""
            return self.palette.strip([Cell(fit(text, width), "muted")], width)
        raw, fold = frame.rows[y]
        line = shown(raw)
        if fold is not None:
            strip = strip_of(line, self.palette, self._pattern, False)
            return fold_of(strip, line, fold, width, self.palette).adjust_cell_length(width, self.palette.blank)
        if self._pattern is None and not self._left and width > line.indent:
            return plain_strip(line, self.palette, width)
        strip = strip_of(line, self.palette, self._pattern, self._found_here(frame.top + y))
        if self._left:
            start = line.indent + self._left
            strip = Strip.join([strip.crop(0, line.indent), strip.crop(start, max(start, strip.cell_length))])
        if strip.cell_length > width:
            more = Strip([Segment(glyph("…", "~"), self.palette.style("muted"))])
            strip = Strip.join([strip.crop(0, width - 1), more])
        return strip.adjust_cell_length(width, self.palette.blank)

    def _framed(self) -> _Frame:
        region = self.scrollable_content_region
        rows: list[_ScreenRow]
        if self.wrap:
            rows = self._folded()
        else:
            rows = [(line, None) for line in self._source.lines(self._top, self._top + region.height)]
        return _Frame(self.size, region.width, region.height, self._top, self.status, rows)

    def _found_here(self, position: int) -> bool:
        return self._found is not None and position + self._source.dropped() == self._found

    def _folded(self) -> list[_ScreenRow]:
        """With folding: what stands on each line of the screen."""
        if self.follow:
            return self._folded_from_end()
        page = self._page
        rows: list[_ScreenRow] = []
        for line in self._source.lines(self._top, self._top + page):
            rows.extend(self._folds(line))
            if len(rows) >= page:
                break
        return rows[:page]

    def _folded_from_end(self) -> list[_ScreenRow]:
        page, total = self._page, self._source.count()
        rows: list[_ScreenRow] = []
        for line in reversed(self._source.lines(max(0, total - page), total)):
            rows[:0] = self._folds(line)
            if len(rows) >= page:
                break
        return rows[-page:]

    def _folds(self, line: LogLine) -> list[_ScreenRow]:
        width = self.scrollable_content_region.width
        return [(line, fold) for fold in range(shown(line).folds(width))]
