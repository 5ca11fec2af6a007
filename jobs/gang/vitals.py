"""Owns how each rank of a node fares, as its kernel and the rank itself tell: step, output, state, what it waits in.

Nothing here touches shared storage: how much a rank has printed is read from the kernel, not from its log's folder, so
that a mount that hangs does not hang whoever looks. No file of /proc is read that needs the process's memory map.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from jobs import pulse

LOOK_EVERY_SECONDS = 1.0
CPU_SECONDS = 5.0
"""Over how long the CPU share is taken."""
_TICKS = os.sysconf("SC_CLK_TCK")
_MAX_NAME = 60


@dataclass(frozen=True, slots=True)
class Vitals:
    """How one rank fares. Ages are in seconds, by the node's clock that only goes forward; None is not known."""

    step: int | None = None
    step_wall: float | None = None
    """When it told that step, by its node's clock."""
    step_seconds: float | None = None
    own_seconds: float | None = None
    """Of a step, those that it did not wait for others."""
    output_bytes: int | None = None
    """How much its log has."""
    output_seconds: float | None = None
    """How long ago that grew, or since it is looked at."""
    state: str = ""
    """The kernel's letter: R, S, D, T, t, Z; empty when the process is not there."""
    state_seconds: float | None = None
    """For how long each look has found it in that state."""
    wchan: str = ""
    """What it waits in, in the kernel; empty where it does not wait, or the kernel does not say."""
    cpu: float | None = None
    """How many cores it used in the last seconds."""


@dataclass(slots=True)
class _Seen:
    pid: int
    state: str = ""
    state_since: float = 0.0
    output: int | None = None
    output_since: float = 0.0
    samples: tuple[tuple[float, float], ...] = ()
    """When, and CPU seconds used until then; of about the last five seconds."""


class Watch:
    """The ranks of one node. Looks at most once a second, however often it is asked.

    ``folder`` is where the ranks tell their steps; None where they do not.
    """

    def __init__(self, folder: Path | None, proc: Path = Path("/proc")) -> None:
        self._folder = folder
        self._proc = proc
        self._seen: dict[int, _Seen] = {}
        self._told: dict[int, tuple[float, Vitals]] = {}

    def of(self, rank: int, pid: int | None) -> tuple[float, Vitals]:
        """When (monotonic) the rank was looked at last, and how it fared. ``pid`` is None before it started."""
        now = time.monotonic()
        told = self._told.get(rank)
        if told is None or now - told[0] >= LOOK_EVERY_SECONDS:
            told = self._told[rank] = now, self._look(rank, pid, now)
        return told

    def _look(self, rank: int, pid: int | None, now: float) -> Vitals:
        beat = pulse.read(self._folder, rank) if self._folder else None
        step = Vitals()
        if beat is not None:
            step = Vitals(beat.step, beat.wall, max(0.0, now - beat.monotonic), beat.own_seconds)
        if pid is None:
            return step
        seen = self._seen.get(rank)
        if seen is None or seen.pid != pid:
            seen = self._seen[rank] = _Seen(pid, output_since=now)
        state, used = stat(pid, self._proc)
        if state != seen.state:
            seen.state, seen.state_since = state, now
        output = printed(pid, self._proc)
        if output is not None and output != seen.output:
            seen.output, seen.output_since = output, now
        if used is not None:
            kept = [sample for sample in seen.samples if now - sample[0] <= CPU_SECONDS]
            seen.samples = (*(kept or seen.samples[-1:]), (now, used))
        return replace(
            step,
            output_bytes=seen.output,
            output_seconds=None if seen.output is None else now - seen.output_since,
            state=state,
            state_seconds=now - seen.state_since,
            wchan=wchan(pid, self._proc),
            cpu=_share(seen.samples) if state else None,
        )


def stat(pid: int, proc: Path = Path("/proc")) -> tuple[str, float | None]:
    """The state's letter and the CPU seconds used by all threads; empty and None when it is not there."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        # The name may hold spaces and brackets; the last closing one ends it.
        fields = text[text.rindex(")") + 2 :].split()
        return fields[0], (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, ValueError, IndexError):
        return "", None


def wchan(pid: int, proc: Path = Path("/proc"), thread: int | None = None) -> str:
    """The kernel function that it waits in; empty for none, and where the kernel does not say."""
    folder = proc / str(pid) if thread is None else proc / str(pid) / "task" / str(thread)
    try:
        name = (folder / "wchan").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
    return "" if name == "0" else name[:_MAX_NAME]


def printed(pid: int, proc: Path = Path("/proc")) -> int | None:
    """How many bytes its standard output's file has, as far as it wrote them; None where that cannot be told."""
    try:
        text = (proc / str(pid) / "fdinfo" / "1").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    name, _, value = text.partition("\n")[0].partition(":")
    return int(value) if name == "pos" and value.strip().isdecimal() else None


def _share(samples: tuple[tuple[float, float], ...]) -> float | None:
    if len(samples) < 2:
        return None
    (began, before), (ended, after) = samples[0], samples[-1]
    return round(max(0.0, after - before) / (ended - began), 2) if ended > began else None
