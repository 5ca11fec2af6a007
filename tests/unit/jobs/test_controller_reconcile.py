"""A run from launch to end, with a dashboard that misbehaves: nothing is lost, and nothing happens twice."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator

import pytest

from jobs import checkpoint
from jobs.controller import engine, judge, reconcile
from jobs.controller.files import STOP_NOW_NAME
from jobs.errors import Refused, Unreachable
from jobs.model import Failure, Launch, RunState
from jobs.wire import ArrangeRequest, RestartRequest
from tests.unit.jobs.controller_harness import WORKFLOW, Harness, controller, short_folder, stop_request
from tests.unit.jobs.ray_stand_in import RayStandIn, stand_in_node


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "BUSY_TICK_SECONDS", 0.02)
    monkeypatch.setattr(reconcile, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(reconcile, "PASS_SECONDS", 0.05)
    monkeypatch.setattr(engine, "ROOMS_SECONDS", 0.05)
    monkeypatch.setattr(reconcile, "CALM_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(engine, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(engine, "LOOK_AT_MOST_SECONDS", 0.1)
    monkeypatch.setattr(judge, "OUTCOME_ARRIVES_SECONDS", 0.1)


@pytest.fixture
async def desk() -> AsyncGenerator[Harness]:
    async with short_folder() as store, RayStandIn().serving() as ray, controller(ray, store) as harness:
        yield harness


async def test_a_run_goes_its_way(desk: Harness) -> None:
    run = (await desk.client.launch(desk.request()))[0]
    assert run.state is RunState.QUEUED
    run = await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    job = desk.ray.jobs[f"raydeck-{run.id}-a1"]
    assert job["metadata"] == {
        "raydeck_run": run.id,
        "raydeck_attempt": "1",
        "raydeck_user": run.user,
        "raydeck_workflow": "lm",
    }
    assert job["entrypoint"] == 'exec "${RAYDECK_PYTHON:-python3}" -m jobs.gang.driver'
    assert job["runtime_env"]["working_dir"] == f"gcs://raydeck-{desk.code}.zip"
    assert desk.ray.packages[f"raydeck-{desk.code}.zip"] > 0
    environment = job["runtime_env"]["env_vars"]
    assert environment["RAY_JOB_STOP_WAIT_TIME_S"] == "45"
    launch = Launch.model_validate_json(environment["RAYDECK_LAUNCH"])
    assert (launch.run, launch.attempt, launch.nodes, launch.gpus_per_node) == (run.id, 1, 1, 1.0)
    assert launch.run_directory == run.run_directory
    desk.ray.finish(f"raydeck-{run.id}-a1", "RUNNING")
    desk.driver_says(run, "running")
    run = await desk.until(run.id, lambda run: run.state is RunState.RUNNING)
    assert run.started_at is not None
    desk.driver_ends(run, "succeeded", "all 1 ranks ended with exit code 0")
    run = await desk.until(run.id, lambda run: run.state is RunState.SUCCEEDED)
    assert run.reason == "all 1 ranks ended with exit code 0"
    assert run.attempt is not None
    assert run.attempt.outcome is not None
    assert desk.ray.posted == [f"raydeck-{run.id}-a1"]


async def test_a_submission_whose_answer_is_lost_is_not_repeated(desk: Harness) -> None:
    desk.ray.loses_answers = 1
    run = (await desk.client.launch(desk.request()))[0]
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    assert desk.ray.posted == [f"raydeck-{run.id}-a1"]


async def test_a_refused_submission_fails_with_rays_words(desk: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "TRIES", 1)
    desk.ray.refuses = "runtime_env field has the wrong type"
    run = (await desk.client.launch(desk.request()))[0]
    run = await desk.until(run.id, lambda run: run.state.ended)
    assert run.state is RunState.FAILED
    assert "runtime_env field has the wrong type" in run.reason


async def test_a_run_waits_for_a_silent_ray_and_says_so(desk: Harness) -> None:
    run = (await desk.client.launch(desk.request()))[0]
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    desk.driver_says(run, "running")
    await desk.until(run.id, lambda run: run.state is RunState.RUNNING)
    desk.ray.down = True
    run = await desk.until(run.id, lambda run: "Ray does not answer" in run.reason)
    assert run.state is RunState.RUNNING
    assert (await desk.client.status()).ray.startswith("no answer for 0 s: Ray's dashboard at")
    second = (await desk.client.launch(desk.request()))[0]
    told = await desk.client.explain(second.id)
    assert (told.state, told.blocked_by[0].kind) == (RunState.QUEUED, "ray")
    assert told.sentence.startswith("Ray does not tell its nodes: no answer for")
    desk.ray.down = False
    await desk.until(run.id, lambda run: run.state is RunState.RUNNING and not run.reason)
    await desk.until(second.id, lambda run: run.state is RunState.STARTING)
    assert (await desk.client.status()).ray == "ok"


async def test_a_driver_that_dies_is_told_in_rays_words(desk: Harness) -> None:
    run = (await desk.client.launch(desk.request()))[0]
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    words = "Job entrypoint command failed with exit code 137, last available logs:\nstarting\nKilled"
    desk.ray.finish(f"raydeck-{run.id}-a1", "FAILED", words)
    run = await desk.until(run.id, lambda run: run.state is RunState.FAILED)
    assert run.reason.startswith("its driver died without an outcome: Job entrypoint command failed with exit code 137")
    assert run.reason.endswith("Killed")


async def test_a_job_that_vanished_is_a_failed_run(desk: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "DOUBT_SECONDS", 0.0)
    run = (await desk.client.launch(desk.request()))[0]
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    desk.ray.jobs.clear()
    run = await desk.until(run.id, lambda run: run.state is RunState.FAILED)
    assert "Ray no longer knows its job" in run.reason
    assert len(desk.ray.posted) == 1


async def test_a_foreign_job_with_our_id_is_never_touched(desk: Harness) -> None:
    first = (await desk.client.launch(desk.request(dry_run=True, request_id="the-same-request")))[0]
    name = f"raydeck-{first.id}-a1"
    desk.ray.jobs[name] = {"submission_id": name, "status": "RUNNING", "metadata": {"owner": "bob"}}
    run = (await desk.client.launch(desk.request(request_id="the-same-request")))[0]
    assert run.id == first.id
    run = await desk.until(run.id, lambda run: run.state is RunState.FAILED)
    assert "not this run's" in run.reason
    assert desk.ray.posted == []
    assert desk.ray.stopped == []


async def test_a_stop_saves_first(desk: Harness) -> None:
    run = (await desk.client.launch(desk.request()))[0]
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    name = f"raydeck-{run.id}-a1"
    desk.ray.finish(name, "RUNNING")
    desk.driver_says(run, "running")
    await desk.until(run.id, lambda run: run.state is RunState.RUNNING)
    request = stop_request(reason="enough")
    await desk.client.stop(run.id, request)
    run = await desk.until(run.id, lambda run: run.state is RunState.SAVING)
    assert "enough; its gang saves" in run.reason
    await desk.until(run.id, lambda run: desk.ray.stopped == [name])
    assert (await desk.client.stop(run.id, request)).state is RunState.SAVING
    assert not (desk.attempt(run) / STOP_NOW_NAME).exists()
    desk.driver_ends(run, "stopped", "the newest checkpoint is of step 7", status="RUNNING")
    await desk.until(run.id, lambda run: run.state is RunState.STOPPING)
    desk.ray.finish(name, "STOPPED")
    run = await desk.until(run.id, lambda run: run.state is RunState.STOPPED)
    assert run.reason.endswith("enough; the newest checkpoint is of step 7")
    assert desk.ray.stopped == [name]
    with pytest.raises(Refused, match="has ended already: stopped"):
        await desk.client.stop(run.id, stop_request())


async def test_a_stop_can_become_urgent(desk: Harness) -> None:
    run = (await desk.client.launch(desk.request()))[0]
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    name = f"raydeck-{run.id}-a1"
    desk.ray.finish(name, "RUNNING")
    desk.driver_says(run, "running")
    await desk.until(run.id, lambda run: run.state is RunState.RUNNING)
    await desk.client.stop(run.id, stop_request())
    await desk.until(run.id, lambda run: desk.ray.stopped == [name])
    await desk.client.stop(run.id, stop_request(now=True))
    await desk.until(run.id, lambda run: len(desk.ray.stopped) == 2)
    assert (desk.attempt(run) / STOP_NOW_NAME).exists()
    assert (await desk.client.run(run.id)).state is RunState.STOPPING


async def test_a_run_that_was_not_posted_stops_without_ray(desk: Harness) -> None:
    desk.ray.down = True
    run = (await desk.client.launch(desk.request()))[0]
    told = await desk.client.explain(run.id)
    assert told.blocked_by[0].kind == "ray"
    await desk.client.stop(run.id, stop_request())
    run = await desk.until(run.id, lambda run: run.state.ended)
    assert (run.state, run.reason) == (RunState.STOPPED, "stopped by root, before it was admitted")
    desk.ray.down = False
    await desk.until(run.id, lambda run: desk.service.engine.answers)
    assert desk.ray.posted == []


async def test_a_slow_submission_holds_up_no_other_run(desk: Harness) -> None:
    first = (await desk.client.launch(desk.request()))[0]
    await desk.until(first.id, lambda run: run.state is RunState.STARTING)
    desk.ray.holds = asyncio.Event()
    second = (await desk.client.launch(desk.request()))[0]
    await desk.until(second.id, lambda run: run.state is RunState.ADMITTED)
    desk.driver_says(first, "running")
    await desk.until(first.id, lambda run: run.state is RunState.RUNNING)
    assert (await desk.client.run(second.id)).state is RunState.ADMITTED
    desk.ray.holds.set()
    await desk.until(second.id, lambda run: run.state is RunState.STARTING)


async def test_a_plain_ray_job_has_its_own_driver(desk: Harness) -> None:
    text = "workflow:\n  name: plain\n  kind: ray\n  entrypoint: python serve.py --name 'a b'\n"
    run = (await desk.client.launch(desk.request(text)))[0]
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    assert desk.ray.jobs[f"raydeck-{run.id}-a1"]["entrypoint"].endswith("-m jobs.gang.entry")
    desk.driver_says(run, "running")
    await desk.until(run.id, lambda run: run.state is RunState.RUNNING)
    desk.driver_ends(run, "succeeded")
    await desk.until(run.id, lambda run: run.state is RunState.SUCCEEDED)


RETRIED = WORKFLOW + "  retry_backoff: 0.05\n  training: {max_retry: 2}\n"


async def test_a_failed_attempt_is_followed_by_another_one(desk: Harness) -> None:
    run = (await desk.client.launch(desk.request(RETRIED)))[0]
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    desk.driver_says(run, "running")
    await desk.until(run.id, lambda run: run.state is RunState.RUNNING)
    desk.driver_ends(
        run, "failed", "rank 1 lost rank 0", "FAILED", failure=Failure.COMMUNICATION, last_step=3, suspects=["worker-1"]
    )
    again = await desk.until(run.id, lambda run: len(run.attempts) == 2)
    assert (again.retries, again.suspects, again.attempts[0].failure) == (1, {"worker-1": 1}, Failure.COMMUNICATION)
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    assert list(desk.ray.jobs) == [f"raydeck-{run.id}-a1", f"raydeck-{run.id}-a2"]
    desk.driver_says(run, "running", 2)
    await desk.until(run.id, lambda run: run.state is RunState.RUNNING)
    desk.driver_ends(run, "succeeded", number=2)
    done = await desk.until(run.id, lambda run: run.state.ended)
    assert done.state is RunState.SUCCEEDED
    moves = await desk.client.moves(run.id)
    assert [move.after.value for move in moves] == [
        "queued", "admitted", "starting", "running", "queued", "admitted", "starting", "running", "succeeded"
    ]  # fmt: skip
    assert moves[4].cause.startswith("attempt 1 failed (communication time-out): rank 1 lost rank 0; tries again in")


async def test_no_attempt_starts_while_ray_has_the_one_before(desk: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.controller.judge.OUTCOME_SETTLES_SECONDS", 0.1)
    run = (await desk.client.launch(desk.request(RETRIED)))[0]
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    desk.driver_says(run, "running")
    desk.driver_ends(run, "failed", "why", "RUNNING", failure=Failure.COMMUNICATION, last_step=3)
    waits = await desk.until(run.id, lambda run: "still lives in Ray" in run.reason)
    assert waits.state is RunState.ADMITTED
    assert list(desk.ray.jobs) == [f"raydeck-{run.id}-a1"]
    assert desk.ray.stopped == [f"raydeck-{run.id}-a1"] * len(desk.ray.stopped)
    desk.ray.finish(f"raydeck-{run.id}-a1", "STOPPED")
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)


async def test_a_run_whose_node_left_before_it_was_posted_is_placed_anew(
    desk: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: object, digest: str, file: object) -> None:
        raise Unreachable("Ray's store does not answer")

    bring = engine.Engine.bring
    monkeypatch.setattr(engine.Engine, "bring", refuse)
    run = (await desk.client.launch(desk.request()))[0]
    await desk.until(run.id, lambda run: "store does not answer" in run.reason)
    left, other = desk.ray.nodes[1], stand_in_node("worker-2", 4)
    desk.ray.nodes[1] = other
    monkeypatch.setattr(engine.Engine, "bring", bring)
    await desk.until(run.id, lambda run: run.state is RunState.STARTING, 20.0)
    launch = Launch.model_validate_json(
        desk.ray.jobs[f"raydeck-{run.id}-a1"]["runtime_env"]["env_vars"]["RAYDECK_LAUNCH"]
    )
    assert launch.node_ids == [other["node_id"]] != [left["node_id"]]
    assert [attempt.number for attempt in (await desk.client.run(run.id)).attempts] == [1]


async def test_of_two_the_one_with_the_higher_priority_goes_first(desk: Harness) -> None:
    text = WORKFLOW.replace("accelerators_per_node: 1", "accelerators_per_node: 4")
    first = (await desk.client.launch(desk.request(text)))[0]
    await desk.until(first.id, lambda run: run.state is RunState.STARTING)
    second = (await desk.client.launch(desk.request(text)))[0]
    third = (await desk.client.launch(desk.request(text, priority="high")))[0]
    told = await desk.client.explain(second.id)
    assert (told.position, [ahead.run for ahead in told.ahead]) == (2, [third.id])
    assert [blocker.kind for blocker in told.blocked_by] == ["resources", "order"]
    desk.driver_says(first, "running")
    desk.driver_ends(first, "succeeded")
    await desk.until(third.id, lambda run: run.state is RunState.STARTING)
    assert (await desk.client.run(second.id)).state is RunState.QUEUED
    await desk.client.arrange(second.id, ArrangeRequest(request_id="hold-the-second", hold=True, reason="later"))
    told = await desk.client.explain(second.id)
    assert (told.position, told.blocked_by[0].sentence) == (None, "it is held by root: later")


async def test_a_run_makes_room_for_one_of_higher_priority_where_that_is_allowed() -> None:
    cluster = (
        "cluster:\n  name: c\n  control_nodes: [{host: h}]\n  storage: {output_path: STORE/out}\n"
        "  scheduler: {preemption: true}\n"
    )
    text = WORKFLOW.replace("accelerators_per_node: 1", "accelerators_per_node: 4")
    async with short_folder() as store, RayStandIn().serving() as ray:
        wanted = cluster.replace("STORE", str(store))
        async with controller(ray, store, wanted) as desk:
            low = (await desk.client.launch(desk.request(text)))[0]
            await desk.until(low.id, lambda run: run.state is RunState.STARTING)
            desk.driver_says(low, "running")
            await desk.until(low.id, lambda run: run.state is RunState.RUNNING)
            high = (await desk.client.launch(desk.request(text, priority="high")))[0]
            await desk.until(low.id, lambda run: run.state is RunState.SAVING)
            desk.driver_ends(low, "stopped", "saved step 7", "STOPPED")
            left = await desk.until(low.id, lambda run: run.state is RunState.PREEMPTED)
            assert left.reason == f"preempted by raydeck: {high.id} has a higher priority; saved step 7"
            await desk.until(high.id, lambda run: run.state is RunState.STARTING)
            desk.driver_says(high, "running")
            desk.driver_ends(high, "succeeded")
            back = await desk.until(low.id, lambda run: run.state is RunState.STARTING)
            assert (len(back.attempts), back.retries) == (2, 0)


async def test_an_ended_run_is_restarted_once(desk: Harness) -> None:
    run = (await desk.client.launch(desk.request()))[0]
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    desk.driver_says(run, "running")
    desk.driver_ends(run, "failed", "why", "FAILED")
    await desk.until(run.id, lambda run: run.state is RunState.FAILED)
    asked = RestartRequest(request_id="restart-it-once", reason="mended")
    assert (await desk.client.restart(run.id, asked)).run.state is RunState.QUEUED
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    await desk.client.restart(run.id, asked)
    with pytest.raises(Refused, match="step 33"):
        await desk.client.restart(run.id, RestartRequest(request_id="another-restart", from_step=33))
    assert len((await desk.client.run(run.id)).attempts) == 2


async def test_a_repeated_request_has_its_answer_though_it_could_not_be_asked_anew(desk: Harness) -> None:
    run = (await desk.client.launch(desk.request()))[0]
    high = ArrangeRequest(request_id="put-it-high", priority="high")
    assert (await desk.client.arrange(run.id, high)).priority == "high"
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    desk.driver_says(run, "running")
    draft = checkpoint.begin(run.run_directory, 20)
    (draft.path / "model.pt").write_bytes(b"weights")
    checkpoint.finish(draft, world_size=1)
    desk.driver_ends(run, "failed", "why", "FAILED")
    await desk.until(run.id, lambda run: run.state is RunState.FAILED)
    asked = RestartRequest(request_id="restart-from-20", from_step=20)
    assert (await desk.client.restart(run.id, asked)).from_step == 20
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)

    shutil.rmtree(checkpoint.folder(run.run_directory, 20))
    assert (await desk.client.restart(run.id, asked)).from_step == 20
    await desk.client.arrange(run.id, high)
    with pytest.raises(Refused, match="there is no checkpoint of step 20"):
        await desk.client.restart(run.id, RestartRequest(request_id="restart-anew", from_step=20))


async def test_runs_are_taken_up_after_a_restart() -> None:
    async with short_folder() as store, RayStandIn().serving() as ray:
        async with controller(ray, store, ticks=False) as before:
            run = (await before.client.launch(before.request()))[0]
            assert ray.posted == []
        async with controller(ray, store) as after:
            await after.until(run.id, lambda run: run.state is RunState.STARTING)
            after.driver_says(run, "running")
            await after.until(run.id, lambda run: run.state is RunState.RUNNING)
        async with controller(ray, store) as again:
            assert (await again.client.run(run.id)).state is RunState.RUNNING
            again.driver_ends(run, "failed", "rank 0 on worker-1: exit code 1", "FAILED")
            found = await again.until(run.id, lambda run: run.state is RunState.FAILED)
            assert found.reason == "rank 0 on worker-1: exit code 1"
        assert len(ray.posted) == 1
