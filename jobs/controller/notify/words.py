"""An alert in words for people who have nothing but a telephone. Pure.

Titles, causes and evidence hold text from the cluster: control characters and signs that turn text around are taken
out, what looks like a secret is painted over, and every text has an end.
"""

from __future__ import annotations

import time
import unicodedata
from collections import Counter

from jobs.alertview import LEVELS, Alert
from jobs.controller.notify.notice import HeldBack, Kind, Notice
from jobs.redact import redact
from jobs.spans import span

TITLE_SIGNS = 200
LINE_SIGNS = 500
PLACES_SHOWN = 8
HELD_SHOWN = 10
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")

_MARKS: dict[Kind, str] = {
    "firing": "{level}",
    "changed": "{level}, CHANGED",
    "reminder": "{level}, STILL",
    "escalated": "{level}, NOBODY HAS IT",
    "cleared": "CLEARED",
    "held": "{level}, HELD BACK",
    "test": "TEST, {level}",
}


def clean(text: str, limit: int = LINE_SIGNS) -> str:
    """One line of at most ``limit`` characters, each of which can be seen, and none of them of a secret."""
    told = redact(text[: limit * 4])
    signs = (" " if sign.isspace() or unicodedata.category(sign) in _HIDDEN else sign for sign in told)
    line = " ".join("".join(signs).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def subject(notice: Notice) -> str:
    """One line with what kind of notice it is, how bad, and what."""
    mark = _MARKS[notice.kind].format(level=notice.alert.level.upper())
    return f"[{mark}] {clean(notice.alert.title, TITLE_SIGNS)}"


def text(alert: Alert, cluster: str = "", now: float | None = None) -> str:
    """A few lines: title, where, since when, why, what to do, and how to look."""
    return "\n".join([clean(alert.title, TITLE_SIGNS), *_lines(alert, cluster, now)])


def message(notice: Notice, cluster: str = "") -> str:
    """The same for a notice, with its kind in the first line, and what was held back in the last ones."""
    lines = [subject(notice)]
    if notice.kind != "held":
        lines += _lines(notice.alert, cluster, notice.at)
    lines += held_lines(notice.held)
    return "\n".join(lines)


def moment(at: float) -> str:
    """A time that means the same everywhere."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def held_lines(held: HeldBack) -> list[str]:
    """What was held back: how many of which level, and the first of them."""
    if not held.count:
        return []
    levels = Counter(each.level for each in held.lines)
    counts = [f"{levels[level]} {level}" for level in LEVELS if levels[level]]
    if held.more:
        counts.append(f"{held.more} not listed")
    first = [f"- {clean(each.line, TITLE_SIGNS)}" for each in held.lines[:HELD_SHOWN]]
    rest = held.count - len(first)
    return [
        f"held back before, since too many were told in an hour: {held.count} ({', '.join(counts)})",
        *first,
        *([f"- and {rest} more: raydeck alerts"] if rest else []),
    ]


def _lines(alert: Alert, cluster: str, now: float | None) -> list[str]:
    lines = [
        ("where", _where(alert, cluster)),
        ("since", _since(alert, now)),
        ("cause", clean(alert.cause)),
        ("do", clean(alert.action)),
        ("not known now", clean(alert.no_data)),
        ("cleared", _cleared(alert)),
        ("look", "" if alert.test else f"raydeck alerts show {clean(alert.id, 80)}"),
    ]
    return [f"{name}: {value}" for name, value in lines if value]


def _where(alert: Alert, cluster: str) -> str:
    places = [place for place in (alert.entities or alert.nodes) if place not in ("cluster", alert.run)]
    shown = ", ".join(clean(place, 80) for place in places[:PLACES_SHOWN])
    if len(places) > PLACES_SHOWN:
        shown += f" and {len(places) - PLACES_SHOWN} more"
    parts = [shown, f"run {clean(alert.run, 80)}" if alert.run else "", f"cluster {clean(cluster, 80)}" * bool(cluster)]
    return "; ".join(part for part in parts if part)


def _since(alert: Alert, now: float | None) -> str:
    end = alert.ended_at if alert.ended_at is not None else now
    lasted = f" ({span(round(end - alert.since))})" if end is not None and end >= alert.since + 1 else ""
    often = f"; it came and went {alert.fired} times" if alert.flapping else ""
    return f"{moment(alert.since)}{lasted}{often}"


def _cleared(alert: Alert) -> str:
    if not alert.cleared_by:
        return ""
    why = f": {clean(alert.cleared_reason)}" if alert.cleared_reason else ""
    return f"by {clean(alert.cleared_by, 80)}{why}"
