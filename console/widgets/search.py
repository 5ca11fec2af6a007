"""Looks for a pattern through a log's lines, a few at a time, so that keys are served meanwhile."""

import asyncio
import re
import time
from collections.abc import Callable

from console.widgets.buffer import LineSource

SLICE_SECONDS = 0.008
"""For so long it goes on before keys are looked at."""
BATCH_LINES = 500


def compiled(pattern: str, *, regex: bool = True) -> re.Pattern[str]:
    """A pattern as typed. Small letters match both cases; what is no valid expression is taken as it is written."""
    flags = re.IGNORECASE if pattern == pattern.lower() else 0
    try:
        return re.compile(pattern if regex else re.escape(pattern), flags)
    except re.error:
        return re.compile(re.escape(pattern), flags)


async def find(
    source: LineSource, pattern: re.Pattern[str], start: int, step: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[int, bool] | None:
    """The first line with the pattern, looking once through the whole log.

    Args:
        source: The log. It may grow and drop lines meanwhile; lines that come after the start are not looked at.
        pattern: Looked for in lines as they were written.
        start: The position to look at first.
        step: 1 looks towards the end, -1 towards the beginning.
        clock: Seconds, for the slices.

    Returns:
        The line as position plus dropped, and whether the search went around an end. ``None``: no line has it.
    """
    total = source.count()
    start = min(max(start, -1), total)
    if step > 0:
        start = max(start, 0)
        parts = range(start, total), range(start)
    else:
        start = min(start, total - 1)
        parts = range(start, -1, -1), range(total - 1, start, -1)
    base = source.dropped()
    for around, positions in enumerate(parts):
        found = await _find_in(source, pattern, positions, base, clock)
        if found is not None:
            return found, bool(around)
    return None


async def _find_in(
    source: LineSource, pattern: re.Pattern[str], positions: range, base: int, clock: Callable[[], float]
) -> int | None:
    matches = pattern.search
    until = clock() + SLICE_SECONDS
    for at in range(0, len(positions), BATCH_LINES):
        batch = positions[at : at + BATCH_LINES]
        # What was at a position when the search began has moved to the front by what was dropped since.
        dropped = source.dropped()
        low = max(0, min(batch[0], batch[-1]) + base - dropped)
        high = max(0, max(batch[0], batch[-1]) + 1 + base - dropped)
        numbered = list(enumerate(source.lines(low, high), low + dropped))
        for number, line in numbered if positions.step > 0 else reversed(numbered):
            if matches(line.text):
                return number
            if clock() > until:
                await asyncio.sleep(0)
                until = clock() + SLICE_SECONDS
    return None
