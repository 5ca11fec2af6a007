"""How far another machine's clock is ahead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobs.clock import KEPT, Clock

WAY = st.floats(1e-4, 2.0)
"""Seconds that a question, or its answer, is on its way: the two need not be alike."""
AHEAD = st.floats(-1e5, 1e5)


def ask(clock: Clock, ahead: float, there: float, back: float, at: float = 1e6) -> tuple[float, float]:
    return clock.take(there + back, at, at + there + ahead)


@given(AHEAD, st.lists(st.tuples(WAY, WAY), min_size=1, max_size=20))
def test_the_truth_is_within_half_of_the_shortest_round_trip(ahead: float, ways: list[tuple[float, float]]) -> None:
    clock = Clock()
    for index, (there, back) in enumerate(ways):
        offset, took = ask(clock, ahead, there, back)
        newest = ways[max(0, index + 1 - KEPT) : index + 1]
        assert took <= max(a + b for a, b in newest)
        assert abs(offset - ahead) <= took / 2 + 1e-6
    assert clock.settled == (len(ways) >= KEPT)


@given(AHEAD, st.floats(4.1, 1e4), st.lists(st.tuples(WAY, WAY), min_size=1, max_size=9), st.tuples(WAY, WAY))
def test_a_clock_that_was_set_is_believed_at_once(
    ahead: float, step: float, before: list[tuple[float, float]], after: tuple[float, float]
) -> None:
    clock = Clock()
    for way in before:
        ask(clock, ahead, *way)
    offset, took = ask(clock, ahead + step, *after)
    assert took == sum(after)
    assert abs(offset - ahead - step) <= took / 2 + 1e-6
    assert not clock.settled, "it is asked for often again until it is known"


def test_a_slow_answer_does_not_drive_out_a_good_one() -> None:
    clock = Clock()
    ask(clock, 0.25, 0.001, 0.001)
    offset, took = ask(clock, 0.25, 1.5, 0.001)
    assert (abs(offset - 0.25) < 1e-6, took) == (True, 0.002)
    clock.forget()
    assert ask(clock, 7.0, 1.5, 0.5)[1] == 2.0


def test_a_clock_that_drifts_was_not_set() -> None:
    """Over 0.2 ms of wire a few milliseconds are far apart, yet nobody set it: it is not asked more often for that."""
    clock = Clock()
    for minute in range(20):
        ask(clock, 0.002 * minute, 1e-4, 1e-4)
    assert clock.settled
