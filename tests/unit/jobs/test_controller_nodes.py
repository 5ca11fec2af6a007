"""Cordon, uncordon, drain and their kin through the controller's socket: what they do, refuse, and leave behind."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from jobs.controller.access import Caller, Role
from jobs.errors import Refused
from jobs.model import RunState
from jobs.nodeview import Drain, DrainPolicy, NodeRef, NodesView, NodeView
from jobs.wire import (
    CordonRequest,
    DecideRequest,
    DrainRequest,
    NodesChanged,
    NodesReply,
    PermitDone,
    PermitRequest,
    Snapshot,
    UncordonRequest,
)
from tests.unit.jobs.controller_harness import WORKFLOW, Harness, controller, short_folder
from tests.unit.jobs.ray_stand_in import RayStandIn, stand_in_node

BOB = Caller(4242, "bob", Role.OPERATOR)
SAM = Caller(4243, "sam", Role.SUBMITTER)


@pytest.fixture
async def ray() -> AsyncGenerator[RayStandIn]:
    stand_in = RayStandIn()
    stand_in.nodes = [stand_in_node("head", 0), *(stand_in_node(f"worker-{number}", 4) for number in (1, 2, 3))]
    async with stand_in.serving():
        yield stand_in


@pytest.fixture
async def store() -> AsyncGenerator[Path]:
    async with short_folder() as folder:
        yield folder


@pytest.fixture
async def desk(ray: RayStandIn, store: Path) -> AsyncGenerator[Harness]:
    async with controller(ray, store) as harness:
        await known(harness)
        yield harness


def wide(nodes: int, each: int) -> str:
    """A workflow of so many nodes, with so many accelerators on each."""
    return f"workflow:\n  name: wide\n  resources: {{nodes: {nodes}, accelerators_per_node: {each}}}\n"


async def known(desk: Harness) -> None:
    """Until the controller has Ray's nodes."""
    await desk.service.engine.look(at_once=True)
    await desk.service.engine.rooms()


def refs(*names: str) -> list[NodeRef]:
    return [NodeRef(name=name, machine_id=f"m-{name}") for name in names]


def new() -> str:
    return uuid.uuid4().hex


def cordon(*names: str, reason: str = "fan", **rest: Any) -> CordonRequest:
    return CordonRequest(request_id=new(), nodes=refs(*names), reason=reason, **rest)


def uncordon(*names: str, **rest: Any) -> UncordonRequest:
    return UncordonRequest(request_id=new(), nodes=refs(*names), **rest)


def drain(*names: str, reason: str = "fan", dry_run: bool = False, **policy: Any) -> DrainRequest:
    return DrainRequest(
        request_id=new(), nodes=refs(*names), reason=reason, policy=DrainPolicy(**policy), dry_run=dry_run
    )


async def by(desk: Harness, caller: Caller, request: Any) -> NodesReply:
    """The same request by another user: what the kernel would say is given here."""
    service = desk.service
    if isinstance(request, CordonRequest):
        return await service.cordons.cordon(request, caller)
    if isinstance(request, UncordonRequest):
        return await service.cordons.uncordon(request, caller)
    return await service.drains.drain(request, caller)


async def until(desk: Harness, what: Callable[[NodesView], bool], seconds: float = 10.0) -> NodesView:
    deadline = time.monotonic() + seconds
    while not what(view := await desk.client.nodes()):
        assert time.monotonic() < deadline, view.model_dump_json(indent=1)
        await asyncio.sleep(0.02)
    return view


def row(view: NodesView, name: str) -> NodeView:
    found = view.node(name)
    assert found is not None, view
    return found


async def running(desk: Harness, text: str = WORKFLOW, **rest: Any) -> Any:
    """A run that runs."""
    run = await desk.launch(desk.request(text, **rest))
    await desk.until(run.id, lambda now: now.state is RunState.STARTING)
    desk.ray.jobs[f"raydeck-{run.id}-a1"]["status"] = "RUNNING"
    desk.driver_says(run, "running")
    return await desk.until(run.id, lambda now: now.state is RunState.RUNNING)


