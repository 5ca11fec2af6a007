"""Why a run waits, case by case: what is in its way, by kind, name and sentence, and what would have to change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.controller.schedule.fits import never
from jobs.controller.schedule.plan import schedule
from jobs.controller.schedule.types import Demand
from jobs.controller.schedule.view import view
from jobs.spec import Limits, Queue, Scheduler
from tests.unit.jobs.controller_schedule.parts import (
    NOW,
    at,
    blockers,
    demand,
    holds,
    queues,
    room,
    rooms,
    started,
    waits,
    why,
)

GANG = demand(2, 4)


def test_two_gangs_that_do_not_fit_together() -> None:
    """The demo: two runs of 2 nodes with 4 GPUs each, on 8 GPUs."""
    here = at([waits("first", GANG, ago=60), waits("second", GANG)])
    assert started(here) == {"first": ("n1", "n2")}
    running = at([waits("second", GANG)], [holds("first", "n1 n2", GANG)])
    told = why("second", running)
    assert [each.kind for each in told.blocked_by] == ["resources"]
    block = told.blocked_by[0]
    assert told.sentence == block.sentence
    assert block.sentence.startswith("it needs 2 nodes with 4 GPUs and 1 CPU each; no node has room for it")
    assert block.names == ["first"]
    assert "first holds what is missing" in block.sentence
    assert told.would_start_if == [block.would_start_if]
    assert "n1 and n2" in block.would_start_if
    assert told.position == 1
    assert told.ahead == []
    assert [(note.node, note.usable) for note in told.nodes] == [("n1", False), ("n2", False)]
    assert "held by first" in told.nodes[0].sentence


def test_half_a_gang_is_not_enough() -> None:
    here = at([waits("big", GANG)], [holds("one", "n2", demand(gpus=1))])
    assert started(here) == {}
    block = blockers("big", here)["resources"]
    assert "n1 could take it, 1 more node has to" in block.sentence
    assert "1 node of n2" in block.would_start_if
    assert [(note.node, note.usable) for note in why("big", here).nodes] == [("n1", True), ("n2", False)]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (demand(1, 1, cpus=9), "no node has room"),
        (demand(1, 1, cpus=1, memory_gb=33), "no node has room"),
        (demand(1, 4), "no node has room"),
    ],
)
def test_cpus_memory_and_gpus_count_on_each_node(asked: Demand, words: str) -> None:
    held = [holds(f"h{n}", f"n{n}", demand(1, 1, cpus=8, memory_gb=32)) for n in (1, 2)]
    here = at([waits("r", asked)], held)
    assert started(here) == {}
    assert words in blockers("r", here)["resources"].sentence
    assert started(at([waits("r", demand(1, 3, cpus=8, memory_gb=32))], held)) != {}


def test_the_quota_of_its_queue() -> None:
    rules = queues(Queue(name="small", max_accelerators=4))
    held = holds("h1", "n1", demand(gpus=3), queue="small")
    here = at([waits("r", demand(gpus=2), queue="small")], [held], rules=rules)
    assert started(here) == {}
    block = blockers("r", here)["queue_quota"]
    assert block.sentence == "the quota of queue small is 4 accelerators, 3 are held by h1, and it asks for 2"
    assert block.names == ["h1"]
    assert block.would_start_if.startswith("1 accelerator of queue small")
    assert started(replace(here, waiting=(waits("r", demand(gpus=1), queue="small"),))) == {"r": ("n1",)}
    assert started(replace(here, waiting=(waits("r", demand(gpus=0), queue="small"),))) != {}


def test_the_quota_of_its_user_and_one_of_his_own() -> None:
    rules = Scheduler(limits=Limits(max_accelerators_per_user=4), user_quotas={"bob": 2})
    held = [holds("a1", "n1", demand(gpus=3)), holds("b1", "n2", demand(gpus=1), user="bob")]
    here = at([waits("a2", demand(gpus=2), ago=9), waits("b2", demand(gpus=2), user="bob")], held, rules=rules)
    assert started(here) == {}
    assert blockers("a2", here)["user_quota"].sentence.startswith("the quota of user ann is 4 accelerators")
    block = blockers("b2", here)["user_quota"]
    assert block.sentence.startswith("the quota of user bob is 2 accelerators")
    assert block.names == ["b1"]


def test_how_many_runs_at_once() -> None:
    held = [holds("a1", "n1"), holds("b1", "n2", user="bob")]
    here = at([waits("r")], held, rules=Scheduler(limits=Limits(max_active_runs=2)))
    assert list(blockers("r", here)) == ["active_runs"]
    assert "2 runs are active" in why("r", here).sentence
    here = at([waits("r")], held, rules=Scheduler(limits=Limits(max_active_runs_per_user=1)))
    assert list(blockers("r", here)) == ["user_runs"]
    assert "ann has 1 active run" in why("r", here).sentence
    assert started(here) == {}


def test_how_much_of_a_sweep_at_once() -> None:
    """Those behind it that are not of the sweep go on."""
    sweep = [waits(f"s-{n}", ago=9, sweep="s", sweep_parallel=2) for n in (2, 3)]
    here = at([*sweep, waits("other")], [holds("s-1", "n1", sweep="s")])
    assert set(started(here)) == {"s-2", "other"}
    block = blockers("s-3", here)["sweep"]
    assert "2 runs of its sweep" in block.sentence
    assert block.names == ["s"]


def test_a_hold_names_who_and_takes_the_place_away() -> None:
    here = at([waits("held", ago=9, held="bob: wait for the data"), waits("r")])
    assert set(started(here)) == {"r"}
    told = why("held", here)
    assert told.sentence == "it is held by bob: wait for the data"
    assert told.position is None
    assert told.estimated_start is None
    assert told.blocked_by[0].names == ["bob"]
    assert "releases it" in told.blocked_by[0].would_start_if
    assert why("r", here).position == 1


def test_a_hold_keeps_nothing_from_others() -> None:
    here = at([waits("held", GANG, ago=9, held="bob"), waits("r", GANG)])
    assert started(here) == {"r": ("n1", "n2")}
    # And yet all that would be in its way is said, not only the hold.
    assert list(blockers("held", at([waits("held", GANG, held="bob")], [holds("h1", "n1")]))) == ["hold", "resources"]


def test_it_waits_for_the_end_of_another_or_for_its_back_off() -> None:
    here = at([waits("r", after=("old",)), waits("again", ago=5, not_before=NOW + 90)])
    assert started(here) == {}
    assert why("r", here).blocked_by[0].names == ["old"]
    assert "waits for old to end" in why("r", here).sentence
    assert list(blockers("again", here)) == ["back_off"]
    assert "90 s" in why("again", here).sentence
    assert why("again", here).estimated_start == NOW + 90
    assert set(started(replace(here, now=NOW + 90))) == {"again"}


def test_a_cordon_in_the_way() -> None:
    nodes = (room("n1"), room("n2", cordoned="bob: its fan"))
    here = at([waits("big", GANG, ago=9), waits("r", GANG), waits("small")], nodes=nodes)
    block = blockers("big", here)["cordon"]
    assert block.names == ["n2"]
    assert "n2 is cordoned" in block.sentence
    assert block.would_start_if == "n2 is uncordoned"
    note = next(each for each in why("big", here).nodes if each.node == "n2")
    assert "bob: its fan" in note.sentence
    assert not note.usable
    # Nobody knows when that is taken back: what is free is not kept for it.
    assert started(here) == {"small": ("n1",)}
    assert why("big", here).estimated_start is None


def test_a_node_that_was_suspected_twice_is_left_out() -> None:
    here = at([waits("r", excluded=("n1",))])
    assert started(here) == {"r": ("n2",)}
    here = at([waits("r", GANG, excluded=("n1",))])
    assert started(here) == {}
    block = blockers("r", here)["suspected"]
    assert block.names == ["n1"]
    assert "suspected twice" in block.sentence
    assert block.would_start_if


def test_work_that_raydeck_did_not_start() -> None:
    here = at([waits("r", demand(gpus=4))], nodes=[room("n1", foreign=1), room("n2", foreign=2)])
    assert started(here) == {}
    assert "work that raydeck did not start" in blockers("r", here)["resources"].sentence
    told = why("r", here)
    assert "2 GPUs held by work that raydeck did not start" in told.nodes[1].sentence
    assert told.estimated_start is None
    assert "did not start" in told.estimated_from


def test_while_ray_does_not_answer_nothing_is_let_go() -> None:
    here = replace(at([waits("r")], silent="the dashboard refuses the connection"), rooms=None)
    assert schedule(here).starts == ()
    told = why("r", here)
    assert told.blocked_by[0].kind == "ray"
    assert "the dashboard refuses the connection" in told.sentence
    assert view(here, 0, 10).accelerators is None
    assert view(here, 0, 10).free_accelerators is None


def test_who_is_ahead_and_why() -> None:
    here = at(
        [
            waits("urgent", GANG, priority=100, user="bob"),
            waits("older", GANG, ago=60),
            waits("r", GANG),
            waits("late", GANG, ago=-1),
        ],
        [holds("h", "n1 n2", GANG)],
    )
    told = why("r", here)
    assert told.position == 3
    assert told.ahead_total == 2
    assert [(each.run, each.priority, each.gpus) for each in told.ahead] == [
        ("urgent", "high", 8),
        ("older", "normal", 8),
    ]
    assert told.ahead[0].sentence.startswith("higher priority; it needs 2 nodes")
    assert told.ahead[1].sentence.startswith("it came earlier; ")
    assert list(blockers("r", here)) == ["resources", "order"]
    assert blockers("r", here)["order"].names == ["urgent", "older"]


def test_one_that_waits_only_for_its_turn_says_whose() -> None:
    here = at([waits("big", GANG, ago=60), waits("r")], [holds("h", "n2")])
    assert started(here) == {}
    told = why("r", here)
    assert list(blockers("r", here)) == ["order"]
    assert told.blocked_by[0].names == ["big"]
    assert told.sentence.startswith("big is ahead and waits for the room")
    assert "no time limit" in told.sentence
    assert told.would_start_if == ["big starts"]


def test_one_that_does_not_wait_says_so() -> None:
    here = at([], [holds("h", "n1")])
    told = why("h", here)
    assert told.blocked_by == []
    assert told.sentence == "h does not wait: it is queued"


@pytest.mark.parametrize(
    ("asked", "queue", "words"),
    [
        (demand(gpus=5), "default", "it needs 1 node with 5 GPUs and 1 CPU, and of the cluster's 2 only 0 can ever"),
        (demand(3, 1), "default", "it needs 3 nodes with 1 GPU and 1 CPU each, and of the cluster's 2 only 2"),
        (demand(cpus=17), "default", "n1: it has 16 CPUs, not 17"),
        (demand(memory_gb=65), "default", "n1: it has 64 GB of memory, not 65"),
        (demand(labels={"pool": "x"}), "default", "n1: it has no label pool"),
        (demand(2, 4), "small", "it asks for 8 accelerators, and the quota of queue small is 4"),
        (demand(2, 2), "small", ""),
        (demand(2, 4), "default", ""),
    ],
)
def test_what_can_never_start_is_said_at_launch(asked: Demand, queue: str, words: str) -> None:
    rules = queues(Queue(name="small", max_accelerators=4))
    said = never(asked, rules, queue, "ann", rooms(2))
    assert words in said
    assert bool(said) == bool(words)
    here = at([waits("r", asked, queue=queue)], rules=rules)
    assert (list(blockers("r", here)) == ["never"]) == bool(words)
    assert bool(started(here)) != bool(words)


def test_never_looks_past_cordons_and_at_no_nodes_where_ray_is_silent() -> None:
    assert never(GANG, Scheduler(), "default", "ann", (room("n1"), room("n2", cordoned="bob"))) == ""
    assert never(demand(99, 99), Scheduler(), "default", "ann", None) == ""
    assert "user bob is 2" in never(GANG, Scheduler(user_quotas={"bob": 2}), "default", "bob", None)


def test_one_that_can_no_longer_fit_keeps_nothing_from_others() -> None:
    """The quota was lowered, and a node went, while they waited."""
    rules = queues(Queue(name="small", max_accelerators=4))
    waiting = [waits("much", demand(gpus=8), ago=9, queue="small"), waits("r", demand(gpus=4), queue="small")]
    assert set(started(at(waiting, nodes=rooms(1, 8), rules=rules))) == {"r"}
    waiting = [waits("many", demand(3, 4), ago=9), waits("r", GANG)]
    here = at(waiting)
    assert set(started(here)) == {"r"}
    assert list(blockers("many", here)) == ["never", "resources"][:1]


def test_the_page_has_queues_users_and_those_that_wait() -> None:
    rules = queues(Queue(name="small", max_accelerators=4), Queue(name="urgent", priority="high"))
    here = at(
        [
            waits("r1", demand(gpus=4), ago=5, queue="small", user="bob"),
            waits("r2", held="bob"),
            waits("r3", GANG, place=NOW),
        ],
        [holds("h", "n1", demand(gpus=2), queue="small", user="bob")],
        nodes=[room("n1"), room("n2", foreign=1)],
        rules=rules,
    )
    page = view(here, 0, 10)
    uses = {each.name: each for each in page.queues}
    assert (uses["small"].used_accelerators, uses["small"].max_accelerators, uses["small"].waiting) == (2, 4, 1)
    assert (uses["default"].default, uses["default"].waiting_accelerators) == (True, 9)
    assert uses["urgent"].priority == "high"
    assert [(each.user, each.running, each.waiting) for each in page.users] == [("ann", 0, 2), ("bob", 1, 1)]
    assert [(each.run, each.position, each.moved) for each in page.waiting] == [
        ("r1", 1, False),
        ("r3", 2, True),
        ("r2", None, False),
    ]
    assert (page.waiting_total, page.held_total, page.active_runs) == (3, 1, 1)
    assert (page.accelerators, page.free_accelerators, page.foreign_accelerators) == (8, 5, 1)
