"""Each kind of request, with the controller killed right before and right after it is on the disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from jobs.model import Run
from tests.crash.killpoint import KillPoint
from tests.crash.operations import SILENCE, Operation
from tests.crash.world import World, world

pytestmark = pytest.mark.slow


async def _run(made: World, more: str = SILENCE) -> Run:
    """A run that waits, since it is held."""
    answer = await made.done(made.users.launch(hold=True, more=more))
    return Run.model_validate(answer.body["runs"][0])


async def launch(made: World) -> Operation:
    return made.users.launch(hold=True)


async def sweep(made: World) -> Operation:
    return made.users.launch(hold=True, more=SILENCE + "  sweep: {parameters: {learning_rate: [0.1, 0.2]}}\n")


async def stop(made: World) -> Operation:
    return made.users.stop(await _run(made))


async def release(made: World) -> Operation:
    return made.users.arrange(await _run(made), {"hold": False})


async def priority(made: World) -> Operation:
    return made.users.arrange(await _run(made), {"priority": "high"})


async def restart(made: World) -> Operation:
    run = await _run(made)
    await made.done(made.users.stop(run))
    await made.until(run.id, lambda now: now.state.ended)
    return made.users.restart(run)


async def rollback(made: World) -> Operation:
    old = await _run(made)
    await made.done(made.users.stop(old))
    await _run(made, SILENCE + "  seed: 7\n")
    return made.users.rollback(old)


async def undo(made: World) -> Operation:
    answer = await made.done(await rollback(made))
    return made.users.undo(str(answer.body["id"]))


KINDS: tuple[Callable[[World], Awaitable[Operation]], ...] = (
    launch,
    sweep,
    stop,
    release,
    priority,
    restart,
    rollback,
    undo,
)


async def _acts(made: World) -> int:
    """How many actions the audit has as allowed."""
    return sum(entry["allowed"] for entry in (await made.read("/v1/audit?limit=10000"))["entries"])


async def test_killed_around_its_commit_a_request_is_carried_out_once(crash_seed: int) -> None:
    async with world(crash_seed) as made:
        controller = await made.start()
        assert await made.answers(controller), made.said()
        for prepare in KINDS:
            for after in (False, True):
                operation = await prepare(made)
                before = await _acts(made)
                await made.end(controller)

                controller = await made.start(KillPoint("commit", 1, after, about=operation.body["request_id"]))
                assert await made.answers(controller), made.said()
                made.history.append(operation)
                await made.carry_out(operation)
                assert operation.tries == ["no answer"]
                await made.end(controller)

                controller = await made.start()
                assert await made.answers(controller), made.said()
                assert await _acts(made) == before + after, operation
                await made.carry_out(operation)
                assert operation.took_effect(), operation
                assert await _acts(made) == before + 1, operation
        await made.end(controller)
        await made.settle()
        await made.check()