def on(desk: Harness, run: Any) -> list[str]:
    return list(run.attempt.nodes)


async def you(desk: Harness) -> str:
    return (await desk.client.status()).you


# --- cordon -----------------------------------------------------------------------------------------------------------


async def test_a_dry_run_tells_the_blast_radius_and_changes_nothing(desk: Harness) -> None:
    run = await running(desk)
    (node,) = on(desk, run)
    waits = await desk.launch(desk.request(wide(3, 4)))
    reply = await desk.client.cordon(cordon(node, dry_run=True))
    plan = reply.plan
    assert [each.name for each in plan.nodes] == [node]
    assert [(each.run, each.gpus, each.state) for each in plan.nodes[0].runs] == [(run.id, 1, "running")]
    assert (plan.nodes_open, plan.nodes_open_after, plan.gpus_open, plan.gpus_open_after) == (3, 2, 12.0, 8.0)
    assert [each.startswith(f"{waits.id} waits: ") and "cordoned" in each for each in plan.waits] == [True]
    assert plan.changes
    assert reply.view.nodes == []
    assert (await desk.client.nodes()).nodes == []
    assert [entry.action for entry in await desk.client.audit()].count("cordon") == 0


async def test_nothing_new_comes_to_a_cordoned_node_and_what_runs_there_goes_on(desk: Harness) -> None:
    run = await running(desk)
    (node,) = on(desk, run)
    reply = await desk.client.cordon(cordon(node, reason="a fan is loud"))
    assert row(reply.view, node).state == "cordoned"
    assert row(reply.view, node).runs == [run.id]
    for _ in range(3):
        other = await running(desk)
        assert on(desk, other) != [node]
    assert (await desk.client.run(run.id)).state is RunState.RUNNING
    big = await desk.launch(desk.request(wide(3, 1)))
    told = await desk.client.explain(big.id)
    assert f"{node} is cordoned" in told.sentence
    assert any("a fan is loud" in note.sentence for note in told.nodes)
    await desk.client.uncordon(uncordon(node))
    assert set(on(desk, await running_of(desk, big))) == {"worker-1", "worker-2", "worker-3"}


async def running_of(desk: Harness, run: Any) -> Any:
    return await desk.until(run.id, lambda now: not now.state.waiting)


async def test_every_verb_may_be_repeated_and_says_what_was_so(desk: Harness) -> None:
    me = await you(desk)
    first = await desk.client.cordon(cordon("worker-1", reason="fan"))
    assert (first.plan.changes, first.plan.nodes[0].already) == (True, [])
    again = await desk.client.cordon(cordon("worker-1", reason="fan"))
    assert again.plan.changes is False
    assert again.plan.nodes[0].already[0].startswith(f"cordoned by {me}: fan, since ")
    assert len(row(again.view, "worker-1").holds) == 1
    renewed = await desk.client.cordon(cordon("worker-1", "worker-2", reason="both fans", seconds=3600))
    assert renewed.plan.changes
    hold = row(renewed.view, "worker-1").holds[0]
    assert (hold.reason, hold.until is not None, hold.at) == ("both fans", True, first.view.nodes[0].holds[0].at)
    gone = await desk.client.uncordon(uncordon("worker-1", "worker-3"))
    assert [each.already for each in gone.plan.nodes] == [[], ["it is not cordoned"]]
    assert [each.name for each in gone.view.nodes] == ["worker-2"]
    nothing = await desk.client.uncordon(uncordon("worker-1"))
    assert (nothing.plan.changes, nothing.plan.nodes[0].already) == (False, ["it is not cordoned"])


async def test_the_same_request_again_is_one(desk: Harness) -> None:
    request = cordon("worker-1")
    await desk.client.cordon(request)
    await desk.client.uncordon(uncordon("worker-1"))
    reply = await desk.client.cordon(request)
    assert reply.plan.nodes[0].already == ["this very request was carried out before"]
    assert reply.view.nodes == []
    assert [entry.action for entry in await desk.client.audit()].count("cordon") == 1


