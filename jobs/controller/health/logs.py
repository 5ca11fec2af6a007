"""Errors that the logs of runs tell, by the patterns that triage knows, while the runs still go on.

Each look reads only what was added, and of a flood only its end: a rank that prints a gigabyte must not cost one here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jobs.controller.files import RunFiles
from jobs.errors import RaydeckError
from jobs.model import Run, RunState
from jobs.triage.scan import best

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
RECENT_SECONDS = 600.0
MOST_RANKS = 64
"""Of a larger gang the first ones: what all say is said by these too."""
MOST_BYTES = 128 * 1024
"""Of one log in one look."""
KEPT = 100


@dataclass(frozen=True, slots=True)
class LogError:
    """A line that a pattern knows as an error."""

    at: float
    """When it was seen, monotonic seconds."""
    place: str
    text: str
    title: str


@dataclass(slots=True)
class _Watched:
    attempt: int
    offsets: dict[str, int] = field(default_factory=dict[str, int])
    found: deque[LogError] = field(default_factory=lambda: deque[LogError](maxlen=KEPT))


class RunLogs:
    """The logs of the runs that go on."""

    def __init__(self, files: RunFiles, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._clock = clock
        self._watched: dict[str, _Watched] = {}

    async def run(self, active: Callable[[], Sequence[Run]]) -> None:
        """Until cancelled."""
        while True:
            await self.look(active())
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self, runs: Sequence[Run]) -> None:
        """Once over all runs that are running."""
        running = {run.id: run for run in runs if run.state is RunState.RUNNING and run.attempt is not None}
        for name in self._watched.keys() - running.keys():
            del self._watched[name]
        for run in running.values():
            try:
                await self._look(run)
            except RaydeckError as error:
                log.info("the logs of run %s cannot be read: %s", run.id, error)

    def recent(self, run: str) -> list[LogError]:
        """What was found in its logs within the last ten minutes, oldest first."""
        watched = self._watched.get(run)
        if watched is None:
            return []
        return [each for each in watched.found if self._clock() - each.at <= RECENT_SECONDS]

    async def _look(self, run: Run) -> None:
        attempt = run.attempt
        if attempt is None:
            return
        watched = self._watched.get(run.id)
        if watched is None or watched.attempt != attempt.number:
            watched = self._watched[run.id] = _Watched(attempt.number)
        folder = Path(f"{run.run_directory}/attempt-{attempt.number}")
        ranks = min(MOST_RANKS, max(1, len(attempt.status.ranks) if attempt.status is not None else 1))
        names = [f"rank-{rank}.log" for rank in range(ranks)]
        offsets = watched.offsets
        read = await self._files.apart(f"{folder}#errors", lambda: _read(folder, names, offsets))
        now = self._clock()
        for name, lines, offset in read:
            offsets[name] = offset
            for line in lines:
                pattern = best(line)
                if pattern is not None and not pattern.secondary and pattern.level != "info":
                    watched.found.append(LogError(now, name, line.strip()[:300], pattern.title))


def _read(folder: Path, names: Sequence[str], offsets: dict[str, int]) -> list[tuple[str, list[str], int]]:
    """Whole lines that were added to each log, and where the next look begins."""
    found: list[tuple[str, list[str], int]] = []
    for name in names:
        try:
            with (folder / name).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                begin = offsets.get(name, 0)
                begin = 0 if begin > size else max(begin, size - MOST_BYTES)
                file.seek(begin)
                block = file.read(MOST_BYTES)
        except OSError:
            continue  # it is not there yet, or may not be read: whoever opens the log is told why
        end = block.rfind(b"\n") + 1
        if end:
            found.append((name, block[:end].decode("utf-8", "replace").splitlines(), begin + end))
    return found
