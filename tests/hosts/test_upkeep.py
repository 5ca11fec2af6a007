"""Cordon, drain, retire and rejoin on a real cluster of several hosts, over real sshd, by real users."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jobs.client import ControllerClient
from jobs.errors import Refused
from jobs.model import Run, RunState
from jobs.nodeview import Drain, DrainPolicy, NodesView
from jobs.wire import CordonRequest, DrainRequest, NodesReply, UncordonRequest
from tests.hosts.bed import Bed, new, refs, run_until, until, view_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CHECK_SECONDS = 2.0
"""Shorter than a person would have it: the tests wait for it."""
FOREIGN = """\
import sys, time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init(address="auto", log_to_driver=False, configure_logging=False, namespace="theirs")
@ray.remote(num_cpus=0)
class Sneak:
    def ping(self):
        return 1
there = NodeAffinitySchedulingStrategy(sys.argv[1], soft=False)
gpus = float(sys.argv[2])
sneak = Sneak.options(name="sneak", num_gpus=gpus, lifetime="detached", scheduling_strategy=there).remote()
try:
    ray.get(sneak.ping.remote(), timeout=10)
except ray.exceptions.RayError:
    ray.kill(sneak)
    raise
print("there")
"""


def cordon(*names: str, reason: str = "fan", **rest: object) -> CordonRequest:
    return CordonRequest.model_validate({"request_id": new(), "nodes": refs(*names), "reason": reason, **rest})


def drain(*names: str, reason: str = "fan", **policy: object) -> DrainRequest:
    given = {"check_seconds": CHECK_SECONDS, **policy}
    return DrainRequest(request_id=new(), nodes=refs(*names), reason=reason, policy=DrainPolicy.model_validate(given))


async def uncordon(desk: ControllerClient, *names: str, of: str = "") -> None:
    await desk.uncordon(UncordonRequest(request_id=new(), nodes=refs(*names), of=of))


async def put_back(desk: ControllerClient) -> None:
    """No hold is left, of anybody's."""
    for row in (await desk.nodes()).nodes:
        for hold in row.holds:
            await uncordon(desk, row.name, of=hold.user)
    await view_until(desk, lambda now: not now.nodes and all(each.state != "running" for each in now.drains))


def the_drain(view: NodesView, drain_id: str) -> Drain:
    return next(each for each in view.drains if each.id == drain_id)


def losses(run: Run) -> dict[int, float]:
    lines = Path(run.run_directory, "metrics.jsonl").read_text().splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines)}


def steps(run: Run) -> int:
    attempt = run.attempt
    progress = attempt.status.progress if attempt is not None and attempt.status is not None else None
    return progress.step if progress is not None else 0


async def start(bed: Bed, desk: ControllerClient, name: str, after: int, **changes: Any) -> Run:
    """A run that has come to this step."""
    run = bed.launch(bed.workflow(name, **changes))
    return await run_until(desk, run, lambda now: steps(now) >= after or now.state.ended, 90.0)


TWO_RANKS: dict[str, Any] = {"resources__accelerators_per_node": 1, "training__processes_per_node": 1}
"""The sum of two gradients is the same in every order: then the losses are the same to the last bit."""
SHORT: dict[str, Any] = {**TWO_RANKS, "training__parameters": {"steps": 80, "pause_seconds": 0.05}}
LONG: dict[str, Any] = {**TWO_RANKS, "training__parameters": {"steps": 3000, "pause_seconds": 0.05}}


async def test_a_drained_run_goes_on_elsewhere_to_the_same_numbers(shared_bed: Bed) -> None:
    async with shared_bed.desk() as desk:
        try:
            moving = await start(shared_bed, desk, "moving", 20, **SHORT)
            assert moving.attempt is not None
            assert len(moving.attempt.nodes) == 2
            node = moving.attempt.nodes[1]
            began = time.monotonic()
            reply = await desk.drain(drain(node))
            stake = reply.plan.nodes[0].runs[0]
            whole = shared_bed.launch(shared_bed.workflow("whole", **SHORT))
            view = await view_until(desk, lambda now: the_drain(now, reply.drain).state == "done", 60.0)
            print(f"empty after {time.monotonic() - began:.1f} s")
            part = the_drain(view, reply.drain).nodes[0]
            assert part.runs[0].lost_steps == 0
            ended = await run_until(desk, moving.id, lambda now: now.state.ended, 120.0)
            assert ended.state is RunState.SUCCEEDED, ended.reason
            assert (ended.retries, len(ended.attempts)) == (0, 2)
            assert ended.attempts[1].nodes == stake.restarts_on
            assert node not in ended.attempts[1].nodes
            assert ended.attempts[1].resume_step == part.runs[0].saved_step
            unmoved = await run_until(desk, whole, lambda now: now.state.ended, 120.0)
            # Every step was done, with the very numbers of a run that nobody moved.
            told, expected = losses(ended), losses(unmoved)
            assert {step: told.get(step) for step in expected} == expected
            entry = the_drain(await desk.nodes(), reply.drain).nodes[0].runs[0]
            assert entry.left_at is not None
            assert entry.asked_at is not None
            print(f"left after {entry.left_at - entry.asked_at:.1f} s, lost {entry.lost_steps} steps")
        finally:
            await put_back(desk)


