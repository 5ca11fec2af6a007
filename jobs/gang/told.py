"""Owns the ranks' vitals as the status tells them: on the driver's clock, and for a large gang not every second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.gang.vitals import Vitals
from jobs.model import Rank

LARGE = 64
LARGE_EVERY_SECONDS = 5.0
_SAME_SECONDS = 3.0
"""Two ages of one state, taken by two looks, differ by less."""
_FIELDS = ("step", "step_wall", "step_at", "own_seconds", "output_at", "state", "state_at", "wchan", "cpu", "silent_at")


@dataclass(frozen=True, slots=True)
class Heard:
    """What an agent said of a rank last."""

    rank: Rank
    vitals: Vitals
    seconds_ago: float
    """Since its node was looked at."""
    silent_seconds: float | None = None
    """For how long the agent has not answered; None if it does."""


class Told:
    """Fills in the ranks of each status. What did not change keeps its time, to the digit."""

    def __init__(self) -> None:
        self._ranks: dict[int, Rank] = {}
        self._output: dict[int, int | None] = {}
        self._due_at = float("-inf")

    def fill(self, heard: Sequence[Heard], monotonic: float, wall: float) -> None:
        """Fill in all that is told of the ranks' vitals. Both clocks are the driver's, in seconds."""
        due = len(heard) <= LARGE or monotonic >= self._due_at or any(self._news(each) for each in heard)
        if due:
            self._due_at = monotonic + LARGE_EVERY_SECONDS
        for each in heard:
            before = self._ranks.get(each.rank.rank)
            if due or before is None:
                self._fill(each, before, wall)
                self._ranks[each.rank.rank] = each.rank
            else:
                for name in _FIELDS:
                    setattr(each.rank, name, getattr(before, name))

    def _news(self, each: Heard) -> bool:
        """Whether it cannot wait: a process that is held, or not any more, and a node that falls silent."""
        before = self._ranks.get(each.rank.rank)
        if before is None or (before.silent_at is None) != (each.silent_seconds is None):
            return True
        return before.state != each.vitals.state and bool({before.state, each.vitals.state} & {"T", "t", "Z", ""})

    def _fill(self, each: Heard, before: Rank | None, wall: float) -> None:
        rank, vitals, looked_at = each.rank, each.vitals, wall - each.seconds_ago
        rank.step = vitals.step
        rank.step_wall = None if vitals.step_wall is None else round(vitals.step_wall, 2)
        rank.own_seconds = None if vitals.own_seconds is None else round(vitals.own_seconds, 4)
        rank.state, rank.wchan, rank.cpu = vitals.state, vitals.wchan, vitals.cpu
        rank.step_at = _at(looked_at, vitals.step_seconds)
        rank.output_at = _at(looked_at, vitals.output_seconds)
        rank.state_at = _at(looked_at, vitals.state_seconds)
        rank.silent_at = _at(wall, each.silent_seconds)
        if before is not None:
            if (before.step, before.step_wall) == (rank.step, rank.step_wall):
                rank.step_at = before.step_at
            if self._output.get(rank.rank) == vitals.output_bytes and before.output_at is not None:
                rank.output_at = before.output_at
            if before.state == rank.state and _near(before.state_at, rank.state_at):
                rank.state_at = before.state_at
            if before.silent_at is not None and rank.silent_at is not None:
                rank.silent_at = before.silent_at
        self._output[rank.rank] = vitals.output_bytes


def _at(wall: float, seconds: float | None) -> float | None:
    return None if seconds is None else round(wall - seconds, 2)


def _near(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(one - other) < _SAME_SECONDS
