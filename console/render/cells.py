"""The vocabulary of everything painted: a cell, a column, and how numbers, ages and levels become text.

Pure: no clock, no screen. A style is a name; what it looks like is the theme's business.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from rich.cells import cell_len, get_character_cell_size

from console.render.safe import UNSHOWN, glyph, is_ascii, safe, use_ascii
from probes.reading import ERROR, STALE, UNSUPPORTED, Missing

__all__ = [
    "LEVEL_STYLES", "LEVEL_UNKNOWN", "STATE_GLYPHS", "STYLE_NAMES", "UNSHOWN", "Cell", "Column", "Level", "Spans",
    "age", "bar", "bytes_text", "cell_len", "count", "fit", "fit_spans", "glyph", "is_ascii", "level_look",
    "level_sign", "level_style", "mini_bars", "percent", "reading", "safe", "seconds_text", "spans_of", "sparkline",
    "state_cell", "state_glyph", "state_style", "use_ascii",
]  # fmt: skip

Row = TypeVar("Row")

STYLE_NAMES = (
    "", "ok", "warn", "bad", "muted", "accent", "stale", "busy", "idle", "title", "key", "simulated", "info",
    "load1", "load2", "load3", "load4",
)  # fmt: skip
"""Every style name there is; `console.theme` says how each looks."""


class Cell(NamedTuple):
    """A piece of text in one style."""

    text: str
    style: str = ""
    """One of `STYLE_NAMES`."""


Spans = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column of a table: its heading, its cells and its order in one object, so that they cannot part."""

    key: str
    title: str
    width: int
    """In terminal cells, without the gap to the next column."""
    cell: Callable[[Row], Cell | Spans]
    align: Literal["left", "right"] = "left"
    sort: Callable[[Row], Any] | None = None
    """The value to order by. ``None``: this column cannot be sorted by. Rows whose value is ``None`` come last."""
    grow: bool = False
    """Takes a share of the width that is left."""
    drop: int = 0
    """Narrow terminals leave out the column with the highest number first. 0: never left out."""


def spans_of(cell: Cell | Spans) -> Spans:
    """A cell as the spans that it is one of."""
    return (cell,) if isinstance(cell, Cell) else cell


def _cut(text: str, width: int) -> str:
    """The head of a safe text that is too long, at most ``width`` cells."""
    if text.isascii():
        return text[:width]
    total = 0
    for position, character in enumerate(text):
        total += get_character_cell_size(character)
        if total > width:
            return text[:position]
    return text


def fit(text: str, width: int, align: Literal["left", "right"] = "left") -> str:
    """The text, made safe, in exactly ``width`` terminal cells: padded, or cut with a mark at the end."""
    if width <= 0:
        return ""
    text = safe(text)
    length = cell_len(text)
    if length > width:
        text = _cut(text, width - 1) + glyph("…", "~")
        length = cell_len(text)
    padding = " " * (width - length)
    return padding + text if align == "right" else text + padding


def fit_spans(spans: Spans, width: int, align: Literal["left", "right"] = "left") -> Spans:
    """Spans in exactly ``width`` terminal cells, as `fit` does it for one text."""
    if len(spans) == 1:
        return (Cell(fit(spans[0].text, width, align), spans[0].style),)
    shown = [Cell(safe(cell.text), cell.style) for cell in spans]
    spare = width - sum(cell_len(cell.text) for cell in shown)
    if spare >= 0:
        padding = (Cell(" " * spare),) if spare else ()
        return (*padding, *shown) if align == "right" else (*shown, *padding)
    out: list[Cell] = []
    room = width
    for cell in shown:
        length = cell_len(cell.text)
        if length >= room:  # the last one that has room: cut here, since more would follow
            out.append(Cell(fit(cell.text + " ", room) if length == room else fit(cell.text, room), cell.style))
            break
        out.append(cell)
        room -= length
    return tuple(out)


# Numbers


def _scaled(value: float, step: float, units: str) -> str:
    sign = "-" if value < 0 else ""
    value = abs(value)
    for unit in units:
        if value < 999.5 or unit == units[-1]:
            break
        value /= step
    else:  # never reached: `units` is not empty
        unit = ""
    digits = 0 if value >= 99.95 or (unit == units[0] and value == int(value)) else 1
    return f"{sign}{value:.{digits}f}{unit.strip()}"


def bytes_text(amount: float) -> str:
    """Bytes in powers of 1024: ``63.2G``."""
    return _scaled(amount, 1024, "BKMGTPE") if math.isfinite(amount) else "?"


