"""What cordon, uncordon, drain and retire say before they are done, and what they ask to be typed."""

from __future__ import annotations

from typing import Any

import pytest

from console import upkeep
from console.preview import Preview
from console.state.fleet import FleetStore, Node
from jobs.nodeview import DrainPolicy, NodePlan, NodesPlan, Other, RunStake
from probes.reading import Facts

LM = RunStake(
    run="lm-a1", workflow="lm", user="alice", state="running", gpus=4, nodes=["w1", "w2"], step=1200,
    checkpoint_step=1000, restarts_on=["w3", "w4"],
)  # fmt: skip
VLLM = Other(kind="actor", id="abcdef12", name="vllm", job="7", gpus=1, since=40.0)


def plan(action: str, *nodes: NodePlan, **more: Any) -> NodesPlan:
    values: dict[str, Any] = {
        "nodes_open": 4, "nodes_open_after": 4 - len(nodes), "gpus_open": 16, "gpus_open_after": 16 - 4 * len(nodes),
        **more,
    }  # fmt: skip
    return NodesPlan(action=action, nodes=list(nodes), **values)  # type: ignore[arg-type]


def node(name: str = "w1", **more: Any) -> NodePlan:
    return NodePlan(name=name, gpus=4, **more)


def typed(found: Preview) -> tuple[str, str]:
    return found.ask, found.expected


def test_a_node_is_named_with_what_ray_and_the_probe_know_of_it() -> None:
    fleet = FleetStore()
    fleet.add(Node(name="w1", address="alias-of-w1", ray_address="10.0.0.1", facts=Facts(machine_id="5f" * 16)))
    fleet.add(Node(name="w2", address="alias-of-w2"))
    first, second, third = upkeep.refs(["w1", "w2", "w3", "w1"], fleet)
    assert (first.name, first.address, first.machine_id) == ("w1", "10.0.0.1", "5f" * 16)
    assert (second.address, third.address, third.machine_id) == ("", "", "")  # how ssh reaches it is not what Ray knows


def test_a_cordon_says_what_it_does_not_do() -> None:
    found = upkeep.preview(plan("cordon", node(runs=[LM], others=[VLLM])), you="bob", now_wall=100.0)
    assert found.title == "Cordon w1"
    assert found.lines == (
        "w1 takes no new work from raydeck. What runs there goes on: a cordon ends nothing.",
        "Open for new work afterwards: 3 nodes with 12 GPUs; now 4 with 16.",
        "lm-a1 (running, alice) on 4 GPUs of w1 and w2, at step 1,200, checkpoint at step 1,000; it goes on.",
        "Not raydeck's, on w1: actor vllm of job 7, 1 GPU, for 1m00s; it goes on.",
    )
    assert not found.warnings  # nothing of anybody is ended
    assert typed(found) == ("y", "y")
    assert found.wants_reason


def test_several_are_counted_and_a_run_on_two_is_told_once() -> None:
    found = upkeep.preview(plan("cordon", node("w1", runs=[LM]), node("w2", runs=[LM]), node("w3")))
    assert found.title == "Cordon 3 nodes"
    assert sum("lm-a1" in line for line in found.lines) == 1
    assert "w3 holds no run of raydeck's." in found.lines
    assert typed(found) == ("count", "3")


def test_holding_gpus_is_called_best_effort_once() -> None:
    notes = ["idle GPUs are held in Ray too; best effort: what waits in Ray already goes first"]
    found = upkeep.preview(plan("cordon", node(), notes=notes), gpus=True)
    assert sum("best effort" in line for line in found.lines) == 1
    assert "what asks for no GPU lands there anyway" in found.lines[-1]


def test_queued_runs_that_now_wait_are_told() -> None:
    found = upkeep.preview(plan("cordon", node(), waits=["lm-q waits: no node with 4 free GPUs"]))
    at = found.lines.index("Queued runs that then have to wait:")
    assert found.lines[at + 1] == "lm-q waits: no node with 4 free GPUs"


def test_the_last_open_node_and_an_unknown_one_are_warned_of() -> None:
    found = upkeep.preview(plan("cordon", node(known=False, alive=False), nodes_open_after=0))
    assert found.warnings == (
        "Ray has no node w1, now or before",
        "no node stays open: nothing new can start anywhere",
    )


