"""No attempt twice, and none beside another: Ray's head started anew, and drivers that do not leave."""

from __future__ import annotations

import pytest

from jobs.model import Failure, Run, RunState
from tests.crash.world import world

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("killed", "linger"), [(False, False), (True, True)], ids=["alone", "with the controller"])
async def test_what_ray_forgot_is_lost_and_tried_again_where_allowed(killed: bool, linger: bool) -> None:
    async with world(5, factor=20.0) as made:
        controller = await made.start()
        assert await made.answers(controller), made.said()
        runs: list[Run] = []
        for retries in (0, 1):
            more = f"  train_script: steady.py\n  training: {{max_retry: {retries}}}\n  retry_backoff: 1s\n"
            answer = await made.done(made.users.launch(more=more))
            runs.append(Run.model_validate(answer.body["runs"][0]))
        for run in runs:
            await made.until(run.id, lambda now: now.state is RunState.RUNNING)
        # Where they linger, their processes live on until the next attempt sweeps them away.
        await made.control("head", {"linger": linger, "down_seconds": 5.0})
        if killed:
            await made.end(controller)
            controller = await made.start()
            assert await made.answers(controller), made.said()
        lost, again = [
            await made.until(run.id, lambda now: now.state is RunState.FAILED or len(now.attempts) > 1) for run in runs
        ]
        assert lost.state is RunState.FAILED
        assert len(lost.attempts) == 1
        assert lost.failure is Failure.NODE_LOST
        assert "Ray's head was started anew" in lost.reason
        assert again.attempts[0].state is RunState.FAILED
        assert "Ray's head was started anew" in again.attempts[0].reason
        await made.done(made.users.stop(again))
        await made.end(controller)
        await made.settle()
        await made.check()


async def test_what_ray_took_and_forgot_before_the_controller_knew_is_not_started_twice() -> None:
    async with world(5, factor=20.0) as made:
        controller = await made.start()
        assert await made.answers(controller), made.said()
        trap = {"request": "submit", "after": True, "skip": 0, "pid": controller.pid}
        await made.control("trap", trap)
        more = "  train_script: steady.py\n  training: {max_retry: 1}\n  retry_backoff: 1s\n"
        answer = await made.done(made.users.launch(more=more))
        run = Run.model_validate(answer.body["runs"][0])
        await controller.wait()
        await made.ray_has_started(1)
        await made.control("head", {"linger": True, "down_seconds": 1.0})
        controller = await made.start()
        assert await made.answers(controller), made.said()
        await made.until(run.id, lambda now: now.state is RunState.RUNNING)
        await made.check_now()
        await made.done(made.users.stop(run))
        await made.end(controller)
        await made.settle()
        await made.check()


async def test_no_attempt_starts_while_the_driver_of_the_one_before_stays() -> None:
    async with world(5, factor=20.0) as made:
        controller = await made.start()
        assert await made.answers(controller), made.said()
        more = "  train_script: lingering.py\n  training: {max_retry: 1}\n  retry_backoff: 1s\n"
        answer = await made.done(made.users.launch(more=more))
        run = Run.model_validate(answer.body["runs"][0])
        # The outcome stands after a while, though Ray still has the job as running.
        await made.until(run.id, lambda now: len(now.attempts) == 2 and now.state is not RunState.ADMITTED)
        await made.check_now()
        await made.end(controller)
        await made.settle()
        await made.check()
