"""Owns the files that an attempt's driver leaves for everybody else: status, progress, outcome."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from jobs.gang.figures import Figures
from jobs.gang.keeper import Keeper
from jobs.gang.progress import Point
from jobs.gang.verdict import Blame
from jobs.model import GangStatus, Launch, Outcome, Progress
from jobs.redact import redact

STATUS_EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class End:
    """What is left after everything was ended."""

    survivors: list[int]
    """Processes that could not be ended."""
    unanswered: list[str]
    """Nodes that did not say. There the guard sweeps, as soon as the agent is gone, and nobody hears of it."""


class Record:
    """The attempt's folder, as its driver writes it. Whoever makes it concludes it."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._folder = Path(launch.attempt_directory)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._figures = Figures(launch)
        self.keeper = Keeper(launch)
        self._due_at = 0.0
        self._problems: list[str] = []
        self.status = GangStatus()
        self.notices: list[str] = []
        """What else an operator should know, in sentences."""

    @property
    def stop_now(self) -> bool:
        """Whether somebody left the file that asks for an end without grace."""
        return (self._folder / "stop-now").exists()

    @property
    def asked_to_leave(self) -> bool:
        """Whether somebody left the file that asks to save and leave, with no limit: a drain has its own."""
        return (self._folder / "leave").exists()

    def due(self, phase: str) -> bool:
        """Whether the status is to be written: once a second, and when the phase changes."""
        return self.status.phase != phase or time.monotonic() >= self._due_at

    def tell(self, phase: str, detail: str) -> None:
        """Bring everything that others read up to date, if it is due."""
        if not self.due(phase):
            return
        self._due_at = time.monotonic() + STATUS_EVERY_SECONDS
        self.status.phase, self.status.detail = phase, detail
        self.read_progress()
        self._write_status()

    def read_progress(self, final: bool = False) -> list[Progress]:
        """Take in the figures since the last call; the new points are on disk when this returns."""
        found = self._figures.read(final)
        points: list[Progress] = []
        for point in found:
            self._note(point)
            progress = point.progress
            if self._figures.from_log and progress.loss is None and not point.problem:
                # A progress bar between two lines of figures: it goes on, and the last loss is the newest there is.
                loss = self.status.progress.loss if self.status.progress else None
                self.status.progress = progress.model_copy(update={"loss": loss})
                continue
            points.append(progress)
            self.status.progress = progress
        if points:
            with (self._folder / "progress.jsonl").open("a", encoding="utf-8") as file:
                file.writelines(point.model_dump_json() + "\n" for point in points)
        return points

    def conclude(
        self, verdict: str, reason: str, more: str, blame: Blame | None, end: End, *, with_checkpoint: bool = False
    ) -> Outcome:
        """End the watch over the checkpoints, and write ``outcome.json`` and the status that goes with it.

        ``with_checkpoint`` has the reason say which checkpoint is the newest; ``more`` follows it. Lines of logs that
        are quoted go to every screen and notice: what looks like a secret is painted over here, once for all of them.
        """
        self.read_progress(final=True)
        self.keeper.close()
        self.keeper.release(ended_well=verdict == "succeeded")
        step = self.keeper.step
        if with_checkpoint:
            reason += ", there is no checkpoint" if step is None else f", the newest checkpoint is of step {step}"
        outcome = Outcome(
            verdict=verdict,
            reason=redact(reason + more),
            exit_codes={rank.rank: rank.exit_code for rank in self.status.ranks},
            last_step=self.status.progress.step if self.status.progress else None,
            checkpoint_step=step,
            survivors=end.survivors,
            unanswered=end.unanswered,
            wall=time.time(),
        )
        if blame is not None:
            outcome.first_failing_rank = blame.rank
            outcome.failure = blame.failure
            outcome.evidence = redact(blame.evidence)
            outcome.signature = redact(blame.signature)
            outcome.suspects = blame.suspects
            outcome.survivors = sorted({*end.survivors, *blame.survivors})
            outcome.unanswered = sorted({*end.unanswered, *blame.unanswered})
        self.status.phase = "ended"
        self.status.detail = outcome.reason
        self._write_status()
        _write(self._folder / "outcome.json", outcome)
        return outcome

    def _note(self, point: Point) -> None:
        """The first figure that was no number stays on the screen, and the newest as long as it goes on."""
        first = self._problems[:1]
        self._problems = [*first, point.problem] if point.problem and point.problem not in first else first

    def _write_status(self) -> None:
        newest = self.keeper.newest
        self.status.checkpoint_step = newest.step if newest else None
        self.status.checkpoint_seconds = newest.seconds if newest else None
        self.status.warnings = list(_unique([*self._problems, *self.notices, *self.keeper.warnings]))
        self.status.wall = time.time()
        _write(self._folder / "status.json", self.status)


def _unique(sentences: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(sentence for sentence in sentences if sentence)


def _write(path: Path, value: BaseModel) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(value.model_dump_json())
        file.flush()
        # The outcome has to survive the machine: it decides whether a run is tried again.
        if path.name == "outcome.json":
            os.fsync(file.fileno())
    partial.rename(path)
