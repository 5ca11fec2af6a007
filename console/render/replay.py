"""The status line of a recording: that it is one, which moment is looked at, what happened just before. Pure."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from console.render.cells import Cell, Spans, age, cell_len, fit, glyph, safe, state_style
from jobs.recordview import Mark

KEYS = ((", .", "10 s"), ("( )", "a minute"), ("{ }", "what happened"), ("p", "play"))
MARK_ROOM = 24
"""With less room than this a mark is not worth its beginning."""
SAME_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Shown:
    """What of a recording is looked at."""

    at: float
    """Seconds since 1970, by the head's clock."""
    now: float | None
    """The head's clock; None for a recording in a file, of which nobody knows how old it is."""
    span: tuple[float, float]
    speed: int = 0
    """0 stands still; 1 as it was; 10 ten times as fast."""
    gap_seconds: float = 0.0
    """So long nothing was recorded at that moment."""
    loading: bool = False


def key_spans(ends: bool) -> Spans:
    """What keys do in a recording, for the line below. ``ends``: there is a now to go back to."""
    keys = (("?", "help"), *KEYS, ("esc", "now") if ends else ("q", "close"))
    return tuple(cell for key, word in keys for cell in (Cell(key, "key"), Cell(f" {word}  ")))


def clock(at: float) -> str:
    """A time of day, in this machine's time zone."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def before_and_after(marks: Sequence[Mark], at: float) -> tuple[Mark | None, Mark | None]:
    """The newest mark up to a moment, and the first one after it."""
    place = bisect_right([mark.at for mark in marks], at + SAME_SECONDS)
    return (marks[place - 1] if place else None), (marks[place] if place < len(marks) else None)


def replay_spans(name: str, place: str, shown: Shown, marks: Sequence[Mark], *, simulated: bool, width: int) -> Spans:
    """One line, the most important at the left; at the right what happened last, or the way back to now."""
    if shown.now is not None:
        when = f"{clock(shown.at)}, {age(shown.now - shown.at)} ago"
    else:
        when = f"{time.strftime('%Y-%m-%d', time.localtime(shown.at))} {clock(shown.at)}"
    pace = f"{glyph('▶', '>')} {shown.speed}×".replace("×", glyph("×", "x")) if shown.speed else "paused"
    left = [
        Cell(" REPLAY ", "match"),
        Cell(f" {when}", "title"),
        Cell("  loading" if shown.loading else f"  {pace}", "accent" if shown.speed else "muted"),
        Cell(f"  {safe(name)}", "accent"),
    ]
    if simulated:
        left.append(Cell(" SIMULATED", "simulated"))
    if shown.gap_seconds:
        left.append(Cell(f"  nothing recorded for {age(shown.gap_seconds)}", "warn"))
    back = "esc: now " if shown.now is not None else "q: close "
    used = sum(cell_len(cell.text) for cell in left)
    if place and used + cell_len(place) + 2 <= width:
        left.append(Cell(f"  {safe(place)}"))
        used += cell_len(safe(place)) + 2
    room = width - used - cell_len(back) - 3
    right = [Cell(back, "muted")]
    mark = before_and_after(marks, shown.at)[0]
    if mark is not None and room >= MARK_ROOM:
        text = f"{age(shown.at - mark.at)} before: {safe(mark.text)}"
        right.insert(0, Cell(f"{fit(text, room) if cell_len(text) > room else text}  ", state_style(mark.level)))
    used += sum(cell_len(cell.text) for cell in right)
    return (*left, Cell(" " * max(1, width - used)), *right)
