"""Nodes that are lost and come back, on hosts of their own: a pulled cable, a machine without power, a new head."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator

import pytest

from console.sources.session import Session
from console.state.fleet import Node
from jobs.model import RunState
from jobs.wire import CordonRequest
from tests.hosts.bed import Bed, bed, new, refs, run_until, until, view_until, why_not
from tests.hosts.test_upkeep import LONG, drain, put_back, start, the_drain

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

QUICK = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 4000,
    "health_check_failure_threshold": 3,
}
"""Ray gives a node up after some 15 s; by itself it takes 60."""
SILENT_SECONDS, LOST_SECONDS = 3.0, 6.0


@pytest.fixture(scope="module")
def lost_bed() -> Generator[Bed]:
    """A head and two workers, whose Ray finds a lost node soon."""
    if reason := why_not():
        pytest.skip(reason)
    with bed(("worker-1", "worker-2"), system=QUICK) as made:
        yield made


async def becomes(session: Session, node: Node, *states: str, seconds: float) -> float:
    """How long it took until SSH to a node was in one of these states."""
    began = time.monotonic()
    while node.ssh.state not in states:
        assert time.monotonic() - began < seconds, (node.ssh, node.ray)
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def test_after_a_flap_the_node_is_back_with_one_command_and_was_never_open_meanwhile(lost_bed: Bed) -> None:
    host = lost_bed.hosts["worker-2"]
    async with lost_bed.desk() as desk, lost_bed.session() as session:
        node = session.fleet.nodes["worker-2"]
        await becomes(session, node, "up", seconds=20.0)
        await until("Ray's word", lambda: _is(lambda: node.ray.state == "alive"), 20.0)
        await desk.cordon(CordonRequest(request_id=new(), nodes=refs("worker-2"), reason="flaps"))
        try:
            with host.link.cut():
                silent = await becomes(session, node, "silent", "lost", seconds=10.0)
                lost = silent + await becomes(session, node, "lost", seconds=10.0)
                ray = node.ray.state
                print(f"silent after {silent:.1f} s, lost after {lost:.1f} s; Ray then said {ray}")
                await until("Ray gives it up", lambda: _is(lambda: node.ray.state == "dead"), 60.0)
                print(f"Ray gave it up after {lost:.1f} s and more")
            assert silent < SILENT_SECONDS + 0.5  # the samples come once a second
            assert lost < LOST_SECONDS + 0.5
            assert ray == "alive"
            await becomes(session, node, "up", seconds=20.0)
            # SSH answers, and for Ray it is dead: it does not come back by itself.
            assert node.ray.state == "dead"
            row = (await desk.nodes()).node("worker-2")
            assert row is not None
            assert (row.ray, row.state) == ("dead", "cordoned")
            before = node.ray_node_id
            said = lost_bed.cli("rejoin", "worker-2", "--reason", "cable", "--yes")
            print(said.stdout, said.stderr)
            await until("Ray's word", lambda: _is(lambda: node.ray.state == "alive"), 20.0)
            assert node.ray_node_id != before
            assert (await desk.nodes()).node("worker-2") is None
            again = lost_bed.cli("rejoin", "worker-2", "--reason", "cable", "--yes")
            assert "already" in again.stdout + again.stderr
            audit = [(entry.action, entry.target) for entry in await desk.audit(20)]
            assert ("ray start", "worker-2") in audit
            assert ("ray start done", "worker-2") in audit
        finally:
            await put_back(desk)


async def _is(so: object) -> bool:
    return bool(so() if callable(so) else so)


async def test_a_node_without_power_is_drained_at_once_and_its_run_goes_on(lost_bed: Bed) -> None:
    cluster = lost_bed.cluster
    async with lost_bed.desk() as desk:
        run = await start(lost_bed, desk, "power", 12, checkpoints={"keep_last": 3}, **LONG)
        assert run.attempt is not None
        assert sorted(run.attempt.nodes) == ["worker-1", "worker-2"]
        host = lost_bed.hosts["worker-2"]
        host.stop()
        try:
            began = time.monotonic()
            reply = await desk.drain(drain("worker-2", reason="no power"))
            assert time.monotonic() - began < 10.0
            assert reply.plan.nodes[0].at_once
            view = await view_until(desk, lambda now: the_drain(now, reply.drain).state == "done", 60.0)
            print(f"drained after {time.monotonic() - began:.1f} s")
            part = the_drain(view, reply.drain).nodes[0]
            assert (part.dead, part.state) == (True, "empty")
            waits = await run_until(desk, run.id, lambda now: now.state.waiting, 30.0)
            assert waits.retries == 0
        finally:
            host.start()
            cluster.start_ray_on("worker-2")
            await put_back(desk)
        try:
            again = await run_until(desk, run.id, lambda now: now.state is RunState.RUNNING, 90.0)
            assert (len(again.attempts) > 1, again.retries) == (True, 0)
        finally:
            lost_bed.cli("stop", run.id, "--yes", "--reason", "test")
            await run_until(desk, run.id, lambda now: now.state.ended, 60.0)


async def test_a_cordon_outlives_the_head_and_the_nodes_new_ids(lost_bed: Bed) -> None:
    cluster = lost_bed.cluster
    async with lost_bed.desk() as desk:
        reply = await desk.cordon(CordonRequest(request_id=new(), nodes=refs("worker-1"), reason="kept", gpus=True))
        before = reply.view.nodes[0].node_id
        await view_until(desk, lambda now: now.nodes[0].gpu_hold is not None and now.nodes[0].gpu_hold.held == 4, 30.0)
        for name in cluster.names:
            await asyncio.to_thread(cluster.hosts[name].kill, "/ray/")
        await view_until(desk, lambda now: now.nodes[0].ray == "unknown", 30.0)
        await asyncio.to_thread(cluster.start_ray)
        try:
            view = await view_until(
                desk, lambda now: now.nodes[0].ray == "alive" and (now.nodes[0].gpu_hold is not None), 60.0
            )
            assert view.nodes[0].node_id not in ("", before)
            view = await view_until(
                desk, lambda now: now.nodes[0].gpu_hold is not None and now.nodes[0].gpu_hold.held == 4, 60.0
            )
            run = lost_bed.launch(lost_bed.workflow("beside", "lm-single"))
            begun = await run_until(desk, run, lambda now: not now.state.waiting, 30.0)
            assert begun.attempt is not None
            assert begun.attempt.nodes == ["worker-2"]
            lost_bed.cli("stop", run, "--yes", "--reason", "test")
            await run_until(desk, run, lambda now: now.state.ended, 60.0)
        finally:
            await put_back(desk)


async def test_a_retired_node_leaves_ray_and_comes_back_when_it_is_called(lost_bed: Bed) -> None:
    async with lost_bed.desk() as desk:
        try:
            said = lost_bed.cli("retire", "worker-1", "--stop-ray", "--reason", "rack moves", "--yes")
            print(said.stdout, said.stderr)
            view = await view_until(desk, lambda now: now.nodes[0].state == "retired", 30.0)
            assert view.nodes[0].holds[0].kind == "retire"
            assert view.alerts == []
            assert not lost_bed.hosts["worker-1"].pids("/raylet/raylet")
            lost_bed.cli("rejoin", "worker-1", "--reason", "moved", "--yes")
            view = await view_until(desk, lambda now: not now.nodes, 30.0)
        finally:
            await put_back(desk)
