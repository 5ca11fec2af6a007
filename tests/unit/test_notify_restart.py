"""A controller that ends, or is killed: the next one tells nothing twice, and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from aiohttp import web

from tests.unit.notify_harness import ONE, Controller, Got, Receiver, acknowledged, alert, receiver, until


@pytest.fixture
async def there() -> AsyncGenerator[Receiver]:
    async with receiver() as one:
        yield one


async def test_a_restart_tells_nothing_twice_and_loses_nothing(there: Receiver) -> None:
    config = ONE.format(there.url, "")
    here = Controller(config)
    here.tell(alert("told"), alert("silent", silenced_by="s"), acknowledged(alert("had")), seconds=10)
    await until(lambda: here.of("told") is not None)
    there.answers = [web.Response(status=500)]
    here.tell(alert("told"), alert("late"), alert("silent", silenced_by="s"), acknowledged(alert("had")), seconds=6)
    await until(lambda: "try 1" in here.said("late"))
    here.tell(alert("told"), alert("late"), alert("settles"), seconds=1)
    await here.notifier.close()
    keys = [got.body["key"] for got in there.got]

    next_one = Controller(config, here.clock, here.saved())
    assert [each.detail for each in next_one.notifier.deliveries("told")] == [here.said("told")]
    next_one.tell(alert("told"), alert("late"), alert("settles"), alert("silent", silenced_by="s"), seconds=60)
    await until(lambda: len(there.got) == 4)
    assert sorted(got.body["key"] for got in there.got[2:]) == [keys[1], "settles.1700000000.1"]
    assert keys == ["told.1700000000.1", "late.1700000000.1"]
    next_one.tell(seconds=10)
    await until(lambda: next_one.notifier.waiting() == {"hook": 0})
    assert sorted(got.body["alert"]["id"] for got in there.got[4:]) == ["late", "settles", "told"]
    await next_one.notifier.close()

    last = Controller(config, here.clock, next_one.saved())
    last.tell(seconds=60)
    await last.notifier.close()
    assert len(there.got) == 7


async def test_one_that_is_being_told_at_the_end_may_end_or_is_kept(
    there: Receiver,
) -> None:
    free = asyncio.Event()

    async def wait(got: Got) -> web.Response:
        await free.wait()
        return web.json_response({})

    there.answers = [wait, wait]
    here = Controller(ONE.format(there.url, ""))
    here.tell(alert(), seconds=6)
    await until(lambda: len(there.got) == 1)
    closing = asyncio.create_task(here.notifier.close())
    await asyncio.sleep(0)
    free.set()
    await closing
    assert here.notifier.waiting() == {"hook": 0}
    assert here.of() is not None

    free.clear()
    other = Controller(ONE.format(there.url, ""))
    other.tell(alert("b"), seconds=6)
    await until(lambda: len(there.got) == 2)
    await other.notifier._lanes["hook"].close(0.05)
    free.set()
    again = Controller(ONE.format(there.url, ""), other.clock, other.saved())
    again.tell(alert("b"), seconds=1)
    await until(lambda: len(there.got) == 3)
    assert there.got[1].body["key"] == there.got[2].body["key"]
    await again.notifier.close()


async def test_one_that_was_being_told_when_the_controller_was_killed_is_told_with_the_same_key(
    there: Receiver,
) -> None:
    free = asyncio.Event()

    async def wait(got: Got) -> web.Response:
        await free.wait()
        return web.json_response({})

    there.answers = [wait]
    here = Controller(ONE.format(there.url, ""))
    here.tell(alert(), seconds=6)
    await until(lambda: len(there.got) == 1)
    kept = here.saved()
    free.set()
    await here.notifier.close()
    again = Controller(ONE.format(there.url, ""), here.clock, kept)
    again.tell(alert(), seconds=1)
    await until(lambda: len(there.got) == 2)
    assert there.got[0].body["key"] == there.got[1].body["key"]
    await again.notifier.close()


async def test_what_cannot_be_read_is_said_and_begun_anew(there: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    here = Controller(ONE.format(there.url, ""), saved={"version": 2, "book": 7})
    assert "is not known any more" in caplog.text
    here.tell(alert(), seconds=6)
    await until(lambda: len(there.got) == 1)
    await here.notifier.close()