def count(amount: float) -> str:
    """A number of things: ``842``, ``12.3k``, ``1.5M``."""
    return _scaled(amount, 1000, " kMGT") if math.isfinite(amount) else "?"


def percent(value: float) -> str:
    """A share given in percent: ``97%``."""
    return f"{value:.0f}%" if math.isfinite(value) else "?"


def age(seconds: float) -> str:
    """How long ago, in whole seconds and two units at most: ``4s``, ``3m12s``, ``2h05``, ``3d4h``, ``34d``."""
    if not math.isfinite(seconds):
        return "?"
    total = max(0, int(seconds))
    minutes, rest = divmod(total, 60)
    if not minutes:
        return f"{rest}s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}m{rest:02d}s"
    days, hours = divmod(hours, 24)
    if not days:
        return f"{hours}h{minutes:02d}"
    return f"{days}d{hours}h" if days < 10 else f"{days}d"


def seconds_text(seconds: float) -> str:
    """A duration: as `age`, with a figure below a second: ``80ms``, ``2.4s``."""
    if not math.isfinite(seconds):
        return "?"
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.1f}s" if 0 < seconds < 9.95 else age(seconds)


def reading(
    value: Any | Missing | None, formatter: Callable[[Any], str] = str, *, style: str = "", stale: bool = False
) -> Cell:
    """A reading as a cell: its figure, or why there is none.

    Args:
        value: The figure; `Missing` with its reason; or ``None`` where nothing has been read yet.
        formatter: Figure to text.
        style: For a figure that is fresh.
        stale: The figure is old; it is shown with a mark.
    """
    if value is None:
        return Cell("-", "muted")
    if isinstance(value, Missing):
        if value.kind == UNSUPPORTED:
            return Cell("n/a", "muted")
        if value.kind == STALE:
            return Cell("stale", "stale")
        return Cell("err" if value.kind == ERROR else "?", "bad")
    return Cell(formatter(value) + "*", "stale") if stale else Cell(formatter(value), style)


# Levels

Level = float | Missing | None
"""A share in percent (0 to 100), or why there is none."""

LEVEL_STYLES = ("load1", "load2", "load3", "load4")
LEVEL_UNKNOWN = "?"
_LEVELS = "▁▂▃▄▅▆▇█"
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def level_sign(level: Level) -> str:
    """One sign for a level: ``·`` idle, ``▁`` to ``█`` busy, ``?`` unknown, ``!`` error.

    In ASCII: ``.``, ``1`` to ``9`` for tens of percent, ``#`` for all.
    """
    if isinstance(level, Missing):
        return "!" if level.kind == ERROR else LEVEL_UNKNOWN
    if level is None or not math.isfinite(level):
        return LEVEL_UNKNOWN
    if level < 0.5:
        return glyph("·", ".")
    if is_ascii():
        return "#" if level >= 99.5 else str(max(1, int(level / 10)))
    return _LEVELS[min(7, max(0, math.ceil(level / 12.5) - 1))]


def level_style(level: Level) -> str:
    """The style that goes with `level_sign`."""
    if isinstance(level, Missing):
        return {UNSUPPORTED: "muted", STALE: "stale"}.get(level.kind, "bad")
    if level is None or not math.isfinite(level):
        return "muted"
    if level < 0.5:
        return "idle"
    return LEVEL_STYLES[min(3, int(level / 25))]


@cache
def _looks(plain: bool) -> list[tuple[str, str]]:
    """Sign and style of each whole percent; ``plain`` keeps the two alphabets apart."""
    del plain  # only the key: `level_sign` looks at the switch itself
    return [(level_sign(float(level)), level_style(float(level))) for level in range(101)]


def level_look(level: Level) -> tuple[str, str]:
    """`level_sign` and `level_style` of a level, rounded to a whole percent. For those who paint thousands."""
    if (type(level) is float or type(level) is int) and 0 <= level <= 100:
        return _looks(is_ascii())[int(level + 0.5)]
    return level_sign(level), level_style(level)


def mini_bars(values: Sequence[Level]) -> Spans:
    """One sign for each value, neighbours of one style joined."""
    out: list[Cell] = []
    signs, style = "", None
    for value in values:
        sign, look = level_look(value)
        if look == style:
            signs += sign
        else:
            if style is not None:
                out.append(Cell(signs, style))
            signs, style = sign, look
    if style is not None:
        out.append(Cell(signs, style))
    return tuple(out)


