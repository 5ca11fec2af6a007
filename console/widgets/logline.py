"""How one line of a log is shown: its rank, its text made safe, its severity, its matches, its folds."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from console.render.cells import Cell, cell_len, count, fit, safe
from console.render.redact import redact
from console.widgets.buffer import LogLine
from console.widgets.paint import Palette

PAINT_LIMIT = 8_192
"""Characters of a line that are painted at most."""
RANK_STYLES = ("accent", "info", "ok", "simulated", "busy", "key")
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
"""Programs colour their output for a terminal of their own. Left out; any other control sequence is shown as signs."""
_SEVERITY_HINTS = ("error", "warn", "fatal", "critical", "traceback", "exception", "xid")
_SEVERITY = re.compile(r"\b(?:(error|fatal|critical|traceback|\w*exception|\w+error|xid)|(warn|warning))\b(?!\s*=)")


class Shown(NamedTuple):
    """A line as it may be painted."""

    prefix: Cell
    """Its rank, or nothing."""
    body: Cell

    @property
    def indent(self) -> int:
        """Cells of the prefix."""
        return len(self.prefix.text)

    def folds(self, width: int) -> int:
        """How many lines of the screen it takes when it is folded."""
        return max(1, -(-cell_len(self.body.text) // max(1, width - self.indent)))


def shown(line: LogLine) -> Shown:
    """Make a line fit to be painted. Only here are secrets painted over; the source keeps them."""
    raw = line.text
    if len(raw) > PAINT_LIMIT:
        raw = f"{raw[:PAINT_LIMIT]} [{count(len(raw) - PAINT_LIMIT)} characters more]"
    if "\x1b" in raw:
        raw = _COLOURS.sub("", raw)
    text = safe(redact(raw))
    style = _severity(text)
    if line.rank is None:
        return Shown(Cell(""), Cell(text, style))
    return Shown(Cell(f"{line.rank:>3} ", RANK_STYLES[line.rank % len(RANK_STYLES)]), Cell(text, style))


def _severity(text: str) -> str:
    """The style of a line by the words in it."""
    lower = text.lower()
    for hint in _SEVERITY_HINTS:  # plain searches first: most lines have none of these words
        if hint in lower:
            found = _SEVERITY.search(lower)
            return "" if found is None else "bad" if found[1] else "warn"
    return ""


def plain_strip(line: Shown, palette: Palette, width: int) -> Strip:
    """The head of a line in exactly ``width`` cells, without matches: what is painted while a log rushes by."""
    segments = [palette.segment(line.prefix)] if line.prefix.text else []
    segments.append(Segment(fit(line.body.text, width - line.indent), palette.style(line.body.style)))
    return Strip(segments, width)


def strip_of(line: Shown, palette: Palette, pattern: re.Pattern[str] | None, found: bool) -> Strip:
    """A line in its whole length, with the matches of ``pattern`` coloured.

    Args:
        line: What is shown.
        palette: The colours.
        pattern: What is searched for, if anything.
        found: Is this the line that the search stands on? Its matches are underlined.
    """
    prefix = [palette.segment(line.prefix)] if line.prefix.text else []
    style = palette.style(line.body.style)
    if pattern is None:
        return Strip([*prefix, Segment(line.body.text, style)])
    match_style = palette.style("match") + Style(underline=found)
    return Strip([*prefix, *_matched(line.body.text, style, pattern, match_style)])


def _matched(text: str, style: Style, pattern: re.Pattern[str], match_style: Style) -> Iterator[Segment]:
    last = 0
    for match in pattern.finditer(text):
        if match.end() > match.start():
            if match.start() > last:
                yield Segment(text[last : match.start()], style)
            yield Segment(match[0], match_style)
            last = match.end()
    if last < len(text):
        yield Segment(text[last:], style)


def fold_of(strip: Strip, line: Shown, fold: int, width: int, palette: Palette) -> Strip:
    """One of the folds of a line; all but the first are indented by the width of its rank."""
    room = max(1, width - line.indent)
    start = line.indent + fold * room
    body = strip.crop(start, max(start, min(start + room, strip.cell_length)))
    head = strip.crop(0, line.indent) if fold == 0 else Strip.blank(line.indent, palette.blank)
    return Strip.join([head, body])
