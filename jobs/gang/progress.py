"""Owns how a line of ``metrics.jsonl`` becomes a point of a run's course. `parse` is pure; the rest only
reads files."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.model import Progress

_RATE = "_per_second"
_PREFERRED_UNITS = ("tokens", "samples")
MAX_READ_BYTES = 4 << 20
_MAX_FIGURES = 100
_MAX_NAME = 40


@dataclass(frozen=True, slots=True)
class Point:
    """One line, understood."""

    progress: Progress
    attempt: int | None
    """Which attempt wrote it; None if the line does not say."""
    rank: int | None = None
    problem: str = ""
    """What is wrong with its figures, in words (a loss that is not a number); empty if nothing is."""


def parse(line: str) -> Point | None:
    """A point, or None for a line that is none (half a line, another format, no step)."""
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    step = record.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**63:
        return None
    problems: list[str] = []
    loss = _figure("loss", record.get("loss"), step, problems)
    unit = _unit(record)
    rate = _figure("throughput", record.get(unit + _RATE), step, problems) if unit else None
    for name in sorted(record.keys() - {"step", "loss", "wall", "attempt", "rank", unit + _RATE})[:_MAX_FIGURES]:
        _figure(name[:_MAX_NAME], record[name], step, problems)
    wall = _plain(record.get("wall"))
    progress = Progress(step=step, loss=loss, throughput=rate, throughput_unit=unit, wall=wall or 0.0)
    return Point(progress, _whole(record.get("attempt")), _whole(record.get("rank")), "; ".join(problems))


class Tail:
    """Reads what was added to a file since the last call, whole lines only. The file need not exist yet.

    With ``returns`` a carriage return ends a line, too: each state of a progress bar is one.
    """

    def __init__(self, path: Path, offset: int = 0, *, returns: bool = False) -> None:
        self._path = path
        self._offset = offset
        self._ends = (b"\n", b"\r") if returns else (b"\n",)

    @classmethod
    def from_end(cls, path: Path) -> Tail:
        """Skip what is in the file now."""
        try:
            return cls(path, path.stat().st_size)
        except FileNotFoundError:
            return cls(path)

    def read(self, final: bool = False) -> list[str]:
        """New lines without their ends, at most 4 MiB of them in one call.

        ``final`` also gives what stands after the last end of line. A file that became shorter was written anew and is
        read from its start.
        """
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                block = file.read(MAX_READ_BYTES)
        except FileNotFoundError:
            return []
        end = max(block.rfind(mark) for mark in self._ends) + 1
        full = len(block) == MAX_READ_BYTES
        if (final and not full) or (full and end == 0):
            end = len(block)
        self._offset += end
        if not end:
            return []
        text = block[:end].decode("utf-8", errors="replace")
        if len(self._ends) > 1:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        return text.removesuffix("\n").split("\n")

    def unread_bytes(self) -> int:
        """How much there is that `read` has not given yet."""
        try:
            return max(0, self._path.stat().st_size - self._offset)
        except FileNotFoundError:
            return 0


def end_of(path: Path, size: int = 16384) -> str:
    """The last ``size`` bytes of a log as text; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _unit(record: dict[str, Any]) -> str:
    units = sorted(name.removesuffix(_RATE) for name in record if name.endswith(_RATE) and name != _RATE)
    return next((unit for unit in _PREFERRED_UNITS if unit in units), units[0] if units else "")


def _figure(name: str, value: Any, step: int, problems: list[str]) -> float | None:
    """A figure, if it is a finite number; one that is a number and not finite is a problem."""
    number = _float(value)
    if number is None or math.isfinite(number):
        return number
    problems.append(f"{name} is {'not a number' if math.isnan(number) else 'infinite'} at step {step}")
    return None


def _plain(value: Any) -> float | None:
    number = _float(value)
    return number if number is not None and math.isfinite(number) else None


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
