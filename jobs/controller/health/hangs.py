"""Looks at the ranks of runs that do not go on, so that an alert names who is behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.controller.files import RunFiles
from jobs.errors import RaydeckError
from jobs.hang import Behind, culprit
from jobs.looks import LOOK_SECONDS, Look, ask, read_looks, states_of
from jobs.model import Run

log = logging.getLogger(__name__)

AGAIN_SECONDS = 60.0
"""How soon a run that still does not go on is looked at again."""
READ_SECONDS = 1.0


@dataclass(slots=True)
class _Looked:
    attempt: int
    asked_at: float = float("-inf")
    behind: Behind | None = None
    task: asyncio.Task[None] | None = field(default=None, compare=False)


class Hangs:
    """One look at a time of each run."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._looked: dict[str, _Looked] = {}

    def behind(self, run: Run, names: Mapping[str, str]) -> Behind | None:
        """Who the others wait for: what the newest look found, else what the ranks' states tell by themselves.

        ``names``: Ray's ids of nodes to their names.
        """
        attempt = run.attempt
        looked = self._looked.get(run.id)
        if attempt is None or attempt.status is None:
            return None
        if looked is not None and looked.attempt == attempt.number and looked.behind is not None:
            return looked.behind
        return culprit(states_of(attempt.status, names))

    def stands(self, run: Run, now: float) -> None:
        """It does not go on: have it looked at, unless that was done a moment ago."""
        attempt = run.attempt
        if attempt is None:
            return
        looked = self._looked.get(run.id)
        if looked is None or looked.attempt != attempt.number:
            self._drop(run.id)
            looked = self._looked[run.id] = _Looked(attempt.number)
        if now - looked.asked_at < AGAIN_SECONDS or (looked.task is not None and not looked.task.done()):
            return
        looked.asked_at = now
        directory = f"{run.run_directory}/attempt-{attempt.number}"
        looked.task = asyncio.create_task(self._look(run.id, directory, looked), name=f"look at {run.id}")

    def goes_on(self, run: str) -> None:
        """It does again, or has ended."""
        if run in self._looked:
            self._drop(run)

    async def ask(self, run: Run) -> str:
        """Somebody wants a look; gives its id. Raises `Unreachable`."""
        directory = _directory(run)
        return await self._files.apart(f"{directory}#ask", lambda: ask(directory))

    async def read(self, run: Run, look: str) -> Look:
        """What it has brought so far. Raises `Refused` for an id that is none."""
        directory = _directory(run)
        return await self._files.apart(f"{directory}#look", lambda: read_looks(directory, look))

    async def close(self) -> None:
        """End what goes on."""
        tasks = [each.task for each in self._looked.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop(self, run: str) -> None:
        looked = self._looked.pop(run, None)
        if looked is not None and looked.task is not None:
            looked.task.cancel()

    async def _look(self, run: str, directory: str, looked: _Looked) -> None:
        try:
            look = await self._files.apart(f"{directory}#ask", lambda: ask(directory))
            found = Look(id=look)
            for _ in range(round(LOOK_SECONDS / READ_SECONDS) + 2):
                await asyncio.sleep(READ_SECONDS)
                found = await self._files.apart(f"{directory}#look", lambda: read_looks(directory, look))
                if found.done or (found.expected and len(found.ranks) >= found.expected):
                    break
            if found.ranks:
                looked.behind = culprit(found.ranks)
        except RaydeckError as error:
            log.info("run %s could not be looked at: %s", run, error)


def _directory(run: Run) -> str:
    attempt = run.attempt
    return f"{run.run_directory}/attempt-{attempt.number if attempt is not None else 1}"
