"""A length of time, as a person would say it."""

from __future__ import annotations


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
