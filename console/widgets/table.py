"""A table of any number of rows that paints only what is on screen, and keeps its cursor on a key, not on a line."""

from collections.abc import Sequence

from textual import events
from textual.strip import Strip

from console.render.cells import Cell, Column, Row, fit, fit_spans, glyph
from console.widgets.keyed import KeyedView
from console.widgets.paint import Ground, joined

GUTTER = 2
"""Cells at the left for one sign, a mark's or the cursor's, and a space."""
GAP = 1
_GAP = " " * GAP


def lay_out(columns: Sequence[Column[Row]], width: int) -> list[tuple[Column[Row], int]]:
    """The columns that have room in ``width`` cells, each with its width.

    Those with the highest `Column.drop` go first; what is left over is shared by the columns that grow.
    """
    shown = list(columns)

    def need() -> int:
        return GUTTER + sum(column.width + GAP for column in shown) - GAP

    while need() > width and (last := max((column.drop for column in shown), default=0)) > 0:
        position = max(i for i, column in enumerate(shown) if column.drop == last)
        del shown[position]
    spare = max(0, width - need()) if shown else 0
    growing = sum(column.grow for column in shown)
    out: list[tuple[Column[Row], int]] = []
    for column in shown:
        extra = 0
        if column.grow:
            extra = -(-spare // growing)
            spare -= extra
            growing -= 1
        out.append((column, column.width + extra))
    return out


class VirtualTable(KeyedView[Row]):
    """Rows by key, with a cursor, marks, a filter and a sort order.

    Args:
        columns: From left to right.
        id: The widget's id.
        empty: What is said when there is no row, and no `message`.
    """

    DEFAULT_CSS = """
    VirtualTable {
        scrollbar-gutter: stable;
    }
    """

    def __init__(self, columns: Sequence[Column[Row]], *, id: str | None = None, empty: str = "nothing here") -> None:  # noqa: A002
        super().__init__(columns, id=id)
        self.empty = empty
        self._layout: list[tuple[Column[Row], int]] = []
        self._layout_width = -1
        self._length = 0

    def set_columns(self, columns: Sequence[Column[Row]]) -> None:
        """Other columns, for the rows that are given next."""
        self._order.set_columns(columns)
        self._layout_width = -1

    def _columns(self, width: int) -> list[tuple[Column[Row], int]]:
        if width != self._layout_width:
            self._layout = lay_out(self._order.columns, width)
            self._layout_width = width
            self._length = max(GUTTER, GUTTER + sum(wide + GAP for _, wide in self._layout) - GAP)
            self._strips.clear()
        return self._layout

    def render_line(self, y: int) -> Strip:
        """One line of the widget: the heading, a row, or what is said instead."""
        width = self.scrollable_content_region.width
        view = self._order.view
        if y == 0:
            return self._heading(width)
        if self._message_lines and y == self.scrollable_content_region.height - 1:
            return self.palette.strip([Cell(fit(f"  {self.message}", width), self.message_style)], width)
        position = self._top + y - 1
        if position < len(view):
            return self._row(view[position], position == self._cursor, width)
        if not view and y == 2:
            return self.palette.strip([Cell("  "), self._instead()], width)
        return Strip.blank(width, self.palette.blank)

    def _instead(self) -> Cell:
        """What is said where no row is shown. An empty table never stands for a failure."""
        if self.message:
            return Cell(fit(self.message, max(1, self.size.width - 4)), self.message_style)
        if self._order.keys and self._order.needle:
            hidden = len(self._order.keys)
            return Cell(fit(f"no match for {self._order.filter_text} in {hidden} rows", self.size.width - 4), "warn")
        return Cell(fit(self.empty, max(1, self.size.width - 4)), "muted")

    def _heading(self, width: int) -> Strip:
        cells = [Cell(" " * GUTTER)]
        sort = self._order.sort_column
        for column, cells_wide in self._columns(width):
            if len(cells) > 1:
                cells.append(Cell(" " * GAP))
            if column is sort:
                arrow = glyph("▼", "v") if self._order.reverse else glyph("▲", "^")
                title = fit(column.title, min(cells_wide - 1, len(column.title)))
                text = arrow + title if column.align == "right" else title + arrow
                cells.append(Cell(fit(text, cells_wide, column.align), "key"))
            else:
                cells.append(Cell(fit(column.title, cells_wide, column.align)))
        return self.palette.strip(cells, width, "head")

    def _row(self, key: str, under_cursor: bool, width: int) -> Strip:
        columns = self._columns(width)
        if not under_cursor and (strip := self._strips.get(key)) is not None:
            return strip
        ground: Ground = "cursor" if under_cursor else ""
        styles = self.palette.styles(ground)
        marked = key in self.marked
        sign = glyph("●", "*") if marked else glyph("▸", ">") if under_cursor else " "
        row = self._order.row(key)
        texts, looks = [sign + " "], [styles["accent" if marked else ""]]
        if row is None:
            texts.append(fit(f"{key} is gone", width - GUTTER))
            looks.append(styles["muted"])
        else:
            for column, cells_wide in columns:
                cell = column.cell(row)
                if isinstance(cell, Cell):
                    texts.append(fit(cell.text, cells_wide, column.align))
                    looks.append(styles[cell.style])
                else:
                    for span in fit_spans(cell, cells_wide, column.align):
                        texts.append(span.text)
                        looks.append(styles[span.style])
                texts[-1] += _GAP
            if columns:
                texts[-1] = texts[-1][:-GAP]
        # Every text has exactly its width, so that nobody has to measure the line.
        length = max(GUTTER, width) if row is None else self._length
        strip = joined(texts, looks, length).adjust_cell_length(width, styles[""])
        if not under_cursor:
            if len(self._strips) > 4 * self.size.height:
                self._strips.clear()
            self._strips[key] = strip
        return strip

    # Mouse

    def on_click(self, event: events.Click) -> None:
        """A heading sorts, a row takes the cursor, and a second click opens it."""
        if event.y == 0:
            self._click_heading(event.x)
            return
        position = self._top + event.y - 1
        if position < len(self._order.view) and event.y <= self._page:
            self._move(position)
            if event.chain == 2:
                self.action_open()

    def _click_heading(self, x: int) -> None:
        left = GUTTER
        for column, cells_wide in self._columns(self.scrollable_content_region.width):
            if left <= x < left + cells_wide and column.sort is not None:
                self.sort_by(column.key, self.sort_key == column.key and not self._order.reverse)
                return
            left += cells_wide + GAP
