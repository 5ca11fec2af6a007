"""Sentences in lines of a width, moments and spans of time in words. Pure; the clock is an argument."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from console.render.cells import Cell, Spans, age, cell_len, fit, safe

DAY_SECONDS = 86_400.0


def wrapped(text: str, width: int) -> list[str]:
    """A text in lines of at most ``width`` cells, broken at spaces; a longer word is broken where it has to be."""
    width = max(8, width)
    lines: list[str] = []
    for paragraph in safe(text).split("\n"):
        line = ""
        for word in paragraph.split(" "):
            joined = f"{line} {word}" if line else word
            if cell_len(joined) <= width:
                line = joined
                continue
            if line:
                lines.append(line)
            while cell_len(word) > width:
                head = _head(word, width)
                lines.append(head)
                word = word[len(head) :]
            line = word
        lines.append(line)
    return lines


def _head(word: str, width: int) -> str:
    """As much of a word as fits; at least one letter."""
    cells = 0
    for count, letter in enumerate(word):
        cells += cell_len(letter)
        if cells > width:
            return word[: max(1, count)]
    return word


def paragraph(text: str, width: int, *, style: str = "", lead: Spans = (), indent: int | None = None) -> list[Spans]:
    """A text in lines; the first follows ``lead``, the others stand ``indent`` cells in (by default below its text)."""
    left = sum(cell_len(cell.text) for cell in lead)
    inner = left if indent is None else indent
    rows = wrapped(text, width - max(left, inner))
    return [
        (*lead, Cell(row, style)) if number == 0 else (Cell(" " * inner), Cell(row, style))
        for number, row in enumerate(rows)
    ]


def facts(pairs: Iterable[tuple[str, str, str]], width: int) -> list[Spans]:
    """Name, text and style, one below the other with the texts in one column; what has no text is left out."""
    shown = [(name, text, style) for name, text, style in pairs if text]
    left = max((cell_len(name) for name, _, _ in shown), default=0) + 3
    out: list[Spans] = []
    for name, text, style in shown:
        out += paragraph(text, width, style=style, lead=(Cell(fit(f" {name}", left), "muted"),))
    return out


def heading(text: str) -> list[Spans]:
    """An empty line and a title."""
    return [(), (Cell(f" {text}", "title"),)]


def moment(wall: float, now_wall: float) -> str:
    """A time of day, with the date where it is more than half a day off; in this machine's time zone."""
    form = "%H:%M:%S" if abs(now_wall - wall) < DAY_SECONDS / 2 else "%m-%d %H:%M"
    return time.strftime(form, time.localtime(wall))


def estimate(start: float | None, now_wall: float) -> str:
    """When something is likely to begin, always marked as an estimate: ``~12m05s``; a dash where nobody knows."""
    if start is None:
        return "-"
    return "~now" if start <= now_wall + 1 else f"~{age(start - now_wall)}"


def number(amount: int) -> str:
    """A whole number for a sentence: ``10,000``."""
    return f"{amount:,}"


def some(amount: int, one: str, many: str = "") -> str:
    """An amount with its word: ``1 run``, ``3 runs``."""
    return f"{number(amount)} {one if amount == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names with commas; of many the first, and how many more."""
    shown = ", ".join(safe(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
