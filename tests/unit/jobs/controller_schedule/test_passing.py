"""Who may pass whom, when a run is likely to start, and who leaves for whom: case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.controller.schedule.desk import MARGIN_SECONDS, RESERVATIONS
from jobs.controller.schedule.plan import schedule
from jobs.spec import Limits, Queue, Scheduler
from tests.unit.jobs.controller_schedule.parts import (
    NOW,
    OPEN,
    at,
    blockers,
    demand,
    holds,
    preempted,
    queues,
    room,
    rooms,
    started,
    waits,
    why,
)
from tests.unit.jobs.controller_schedule.world import World

GANG = demand(2, 4)
PREEMPT = Scheduler(preemption=True)
SHORT = 600.0
"""A time limit that ends well before `LONG`."""
LONG = 7200.0


# --- backfill ---------------------------------------------------------------------------------------------------------


def test_a_short_run_passes_where_it_is_gone_in_time() -> None:
    held = [holds("h", "n2", demand(gpus=4), since=0, limit_seconds=LONG)]
    waiting = [waits("big", GANG, ago=60), waits("short", limit_seconds=SHORT)]
    plan = schedule(at(waiting, held))
    assert [(each.run, each.backfilled) for each in plan.starts] == [("short", True)]
    here = at([waiting[0], waits("long", limit_seconds=LONG - MARGIN_SECONDS + 1)], held)
    assert started(here) == {}
    assert "with its limit of" in why("long", here).sentence
    assert started(at([waiting[0], waits("endless")], held)) == {}


def test_nobody_passes_where_the_start_of_the_one_ahead_is_not_known() -> None:
    """A flow of short runs would keep it waiting for ever."""
    for held in (holds("h", "n2", demand(gpus=4)), holds("h", "n2", demand(gpus=4), limit_seconds=LONG, leaving=True)):
        assert started(at([waits("big", GANG, ago=60), waits("short", limit_seconds=1.0)], [held])) == {}


def test_one_that_just_started_may_be_gone_sooner_than_another() -> None:
    """What starts counts as if it had started now: the one ahead may have its node then."""
    held = [
        holds("starts", "n1", demand(gpus=3), since=None, limit_seconds=SHORT),
        holds("h", "n2", demand(gpus=4), since=0, limit_seconds=LONG),
    ]
    waiting = [waits("ahead", demand(gpus=4), ago=60), waits("r", limit_seconds=SHORT * 2)]
    assert started(at(waiting, held)) == {}
    first = waits("first", demand(gpus=3), ago=90, limit_seconds=SHORT)
    assert set(started(at([first, *waiting], held[1:]))) == {"first"}


def test_a_run_passes_on_nodes_that_the_one_ahead_cannot_use() -> None:
    nodes = [room("n1", labels={"pool": "a"}), room("n2", labels={"pool": "a"}), room("n3", labels={"pool": "b"})]
    big = waits("big", demand(2, 4, labels={"pool": "a"}), ago=60)
    here = at([big, waits("r")], [holds("h", "n1")], nodes)
    assert started(here) == {"r": ("n3",)}
    assert started(replace(here, rules=Scheduler(backfill=False))) == {"r": ("n3",)}


def test_a_run_passes_where_enough_is_left_for_the_one_ahead() -> None:
    held = [holds("h", "n2", demand(gpus=4))]
    here = at([waits("two", demand(2, 2), ago=60), waits("r", demand(gpus=2))], held)
    assert started(here) == {"r": ("n1",)}
    assert started(replace(here, waiting=(here.waiting[0], waits("r", demand(gpus=3))))) == {}
    assert started(replace(here, rules=Scheduler(backfill=False))) == {}


def test_without_backfill_everybody_waits_behind_the_one_that_waits() -> None:
    held = [holds("h", "n2", demand(gpus=4), limit_seconds=LONG)]
    waiting = [waits("big", GANG, ago=60), waits("short", limit_seconds=SHORT)]
    assert started(at(waiting, held)) != {}
    here = at(waiting, held, rules=Scheduler(backfill=False))
    assert started(here) == {}
    assert list(blockers("short", here)) == ["order"]


@pytest.mark.parametrize("backfill", [True, False])
def test_behind_very_many_that_wait_none_of_them_is_passed(backfill: bool) -> None:
    nodes = [room("a1", labels={"pool": "a"}), room("b1", labels={"pool": "b"}), room("b2", labels={"pool": "b"})]
    held = [holds("ha", "a1"), holds("hb", "b1")]
    first = [waits(f"a-{n:02d}", demand(1, 4, labels={"pool": "a"}), ago=90) for n in range(RESERVATIONS)]
    second = waits("b", demand(2, 4, labels={"pool": "b"}), ago=60)
    here = at([*first, second, waits("r", demand(labels={"pool": "b"}))], held, nodes, Scheduler(backfill=backfill))
    assert started(here) == {}
    assert "b" in blockers("r", here)["order"].names


def test_one_that_waits_for_a_quota_keeps_the_quota_and_no_nodes() -> None:
    rules = queues(Queue(name="small", max_accelerators=4))
    held = [holds("h", "n1", demand(gpus=2), queue="small")]
    waiting = [waits("first", demand(gpus=4), ago=60, queue="small"), waits("second", demand(gpus=2), queue="small")]
    here = at([*waiting, waits("other", demand(gpus=4), ago=-9)], held, rules=rules)
    assert started(here) == {"other": ("n2",)}
    assert blockers("second", here)["order"].names == ["first"]
    assert "the quota of queue small" in why("second", here).sentence
    limited = [replace(held[0], started_at=NOW, limit_seconds=LONG)]
    short = replace(waiting[1], limit_seconds=SHORT)
    assert set(started(at([waiting[0], short], limited, rules=rules))) == {"second"}
    assert started(at([waiting[0], short], held, rules=rules)) == {}


def test_one_that_waits_for_two_quotas_keeps_both() -> None:
    rules = queues(Queue(name="small", max_accelerators=4), limits=Limits(max_accelerators_per_user=4))
    held = [holds("h", "n1", demand(gpus=2), queue="small")]
    waiting = [waits("first", demand(gpus=4), ago=60, queue="small"), waits("r", demand(gpus=1))]
    assert started(at(waiting, held, rules=rules)) == {}


def test_one_that_waits_for_room_keeps_its_quota_too() -> None:
    """Else those behind it take the quota on other nodes, and it waits again when its room is there."""
    rules = queues(Queue(name="small", max_accelerators=8))
    nodes = [room("a1", labels={"pool": "a"}), room("a2", labels={"pool": "a"}), room("b1", labels={"pool": "b"})]
    big = waits("big", demand(2, 4, labels={"pool": "a"}), ago=60, queue="small")
    here = at([big, waits("r", queue="small")], [holds("h", "a1")], nodes, rules)
    assert started(here) == {}
    assert started(replace(here, waiting=(big, waits("r")))) == {"r": ("b1",)}


@given(st.lists(st.sampled_from([None, 60.0, 300.0, 1500.0]), max_size=8), st.data())
@settings(max_examples=40, deadline=None)
def test_whatever_comes_later_the_first_starts_when_those_before_it_have_ended(
    limits: list[float | None], data: st.DataObject
) -> None:
    """Two hold all nodes, one of them perhaps for ever; short and endless runs of all sizes keep coming."""
    world = World(rules=OPEN, nodes={each.name: each for each in rooms(2)})
    ends = {"h1": 600.0, "h2": data.draw(st.sampled_from([300.0, 1800.0]))}
    known = data.draw(st.booleans())
    for run, node in (("h1", "n1"), ("h2", "n2")):
        limit = ends[run] if known or run == "h1" else None
        world.holding[run] = holds(run, node, demand(gpus=4), since=0, limit_seconds=limit)
        world.again[run] = waits(run)
    world.submit(waits("big", GANG))
    events = sorted([*ends.values(), *data.draw(st.lists(st.integers(1, 1800), min_size=8, max_size=8))])
    for number, when in enumerate(events):
        world.now = NOW + when
        for run, holder in list(world.holding.items()):
            limit = holder.limit_seconds
            if ends.get(run, limit) is not None and (holder.started_at or NOW) + ends.get(run, limit or 0) <= world.now:
                world.end(run)
        if number < len(limits):
            gpus = data.draw(st.integers(1, 4))
            world.submit(waits(f"later-{number}", demand(gpus=gpus), limit_seconds=limits[number]))
        world.carry_out(schedule(world.situation()), at_once=True)
    assert "big" in world.holding


# --- when -------------------------------------------------------------------------------------------------------------


def test_when_it_is_likely_to_start() -> None:
    held = [
        holds("h1", "n1", demand(gpus=4), since=60, limit_seconds=660.0),
        holds("h2", "n2", demand(gpus=4), since=60, expected_seconds=360.0),
    ]
    told = why("one", at([waits("one", demand(gpus=4))], held))
    assert told.estimated_start == NOW + 300
    assert told.estimated_from == "an estimate, from how long such runs took"
    told = why("two", at([waits("two", GANG)], held))
    assert told.estimated_start == NOW + 600
    assert told.estimated_from == "an estimate, from time limits and from how long such runs took"
    told = why("one", at([waits("one", demand(gpus=4))], held[:1], rooms(1)))
    assert told.estimated_start == NOW + 600
    assert told.estimated_from == "an estimate, from time limits: others may end earlier"
    assert why("one", at([waits("one")])).estimated_start == NOW


def test_when_it_starts_behind_others_that_have_to_end_first() -> None:
    held = [holds("h", "n1", demand(gpus=4), since=0, limit_seconds=600.0)]
    ahead = waits("ahead", demand(gpus=4), ago=60, expected_seconds=1000.0)
    here = at([ahead, waits("r", demand(gpus=4))], held, rooms(1))
    assert why("r", here).estimated_start == NOW + 1600
    # One that waits for another's end waits for its end, not for its start.
    here = at([ahead, waits("r", after=("ahead",))], held, rooms(1))
    assert why("r", here).estimated_start == NOW + 1600


def test_one_that_takes_longer_than_usual_is_not_put_off_for_ever() -> None:
    held = [
        holds("late", "n1", demand(gpus=4), since=2000, expected_seconds=1000.0),
        *(holds(f"h{n}", "n2", demand(gpus=1), since=0, limit_seconds=10.0 + n) for n in range(4)),
    ]
    told = why("r", at([waits("r", GANG)], held))
    assert told.estimated_start == NOW + 100


def test_why_nothing_can_be_said_about_when() -> None:
    held = [holds("h1", "n1", demand(gpus=4)), holds("h2", "n2", demand(gpus=4), limit_seconds=600.0)]
    told = why("r", at([waits("r", GANG)], held))
    assert told.estimated_start is None
    assert told.estimated_from == "h1 has no time limit, and no such run has ended here yet"
    nodes = [*rooms(2), room("c1", labels={"pool": "c"}, cordoned="bob")]
    told = why("r", at([waits("r", demand(labels={"pool": "c"}))], held, nodes))
    assert told.estimated_start is None
    assert "h1" not in told.estimated_from


def test_the_reason_for_no_estimate_is_about_what_it_waits_for() -> None:
    """Not about work of others where no such work is."""
    nodes = [room("n1"), room("n2", labels={"pool": "b"})]
    only = waits("r", demand(labels={"pool": "b"}))
    for rules in (Scheduler(limits=Limits(max_active_runs=1)), Scheduler(limits=Limits(max_active_runs_per_user=1))):
        told = why("r", at([only], [holds("h", "n1")], nodes, rules))
        assert told.estimated_from.startswith("h has no time limit"), told.estimated_from
    told = why(
        "s-2", at([replace(only, run="s-2", sweep="s", sweep_parallel=1)], [holds("s-1", "n1", sweep="s")], nodes)
    )
    assert told.estimated_from.startswith("s-1 has no time limit"), told.estimated_from
    told = why("r", at([replace(only, after=("late",)), waits("late", ago=-9, held="bob")], nodes=nodes))
    assert "late" in told.estimated_from, told.estimated_from


# --- order ------------------------------------------------------------------------------------------------------------


def test_who_has_waited_for_more_than_a_level_goes_first() -> None:
    rules = Scheduler(ageing=3600.0)
    waiting = [waits("old", GANG, ago=3700), waits("new", GANG, priority=100)]
    here = at(waiting, rules=rules)
    assert set(started(here)) == {"old"}
    told = why("new", here)
    assert told.ahead[0].sentence.startswith("lower priority, but it has waited longer by more than that is worth")
    assert set(started(at([waits("old", GANG, ago=3500), waiting[1]], rules=rules))) == {"new"}


def test_a_place_by_hand_goes_before_priority_and_time() -> None:
    here = at([waits("high", GANG, priority=100, ago=60), waits("by-hand", GANG, place=NOW - 1e6)])
    assert set(started(here)) == {"by-hand"}
    assert why("high", here).ahead[0].sentence.startswith("put ahead by hand")


# --- preemption -------------------------------------------------------------------------------------------------------


def test_nobody_leaves_while_preemption_is_off() -> None:
    here = at([waits("r", GANG, priority=100)], [holds("low", "n1", priority=-100, preemptible=True)])
    assert preempted(here) == []
    assert preempted(replace(here, rules=PREEMPT)) == [("low", "r")]


def test_the_cheapest_leaves() -> None:
    held = [
        holds("long", "n1", demand(gpus=4), since=5000, preemptible=True),
        holds("saved", "n2", demand(gpus=4), since=9000, saved_at=NOW - 10, preemptible=True),
    ]
    here = at([waits("r", demand(gpus=4), priority=100)], held, rules=PREEMPT)
    assert preempted(here) == [("saved", "r")]
    lower = replace(held[0], priority=-100)
    assert preempted(replace(here, holding=(lower, held[1]))) == [("long", "r")]


def test_one_large_leaves_rather_than_four_small_that_lose_as_much() -> None:
    small = [holds(f"s{n}", "n1", demand(gpus=1), since=100, preemptible=True) for n in range(4)]
    large = holds("large", "n2", demand(gpus=4), since=100, preemptible=True)
    here = at([waits("r", demand(gpus=4), priority=100)], [*small, large], rules=PREEMPT)
    assert preempted(here) == [("large", "r")]


def test_no_more_leave_than_are_needed() -> None:
    small = [holds(f"s{n}", "n1", demand(gpus=1), since=100, preemptible=True) for n in range(4)]
    here = at([waits("r", demand(gpus=2), priority=100)], small, rooms(1), PREEMPT)
    assert len(preempted(here)) == 2
    leaving = tuple(replace(each, leaving=True, preemptible=False) for each in small[:2])
    assert preempted(replace(here, holding=(*leaving, *small[2:]))) == []


def test_equal_or_higher_priority_stays_and_so_does_what_cannot_save() -> None:
    for changes in ({"priority": 100}, {"preemptible": False}):
        held = holds("h", "n1", demand(gpus=4), **{"priority": 0, "preemptible": True, **changes})
        assert preempted(at([waits("r", GANG, priority=100)], [held], rules=PREEMPT)) == []


def test_nobody_leaves_where_that_would_not_be_enough() -> None:
    held = [
        holds("low", "n1", demand(gpus=4), preemptible=True),
        holds("same", "n2", demand(gpus=4), priority=100, preemptible=True),
    ]
    assert preempted(at([waits("r", GANG, priority=100)], held, rules=PREEMPT)) == []


def test_a_quota_can_be_had_by_preemption_too() -> None:
    rules = queues(Queue(name="small", max_accelerators=4), preemption=True)
    held = [
        holds("other", "n1", demand(gpus=1), since=1, preemptible=True),
        holds("mine", "n2", demand(gpus=4), since=99, queue="small", preemptible=True),
    ]
    here = at([waits("r", demand(gpus=2), priority=100, queue="small")], held, rules=rules)
    assert preempted(here) == [("mine", "r")]


def test_nobody_leaves_for_one_whom_another_would_forestall() -> None:
    """One of low priority that has waited very long is ahead, and would take the room."""
    rules = Scheduler(preemption=True, ageing=3600.0)
    aged = waits("aged", demand(gpus=4), priority=-100, ago=1e5)
    held = [holds("low", "n1", demand(gpus=4), priority=-100, preemptible=True, submitted_at=NOW - 60)]
    here = at([aged, waits("r", demand(gpus=4), priority=100)], held, rooms(1), rules)
    assert preempted(here) == []
    assert preempted(replace(here, waiting=here.waiting[1:])) == [("low", "r")]


def test_one_that_would_come_back_ahead_is_not_sent_away() -> None:
    """Else it would leave and come back for ever."""
    rules = Scheduler(preemption=True, ageing=3600.0)
    held = [holds("low", "n1", demand(gpus=4), preemptible=True, submitted_at=NOW - 1e6)]
    assert preempted(at([waits("r", demand(gpus=4), priority=100)], held, rooms(1), rules)) == []


RUNS = st.lists(
    st.tuples(st.sampled_from([-100, 0, 100]), st.sampled_from([1, 2, 4]), st.integers(1, 2), st.integers(0, 9000)),
    min_size=2,
    max_size=8,
)


@given(RUNS)
@settings(max_examples=50, deadline=None)
def test_preemption_comes_to_rest(asked: list[tuple[int, int, int, int]]) -> None:
    """Nobody comes and nobody ends: each leaves at most once for each that is above it, and then all is quiet."""
    world = World(rules=Scheduler(preemption=True, ageing=3600.0), nodes={each.name: each for each in rooms(2)})
    left = 0
    for number, (priority, gpus, size, ago) in enumerate(sorted(asked, key=lambda each: -each[3])):
        waiter = waits(f"r{number}", demand(size, gpus), priority=priority, ago=ago)
        world.waiting[waiter.run] = waiter
        for _ in range(50):
            plan = schedule(world.situation())
            if not plan.starts and not plan.preemptions:
                break
            left += len(plan.preemptions)
            world.carry_out(plan, at_once=True)
            for run in [run for run, holder in world.holding.items() if holder.leaving]:
                world.end(run)
        else:
            raise AssertionError("it goes on for ever")
    assert left <= len(asked) ** 2