async def test_holds_have_owners(desk: Harness) -> None:
    me = await you(desk)
    await by(desk, BOB, cordon("worker-1", reason="disk"))
    with pytest.raises(Refused) as caught:
        await desk.client.uncordon(uncordon("worker-1"))
    assert caught.value.sentence.startswith("worker-1 is cordoned by bob: disk since ")
    assert caught.value.sentence.endswith("not yours to take back")
    await desk.client.cordon(cordon("worker-1", reason="fan"))
    own = await desk.client.uncordon(uncordon("worker-1"))
    assert own.plan.nodes[0].already[0].startswith("still cordoned by bob: disk")
    assert [hold.user for hold in row(own.view, "worker-1").holds] == ["bob"]
    assert not (await desk.client.uncordon(uncordon("worker-1", of="bob"))).view.nodes
    entry = (await desk.client.audit())[0]
    assert (entry.action, entry.target, entry.user, entry.reason) == ("uncordon", "worker-1", me, "of bob")


async def test_only_operators_keep_nodes_free(desk: Harness) -> None:
    for request in (cordon("worker-1"), uncordon("worker-1"), drain("worker-1")):
        with pytest.raises(Refused) as caught:
            await by(desk, SAM, request)
        assert "sam is a submitter here and may not" in caught.value.sentence
        assert "worker-1" in caught.value.sentence


async def test_a_wrong_name_is_refused_with_the_nearest(desk: Harness) -> None:
    with pytest.raises(Refused) as caught:
        await desk.client.cordon(CordonRequest(request_id=new(), nodes=[NodeRef(name="worker-l")]))
    assert caught.value.sentence == "there is no node worker-l"
    assert "Did you mean worker-" in caught.value.hint
    refusal = (await desk.client.audit())[0]
    assert (refusal.action, refusal.target, refusal.allowed) == ("cordon", "worker-l", False)


async def test_a_hold_ends_when_its_time_has_come(desk: Harness) -> None:
    await desk.client.cordon(cordon("worker-1", seconds=0.5))
    await until(desk, lambda view: not view.nodes)
    entry = (await desk.client.audit())[0]
    assert (entry.user, entry.action, entry.target) == ("raydeck", "uncordon", "worker-1")


async def test_holds_survive_the_controller_and_the_nodes_ray_id(ray: RayStandIn, store: Path) -> None:
    async with controller(ray, store) as desk:
        await known(desk)
        await desk.client.cordon(cordon("worker-1", "worker-2", reason="fan"))
    back = stand_in_node("worker-1", 4)
    ray.nodes = [ray.nodes[0], {**ray.nodes[1], "state": "DEAD"}, ray.nodes[3], {**back, "node_id": "f" * 56}]
    async with controller(ray, store) as desk:
        await known(desk)
        view = await until(desk, lambda now: all(each.ray != "unknown" for each in now.nodes))
        assert [(each.name, each.node_id, each.ray, each.state) for each in view.nodes] == [
            ("worker-1", "f" * 56, "alive", "cordoned"),
            ("worker-2", "", "dead", "cordoned"),
        ]
        runs = [await running(desk, wide(1, 2)) for _ in "ab"]
        assert [on(desk, run) for run in runs] == [["worker-3"], ["worker-3"]]


async def test_what_slips_in_is_told_and_what_was_there_is_not_called_so(desk: Harness) -> None:
    node_id = desk.ray.nodes[1]["node_id"]
    there = {"actor_id": "a1", "class_name": "Old", "name": "old", "state": "ALIVE", "job_id": "07", "node_id": node_id}
    desk.ray.rows["actors"] = [there]
    await desk.client.cordon(cordon("worker-1"))
    desk.ray.rows["actors"] = [
        there,
        {**there, "actor_id": "a2", "name": "sneak", "required_resources": {"GPU": 1.0}},
        {**there, "actor_id": "a3", "name": "elsewhere", "node_id": desk.ray.nodes[2]["node_id"]},
        {**there, "actor_id": "a4", "name": "_ray_internal_job_actor_x"},
    ]
    view = await until(desk, lambda now: bool(now.alerts))
    assert [(each.name, each.slipped) for each in row(view, "worker-1").others] == [("old", False), ("sneak", True)]
    assert view.alerts == ["worker-1 is held, and actor sneak of job 07, 1 GPU landed there all the same"]