async def test_of_three_never_more_than_one_is_away(shared_bed: Bed) -> None:
    async with shared_bed.desk() as desk:
        try:
            reply = await desk.drain(drain("worker-1", "worker-2", "worker-3", most_nodes=1))
            assert [each.turn for each in reply.plan.nodes] == [1, 2, 3]
            most = 0
            for number in (1, 2, 3):

                def away(now: NodesView) -> list[str]:
                    return [row.name for row in now.nodes if row.state in ("draining", "drained")]

                async def drained(name: str = f"worker-{number}") -> bool:
                    nonlocal most
                    view = await desk.nodes()
                    most = max(most, len(away(view)))
                    row = view.node(name)
                    return row is not None and row.state == "drained"

                await until(f"worker-{number} is empty", drained, 30.0)
                await uncordon(desk, f"worker-{number}")
            assert most == 1
            view = await view_until(desk, lambda now: the_drain(now, reply.drain).state == "done", 20.0)
            assert view.nodes == []
        finally:
            await put_back(desk)


async def test_of_two_users_one_wins_and_the_other_is_told_by_whom_and_when(shared_bed: Bed) -> None:
    async with shared_bed.desk() as root, shared_bed.desk("alice") as alice, shared_bed.desk("bob") as bob:
        try:
            answers = await asyncio.gather(
                alice.drain(drain("worker-3", reason="disk")), bob.drain(drain("worker-3")), return_exceptions=True
            )
            (won,) = [each for each in answers if isinstance(each, NodesReply)]
            (lost,) = [each for each in answers if isinstance(each, Refused)]
            winner = the_drain(won.view, won.drain).user
            assert winner in (shared_bed.name("alice"), shared_bed.name("bob"))
            assert lost.sentence.startswith(f"worker-3 is being drained by {winner} since ")
            async with shared_bed.desk("sam") as sam:
                with pytest.raises(Refused, match="is a submitter here and may not uncordon worker-3"):
                    await uncordon(sam, "worker-3")
            # Uncordon in mid-drain stops it, and takes the winner or their name.
            loser = bob if winner == shared_bed.name("alice") else alice
            with pytest.raises(Refused, match="not yours to take back"):
                await uncordon(loser, "worker-3")
            await uncordon(loser, "worker-3", of=winner)
            view = await view_until(root, lambda now: the_drain(now, won.drain).state == "stopped", 10.0)
            assert view.nodes == []
        finally:
            await put_back(root)


async def test_work_that_others_start_on_a_cordoned_node_is_told(shared_bed: Bed) -> None:
    async with shared_bed.desk() as desk:
        reply = await desk.cordon(cordon("worker-2", gpus=True))
        node_id = reply.view.nodes[0].node_id
        script = shared_bed.folder / "foreign.py"
        script.write_text(FOREIGN)
        try:
            view = await view_until(desk, lambda now: (now.nodes[0].gpu_hold or NONE).held == 4, 30.0)
            # What asks for a GPU is kept off as long as all are held; what asks for nothing lands all the same.
            with pytest.raises(Refused):
                shared_bed.cluster.ssh("head", sys.executable, str(script), node_id, "1", seconds=25.0)
            assert view.alerts == []
            said = shared_bed.cluster.ssh("head", sys.executable, str(script), node_id, "0", seconds=60.0)
            assert "there" in said
            view = await view_until(desk, lambda now: bool(now.nodes[0].slipped), 20.0)
            assert "worker-2 is held, and actor sneak of job " in view.alerts[0]
            assert "landed there all the same" in view.alerts[0]
            # A drain that may ends it.
            done = await desk.drain(drain("worker-2", others="stop"))
            view = await view_until(desk, lambda now: the_drain(now, done.drain).state == "done", 30.0)
            assert the_drain(view, done.drain).nodes[0].others == []
        finally:
            await put_back(desk)
        groups = await until("the GPUs are given back", lambda: no_groups(shared_bed), 30.0)
        assert groups == "none"


class NONE:
    """No GPU is held."""

    held = 0


async def no_groups(bed: Bed) -> str:
    """``none`` once no placement group of ours is left."""
    url = "http://127.0.0.1:8265/api/v0/placement_groups?detail=1"
    told = json.loads(await asyncio.to_thread(bed.cluster.ssh, "head", "curl", "-s", url))
    rows = told["data"]["result"]["result"]
    return "" if [each for each in rows if "hold" in each["name"] and each["state"] != "REMOVED"] else "none"


async def test_a_controller_that_is_killed_in_mid_drain_goes_on_to_the_same_end(shared_bed: Bed) -> None:
    async with shared_bed.desk() as desk:
        run = await start(shared_bed, desk, "killed", 15, **LONG)
        assert run.attempt is not None
        node = run.attempt.nodes[0]
        await desk.cordon(cordon("worker-3" if node != "worker-3" else "worker-2", reason="kept"))
        kept = "worker-3" if node != "worker-3" else "worker-2"
        reply = await desk.drain(drain(node))
        os.kill(shared_bed.controller_pid(), signal.SIGKILL)
    await shared_bed.start_controller()
    async with shared_bed.desk() as desk:
        try:
            view = await view_until(desk, lambda now: the_drain(now, reply.drain).state == "done", 60.0)
            entry = the_drain(view, reply.drain).nodes[0].runs[0]
            assert (entry.run, entry.lost_steps) == (run.id, 0)
            assert [hold.reason for row in view.nodes if row.name == kept for hold in row.holds] == ["kept"]
            # It needs two nodes and has one: it waits, and says for what.
            waits = await desk.explain(run.id)
            assert "cordoned" in waits.sentence
            await uncordon(desk, kept)
            again = await run_until(desk, run.id, lambda now: now.state is RunState.RUNNING, 60.0)
            assert (len(again.attempts), again.retries) == (2, 0)
        finally:
            await put_back(desk)
            shared_bed.cli("stop", run.id, "--yes", "--reason", "test")
            await run_until(desk, run.id, lambda now: now.state.ended, 60.0)
