"""When a log line was said, as far as it tells itself: to wall seconds by the head's clock. Pure."""

from __future__ import annotations

import calendar
import math
import re
import time
from collections.abc import Sequence

from jobs.triage.evidence import LogLine

LOOKED_AT = 160
"""Of a line, in characters: a time stands near its beginning."""
BLOCK = 80
"""So many lines above a log's last one can belong to one traceback."""

_ISO = re.compile(
    r"(?<!\d)(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[ T](?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?:[.,](?P<part>\d{1,9}))?\s?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
"""Python's logging, ISO 8601, Ray, NCCL with timestamps."""
_GLOG = re.compile(
    r"(?<![A-Za-z0-9])[IWEF](?P<month>\d\d)(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"\.(?P<part>\d{1,9})"
)
"""glog, as torch's C++ half and Ray's write it: without a year."""
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_STAMPED_AHEAD_SECONDS = 86_400.0


def stamp(text: str, utc_offset_seconds: float, now: float) -> float | None:
    """The time that a line carries, in wall seconds of the node that wrote it; None if it carries none.

    Args:
        text: The line.
        utc_offset_seconds: Of the node's local time; what is written without a zone is local.
        now: The node's wall clock, from which a year that is not written follows.
    """
    head = text[:LOOKED_AT]
    found = _ISO.search(head) or _GLOG.search(head)
    if found is None:
        return None
    part = found.groupdict()
    year = part.get("year")
    wall = _wall(part, int(year) if year else time.gmtime(now + utc_offset_seconds).tm_year)
    if wall is None:
        return None
    zone = part.get("zone")
    wall -= utc_offset_seconds if zone is None else _zone(zone)
    if year is None and wall > now + _STAMPED_AHEAD_SECONDS:
        # Written in December, read in January.
        before = _wall(part, time.gmtime(now + utc_offset_seconds).tm_year - 1)
        wall = wall if before is None else before - utc_offset_seconds
    return wall


def _wall(part: dict[str, str | None], year: int) -> float | None:
    month, day, hour, minute, second = (int(part[name] or 0) for name in ("month", "day", "hour", "minute", "second"))
    if not (1 <= month <= 12 and 1 <= day <= calendar.monthrange(max(1, year), month)[1]):
        return None
    if hour > 23 or minute > 59 or second > 60 or year < 1970:
        return None
    fraction = part.get("part")
    return calendar.timegm((year, month, day, hour, minute, second)) + (float(f"0.{fraction}") if fraction else 0.0)


def _zone(text: str) -> float:
    if text == "Z":
        return 0.0
    digits = text[1:].replace(":", "")
    return math.copysign(int(digits[:2]) * 3600 + int(digits[2:]) * 60, -1.0 if text[0] == "-" else 1.0)


def dated(
    texts: Sequence[str], first: int | None, modified: float | None, utc_offset_seconds: float, ahead: float, now: float
) -> list[LogLine]:
    """A log's lines with their numbers and, by the head's clock, their times.

    A traceback that ends a log was written with its last line, when the file was written last; other lines that carry
    no time keep none.

    Args:
        texts: The lines, oldest first.
        first: The number of the first.
        modified: When the file was written last, by the node's clock.
        utc_offset_seconds: The node's zone.
        ahead: The node's clock less the head's.
        now: The node's wall clock.
    """
    walls = [stamp(text, utc_offset_seconds, now) for text in texts]
    if modified is not None and walls:
        for at in _end_of_log(texts, walls):
            walls[at] = modified
    return [
        LogLine(text, None if wall is None else wall - ahead, None if first is None else first + at)
        for at, (text, wall) in enumerate(zip(texts, walls, strict=True))
    ]


def _end_of_log(texts: Sequence[str], walls: Sequence[float | None]) -> range:
    """The lines that were written together with the last one."""
    last = len(texts) - 1
    while last >= 0 and not texts[last].strip():
        last -= 1
    if last < 0 or walls[last] is not None:
        return range(0)
    for at in range(last, max(-1, last - BLOCK), -1):
        if walls[at] is not None:
            break
        if _TRACEBACK.search(texts[at]):
            return range(at, last + 1)
    return range(last, last + 1)