async def test_raydecks_own_gangs_are_nobody_elses(desk: Harness) -> None:
    node_id = desk.ray.nodes[1]["node_id"]
    desk.ray.jobs["raydeck-lm-1-a1"] = {"submission_id": "raydeck-lm-1-a1", "job_id": "09", "status": "RUNNING"}
    desk.ray.rows["actors"] = [
        {"actor_id": "a1", "class_name": "Agent", "state": "ALIVE", "job_id": "09", "node_id": node_id}
    ]
    group = {"placement_group_id": "g1", "name": "", "state": "CREATED", "creator_job_id": "09"}
    theirs = {**group, "placement_group_id": "g2", "name": "theirs", "creator_job_id": "10"}
    bundle = {"node_id": node_id, "unit_resources": {"GPU": 2.0}}
    desk.ray.rows["placement_groups"] = [{**group, "bundles": [bundle]}, {**theirs, "bundles": [bundle, bundle]}]
    desk.ray.rows["placement_groups"].append({**theirs, "state": "REMOVED", "bundles": [bundle]})
    reply = await desk.client.cordon(cordon("worker-1", dry_run=True))
    assert [(each.kind, each.name, each.gpus) for each in reply.plan.nodes[0].others] == [
        ("placement group", "theirs", 4.0)
    ]


async def test_listeners_are_told(desk: Harness) -> None:
    async with AsyncExitStack() as stack:
        events = desk.client.events()
        stack.push_async_callback(events.aclose)  # type: ignore[attr-defined]
        first = await anext(events)
        assert isinstance(first, Snapshot)
        assert first.nodes == NodesView()
        await desk.client.cordon(cordon("worker-1"))
        async for event in events:
            if isinstance(event, NodesChanged) and event.nodes.nodes:
                assert event.nodes.nodes[0].name == "worker-1"
                break


# --- drain ------------------------------------------------------------------------------------------------------------


async def leaves(desk: Harness, run: Any, step: int = 120, saved: int = 120, number: int = 1) -> None:
    """Its driver was asked by the word in its folder, and leaves."""
    word = desk.attempt(run, number) / "leave"
    deadline = time.monotonic() + 5
    while not word.exists():
        assert time.monotonic() < deadline, "nobody asked it to leave"
        await asyncio.sleep(0.02)
    desk.driver_ends(run, "stopped", "stopped on request", number=number, last_step=step, checkpoint_step=saved)


async def test_a_drain_moves_a_run_and_watches_that_the_node_stays_empty(desk: Harness) -> None:
    run = await running(desk)
    (node,) = on(desk, run)
    plan = (await desk.client.drain(drain(node, dry_run=True))).plan
    (stake,) = plan.nodes[0].runs
    assert (stake.run, stake.waits_for) == (run.id, "")
    assert stake.restarts_on
    assert node not in stake.restarts_on
    reply = await desk.client.drain(drain(node, check_seconds=0.5))
    assert reply.plan.nodes[0].runs == plan.nodes[0].runs
    assert row(reply.view, node).state in ("waiting", "draining")
    await leaves(desk, run, step=131, saved=120)
    again = await desk.until(run.id, lambda now: len(now.attempts) == 2)
    # The preview was exact.
    assert again.attempts[1].nodes == stake.restarts_on
    assert (again.retries, again.queued_at, again.submitted_at) == (0, None, run.submitted_at)
    await desk.until(run.id, lambda now: now.state is RunState.STARTING)
    desk.driver_says(run, "running", number=2)
    desk.ray.jobs[f"raydeck-{run.id}-a2"]["status"] = "RUNNING"
    view = await until(
        desk, lambda now: now.drains[0].state == "done" and now.drains[0].nodes[0].runs[0].state == "again"
    )
    part = view.drains[0].nodes[0]
    entry = part.runs[0]
    assert (part.state, part.note) == ("empty", "empty, and stayed so for 0.5 s")
    assert (entry.step, entry.saved_step, entry.lost_steps, entry.again_on) == (131, 120, 11, stake.restarts_on)
    assert row(view, node).state == "drained"
    assert desk.ray.stopped == []
    said = [(entry.user, entry.action, entry.target) for entry in await desk.client.audit(3)]
    assert said == [
        ("raydeck", "drain done", reply.drain),
        ("raydeck", "drain empty", node),
        (await you(desk), "drain", node),
    ]


