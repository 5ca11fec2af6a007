"""Who goes first: static in time, first come first served within a priority, and any place that somebody gives."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.controller.schedule.order import key, ordered, place
from jobs.controller.schedule.types import Waiter
from jobs.spec import Scheduler
from tests.unit.jobs.controller_schedule.parts import NOW, waits

PRIORITIES = st.integers(-1000, 1000)
AGES = st.integers(0, 30 * 86400).map(float)
RULES = st.sampled_from([60.0, 3600.0, 43200.0, 7 * 86400.0]).map(lambda ageing: Scheduler(ageing=ageing))


@given(st.lists(st.tuples(PRIORITIES, AGES), min_size=1, max_size=12), RULES)
@settings(max_examples=60, deadline=None)
def test_all_that_wait_are_ordered_by_their_keys(asked: list[tuple[int, float]], rules: Scheduler) -> None:
    waiting = [waits(f"r{number}", priority=level, ago=ago) for number, (level, ago) in enumerate(asked)]
    order = ordered(waiting, rules)
    assert sorted(each.run for each in order) == sorted(each.run for each in waiting)
    keys = [key(each, rules) for each in order]
    assert keys == sorted(keys)
    assert ordered(list(reversed(waiting)), rules) == order


@given(PRIORITIES, st.lists(AGES, min_size=2, max_size=8, unique=True), RULES)
@settings(max_examples=40, deadline=None)
def test_within_a_priority_whoever_came_first_goes_first(level: int, ages: list[float], rules: Scheduler) -> None:
    waiting = [waits(f"r{number}", priority=level, ago=ago) for number, ago in enumerate(ages)]
    assert [NOW - each.submitted_at for each in ordered(waiting, rules)] == sorted(ages, reverse=True)


@given(PRIORITIES, PRIORITIES, AGES, RULES)
@settings(max_examples=60, deadline=None)
def test_a_level_is_worth_the_ageing_and_no_more(low: int, high: int, ago: float, rules: Scheduler) -> None:
    """Nothing starves: whatever comes later than its levels are worth stays behind."""
    older = waits("older", priority=min(low, high), ago=ago)
    newer = waits("newer", priority=max(low, high))
    worth = abs(high - low) / 100 * rules.ageing
    first = ordered([newer, older], rules)[0].run
    if ago > worth + 1:
        assert first == "older"
    elif ago < worth - 1:
        assert first == "newer"


def test_equals_are_told_apart_the_same_way_each_time() -> None:
    """A sweep's runs all come at the same moment."""
    waiting = [waits(f"s-{number}") for number in (3, 1, 2)]
    assert [each.run for each in ordered(waiting, Scheduler())] == ["s-1", "s-2", "s-3"]


def named(waiting: Sequence[Waiter], rules: Scheduler) -> list[tuple[str, float]]:
    return [(each.run, key(each, rules)) for each in ordered(waiting, rules)]


def _is_room(order: Sequence[tuple[str, float]], where: str, index: int) -> bool:
    """Whether there is a number between the two neighbours."""
    first = index - 1 if where == "before" else index
    if where in ("first", "last") or not 0 <= first < len(order) - 1:
        return True
    low, high = order[first][1], order[first + 1][1]
    return low < (low + high) / 2 < high


@given(
    st.lists(st.tuples(st.integers(-2, 2).map(lambda level: level * 100), AGES), min_size=2, max_size=8, unique=True),
    st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from(["first", "last", "before", "after"]), st.integers(0, 7)),
        min_size=1,
        max_size=12,
    ),
    RULES,
)
@settings(max_examples=80, deadline=None)
def test_a_run_goes_exactly_where_it_is_put(
    asked: list[tuple[int, float]], moves: list[tuple[int, str, int]], rules: Scheduler
) -> None:
    """Whatever was put where before: the model is a list."""
    waiting = {f"r{n}": waits(f"r{n}", priority=level, ago=ago) for n, (level, ago) in enumerate(asked)}
    for who, where, beside in moves:
        order = [each.run for each in ordered(list(waiting.values()), rules)]
        run, other = order[who % len(order)], order[beside % len(order)]
        if run == other:
            continue
        rest = [name for name in order if name != run]
        asked_for = named([waiting[name] for name in rest], rules)
        if not _is_room(asked_for, where, rest.index(other)):
            with pytest.raises(ValueError, match=f"no room left {where} {other}"):
                place(asked_for, where, other)
            continue
        own = place(asked_for, where, other)
        moved = waiting[run] = waits(
            run, priority=waiting[run].priority, ago=NOW - waiting[run].submitted_at, place=own
        )
        at = {"first": 0, "last": len(rest), "before": rest.index(other), "after": rest.index(other) + 1}[where]
        expected = [*rest[:at], run, *rest[at:]]
        assert [each.run for each in ordered(list(waiting.values()), rules)] == expected
        assert key(moved, rules) == own


def test_one_that_was_put_last_lets_later_ones_come_behind_it() -> None:
    old, moved = waits("old", ago=100), waits("moved", ago=200)
    moved = waits("moved", ago=200, place=place(named([old], Scheduler()), "last"))
    later = waits("later", ago=-60)
    assert [each.run for each in ordered([later, moved, old], Scheduler())] == ["old", "moved", "later"]


def test_places_that_cannot_be_given_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="nobody else waits"):
        place([], "first")
    with pytest.raises(ValueError, match="gone does not wait"):
        place([("here", NOW)], "before", "gone")
    with pytest.raises(ValueError, match="no room left before b"):
        place([("a", NOW), ("b", NOW)], "before", "b")
