"""Owns the files that an attempt's driver leaves for everybody else: status, progress, outcome."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pydantic import BaseModel

from jobs import checkpoint
from jobs.gang.progress import Tail, parse
from jobs.model import GangStatus, Launch, Outcome, Progress


class Record:
    """The attempt's folder, as its driver writes it."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._folder = Path(launch.attempt_directory)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._metrics = Tail.from_end(Path(launch.run_directory) / "metrics.jsonl")
        self.status = GangStatus()
        self.problem = ""
        """What is wrong with the newest figures (a loss that is not a number); empty if nothing is."""

    @property
    def stop_now(self) -> bool:
        """Whether somebody left the file that asks for an end without grace."""
        return (self._folder / "stop-now").exists()

    def read_progress(self) -> list[Progress]:
        """Take in what the script reported since the last call; the new points are on disk when this returns."""
        points: list[Progress] = []
        for line in self._metrics.read():
            point = parse(line)
            if point is None or point.rank not in (None, 0) or point.attempt not in (None, self._launch.attempt):
                continue
            points.append(point.progress)
            self.problem = point.problem
        if points:
            with (self._folder / "progress.jsonl").open("a", encoding="utf-8") as file:
                file.writelines(point.model_dump_json() + "\n" for point in points)
            self.status.progress = points[-1]
        return points

    def read_checkpoint(self) -> int | None:
        """The step of the newest complete checkpoint."""
        newest = checkpoint.newest_complete(self._launch.run_directory)
        self.status.checkpoint_step = newest.step if newest else None
        return self.status.checkpoint_step

    def write_status(self) -> None:
        """Write ``status.json`` anew."""
        self.status.wall = time.time()
        _write(self._folder / "status.json", self.status)

    def write_outcome(self, outcome: Outcome) -> None:
        """Write ``outcome.json``, and the status that goes with it."""
        outcome.wall = time.time()
        self.status.phase = "ended"
        self.status.detail = outcome.reason
        self.write_status()
        _write(self._folder / "outcome.json", outcome)


def _write(path: Path, value: BaseModel) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(value.model_dump_json())
        file.flush()
        # The outcome has to survive the machine: it decides whether a run is tried again.
        if path.name == "outcome.json":
            os.fsync(file.fileno())
    partial.rename(path)