async def test_uncordon_stops_a_drain(desk: Harness) -> None:
    run = await running(desk)
    (node,) = on(desk, run)
    reply = await desk.client.drain(drain(node))
    gone = await desk.client.uncordon(uncordon(node))
    assert gone.plan.notes == [f"the drain of {node} by {await you(desk)} stops"]
    view = await until(desk, lambda now: now.drains[0].state == "stopped")
    assert view.drains[0].id == reply.drain
    assert view.drains[0].nodes[0].note == "it was uncordoned"
    assert view.nodes == []


async def test_of_two_operators_one_wins_and_the_other_is_told(desk: Harness) -> None:
    me = await you(desk)
    answers = await asyncio.gather(
        desk.client.drain(drain("worker-1", reason="fan")),
        by(desk, BOB, drain("worker-1", reason="disk")),
        return_exceptions=True,
    )
    won = [each for each in answers if isinstance(each, NodesReply)]
    lost = [each for each in answers if isinstance(each, Refused)]
    assert (len(won), len(lost)) == (1, 1)
    winner = won[0].view.drains[0].user
    assert lost[0].sentence.startswith(f"worker-1 is being drained by {winner} since ")
    assert won[0].drain in lost[0].hint
    own = drain("worker-1") if winner == me else None
    again = await desk.client.drain(own) if own is not None else await by(desk, BOB, drain("worker-1"))
    assert (again.plan.changes, again.drain) == (False, won[0].drain)
    assert again.plan.nodes[0].already == [f"being drained by you, in drain {won[0].drain}"]


async def test_never_more_away_than_may_be(desk: Harness) -> None:
    request = drain("worker-1", "worker-2", "worker-3", most_nodes=1, check_seconds=0.1)
    plan = (await desk.client.drain(request.model_copy(update={"dry_run": True}))).plan
    assert [each.turn for each in plan.nodes] == [1, 2, 3]
    assert plan.notes[0].startswith("3 rounds: ")
    await desk.client.drain(request)
    for turn in (1, 2, 3):
        view = await until(desk, lambda now, turn=turn: row(now, f"worker-{turn}").state == "drained")
        away = [each.name for each in view.nodes if each.state in ("draining", "drained", "cordoned")]
        assert away == [f"worker-{turn}"]
        # Those that wait still take work, where no other has room.
        if turn < 3:
            run = await running(desk, wide(3 - turn, 4))
            assert f"worker-{turn}" not in on(desk, run)
            desk.driver_ends(run, "succeeded")
            await desk.until(run.id, lambda now: now.state.ended)
        await desk.client.uncordon(uncordon(f"worker-{turn}"))
    view = await until(desk, lambda now: now.drains[0].state == "done")
    assert view.nodes == []


async def test_a_share_that_no_node_fits_in_is_refused(desk: Harness) -> None:
    with pytest.raises(Refused) as caught:
        await desk.client.drain(drain("worker-1", most_share=0.25))
    assert caught.value.sentence == (
        "25% of 12 accelerators are 3, and worker-1 alone has 4: it could never be drained"
    )


