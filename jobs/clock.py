"""Owns the judgement how far another machine's clock is ahead, from questions and answers. Pure."""

from __future__ import annotations

from collections import deque

KEPT = 5
"""Of the newest answers the one with the shortest round trip tells most."""
DRIFT_SECONDS = 0.05
"""A clock may drift, or be slewed, so far from one answer to the next without having been set."""


class Clock:
    """How far a clock is ahead of one's own, best known.

    Each answer says it to within half of its round trip, whatever the network does (RFC 5905, section 8). So two
    answers whose bounds are far apart cannot both be true: the clock was set in between, and what was known of it
    before is worth nothing any more.
    """

    def __init__(self) -> None:
        self._answers: deque[tuple[float, float]] = deque(maxlen=KEPT)

    @property
    def settled(self) -> bool:
        """Whether enough is known to ask less often."""
        return len(self._answers) >= KEPT

    def take(self, round_trip_seconds: float, asked_wall: float, answer_wall: float) -> tuple[float, float]:
        """An answer with the other's wall time. Gives the offset and the round trip behind it, in seconds."""
        offset = answer_wall - asked_wall - round_trip_seconds / 2
        best = min(self._answers, default=None)
        if best is not None and abs(offset - best[1]) > (round_trip_seconds + best[0]) / 2 + DRIFT_SECONDS:
            self._answers.clear()
        self._answers.append((round_trip_seconds, offset))
        took, ahead = min(self._answers)
        return ahead, took

    def forget(self) -> None:
        """What comes next may be another machine."""
        self._answers.clear()