def test_what_is_so_already_changes_nothing() -> None:
    already = ["cordoned by alice: fan, since 12:00", "w1 is drained by bob"]
    found = upkeep.preview(plan("cordon", node(already=already), changes=False))
    assert found.lines == ("Nothing changes.", "w1: cordoned by alice: fan, since 12:00", "w1 is drained by bob")
    assert not found.wants_reason


def test_an_uncordon_says_whether_work_comes_back() -> None:
    opens = upkeep.preview(plan("uncordon", node(), nodes_open_after=5, gpus_open_after=20.0))
    assert opens.lines[0] == "New work may start again on w1."
    stays = upkeep.preview(plan("uncordon", node(already=["still cordoned by bob"]), nodes_open_after=4))
    assert stays.lines[0] == "A hold is taken off w1; no node takes new work for that yet."
    assert stays.lines[-1] == "w1: still cordoned by bob"


def test_a_drain_says_where_runs_start_again_or_why_they_wait() -> None:
    waits = LM.model_copy(update={"run": "lm-b2", "restarts_on": [], "waits_for": "no node with 4 free GPUs"})
    found = upkeep.preview(plan("drain", node(runs=[LM, waits], others=[VLLM])), you="bob")
    text = "\n".join(found.lines)
    assert "asked to save and to leave, with its whole gang" in text
    assert "that costs it no retry" in text
    assert "Each node has 30m00s from when its turn comes; then somebody has to choose" in text
    assert "it starts again on w3 and w4." in text
    assert "it then has to wait: no node with 4 free GPUs." in text
    assert "actor vllm of job 7, 1 GPU; it is left alone." in text
    assert found.warnings == ("2 runs of alice, not yours",)
    assert typed(found) == ("name", "w1")


@pytest.mark.parametrize(
    ("nodes", "policy", "expected"),
    [
        ([node()], {}, ("y", "y")),
        ([node(others=[VLLM])], {}, ("y", "y")),
        ([node(others=[VLLM])], {"others": "stop"}, ("name", "w1")),
        ([node(runs=[LM])], {}, ("name", "w1")),
        ([node("w1"), node("w2")], {}, ("count", "2")),
    ],
)
def test_what_a_drain_asks_for(nodes: list[NodePlan], policy: dict[str, Any], expected: tuple[str, str]) -> None:
    assert typed(upkeep.preview(plan("drain", *nodes), policy=DrainPolicy(**policy))) == expected


def test_a_drain_with_a_limit_tells_the_rounds() -> None:
    later = LM.model_copy(update={"run": "lm-b2", "restarts_on": [], "nodes": ["w2"]})
    found = upkeep.preview(
        plan("drain", node("w1", turn=1, runs=[LM]), node("w2", turn=2, runs=[later]), node("w3", turn=3)),
        policy=DrainPolicy(most_nodes=1, most_share=0.25, at_deadline="stop", others="stop", deadline_seconds=600),
    )
    text = "\n".join(found.lines)
    assert "At most 1 node and 25% of the GPUs away at a time; a node stays away until it is uncordoned." in text
    assert "In 3 rounds: w1; then w2; then w3." in text
    assert "what has not left is ended at once, and steps since its last checkpoint are lost" in text
    assert "it leaves when the turn of its node comes." in text


def test_a_dead_node_is_waited_for_by_nobody() -> None:
    found = upkeep.preview(plan("drain", node(alive=False, at_once=True)), policy=DrainPolicy(gone=True))
    text = "\n".join(found.lines)
    assert "w1 does not answer: nothing is waited for" in text
    assert "You say that no process there can still write" in text


def test_a_retirement_is_one_way() -> None:
    found = upkeep.preview(plan("retire", node(others=[VLLM])))
    assert "There is one way back: Ray has to be started there anew (raydeck rejoin w1)." in found.lines[0]
    assert found.warnings[0] == "one-way: an uncordon does not undo it"
    assert "w1 is not empty; drain first" in found.warnings
    assert typed(found) == ("name", "w1")
    assert typed(upkeep.preview(plan("retire", node()))) == ("y", "y")


def test_many_runs_are_cut_short() -> None:
    many = [LM.model_copy(update={"run": f"lm-{at}"}) for at in range(30)]
    found = upkeep.preview(plan("drain", node(runs=many)))
    assert "And 10 more runs." in found.lines