async def test_a_dead_node_is_drained_at_once(desk: Harness) -> None:
    run = await running(desk)
    (node,) = on(desk, run)
    next(each for each in desk.ray.nodes if each["node_name"] == node)["state"] = "DEAD"
    reply = await desk.client.drain(drain(node))
    assert (reply.plan.nodes[0].alive, reply.plan.nodes[0].at_once) == (False, True)
    desk.driver_ends(run, "failed", f"{node} was lost", "FAILED", failure="node lost", unanswered=[node])
    view = await until(desk, lambda now: now.drains[0].state == "done", 5.0)
    assert (view.drains[0].nodes[0].dead, view.drains[0].nodes[0].state) == (True, "empty")
    again = await desk.until(run.id, lambda now: len(now.attempts) == 2)
    assert (again.retries, again.attempts[1].nodes != [node]) == (0, True)


async def test_a_node_that_ray_still_believes_in_is_drained_at_once_when_it_does_not_answer(desk: Harness) -> None:
    run = await running(desk)
    (node,) = on(desk, run)
    desk.ray.deaf.add(next(each["node_id"] for each in desk.ray.nodes if each["node_name"] == node))
    reply = await desk.client.drain(drain(node))
    assert reply.plan.nodes[0].at_once
    assert "no answer, so nothing is waited for" in " ".join(reply.plan.notes)
    await desk.until(run.id, lambda now: "stop-now" in {each.name for each in desk.attempt(now).iterdir()})
    desk.driver_ends(run, "stopped", "stopped at once", "STOPPED", unanswered=[node])
    await until(desk, lambda now: now.drains[0].state == "done", 5.0)
    assert (await desk.client.run(run.id)).retries == 0


async def test_a_run_starts_anew_when_nothing_of_it_can_write_on_a_silent_node(desk: Harness) -> None:
    run = await running(desk)
    (node,) = on(desk, run)
    lost = next(each for each in desk.ray.nodes if each["node_name"] == node)
    desk.ray.deaf.add(lost["node_id"])
    await desk.client.drain(drain(node, check_seconds=0.1))
    await until(desk, lambda now: bool(now.drains[0].nodes[0].runs))
    desk.driver_ends(run, "stopped", "stopped at once", "STOPPED", unanswered=[node])
    # There is room elsewhere; but Ray still has the node, and would have it searched in vain.
    waits = await desk.until(run.id, lambda now: f"nothing answers on {node}" in now.reason)
    assert len(waits.attempts) == 1
    lost["state"] = "DEAD"
    again = await desk.until(run.id, lambda now: len(now.attempts) == 2)
    assert (again.attempts[1].nodes != [node], again.retries) == (True, 0)


async def test_a_run_starts_anew_at_once_when_somebody_says_that_the_node_is_off(desk: Harness) -> None:
    run = await running(desk)
    (node,) = on(desk, run)
    desk.ray.deaf.add(next(each["node_id"] for each in desk.ray.nodes if each["node_name"] == node))
    await desk.client.drain(drain(node, check_seconds=0.1))
    await until(desk, lambda now: bool(now.drains[0].nodes[0].runs))
    desk.driver_ends(run, "stopped", "stopped at once", "STOPPED", unanswered=[node])
    await until(desk, lambda now: now.drains[0].state == "done")
    await desk.until(run.id, lambda now: f"nothing answers on {node}" in now.reason)
    await desk.client.drain(drain(node, gone=True, reason="pulled out"))
    await desk.until(run.id, lambda now: len(now.attempts) == 2)
    record = await desk.service.runs.find(run.id)
    assert record.launch.previous_nodes == {}
    assert record.run.retries == 0


async def test_who_calls_a_node_off_that_answers_is_refused(desk: Harness) -> None:
    with pytest.raises(Refused) as caught:
        await desk.client.drain(drain("worker-1", gone=True))
    assert caught.value.sentence == "worker-1 answers, so it is not off"


