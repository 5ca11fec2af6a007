"""What an attempt wrote into its directory, read without ever waiting for a hung file system.

Shared storage can block a reader for ever. Reads run in a few threads of their own; a directory whose last read has not
come back is not asked again, and says so.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from jobs.errors import Unreachable
from jobs.model import GangStatus, Outcome, Progress
from jobs.within import within

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

READ_SECONDS = 5.0
FILE_LIMIT_BYTES = 8 * 1024 * 1024
"""No status or outcome is larger: 10,000 ranks take about 1 MB."""
THREADS = 4
STOP_NOW_NAME = "stop-now"
LEAVE_NAME = "leave"
"""A file of this name in an attempt's directory tells its driver to end the gang at once."""
WHOLE_SERIES_BYTES = 2 * 1024 * 1024
"""A longer progress file is not read whole: one line is taken from each of as many places as points are wanted."""


@dataclass(frozen=True, slots=True)
class Report:
    """The status and outcome of an attempt, as far as they are there."""

    status: GangStatus | None = None
    outcome: Outcome | None = None
    unreadable: str = ""
    """Why the directory cannot be read from this machine; empty if it can, also when nothing is in it yet."""


class RunFiles:
    """Reads below the run directories. Close it at the end."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="files")
        self._stuck: dict[str, Future[Any]] = {}

    async def apart(self, key: str, work: Callable[[], T], limit: float = READ_SECONDS) -> T:
        """Run ``work`` in a thread. Raises `Unreachable` if it, or the one before for ``key``, does not come back."""
        self._stuck = {stuck: future for stuck, future in self._stuck.items() if not future.done()}
        if key in self._stuck:
            raise Unreachable(f"the storage under {key} does not answer")
        if len(self._stuck) >= THREADS:
            raise Unreachable("the storage of other runs does not answer, and holds all readers")
        future = self._threads.submit(work)
        try:
            return await within(asyncio.shield(asyncio.wrap_future(future)), limit)
        except asyncio.TimeoutError:
            if not future.cancel():  # it has begun, and a thread in the kernel cannot be called back
                self._stuck[key] = future
            raise Unreachable(f"the storage under {key} does not answer") from None

    async def report(self, attempt_directory: str) -> Report:
        """What the attempt's driver wrote. Never raises: what cannot be read is a reason."""
        try:
            return await self.apart(attempt_directory, lambda: _report(Path(attempt_directory)))
        except Unreachable as error:
            return Report(unreadable=error.sentence)

    async def series(self, run_directory: str, points: int) -> list[Progress]:
        """The course of a run over all its attempts, thinned to about ``points``. Raises `Unreachable`."""
        return await self.apart(f"{run_directory}#series", lambda: _series(Path(run_directory), points))

    async def ask_to_stop_now(self, attempt_directory: str) -> None:
        """Leave the driver the word that there is no more time. Raises `Unreachable` if it cannot be left."""
        await self._word(attempt_directory, STOP_NOW_NAME)

    async def ask_to_leave(self, attempt_directory: str) -> None:
        """Leave the driver the word to have its gang save and leave, in its own time. Raises `Unreachable`."""
        await self._word(attempt_directory, LEAVE_NAME)

    async def _word(self, attempt_directory: str, name: str) -> None:
        word = Path(attempt_directory) / name

        def leave() -> None:
            try:
                word.parent.mkdir(exist_ok=True)
                word.touch()
            except OSError as error:
                raise Unreachable(f"{word} cannot be written: {error.strerror}") from error

        await self.apart(f"{attempt_directory}#stop", leave)

    def close(self) -> None:
        """Let go. A thread that hangs in the kernel is left behind; it dies with the process."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _report(directory: Path) -> Report:
    reasons: list[str] = []
    status = _read(directory / "status.json", GangStatus, reasons)
    outcome = _read(directory / "outcome.json", Outcome, reasons)
    return Report(status, outcome, "; ".join(reasons))


def _read(path: Path, model: type[M], reasons: list[str]) -> M | None:
    """None if it is not there. A file that is there and cannot be understood gives a reason."""
    try:
        with path.open("rb") as file:
            body = file.read(FILE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        reasons.append(f"{path}: {error.strerror}")
        return None
    if len(body) > FILE_LIMIT_BYTES:
        reasons.append(f"{path} is larger than any {path.stem} can be")
        return None
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        reasons.append(f"{path} is not a {path.stem}: {error.errors()[0]['msg']}")
        return None


def _attempts(run_directory: Path) -> list[Path]:
    """The directories of the attempts, in order."""
    found = [path for path in run_directory.glob("attempt-*") if path.name[8:].isdigit()]
    return sorted(found, key=lambda path: int(path.name[8:]))


def _series(run_directory: Path, points: int) -> list[Progress]:
    course: dict[int, Progress] = {}
    for attempt in _attempts(run_directory):
        # A later attempt goes back to a checkpoint: from there on its points replace the older ones.
        fresh = list(_points(attempt / "progress.jsonl", points))
        if fresh:
            course = {step: point for step, point in course.items() if step < fresh[0].step}
        course.update((point.step, point) for point in fresh)
    return thin([course[step] for step in sorted(course)], points)


def thin(course: list[Progress], points: int) -> list[Progress]:
    """At most ``points`` of them, evenly chosen, always with the first and the last."""
    if len(course) <= points:
        return course
    if points < 2:
        return course[-1:] if points else []
    last = len(course) - 1
    return [course[round(index * last / (points - 1))] for index in range(points)]


def _points(path: Path, points: int) -> Iterator[Progress]:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= WHOLE_SERIES_BYTES:
                yield from map_lines(file.read().split(b"\n"))
                return
            taken = [file.readline()]
            for index in range(1, points):
                file.seek(index * (size - 1) // points)
                file.readline()
                taken.append(file.readline())
            file.seek(max(0, size - 4096))
            taken += file.read().split(b"\n")[-3:]
            yield from map_lines(taken)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Unreachable(f"{path} cannot be read: {error.strerror}") from error


def map_lines(lines: list[bytes]) -> Iterator[Progress]:
    """Those of the lines that are whole points; the last one may be half written."""
    for line in lines:
        if not line.strip():
            continue
        try:
            yield Progress.model_validate(json.loads(line))
        except ValueError:
            continue
