"""What each accelerator's cell in a heatmap looks like, worked out once: thousands of them are painted every second.

A cell is an `Item`: its text and the number of its style. Numbers are compared faster than styles, and neighbours of
one number become one segment.
"""

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

from rich.segment import Segment
from rich.style import Style

from console.render.cells import LEVEL_UNKNOWN, Level, level_look, level_sign, level_style
from console.widgets.paint import Palette

Item = tuple[str, int]
GpuCell = tuple[Level, str]
"""A level (percent, or why there is none) and a style name. An empty style name: the one that goes with the level."""

_NUMBER = itemgetter(1)
_SELECTED = Style(underline=True, bold=True)
_SEGMENT_LIMIT = 4096


class _Percents(dict[int, Item]):
    """Whole percent to item, for one style name. Other numbers are no percent, and raise `KeyError`."""


class Looks:
    """The items of one palette and one width.

    Args:
        palette: The colours.
        wide: Terminal cells for a GPU: 4 shows its figure, 2 and 1 its sign.
    """

    def __init__(self, palette: Palette, wide: int) -> None:
        self.palette = palette
        self.wide = wide
        self._styles: list[Style] = []
        self._numbers: dict[Style, int] = {}
        self._percents: dict[str, _Percents] = {}
        self._segments: dict[Item, Segment] = {}
        self.blank = self.number(palette.blank)
        self.held = self.number(palette.held)
        self.unknown: Item = (self._text(LEVEL_UNKNOWN), self.number(palette.style("muted")))

    def number(self, style: Style) -> int:
        """The number that stands for a style."""
        number = self._numbers.get(style)
        if number is None:
            number = self._numbers[style] = len(self._styles)
            self._styles.append(style)
        return number

    def items(self, cells: Iterable[GpuCell]) -> list[Item]:
        """An item for each cell."""
        cells = list(cells)
        percents = self._percents
        try:
            return [percents[name][int(level + 0.5)] for level, name in cells]  # type: ignore[operator]
        except (KeyError, TypeError, ValueError, OverflowError):  # a level that is missing, or a name met first
            return [self._item(level, name) for level, name in cells]

    def sign(self, sign: str) -> str:
        """A sign as the text of a cell."""
        return self._text(sign)

    def pointed_out(self, item: Item) -> Item:
        """The same item, of the node that is selected."""
        return item[0], self.number(self._styles[item[1]] + _SELECTED)

    def segments(self, items: Iterable[Item]) -> list[Segment]:
        """Items as segments, neighbours of one style joined."""
        known = self._segments
        out: list[Segment] = []
        for number, run in groupby(items, _NUMBER):
            joined = "".join([text for text, _ in run]), number
            segment = known.get(joined)
            if segment is None:
                if len(known) > _SEGMENT_LIMIT:
                    known.clear()
                segment = known[joined] = Segment(joined[0], self._styles[number])
            out.append(segment)
        return out

    def _item(self, level: Level, name: str) -> Item:
        if name not in self._percents:
            self._percents[name] = self._made(name)
        if isinstance(level, (int, float)) and 0 <= level <= 100:
            return self._percents[name][int(level + 0.5)]
        return self._text(level_sign(level)), self.number(self.palette.style(name or level_style(level)))

    def _made(self, name: str) -> _Percents:
        out = _Percents()
        for percent in range(101):
            sign, style = level_look(percent)
            text = f"{percent:3d} " if self.wide == 4 and percent else self._text(sign)
            out[percent] = text, self.number(self.palette.style(name or style))
        return out

    def _text(self, sign: str) -> str:
        return f"  {sign} " if self.wide == 4 else sign * self.wide
