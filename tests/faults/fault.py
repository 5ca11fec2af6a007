"""What a fault of the matrix is: how it is made, which alert has to tell of it, and what triage has to name."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tests.faults.lab import Lab


@dataclass(slots=True)
class Aim:
    """A fault that is in effect."""

    on: str
    """What the alert is about: ``worker-1/2``, ``worker-1``, a mount, a run's id."""
    target: str = ""
    """What triage is asked about; empty asks about the whole fleet."""
    culprit: str = ""
    """What triage has to name; empty: ``on``."""
    since: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the matrix."""

    name: str
    make: Callable[[Lab], AbstractContextManager[Aim]]
    """In effect inside it, mended after it."""
    rules: tuple[str, ...]
    """Any of these alerts tells of it."""
    cause: str
    """A regular expression that the named cause has to match, whatever its case."""
    also: tuple[str, ...] = ()
    """Alerts that are true of it too."""
    seconds: float = 60.0
    """So long the alert may take."""


@dataclass(slots=True)
class Result:
    """What came of it."""

    fault: str
    detected_seconds: float | None = None
    alert: str = ""
    named: bool = False
    headline: str = ""
    false_alarms: list[str] = field(default_factory=list[str])
    trouble: str = ""
    triage_seconds: float = 0.0
