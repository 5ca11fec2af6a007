"""A few lines of styled text, painted from a function: the status line, findings, a node's or a run's figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from console.render.cells import Spans, fit_spans
from console.widgets.paint import Palette

Source = Callable[[int], Sequence[Spans]]
"""Width in cells to lines."""


class Lines(Widget):
    """As many lines as its source gives. Call `touch` when they may be others."""

    DEFAULT_CSS = "Lines { height: auto; width: 1fr; }"

    def __init__(self, source: Source, *, id: str | None = None, most: int = 100) -> None:  # noqa: A002
        super().__init__(id=id)
        self._source = source
        self._most = most
        self._lines: list[Spans] | None = None
        self._palette: Palette | None = None

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """The number of lines."""
        self._lines = lines = list(self._source(width))[: self._most]
        return max(1, len(lines))

    def touch(self) -> None:
        """The lines may be others; laid out again only if their number is."""
        if not self.is_attached or self.size.width == 0:
            return
        before = self._lines
        self._lines = list(self._source(self.size.width))[: self._most]
        self.refresh(layout=before is not None and len(self._lines) != len(before))

    def on_resize(self) -> None:
        """Another width."""
        self.touch()

    def notify_style_update(self) -> None:
        """Colours may have changed."""
        super().notify_style_update()
        self._palette = None

    def render_line(self, y: int) -> Strip:
        """One line."""
        if self._palette is None:
            self._palette = Palette(self)
        if self._lines is None:
            self._lines = list(self._source(self.size.width))[: self._most]
        spans = self._lines[y] if y < len(self._lines) else ()
        return self._palette.strip(fit_spans(spans, self.size.width), self.size.width)
