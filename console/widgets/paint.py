"""Prebuilt styles for widgets that paint their lines themselves.

Textual puts no background under what `render_line` returns, so each style here is complete: the widget's own colours
with a style name's colour over them. They are made once for a theme and a state of focus, since making one costs more
than painting a cell.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from console.render.cells import Cell
from console.theme import STYLES, style_for

Ground = Literal["", "cursor", "head"]
"""What lies under the text: the widget's background, the cursor's bar, or a heading."""


def _bar(variables: Mapping[str, str], name: str) -> Style:
    """The colours of a bar: the theme's, or the colours turned around where the theme has none."""
    front, back = Color.parse(variables[f"{name}-foreground"]), Color.parse(variables[f"{name}-background"])
    if back.is_transparent or back.ansi == -1:
        return Style(reverse=True)
    return Style(color=None if front.is_transparent else front.rich_color, bgcolor=back.rich_color)


class _Styles(dict[str, Style]):
    """Style name to style; an unknown name looks like plain text."""

    def __missing__(self, name: str) -> Style:
        return self[""]


class Palette:
    """The styles of one widget. `current` says whether they still hold."""

    def __init__(self, widget: Widget) -> None:
        self._key = self._state(widget)
        base = widget.rich_style
        theme = widget.app.current_theme
        variables = widget.app.theme_variables
        cursor = base + (_bar(variables, "block-cursor" if widget.has_focus else "block-cursor-blurred"))
        if widget.has_focus:
            cursor += Style(bold=True)
        self.blank = base
        self._tables: dict[str, _Styles] = {"": _Styles(), "cursor": _Styles(), "head": _Styles()}
        for name in STYLES:
            style = style_for(name, theme)
            self._tables[""][name] = base + style
            # Colours that are chosen for the background may vanish on the bar: its own colour, the style's weight.
            self._tables["cursor"][name] = cursor + style.without_color
            self._tables["head"][name] = base + style_for("key" if name == "key" else "title", theme)
        self.cursor = cursor
        self.held = base + _bar(variables, "block-cursor") + Style(underline=True)
        """What stands out among many cells, whatever has the focus."""

    @staticmethod
    def _state(widget: Widget) -> tuple[object, ...]:
        return (widget.app.theme, widget.has_focus, *widget.background_colors, widget.rich_style)

    def current(self, widget: Widget) -> bool:
        """Do these styles still fit the widget's theme, colours and focus?"""
        return self._key == self._state(widget)

    def style(self, name: str, ground: Ground = "") -> Style:
        """The complete style of a style name."""
        return self._tables[ground][name]

    def styles(self, ground: Ground = "") -> Mapping[str, Style]:
        """All of them, for loops over many cells. It has an answer for every name."""
        return self._tables[ground]

    def segment(self, cell: Cell, ground: Ground = "") -> Segment:
        """A cell as what Textual paints."""
        return Segment(cell.text, self.style(cell.style, ground))

    def strip(self, cells: Iterable[Cell], width: int, ground: Ground = "") -> Strip:
        """Cells as one line of ``width`` terminal cells, filled up or cut."""
        strip = Strip([self.segment(cell, ground) for cell in cells if cell.text])
        return strip.adjust_cell_length(width, self.cursor if ground == "cursor" else self.blank)


def joined(texts: Sequence[str], styles: Sequence[Style], length: int | None = None) -> Strip:
    """Texts in their styles as a line, neighbours of one style in one segment: what Textual does costs by the segment.

    Args:
        texts: From left to right.
        styles: One for each text. Only the same object counts as the same style.
        length: Their terminal cells, if known.
    """
    segments: list[Segment] = []
    begin = 0
    for end in range(1, len(texts) + 1):
        if end == len(texts) or styles[end] is not styles[begin]:
            segments.append(Segment("".join(texts[begin:end]), styles[begin]))
            begin = end
    return Strip(segments, length)


class PaintedView(ScrollView, can_focus=False, inherit_bindings=False):
    """A widget that paints its own lines; its `Palette` is looked at again whenever colours may have changed."""

    DEFAULT_CSS = """
    PaintedView {
        overflow-x: hidden;
        overflow-y: auto;
        scrollbar-size-vertical: 1;
    }
    """

    _palette: Palette | None = None

    @property
    def palette(self) -> Palette:
        """The styles to paint with now."""
        if self._palette is None:
            self._palette = Palette(self)
        return self._palette

    def notify_style_update(self) -> None:
        """Colours may have changed (theme, focus, CSS): keep the styles only if they did not."""
        super().notify_style_update()
        if self._palette is not None and not (self.is_attached and self._palette.current(self)):
            self._palette = None
            self.palette_changed()

    def palette_changed(self) -> None:
        """What was painted with the old styles is void. Widgets that keep lines forget them here."""