def bar(fraction: float | None, width: int) -> str:
    """A horizontal bar of exactly ``width`` cells, in eighths. An unknown fraction is a ``?``, not an empty bar."""
    if width <= 0:
        return ""
    if fraction is None or math.isnan(fraction):
        return "?".ljust(width)
    fraction = min(1.0, max(0.0, fraction))
    if is_ascii():
        return ("#" * round(fraction * width)).ljust(width, ".")
    full, eighths = divmod(round(fraction * width * 8), 8)
    return ("█" * full + _EIGHTHS[eighths]).ljust(width)


def sparkline(
    values: Sequence[float | None], width: int, *, low: float | None = None, high: float | None = None
) -> str:
    """The last ``width`` values as signs of rising height; a gap where there is no value.

    Args:
        values: Oldest first.
        width: Terminal cells; the newest value stands at the right.
        low: What the lowest sign stands for; the smallest value shown, unless given.
        high: What the highest sign stands for; the largest value shown, unless given.
    """
    if width <= 0:
        return ""
    tail = values[-width:]
    known = [value for value in tail if value is not None and math.isfinite(value)]
    if not known:
        return " " * width
    bottom = min(known) if low is None else low
    top = max(known) if high is None else high
    signs = "_.-=+*#%" if is_ascii() else _LEVELS
    span = top - bottom
    out: list[str] = []
    for value in tail:
        if value is None or not math.isfinite(value):
            out.append(" ")
        else:
            share = (value - bottom) / span if span > 0 else 0.5
            out.append(signs[min(7, max(0, int(share * 8)))])
    return "".join(out).rjust(width)


# States

STATE_GLYPHS: dict[str, tuple[str, str, str]] = {
    # runs
    "queued": ("…", ".", "info"),
    "preempted": ("«", "<", "warn"),
    "admitted": ("»", "}", "info"),
    "starting": ("▷", "^", "info"),
    "running": ("▶", ">", "busy"),
    "saving": ("▼", "v", "busy"),
    "stopping": ("□", "-", "warn"),
    "succeeded": ("✓", "+", "ok"),
    "failed": ("✗", "x", "bad"),
    "stopped": ("■", "=", "muted"),
    # nodes, Ray's word for them, drivers
    "alive": ("●", "o", "ok"),
    "up": ("●", "o", "ok"),
    "refused": ("✗", "x", "bad"),
    "absent": ("-", "-", "warn"),
    "ok": ("●", "o", "ok"),
    "connected": ("●", "o", "ok"),
    "connecting": ("◌", "~", "info"),
    "silent": ("◐", "?", "warn"),
    "stale": ("◐", "*", "stale"),
    "blocked": ("◍", "B", "bad"),
    "dead": ("✗", "x", "bad"),
    "lost": ("!", "!", "bad"),
    "error": ("!", "!", "bad"),
    "none": ("-", "-", "muted"),
    "unknown": ("?", "?", "muted"),
    # what people want of a node: no letters, since the heatmap has the sign right behind a name
    "open": ("·", ".", "muted"),
    "out of Ray": ("✗", "%", "bad"),
    "cordoned": ("⊘", "/", "warn"),
    "waiting turn": ("◇", "~", "info"),
    "draining": ("↓", ":", "warn"),
    "overdue": ("!", "!", "bad"),
    "drained": ("∅", "=", "accent"),
    "retiring": ("□", "-", "warn"),
    "retired": ("■", "_", "muted"),
    "rejoining": ("»", "}", "info"),
    "idle": ("·", ".", "idle"),
    "busy": ("▶", ">", "busy"),
    # steps and checks
    "waiting": ("·", ".", "muted"),
    "pending": ("…", ".", "info"),
    "done": ("✓", "+", "ok"),
    "pass": ("✓", "+", "ok"),
    "warn": ("▲", "W", "warn"),
    "fail": ("✗", "x", "bad"),
    "skipped": ("-", "-", "muted"),
    # severities
    "critical": ("!", "!", "bad"),
    "warning": ("▲", "W", "warn"),
    "info": ("i", "i", "info"),
}
"""State to its sign, its sign in ASCII, and its style. A state is never told by colour alone."""


def state_glyph(state: str) -> str:
    """The sign of a state; ``?`` for one that is not in the table."""
    sign, plain, _ = STATE_GLYPHS.get(state, STATE_GLYPHS["unknown"])
    return glyph(sign, plain)


def state_style(state: str) -> str:
    """The style name of a state."""
    return STATE_GLYPHS.get(state, STATE_GLYPHS["unknown"])[2]


def state_cell(state: str, word: str | None = None) -> Cell:
    """Sign and word of a state in its style: ``▶ running``."""
    return Cell(f"{state_glyph(state)} {state if word is None else word}", state_style(state))
