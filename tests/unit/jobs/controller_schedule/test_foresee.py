"""When the first of those that wait are likely to start, worked out for all of them at once."""

from __future__ import annotations

from jobs.controller.schedule.estimate import estimate, foresee
from jobs.controller.schedule.types import Demand, Holder, Room, Situation, Waiter
from jobs.spec import Scheduler

NOW = 1000.0
ROOMS = tuple(Room(f"id-{name}", name, {"GPU": 4.0, "CPU": 8.0}) for name in ("n1", "n2"))


def situation(*waiting: Waiter, limit: float | None = 600.0) -> Situation:
    whole = Demand(nodes=2, gpus=4.0, cpus=1.0)
    holder = Holder("h", "ann", "default", 0, whole, ("id-n1", "id-n2"), started_at=NOW - 100, limit_seconds=limit)
    return Situation(waiting, (holder,), ROOMS, Scheduler(), NOW)


def waits(run: str, at: float, **changes: object) -> Waiter:
    demand = Demand(nodes=1, gpus=4.0, cpus=1.0)
    values = {"run": run, "user": "ann", "queue": "default", "priority": 0, "submitted_at": at, "demand": demand}
    return Waiter(**{**values, **changes})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_each_starts_when_the_ends_before_it_leave_room() -> None:
    here = situation(*(waits(f"r{index}", index, limit_seconds=50.0) for index in range(4)))
    assert foresee(here) == {"r0": NOW + 500, "r1": NOW + 500, "r2": NOW + 550, "r3": NOW + 550}


def test_it_is_what_the_explanation_of_each_says() -> None:
    here = situation(
        waits("a", 1.0, limit_seconds=50.0),
        waits("b", 2.0, demand=Demand(nodes=2, gpus=2.0, cpus=1.0), expected_seconds=30.0),
        waits("c", 3.0, held="bob"),
        waits("d", 4.0),
    )
    found = foresee(here)
    for waiter in here.waiting:
        if not waiter.held:
            assert found.get(waiter.run) == estimate(waiter, here)[0]
    assert set(found) == {"a", "b", "d"}


def test_nothing_is_foreseen_where_nothing_tells() -> None:
    assert foresee(situation(waits("a", 1.0), limit=None)) == {}
    assert foresee(Situation((waits("a", 1.0),), (), None, Scheduler(), NOW)) == {}
