"""What figures need that are not of one moment: how a counter grew, how a figure went on average, which XIDs came.

Nearly all counters stand still for as long as they are watched, so nothing is set up for one before it moves: an empty
deque takes 700 bytes, and a thousand nodes have tens of thousands of counters.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Deque, List, NamedTuple, Optional, Tuple

from probes.health.rule import CRITICAL, INFO, WARNING
from probes.health.xids import OF_PROGRAM, REPEATED_WITHIN_A_DAY, Xid, meaning
from probes.reading import Event

DAY_SECONDS = 86_400.0
SAME_SECONDS = 5.0
"""The kernel's log and NVML tell of the same XID within this."""
CRITICAL_SECONDS = 60.0
LIGHT_SECONDS = 600.0
"""So long an event counts as new; what must last longer is latched by its rule."""
LONGEST_WORDS = 240


class Growth:
    """A counter that only grows until its device is reset, and what it grew by lately."""

    __slots__ = ("_grown", "_value", "first")

    def __init__(self) -> None:
        self._value: Optional[float] = None
        self.first: Optional[float] = None
        """At first sight; 0 once it was reset since."""
        self._grown: Optional[Deque[Tuple[float, float]]] = None

    def take(self, value: float, at: float) -> None:
        """The counter's figure. One below the last says that the device was reset: it counts from 0."""
        before = self._value
        self._value = value
        if before is None:
            self.first = value
        elif value < before:
            self.first = 0.0
            if value > 0:
                self._add(at, value)
        elif value > before:
            self._add(at, value - before)

    def _add(self, at: float, by: float) -> None:
        if self._grown is None:
            self._grown = deque(maxlen=64)
        self._grown.append((at, by))

    @property
    def known(self) -> bool:
        """A figure was seen."""
        return self._value is not None

    def grown(self, now: float, seconds: float) -> float:
        """By how much it grew within the last ``seconds``."""
        return sum(by for at, by in self._grown if now - at <= seconds) if self._grown else 0

    def minutes(self, now: float, minutes: int) -> int:
        """In how many of the last ``minutes`` it grew."""
        if not self._grown:
            return 0
        return len({age for at, _ in self._grown if (age := int((now - at) // 60)) < minutes})


def smoothed(before: float, value: float, elapsed: float, seconds: float) -> float:
    """A running average that forgets within about ``seconds``."""
    return value + (before - value) * math.exp(-elapsed / seconds)


class Told(NamedTuple):
    """One XID that was told of."""

    at: float
    code: int
    xid: Xid
    level: str
    words: str
    """The line, with its time by the node's clock."""


class Xids:
    """Those of one GPU, the newest last."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: Optional[Deque[Told]] = None

    def __bool__(self) -> bool:
        return self._told is not None

    def take(self, event: Event, at: float) -> None:
        """One event of kind ``xid`` or ``gpu_lost``; the second telling of the same is left out."""
        code = event.code if event.code is not None else 79
        if self._told is None:
            self._told = deque(maxlen=32)
        if any(old.code == code and abs(at - old.at) <= SAME_SECONDS for old in self._told):
            return
        xid = meaning(code, event.text)
        again = code in REPEATED_WITHIN_A_DAY and any(
            old.code == code and at - old.at <= DAY_SECONDS for old in self._told
        )
        self._told.append(Told(at, code, xid, CRITICAL if again else xid.level, event_words(event)))

    def newest(self, now: float) -> List[Tuple[str, int, str]]:
        """Measure's ending (``critical``, ``warning``, ``program``, ``ended``), number, and what is behind it."""
        found: List[Tuple[str, int, str]] = []
        for ending, level, of_program, seconds in _KINDS:
            fits = [
                told
                for told in self._told or ()
                if told.level == level
                and (of_program is None or (told.code in OF_PROGRAM) is of_program)
                and now - told.at <= seconds
            ]
            if fits:
                found.append((ending, fits[-1].code, self._words(fits[-1])))
        return found

    def _words(self, told: Told) -> str:
        """The line, and what else that GPU told within a minute of it."""
        near = {old.code for old in self._told or () if abs(old.at - told.at) <= 60.0} - {told.code}
        beside = "; beside it XID {}".format(", ".join(str(code) for code in sorted(near))) if near else ""
        return told.words + beside


_KINDS: Tuple[Tuple[str, str, Optional[bool], float], ...] = (
    ("critical", CRITICAL, None, CRITICAL_SECONDS),
    ("warning", WARNING, False, LIGHT_SECONDS),
    ("program", WARNING, True, LIGHT_SECONDS),
    ("ended", INFO, True, LIGHT_SECONDS),
)


class Counted:
    """Events of one kind: how many came lately, and the newest."""

    __slots__ = ("_at", "words")

    def __init__(self) -> None:
        self._at: Optional[Deque[float]] = None
        self.words = ""

    def take(self, event: Event, at: float) -> None:
        """One more."""
        if self._at is None:
            self._at = deque(maxlen=64)
        self._at.append(at)
        self.words = event_words(event)

    def within(self, now: float, seconds: float) -> int:
        """How many came within the last ``seconds``."""
        return sum(now - at <= seconds for at in self._at) if self._at else 0


def event_words(event: Event) -> str:
    """An event's line, with its time; control characters are left out, it comes from a node."""
    text = "".join(sign if sign.isprintable() else " " for sign in event.text[:LONGEST_WORDS])
    run = " (of run {})".format(event.run) if event.run else ""
    return "{}{}{}".format(text, run, clock_words(event.wall))


def clock_words(wall: float) -> str:
    """``, 03:12:07 UTC by its clock``; empty for a time that is not known."""
    if not 0 < wall < 4e9:
        return ""
    return time.strftime(", %H:%M:%S UTC by its clock", time.gmtime(wall))
