"""Owns a run's checkpoints while an attempt goes on: which is the newest, which may go, how much room is left.

All of it in a thread of its own: storage that hangs holds up neither the ranks nor a stop.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from jobs import catalogue, fence
from jobs.errors import RaydeckError
from jobs.model import Launch
from jobs.wire import CheckpointRow

LOOK_EVERY_SECONDS = 1.0
CLOSE_SECONDS = 15.0
_LOW_SHARE = 0.05
_CHECKPOINTS_OF_ROOM = 2
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


class Keeper:
    """The checkpoints of one run, as its newest attempt sees them. Whoever starts it closes it."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._closing = threading.Event()
        self._began = threading.Event()
        self._has_ground = False
        self._thread = threading.Thread(target=self._watch, name="checkpoints", daemon=True)
        self._before: CheckpointRow | None = None
        self.newest: CheckpointRow | None = None
        """The newest complete one; None as long as there is none."""
        self.has_own = False
        """Whether this attempt has completed one."""
        self.warnings: list[str] = []
        """What is wrong with the checkpoints, or their storage, in sentences."""
        self.fenced = ""
        """Why this attempt must not go on: a newer one has begun. Empty as a rule."""

    @property
    def step(self) -> int | None:
        """The newest complete checkpoint's."""
        return self.newest.step if self.newest else None

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def begin(self) -> None:
        """What is there by now is the ground that the attempt starts on; what comes from here on is its own."""
        self._began.set()

    def close(self) -> None:
        """Look a last time, and be done with looking. Bounded."""
        self._closing.set()
        if self._thread.ident is None:
            return
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self.warnings = [*self.warnings, f"the storage under {self._launch.run_directory} does not answer"]

    def release(self, ended_well: bool) -> None:
        """At the very end, let go of the checkpoint that the attempt began from.

        One of another run's stays pinned while this run has none of its own and did not end well: the next attempt
        begins from it again.
        """
        if self._thread.is_alive() or not self._began_from:
            return
        if ended_well or self.has_own or not self._is_of_another_run:
            self._let_go()

    def _watch(self) -> None:
        self._look()
        while not self._closing.wait(LOOK_EVERY_SECONDS):
            self._look()
        self._look()

    def _look(self) -> None:
        launch = self._launch
        warnings: list[str] = []
        try:
            newest = catalogue.newest(launch.run_directory)
            fence.check(launch.run_directory, launch.attempt)
        except RaydeckError as error:
            now = _fence(launch)
            self.fenced = error.sentence if now is not None and now > launch.attempt else ""
            self.warnings = [error.sentence]
            return
        if not self._has_ground:
            self._before = newest
            self._has_ground = self._began.is_set()
        elif newest is not None and not _same(newest, self.newest if self.has_own else self._before):
            self.has_own = True
            if self._began_from:
                self._let_go()
            warnings += self._prune()
        self.newest = newest
        self.warnings = [*warnings, *_room(launch.run_directory, newest)]

    def _prune(self) -> list[str]:
        launch = self._launch
        try:
            catalogue.prune(launch.run_directory, launch.keep_last, launch.keep_every, launch.attempt)
        except RaydeckError as error:
            return [error.sentence]
        return []

    @property
    def _began_from(self) -> str:
        return self._launch.resume_path

    @property
    def _is_of_another_run(self) -> bool:
        return not Path(self._began_from).is_relative_to(self._launch.run_directory)

    def _let_go(self) -> None:
        try:
            catalogue.unpin(self._began_from, self._launch.run)
        except OSError as error:
            self.warnings = [*self.warnings, f"{self._began_from} stays pinned: {error.strerror or error}"]


def _same(one: CheckpointRow, other: CheckpointRow | None) -> bool:
    return other is not None and (one.path, one.written_at) == (other.path, other.written_at)


def _fence(launch: Launch) -> int | None:
    try:
        return fence.newest(launch.run_directory)
    except RaydeckError:
        # It cannot be read: whoever looked has said so already.
        return None


def _room(run_directory: str, newest: CheckpointRow | None) -> list[str]:
    """A sentence when the run's file system has too little room left."""
    try:
        state = os.statvfs(run_directory)
    except OSError as error:
        return [f"how much room {run_directory} has is not known: {error.strerror or error}"]
    return room(state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize, newest.size_bytes if newest else None)


def room(free: int, total: int, checkpoint: int | None) -> list[str]:
    """A sentence when less than two checkpoints, or less than 5 %, have room; all in bytes."""
    if not total:
        return []
    left = f"the run's file system has {amount(free)} left"
    if checkpoint is not None and free < _CHECKPOINTS_OF_ROOM * checkpoint:
        return [f"{left}, and a checkpoint takes {amount(checkpoint)}"]
    if free < _LOW_SHARE * total:
        return [f"{left} of {amount(total)} ({100 * free / total:.1f} %)"]
    return []


def amount(count: float) -> str:
    """``1.2 GB`` for so many bytes."""
    unit = 0
    while count >= 1000 and unit < len(_UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {_UNITS[unit]}"
