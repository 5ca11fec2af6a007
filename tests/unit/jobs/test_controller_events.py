"""The event stream: the newest of each run, a queue of ten thousand told by its first page, and a bounded beginning."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from jobs.controller import events, reconcile, service
from jobs.controller.events import SHOWN_WAITING, Changes, Hub, Listener
from jobs.model import Attempt, Run, RunState
from jobs.queueview import QueueView, Waiting
from jobs.wire import Event, Heartbeat, QueueChanged, Snapshot
from tests.unit.jobs.controller_harness import Harness, controller, short_folder
from tests.unit.jobs.ray_stand_in import RayStandIn


def run(number: int, state: RunState = RunState.QUEUED, **changes: Any) -> Run:
    return Run(
        id=f"lm-{number:05d}", workflow="lm", release="r", state=state, nodes=1, gpus=1, submitted_at=float(number)
    ).model_copy(update=changes)


def page(*runs: Run, at: float = 1.0, total: int = 0, start: float | None = None) -> QueueView:
    waiting = [
        Waiting(
            run=each.id, position=place, queue="default", priority="normal", user="u", nodes=1, gpus=1, since=1.0,
            sentence="it waits", kind="resources", estimated_start=start,
        )
        for place, each in enumerate(runs, 1)
    ]  # fmt: skip
    return QueueView(at=at, waiting=waiting, waiting_total=total or len(runs), pass_seconds=at / 1000)


async def taken(listener: Listener) -> Changes:
    """What waits for a listener; nothing if nothing does."""
    return await anext(aiter(listener.changes()))


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> tuple[Hub, Listener]:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.01)
    hub = Hub()
    joined = hub.join()
    assert joined is not None
    return hub, joined


async def test_of_each_run_only_the_newest_version_waits(listener: tuple[Hub, Listener]) -> None:
    hub, joined = listener
    for state in (RunState.QUEUED, RunState.ADMITTED, RunState.STARTING):
        hub.publish(run(1, state))
    assert [each.state for each in (await taken(joined)).runs] == [RunState.STARTING]
    assert await taken(joined) == Changes([])


async def test_runs_that_wait_far_back_are_counted_and_not_told(listener: tuple[Hub, Listener]) -> None:
    hub, joined = listener
    for number in range(10_000):
        hub.publish(run(number))
    assert len((await taken(joined)).runs) == SHOWN_WAITING
    far = run(9_000)
    hub.publish(far.model_copy(update={"priority": "low"}))
    assert (await taken(joined)).runs == []
    # What it does beyond waiting is told, and so is one that goes back to wait after it had held something.
    for state in (RunState.ADMITTED, RunState.STOPPED):
        hub.publish(far.model_copy(update={"state": state}))
        assert [each.state for each in (await taken(joined)).runs] == [state]
    hub.publish(far.model_copy(update={"attempts": [Attempt(number=1, job_id="j")]}))
    assert [each.id for each in (await taken(joined)).runs] == [far.id]


async def test_a_run_is_told_when_it_comes_onto_the_first_page(listener: tuple[Hub, Listener]) -> None:
    hub, joined = listener
    runs = [run(number) for number in range(SHOWN_WAITING + 5)]
    for each in runs:
        hub.publish(each)
    await taken(joined)
    first = runs[5:]
    hub.publish_queue(page(*first, total=205), {each.id: each for each in first})
    told = await taken(joined)
    assert [each.id for each in told.runs] == [each.id for each in runs[SHOWN_WAITING:]]
    assert told.queue is not None
    assert told.queue.waiting_total == 205
    # Those that left the page are far back now.
    hub.publish(runs[0])
    assert (await taken(joined)).runs == []
    hub.publish(runs[-1])
    assert [each.id for each in (await taken(joined)).runs] == [runs[-1].id]


async def test_a_queue_that_is_the_same_is_told_once(listener: tuple[Hub, Listener]) -> None:
    hub, joined = listener
    one = run(1)

    async def told(queue: QueueView) -> bool:
        hub.publish_queue(queue, {one.id: one})
        return (await taken(joined)).queue is not None

    assert await told(page(one, at=1.0))
    assert not await told(page(one, at=2.0))
    assert await told(page(one, at=3.0, start=600.0))
    assert not await told(page(one, at=4.0, start=630.0))
    assert await told(page(one, at=5.0, start=700.0))
    assert await told(page(one, at=6.0, start=700.0, total=2))


async def test_what_a_snapshot_showed_is_told_of_afterwards(listener: tuple[Hub, Listener]) -> None:
    hub, joined = listener
    for number in range(SHOWN_WAITING):
        hub.publish(run(number))
    await taken(joined)
    hub.show([run(5000)])
    hub.publish(run(5000, priority="high"))
    assert [each.priority for each in (await taken(joined)).runs] == ["high"]


# --- over the socket ------------------------------------------------------------------------------------------------


@pytest.fixture
async def desk() -> AsyncGenerator[Harness]:
    async with short_folder() as store, RayStandIn().serving() as ray, controller(ray, store) as harness:
        yield harness


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "PASS_SECONDS", 0.05)
    monkeypatch.setattr(reconcile, "IDLE_PASS_SECONDS", 0.05)
    monkeypatch.setattr(reconcile, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(service, "QUEUE_SECONDS", 0.05)


async def until(stream: AsyncIterator[Event], kind: type[Any], what: Any, seconds: float = 10.0) -> Any:
    """The first event of this kind that is so."""
    deadline = time.monotonic() + seconds
    while True:
        event = await asyncio.wait_for(anext(stream), seconds)
        if isinstance(event, kind) and what(event):
            return event
        assert time.monotonic() < deadline


async def test_the_queue_comes_with_the_snapshot_and_when_it_changes(desk: Harness) -> None:
    held = await desk.launch(desk.request(hold=True))
    deadline = time.monotonic() + 10.0
    while not ((page := desk.service.admission.page) and page.waiting):
        assert time.monotonic() < deadline, "no pass has gone through the queue"
        await asyncio.sleep(0.01)
    stream = desk.client.events()
    snapshot = await anext(stream)
    assert isinstance(snapshot, Snapshot)
    assert snapshot.queue is not None
    assert [each.run for each in snapshot.queue.waiting] == [held.id]
    assert [each.id for each in snapshot.runs] == [held.id]
    sweep = "workflow: {name: lm, sweep: {parameters: {batch_size: [1, 2, 3]}}}"
    runs = await desk.client.launch(desk.request(sweep, hold=True))
    changed = await until(stream, QueueChanged, lambda event: event.queue.held_total == 4)
    assert changed.queue.waiting_total == 4
    await until(stream, Heartbeat, lambda event: event.ray == "ok")
    assert {each.id for each in await desk.client.runs()} == {held.id, *(run.id for run in runs)}
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_snapshot_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SNAPSHOT_ENDED", 2)
    count = SHOWN_WAITING + 10
    values = ", ".join(map(str, range(1, count + 1)))
    sweep = f"workflow: {{name: lm, sweep: {{parameters: {{batch_size: [{values}]}}}}}}"
    async with short_folder() as store, RayStandIn().serving() as ray, controller(ray, store, ticks=False) as desk:
        runs = await desk.client.launch(desk.request(sweep, hold=True))
        for number, each in enumerate(runs[:4]):
            await desk.put(each.id, state=RunState.STOPPED, ended_at=float(number))
        await desk.put(runs[-1].id, state=RunState.RUNNING, held=None)
        stream = desk.client.events()
        snapshot = await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
    assert isinstance(snapshot, Snapshot)
    assert snapshot.queue is not None
    # The first that wait, the last that ended, and what holds something.
    assert {each.run for each in snapshot.queue.waiting} == {run.id for run in runs[4 : 4 + SHOWN_WAITING]}
    assert {each.id for each in snapshot.runs} == {run.id for run in (*runs[2 : 4 + SHOWN_WAITING], runs[-1])}
