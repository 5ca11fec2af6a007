"""A run from launch to end, with a dashboard that misbehaves: nothing is lost, and nothing happens twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from jobs.controller import engine, judge, reconcile
from jobs.controller.files import STOP_NOW_NAME
from jobs.errors import Refused
from jobs.model import Launch, RunState
from tests.unit.jobs.controller_harness import Harness, controller, short_folder, stop_request
from tests.unit.jobs.ray_stand_in import RayStandIn


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "BUSY_TICK_SECONDS", 0.02)
    monkeypatch.setattr(reconcile, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(reconcile, "CALM_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(engine, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(engine, "LOOK_AT_MOST_SECONDS", 0.1)
    monkeypatch.setattr(judge, "OUTCOME_ARRIVES_SECONDS", 0.1)


@pytest.fixture
async def desk() -> AsyncGenerator[Harness]:
    async with short_folder() as store, RayStandIn().serving() as ray, controller(ray, store) as harness:
        yield harness


async def test_a_run_goes_its_way(desk: Harness) -> None:
    run = await desk.client.launch(desk.request())
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
    run = await desk.client.launch(desk.request())
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    assert desk.ray.posted == [f"raydeck-{run.id}-a1"]


async def test_a_refused_submission_fails_with_rays_words(desk: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "TRIES", 1)
    desk.ray.refuses = "runtime_env field has the wrong type"
    run = await desk.client.launch(desk.request())
    run = await desk.until(run.id, lambda run: run.state.ended)
    assert run.state is RunState.FAILED
    assert "runtime_env field has the wrong type" in run.reason


async def test_a_run_waits_for_a_silent_ray_and_says_so(desk: Harness) -> None:
    run = await desk.client.launch(desk.request())
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    desk.driver_says(run, "running")
    await desk.until(run.id, lambda run: run.state is RunState.RUNNING)
    desk.ray.down = True
    run = await desk.until(run.id, lambda run: "Ray does not answer" in run.reason)
    assert run.state is RunState.RUNNING
    assert (await desk.client.status()).ray.startswith("no answer for 0 s: Ray's dashboard at")
    second = await desk.client.launch(desk.request())
    second = await desk.until(second.id, lambda run: run.state is RunState.ADMITTED and bool(run.reason))
    assert "it starts when Ray does" in second.reason
    desk.ray.down = False
    await desk.until(run.id, lambda run: run.state is RunState.RUNNING and not run.reason)
    await desk.until(second.id, lambda run: run.state is RunState.STARTING)
    assert (await desk.client.status()).ray == "ok"


async def test_a_driver_that_dies_is_told_in_rays_words(desk: Harness) -> None:
    run = await desk.client.launch(desk.request())
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    words = "Job entrypoint command failed with exit code 137, last available logs:\nstarting\nKilled"
    desk.ray.finish(f"raydeck-{run.id}-a1", "FAILED", words)
    run = await desk.until(run.id, lambda run: run.state is RunState.FAILED)
    assert run.reason.startswith("its driver died without an outcome: Job entrypoint command failed with exit code 137")
    assert run.reason.endswith("Killed")


async def test_a_job_that_vanished_is_a_failed_run(desk: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "DOUBT_SECONDS", 0.0)
    run = await desk.client.launch(desk.request())
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    desk.ray.jobs.clear()
    run = await desk.until(run.id, lambda run: run.state is RunState.FAILED)
    assert "Ray no longer knows its job" in run.reason
    assert len(desk.ray.posted) == 1


async def test_a_foreign_job_with_our_id_is_never_touched(desk: Harness) -> None:
    first = await desk.client.launch(desk.request(dry_run=True, request_id="the-same-request"))
    name = f"raydeck-{first.id}-a1"
    desk.ray.jobs[name] = {"submission_id": name, "status": "RUNNING", "metadata": {"owner": "bob"}}
    run = await desk.client.launch(desk.request(request_id="the-same-request"))
    assert run.id == first.id
    run = await desk.until(run.id, lambda run: run.state is RunState.FAILED)
    assert "not this run's" in run.reason
    assert desk.ray.posted == []
    assert desk.ray.stopped == []


async def test_a_stop_saves_first(desk: Harness) -> None:
    run = await desk.client.launch(desk.request())
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
    run = await desk.client.launch(desk.request())
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
    run = await desk.client.launch(desk.request())
    await desk.until(run.id, lambda run: run.state is RunState.ADMITTED)
    await desk.client.stop(run.id, stop_request())
    run = await desk.until(run.id, lambda run: run.state.ended)
    assert run.state is RunState.STOPPED
    desk.ray.down = False
    await desk.until(run.id, lambda run: desk.service.engine.answers)
    assert desk.ray.posted == []


async def test_a_slow_submission_holds_up_no_other_run(desk: Harness) -> None:
    first = await desk.client.launch(desk.request())
    await desk.until(first.id, lambda run: run.state is RunState.STARTING)
    desk.ray.holds = asyncio.Event()
    second = await desk.client.launch(desk.request())
    await desk.until(second.id, lambda run: run.state is RunState.ADMITTED)
    desk.driver_says(first, "running")
    await desk.until(first.id, lambda run: run.state is RunState.RUNNING)
    assert (await desk.client.run(second.id)).state is RunState.ADMITTED
    desk.ray.holds.set()
    await desk.until(second.id, lambda run: run.state is RunState.STARTING)


async def test_a_plain_ray_job_is_followed_by_rays_word_alone(desk: Harness) -> None:
    text = "workflow:\n  name: plain\n  kind: ray\n  entrypoint: python serve.py --name 'a b'\n"
    run = await desk.client.launch(desk.request(text))
    await desk.until(run.id, lambda run: run.state is RunState.STARTING)
    name = f"raydeck-{run.id}-a1"
    assert desk.ray.jobs[name]["entrypoint"] == "cd workload && exec python serve.py --name 'a b'"
    desk.ray.finish(name, "RUNNING")
    await desk.until(run.id, lambda run: run.state is RunState.RUNNING)
    desk.ray.finish(name, "SUCCEEDED")
    await desk.until(run.id, lambda run: run.state is RunState.SUCCEEDED)


async def test_runs_are_taken_up_after_a_restart() -> None:
    async with short_folder() as store, RayStandIn().serving() as ray:
        async with controller(ray, store, ticks=False) as before:
            run = await before.client.launch(before.request())
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
