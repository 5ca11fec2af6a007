"""A limit on waiting neither loses a cancellation nor leaves anything behind."""

from __future__ import annotations

import asyncio

import pytest

from jobs.within import within


@pytest.mark.parametrize("rounds", range(6))
async def test_a_cancellation_is_not_lost_in_whichever_moment_it_comes(rounds: int) -> None:
    event = asyncio.Event()

    async def work() -> None:
        while True:
            await within(event.wait(), 10.0)
            event.clear()

    task = asyncio.create_task(work())
    for _ in range(3):
        await asyncio.sleep(0)
    event.set()
    for _ in range(rounds):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=1.0)
    assert done
    assert task.cancelled()


async def test_what_takes_too_long_is_ended() -> None:
    ended = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(60.0)
        finally:
            ended.set()

    with pytest.raises(asyncio.TimeoutError):
        await within(slow(), 0.01)
    assert ended.is_set()


async def test_what_it_gives_and_raises_comes_through() -> None:
    async def gives() -> int:
        return 3

    async def fails() -> None:
        raise ValueError("no")

    assert await within(gives(), 1.0) == 3
    assert await within(gives(), None) == 3
    with pytest.raises(ValueError, match="no"):
        await within(fails(), 1.0)


async def test_who_waits_being_cancelled_takes_what_is_waited_for_along() -> None:
    inner: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(within(inner, 10.0))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert inner.cancelled()
