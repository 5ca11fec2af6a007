"""Owns where an attempt's figures come from: what its script reports, or else what its log says."""

from __future__ import annotations

import time
from pathlib import Path

from jobs.gang import foreign
from jobs.gang.progress import Point, Tail, parse
from jobs.model import Launch


class Figures:
    """The points of one attempt, in the order in which they come."""

    def __init__(self, launch: Launch) -> None:
        self._attempt = launch.attempt
        self._metrics = Tail.from_end(Path(launch.run_directory) / "metrics.jsonl")
        # Megatron-LM logs on its last rank, all others on the first.
        wanted = {0: ""}
        wanted.setdefault(launch.nodes * launch.processes_per_node - 1 if launch.kind == "train" else 0, "megatron")
        folder = Path(launch.attempt_directory)
        self._logs = [
            (Tail(folder / f"rank-{rank}.log", returns=True), foreign.Reader(only)) for rank, only in wanted.items()
        ]
        self.from_log = False
        """Whether the newest points were read from a log."""

    def read(self, final: bool = False) -> list[Point]:
        """New points since the last call."""
        points = [
            point
            for line in self._metrics.read(final)
            if (point := parse(line)) is not None and point.rank in (None, 0) and point.attempt in (None, self._attempt)
        ]
        if points:
            # A script that reports by itself knows better than what it prints.
            self._logs.clear()
            self.from_log = False
        found = [point for tail, reader in self._logs for point in _of_log(tail, reader, final)]
        self.from_log = self.from_log or bool(found)
        return points or found


def _of_log(tail: Tail, reader: foreign.Reader, final: bool) -> list[Point]:
    points: list[Point] = []
    now = time.time()
    for line in tail.read(final):
        point = reader.read(line)
        if point is not None:
            # The log does not say when: it was a moment ago.
            point.progress.wall = now
            points.append(point)
    return points