async def test_the_deadline_and_the_choices(desk: Harness) -> None:
    run = await running(desk)
    (node,) = on(desk, run)
    reply = await desk.client.drain(drain(node, deadline_seconds=0.2))
    view = await until(desk, lambda now: now.drains[0].nodes[0].overdue)
    assert "wait on, stop what is left, or give up" in view.drains[0].nodes[0].note
    decided = await decide(desk, reply.drain, "wait", seconds=600)
    assert not decided.nodes[0].overdue
    assert (decided.nodes[0].deadline_at or 0) > time.time() + 500
    assert desk.ray.stopped == []
    await decide(desk, reply.drain, "stop")
    await desk.until(run.id, lambda now: "stop-now" in {each.name for each in desk.attempt(now).iterdir()})
    desk.driver_ends(run, "stopped", "stopped at once", "STOPPED")
    await desk.until(run.id, lambda now: len(now.attempts) == 2)
    ended = await decide(desk, reply.drain, "cancel", reason="enough")
    assert (ended.state, ended.ended_by) == ("stopped", await you(desk))
    with pytest.raises(Refused) as caught:
        await decide(desk, reply.drain, "wait")
    assert caught.value.sentence == f"drain {reply.drain} has ended already: stopped by {ended.ended_by}"
    assert row(await desk.client.nodes(), node).state in ("cordoned", "drained")


async def decide(desk: Harness, drain_id: str, decision: Any, **rest: Any) -> Drain:
    return await desk.client.decide(drain_id, DecideRequest(request_id=new(), decision=decision, **rest))


async def test_a_drain_goes_on_after_the_controller_was_killed(ray: RayStandIn, store: Path) -> None:
    async with controller(ray, store) as desk:
        await known(desk)
        run = await running(desk)
        (node,) = on(desk, run)
        reply = await desk.client.drain(drain(node))
        await until(desk, lambda now: bool(now.drains[0].nodes[0].runs))
    async with controller(ray, store) as desk:
        await known(desk)
        await leaves(desk, run)
        again = await desk.until(run.id, lambda now: len(now.attempts) == 2)
        assert again.attempts[1].nodes != [node]
        view = await until(desk, lambda now: now.drains[0].nodes[0].state == "checking")
        assert view.drains[0].id == reply.drain
        assert view.drains[0].nodes[0].runs[0].lost_steps == 0
        assert [each.id for each in await desk.client.drains()] == [reply.drain]


async def test_a_cordoned_node_can_be_drained(desk: Harness) -> None:
    run = await running(desk)
    (node,) = on(desk, run)
    await desk.client.cordon(cordon(node, reason="first"))
    reply = await desk.client.drain(drain(node))
    assert reply.plan.changes
    await leaves(desk, run)
    await desk.until(run.id, lambda now: len(now.attempts) == 2)
    assert {hold.kind for hold in row(await desk.client.nodes(), node).holds} == {"cordon", "drain"}


# --- permits ----------------------------------------------------------------------------------------------------------


async def test_a_permit_is_in_the_audit_before_and_after(desk: Harness) -> None:
    request = PermitRequest(
        request_id=new(),
        node=NodeRef(name="worker-1"),
        action="ray start",
        detail="ray start --address=…",
        reason="flap",
    )
    permit = await desk.client.permit(request)
    assert (await desk.client.permit(request)).id == permit.id
    told = await desk.client.permit_done(permit.id, PermitDone(ok=False, outcome="no such command"))
    assert told.outcome == "failed: no such command"
    assert (await desk.client.permit_done(permit.id, PermitDone(ok=True, outcome="again"))).outcome == told.outcome
    entries = [(entry.action, entry.target, entry.reason) for entry in (await desk.client.audit(5))][:2]
    assert entries == [
        ("ray start failed", "worker-1", "no such command"),
        ("ray start", "worker-1", "ray start --address=…; flap"),
    ]
    with pytest.raises(Refused) as caught:
        await desk.service.retirements.permit(request.model_copy(update={"request_id": new()}), SAM)
    assert "may not ray start worker-1" in caught.value.sentence
    with pytest.raises(Refused):
        await desk.client.permit_done("p-unknown", PermitDone(ok=True, outcome=""))
