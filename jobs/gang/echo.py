"""Owns the ranks' lines in the job's own log: a bounded copy; the whole text is in each rank's file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jobs.gang.progress import Tail

LINES_PER_SECOND = 200
MAX_LINE = 2000


class Echo:
    """Copies new lines of all ranks' logs as ``[rank R] text``, and says how many it left out."""

    def __init__(self, folder: Path, ranks: int, write: Callable[[str], None]) -> None:
        self._tails = {rank: Tail(folder / f"rank-{rank}.log") for rank in range(ranks)}
        self._write = write
        self._second = 0
        self._written = 0
        self._left_out: dict[int, int] = {}

    def copy(self, now: float, final: bool = False) -> None:
        """Copy what is new. ``now`` is any clock in seconds that only goes forward."""
        if int(now) != self._second:
            self._say_left_out()
            self._second, self._written = int(now), 0
        for rank, tail in self._tails.items():
            for line in tail.read(final):
                if self._written >= LINES_PER_SECOND:
                    self._left_out[rank] = self._left_out.get(rank, 0) + 1
                    continue
                self._written += 1
                # A progress bar rewrites its line with carriage returns; the last state is the line.
                text = line.removesuffix("\r").rsplit("\r", 1)[-1]
                self._write(f"[rank {rank}] {text if len(text) <= MAX_LINE else text[:MAX_LINE] + ' …'}")
            if final and tail.unread_bytes():
                self._write(f"[rank {rank}] … the rest is left out, see rank-{rank}.log")
        if final:
            self._say_left_out()

    def _say_left_out(self) -> None:
        for rank, count in sorted(self._left_out.items()):
            self._write(f"[rank {rank}] … {count} line{'s' if count > 1 else ''} left out, see rank-{rank}.log")
        self._left_out.clear()


def say(line: str) -> None:
    """A line of our own in the job's log."""
    print(line, flush=True)
