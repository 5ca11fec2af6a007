"""A plot of loss, throughput or the like over steps or time: axis labels, the newest value, gaps left as gaps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.segment import Segment
from textual.strip import Strip

from console.render.cells import Cell, cell_len, count, fit, glyph
from console.render.curve import Point, curve, limits
from console.widgets.paint import PaintedView

SERIES_STYLES = ("busy", "ok", "simulated", "warn")


def figure(value: float) -> str:
    """A number for an axis, in at most 7 signs."""
    if not math.isfinite(value):
        return "?"
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10_000:
        return count(value)
    if size < 0.001:
        return f"{value:.0e}"
    return f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class _Series:
    points: tuple[Point, ...]
    latest: float | None
    """The newest value, finite or not; ``None`` without points."""


class LinePlot(PaintedView):
    """Lines over one x axis.

    Args:
        title: What is plotted.
        id: The widget's id.
        empty: Why there is nothing yet, in words.
        x_text: How a value of the x axis is written.
        y_text: How a value of the y axis is written.
    """

    DEFAULT_CSS = """
    LinePlot {
        height: 1fr;
        overflow-y: hidden;
    }
    """

    def __init__(
        self,
        title: str = "",
        *,
        id: str | None = None,  # noqa: A002
        empty: str = "nothing reported yet",
        x_text: Callable[[float], str] = figure,
        y_text: Callable[[float], str] = figure,
    ) -> None:
        super().__init__(id=id)
        self.title = title
        self.empty = empty
        self._x_text = x_text
        self._y_text = y_text
        self._series: dict[str, _Series] = {}
        self._lines: list[Strip] = []

    def set_series(self, name: str, xs: Sequence[float], ys: Sequence[float | None]) -> None:
        """Give a line's points anew; without points the line is taken out.

        Args:
            name: Stands in the heading, beside the newest value.
            xs: Ascending.
            ys: As many; ``None`` and NaN break the line.

        Raises:
            ValueError: The two are not of one length.
        """
        values = [math.nan if y is None else float(y) for y in ys]
        points = tuple(zip(map(float, xs), values, strict=True))
        if points:
            self._series[name] = _Series(points, values[-1])
        else:
            self._series.pop(name, None)
        self._repaint()

    def clear(self, empty: str | None = None) -> None:
        """Take all lines out, and say why if a reason is given."""
        self._series.clear()
        if empty is not None:
            self.empty = empty
        self._repaint()

    def _repaint(self) -> None:
        self._lines = []
        self.refresh()

    def palette_changed(self) -> None:
        """Lines in old colours are void."""
        self._lines = []

    def on_resize(self) -> None:
        """Another size: drawn anew."""
        self._repaint()

    def render_line(self, y: int) -> Strip:
        """One line: the heading, the plot, or the x axis."""
        if not self._lines:
            self._lines = self._draw(self.size.width, self.size.height)
        return self._lines[y] if y < len(self._lines) else Strip.blank(self.size.width, self.palette.blank)

    def _draw(self, width: int, height: int) -> list[Strip]:
        lines = [self._heading(width)]
        rows = height - 2
        xs = limits([x for series in self._series.values() for x, y in series.points if math.isfinite(y)])
        ys = limits([y for series in self._series.values() for _, y in series.points])
        if xs is None or ys is None:
            why = "only values that are not numbers were reported" if self._series else self.empty
            return [*lines, self.palette.strip([Cell(fit(f"  {why}", width), "muted")], width)]
        top, bottom = self._y_text(ys[1]), self._y_text(ys[0])
        left = max(cell_len(top), cell_len(bottom)) + 1
        columns = width - left - 1
        if rows < 1 or columns < 4:
            return lines
        drawn = [
            (curve(series.points, columns, rows, xs, ys), SERIES_STYLES[i % len(SERIES_STYLES)])
            for i, series in enumerate(self._series.values())
        ]
        style = self.palette.style
        for row in range(rows):
            label = top if row == 0 else bottom if row == rows - 1 else ""
            axis = Segment(fit(label, left - 1, "right") + " " + glyph("│", "|"), style("muted"))
            lines.append(Strip([axis, *self._over([(texts[row], name) for texts, name in drawn], columns)]))
        first, last = self._x_text(xs[0]), self._x_text(xs[1])
        axis = fit(first, max(0, columns - cell_len(last))) + last
        lines.append(self.palette.strip([Cell(" " * (left + 1)), Cell(fit(axis, columns), "muted")], width))
        return [line.adjust_cell_length(width, self.palette.blank) for line in lines]

    def _over(self, texts: list[tuple[str, str]], columns: int) -> list[Segment]:
        """One row of all lines, the later ones over the earlier ones, neighbours of one style joined."""
        segments: list[Segment] = []
        run, run_name = "", ""
        for column in range(columns):
            sign, name = " ", ""
            for text, style in texts:
                if text[column] != " ":
                    sign, name = text[column], style
            if name != run_name:
                if run:
                    segments.append(Segment(run, self.palette.style(run_name)))
                run, run_name = "", name
            run += sign
        segments.append(Segment(run, self.palette.style(run_name)))
        return segments

    def _heading(self, width: int) -> Strip:
        cells = [Cell(self.title, "title")] if self.title else []
        for i, (name, series) in enumerate(self._series.items()):
            latest = "?" if series.latest is None else self._y_text(series.latest)
            cells.append(Cell("  " if cells else ""))
            cells.append(Cell(f"{name} {latest}" if name != self.title else latest, SERIES_STYLES[i % 4]))
        return self.palette.strip(cells, width)
