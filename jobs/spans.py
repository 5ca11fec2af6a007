"""A length of time, and a time of day, as a person would say it."""

from __future__ import annotations

import time


def span(seconds: float) -> str:
    """``45 s``, ``10 min``, ``2 h 30 min``, ``3 d 4 h``."""
    whole = round(seconds)
    if whole < 120:
        return f"{seconds:g} s" if seconds < 10 else f"{whole} s"
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    parts: list[str] = []
    for size, name in units:
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])


def clock(at: float) -> str:
    """``14:03:12`` by this machine's clock and zone, with the date if that is not today's."""
    then = time.localtime(at)
    same = time.strftime("%Y-%m-%d", then) == time.strftime("%Y-%m-%d")
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M", then)
