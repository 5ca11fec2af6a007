"""Which moments of a recording somebody may want to go to: told from what changed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from jobs.recordview import Mark
from probes.reading import Event

TEXT = 400
LevelWord = Literal["critical", "warning", "info"]
_BAD = {"dead": "critical", "lost": "critical", "silent": "warning", "refused": "critical", "blocked": "critical",
        "error": "critical", "absent": "warning"}  # fmt: skip
_TRUTHS = {"ssh": "SSH", "ray": "Ray", "driver": "driver"}
_PASSING = ("unknown", "connecting", "waiting", "none")
_STEPS = ("admitted", "starting", "saving")
"""States that a run only passes through: too many, and never what one looks for."""


def _text(text: str) -> str:
    """Short, and without halves of characters, which a node may send and no mark can hold."""
    return text[:TEXT].encode("utf-8", "replace").decode("utf-8")


def _level(word: object) -> LevelWord:
    return word if word in ("critical", "warning", "info") else "warning"  # pyright: ignore[reportReturnType]


def state_mark(node: str, what: str, state: str, reason: str, at: float) -> list[Mark]:
    """One of a node's truths is another one."""
    if state in _PASSING:
        return []
    why = f": {reason}" if reason else ""
    text = _text(f"{node}: {_TRUTHS.get(what, what)} {state}{why}")
    return [Mark(at=at, kind="node", level=_level(_BAD.get(state, "info")), target=_text(node), text=text)]


def event_marks(node: str, events: Sequence[Event], at: float) -> list[Mark]:
    """What the kernel or the driver told."""
    return [
        Mark(at=at, kind="event", level="warning", target=_text(node), text=_text(f"{node}: {each.text}"))
        for each in events
    ]


def run_mark(before: dict[str, Any] | None, run: dict[str, Any], at: float) -> list[Mark]:
    """A run is in another state. One that is first heard of while it goes on is no news."""
    state = str(run.get("state"))
    if state in _STEPS or (before is None and state != "queued"):
        return []
    name, reason = str(run.get("id")), str(run.get("reason") or "")
    level: LevelWord = "warning" if state == "failed" else "info"
    text = _text(f"{name} {state}" + (f": {reason}" if reason and state not in ("running", "succeeded") else ""))
    return [Mark(at=at, kind="run", level=level, target=name, text=text)]


def alert_marks(before: Any, view: Any, at: float) -> list[Mark]:
    """Which alerts began, and which are over."""
    old = {str(each["id"]): each for each in (before or {}).get("alerts", ()) if each.get("state") == "firing"}
    new = {str(each["id"]): each for each in view.get("alerts", ()) if each.get("state") == "firing"}
    marks = [
        Mark(at=at, kind="alert", level=_level(each.get("level")), target=name, text=_text(str(each.get("title"))))
        for name, each in new.items()
        if name not in old
    ]
    marks += [
        Mark(at=at, kind="cleared", level="info", target=name, text=_text(f"over: {each.get('title')}"))
        for name, each in old.items()
        if name not in new
    ]
    return marks
