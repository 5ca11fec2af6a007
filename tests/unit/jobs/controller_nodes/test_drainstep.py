"""How a drain goes on, by table and for any order of what may be seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.controller.nodes.drainstep import Ask, Budget, EndOther, SeenNode, step
from jobs.model import Run, RunState
from jobs.nodeview import Drain
from tests.unit.jobs.controller_nodes.parts import NOW, drain, left, other, run, seen

CHECK_SECONDS = 30.0
"""The default of the policy."""


def once(
    a_drain: Drain, at: float = NOW, budget: Budget | None = None, runs: dict[str, Run] | None = None, **there: SeenNode
) -> tuple[Drain, list[Ask | EndOther]]:
    done = step(
        a_drain, {name.replace("_", "-"): each for name, each in there.items()}, runs or {}, budget or Budget(), at
    )
    return done.drain, done.actions


def test_a_run_is_asked_to_leave_and_the_node_is_empty_when_it_has_stayed_so() -> None:
    before = run("lm-1", "w1 w2", step=120, saved=100)
    going, actions = once(drain("w1"), w1=seen(runs=(before,)))
    assert actions == [Ask("lm-1", "w1")]
    node = going.nodes[0]
    assert (node.state, node.deadline_at, node.runs[0].nodes) == ("moving", NOW + 1800, ["w1", "w2"])
    assert node.note == "waits for lm-1"

    saving = before.model_copy(update={"state": RunState.SAVING})
    going, _ = once(going, NOW + 1, runs={"lm-1": saving}, w1=seen(runs=(saving,)))
    assert going.nodes[0].runs[0].state == "saving"

    gone = left(before, step=131, saved=131)
    going, actions = once(going, NOW + 6, runs={"lm-1": gone}, w1=seen())
    entry = going.nodes[0].runs[0]
    assert actions == []
    assert (entry.state, entry.left_at, entry.step, entry.saved_step, entry.lost_steps) == (
        "left",
        NOW + 5,
        131,
        131,
        0,
    )
    assert going.nodes[0].state == "checking"

    going, _ = once(going, NOW + 6 + CHECK_SECONDS - 1, runs={"lm-1": gone}, w1=seen())
    assert (going.nodes[0].state, going.state) == ("checking", "running")
    going, _ = once(going, NOW + 6 + CHECK_SECONDS, runs={"lm-1": gone}, w1=seen())
    assert (going.nodes[0].state, going.state, going.ended_at) == ("empty", "done", NOW + 36)

    again = gone.model_copy(
        update={"state": RunState.RUNNING, "attempts": [*gone.attempts, *run("lm-1", "w3", 2).attempts[1:]]}
    )
    going, _ = once(going, NOW + 40, runs={"lm-1": again}, w1=seen())
    assert (going.nodes[0].runs[0].state, going.nodes[0].runs[0].again_on) == ("again", ["w3"])


def test_steps_since_the_checkpoint_are_lost_and_counted() -> None:
    before = run("lm-1", "w1", step=120, saved=100)
    going, _ = once(drain("w1"), w1=seen(runs=(before,)))
    gone = left(before, step=128, saved=100)
    going, _ = once(going, NOW + 6, runs={"lm-1": gone}, w1=seen())
    assert going.nodes[0].runs[0].lost_steps == 28
    assert going.lost_steps == 28


def test_a_node_that_does_not_stay_empty_is_not_called_so() -> None:
    going, _ = once(drain("w1"), w1=seen())
    assert going.nodes[0].state == "checking"
    going, actions = once(going, NOW + 20, w1=seen(runs=(run("lm-9", "w1"),)))
    assert going.nodes[0].state == "moving"
    assert going.nodes[0].note == "it did not stay empty: lm-9"
    assert actions == [Ask("lm-9", "w1")]
    going, _ = once(going, NOW + 40, w1=seen())
    assert (going.nodes[0].state, going.nodes[0].empty_since) == ("checking", NOW + 40)


@pytest.mark.parametrize("there", [seen(ray="dead"), seen(silent=True)], ids=["dead for Ray", "silent"])
def test_a_node_that_does_not_answer_is_drained_at_once(there: SeenNode) -> None:
    before = run("lm-1", "w1 w2")
    going, actions = once(drain("w1"), w1=replace(there, runs=(before,)))
    assert actions == [Ask("lm-1", "w1", now=True)]
    going, _ = once(going, NOW + 1, w1=there)
    node = going.nodes[0]
    assert (node.state, node.dead, going.state) == ("empty", True, "done")
    assert node.note == "it does not answer: there was nothing to wait for"


def test_a_person_may_say_that_it_is_off() -> None:
    going, actions = once(drain("w1", gone=True), w1=seen(ray="unknown", runs=(run("lm-1", "w1"),)))
    assert actions == [Ask("lm-1", "w1", now=True)]
    going, _ = once(going, NOW + 1, w1=seen(ray="unknown"))
    assert going.nodes[0].note == "a person says that it is off: there was nothing to wait for"


@pytest.mark.parametrize(
    ("choice", "state", "overdue", "now"),
    [("wait", "moving", True, False), ("stop", "moving", False, True), ("give_up", "given up", False, False)],
)
def test_what_follows_the_deadline(choice: str, state: str, overdue: bool, now: bool) -> None:
    there = seen(runs=(run("lm-1", "w1"),))
    going, _ = once(drain("w1", at_deadline=choice, deadline_seconds=60), w1=there)
    going, actions = once(going, NOW + 59, w1=there)
    assert actions == [Ask("lm-1", "w1")]
    going, actions = once(going, NOW + 60, w1=there)
    node = going.nodes[0]
    assert (node.state, node.overdue) == (state, overdue)
    assert actions == [Ask("lm-1", "w1", now=now)]
    if choice == "give_up":
        assert node.note == "given up: lm-1 after 60 s; it stays cordoned"
        assert going.state == "given up"


def test_without_a_hold_the_drain_of_a_node_stops() -> None:
    there = seen(runs=(run("lm-1", "w1"),))
    going, _ = once(drain("w1", "w2"), w1=there, w2=there)
    going, actions = once(going, NOW + 1, w1=replace(there, held=False), w2=there)
    assert [node.state for node in going.nodes] == ["stopped", "moving"]
    assert actions == [Ask("lm-1", "w2")]
    going, _ = once(going, NOW + 2, w1=replace(there, held=False), w2=replace(there, held=False))
    assert going.state == "stopped"


def test_a_node_waits_for_its_turn() -> None:
    going, actions = once(drain("w1", "w2"), budget=Budget(nodes=1), w1=seen(), w2=seen(runs=(run("lm-1", "w2"),)))
    assert [node.state for node in going.nodes] == ["checking", "waiting"]
    assert actions == []
    assert going.nodes[1].deadline_at is None
    going, actions = once(going, NOW + 9, budget=Budget(nodes=1), w1=seen(), w2=seen(runs=(run("lm-1", "w2"),)))
    assert (going.nodes[1].state, going.nodes[1].deadline_at) == ("moving", NOW + 9 + 1800)


def test_one_that_is_away_already_takes_nobodys_turn() -> None:
    going, _ = once(drain("w1", "w2", "w3"), budget=Budget(nodes=0), w1=seen(away=True), w2=seen(ray="dead"), w3=seen())
    assert [node.state for node in going.nodes] == ["checking", "empty", "waiting"]


def test_others_are_listed_and_left_or_ended_when_asked() -> None:
    theirs = other("trainer")
    going, actions = once(drain("w1"), w1=seen(others=(theirs,)))
    assert (going.nodes[0].state, going.nodes[0].others, actions) == ("checking", [theirs], [])
    assert "left alone: actor trainer, 1 GPU" in going.nodes[0].note
    going, actions = once(drain("w1", others="stop"), w1=seen(others=(theirs,)))
    assert (going.nodes[0].state, actions) == ("moving", [EndOther("id", theirs)])
    going, _ = once(going, NOW + 1, w1=seen())
    assert going.nodes[0].state == "checking"


def test_a_run_that_ends_while_it_is_asked_is_told_as_ended() -> None:
    before = run("lm-1", "w1")
    going, _ = once(drain("w1"), w1=seen(runs=(before,)))
    over = left(before, state=RunState.SUCCEEDED).model_copy(update={"reason": "all ranks ended"})
    going, _ = once(going, NOW + 1, runs={"lm-1": over}, w1=seen())
    assert (going.nodes[0].runs[0].state, going.nodes[0].runs[0].note) == ("ended", "succeeded: all ranks ended")


_SEEN = st.builds(
    lambda held, ray, silent, runs, others, away: seen(
        held=held,
        ray=ray,
        silent=silent,
        away=away,
        runs=tuple(run(f"lm-{each}", "w1 w2 w3") for each in runs),
        others=tuple(other(str(each)) for each in others),
    ),
    st.booleans().map(lambda each: each),
    st.sampled_from(["alive", "alive", "dead", "unknown"]),
    st.booleans(),
    st.sets(st.integers(1, 3)),
    st.sets(st.integers(1, 2)),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(_SEEN, _SEEN, _SEEN, st.integers(0, 3), st.floats(0.1, 900)), max_size=25),
    st.sampled_from(["wait", "stop", "give_up"]),
    st.sampled_from(["leave", "stop"]),
)
def test_whatever_is_seen(
    steps: list[tuple[SeenNode, SeenNode, SeenNode, int, float]], at_deadline: str, others: str
) -> None:
    going, now = drain("w1", "w2", "w3", at_deadline=at_deadline, others=others), NOW
    for w1, w2, w3, room, pause in steps:
        now += pause
        before = going
        there = {"w1": w1, "w2": w2, "w3": w3}
        began = [node.state != "waiting" for node in before.nodes]
        going, actions = once(going, now, budget=Budget(nodes=room), runs={}, w1=w1, w2=w2, w3=w3)
        for old, node in zip(before.nodes, going.nodes, strict=True):
            seen_now = there[node.node.name]
            # What is over stays as it ended, and nobody is asked for it any more.
            if old.over:
                assert node.state == old.state
                assert not any(isinstance(each, Ask) and each.node == node.node.name for each in actions)
            # Nobody is asked to leave a node that nobody holds, or whose turn has not come.
            if not seen_now.held or node.state == "waiting":
                assert not any(isinstance(each, Ask) and each.node == node.node.name for each in actions)
            # A node is never called empty while a run of ours is there, nor before it stayed empty, unless it is dead.
            if node.state == "empty" and not old.over:
                assert not seen_now.runs
                assert node.dead or (old.state == "checking" and now - (node.empty_since or now) >= CHECK_SECONDS)
            # Only an urgent drain does not let runs save.
            for each in actions:
                if isinstance(each, Ask) and each.node == node.node.name and each.now:
                    late = node.deadline_at is not None and now >= node.deadline_at
                    assert seen_now.dead or (late and at_deadline == "stop")
            if others == "leave":
                assert not any(isinstance(each, EndOther) for each in actions)
        # No more begin than may.
        new = [
            node
            for node, was in zip(going.nodes, began, strict=True)
            if not was and node.state not in ("waiting", "stopped")
        ]
        assert sum(not (there[node.node.name].away or there[node.node.name].dead) for node in new) <= room
        assert (going.state == "running") == (not all(node.over for node in going.nodes))
        # The same seen again changes nothing but what the clock does.
        again, _ = once(going, now, budget=Budget(nodes=0), runs={}, w1=w1, w2=w2, w3=w3)
        assert again == going
        # It survives being written down.
        assert Drain.model_validate_json(going.model_dump_json()) == going
