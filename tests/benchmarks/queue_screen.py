"""What a frame of the queue and of the runs costs the console with ten thousand that wait, against ten.

Budget: less than twice. A frame is all that a second brings: a page of the queue as an event, changed runs, ages that
moved, the paint of what is on screen. 200 fill the screen as ten thousand do: what they cost more than ten is painting.
Beside it, a burst of changes in which each run costs the same, however many there are; and the queue once all of it was
asked for, which asks for one page more each second.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from textual.pilot import Pilot

from console.screens.queue import QueueScreen
from console.screens.work import RunsScreen
from console.state.work import WorkStore
from console.widgets.table import VirtualTable
from jobs.model import Run, RunState
from jobs.queueview import QueueView, Waiting
from tests.screens.answers import WALL, FrozenClient
from tests.screens.frozen import NOW, FrozenApp, FrozenSession, session_of

FEW, MANY = 10, 10_000
PAGE = 200
"""So many of those that wait are in an event."""
FRAMES = 40
SIZE = (200, 60)


def _waiting(count: int, second: int) -> list[Waiting]:
    return [
        Waiting(run=f"lm-{number:06d}", position=number + 1, queue="training", priority="normal", user="alice", nodes=2,
                gpus=8, since=WALL - number, sentence=f"needs 2 nodes with 4 free GPUs each, {second} are free",
                kind="resources", estimated_start=WALL + 60 * number)
        for number in range(count)
    ]  # fmt: skip


def _view(count: int, second: int) -> QueueView:
    return QueueView(at=WALL + second, waiting=_waiting(min(count, PAGE), second), waiting_total=count, accelerators=16)


def _run(number: int, state: RunState = RunState.QUEUED) -> Run:
    return Run(id=f"lm-{number:06d}", workflow="lm", release="lm-r-1", state=state, nodes=2, gpus=8, user="alice",
               submitted_at=WALL - number)  # fmt: skip


class _Moving(FrozenSession):
    """The frozen session, whose clock goes on by a second with each frame."""

    second = 0

    def now(self) -> float:
        return NOW + self.second

    def head_wall(self) -> float:
        return WALL + self.second


def _filled(count: int) -> _Moving:
    made = session_of(_Moving)
    assert made.work.status is not None
    made.work.snapshot(made.work.status, [_run(number) for number in range(count)], NOW, _view(count, 0))
    made.client = FrozenClient(dict(made.work.runs))
    return made


async def _frames(screen: type[QueueScreen] | type[RunsScreen], count: int, *, whole: bool = False) -> float:
    """The median CPU seconds of a frame, from the event to the painted lines. ``whole``: all of the queue is known."""
    made = _filled(count)
    app = FrozenApp(made, first=screen)
    costs: list[float] = []
    async with app.run_test(size=SIZE) as pilot:
        await _painted(pilot)
        if whole:
            made.client.line = _waiting(count, 0)
            await pilot.press("G")
            table = app.screen.query_one("#waiting", VirtualTable)
            while table.total_count < count:
                await pilot.pause(0.05)
        for second in range(FRAMES):
            made.second = second
            view, changed = _view(count, second), [_run(number % count) for number in range(second, second + 5)]
            began = time.process_time()
            made.work.take_queue(view, NOW)
            for run in changed:
                made.work.run_changed(run, NOW)
            app._frame()
            await _painted(pilot)
            costs.append(time.process_time() - began)
    return statistics.median(costs)


async def _painted(pilot: Pilot[Any]) -> None:
    await pilot.pause()


def _burst(count: int) -> float:
    """CPU seconds for each of so many runs that change one after the other."""
    news = [_run(number) for number in range(count)]
    work = WorkStore()
    began = time.process_time()
    for run in news:
        work.run_changed(run, NOW)
    assert len(work.keys) == count
    return (time.process_time() - began) / count


def run() -> dict[str, Any]:
    """Milliseconds of a frame, few against many, and microseconds of each change in a burst."""
    found: dict[str, Any] = {"waiting": [FEW, MANY], "budget_ratio": 2.0}
    for name, screen in (("queue", QueueScreen), ("runs", RunsScreen)):
        few, full, many = (asyncio.run(_frames(screen, count)) for count in (FEW, PAGE, MANY))
        found[f"{name}_frame_ms"] = {"10": round(few * 1000, 2), "200": round(full * 1000, 2),
                                     "10000": round(many * 1000, 2)}  # fmt: skip
        found[f"{name}_ratio"] = round(many / few, 2)
    found["queue_whole_frame_ms"] = round(asyncio.run(_frames(QueueScreen, MANY, whole=True)) * 1000, 2)
    few, many = (min(_burst(count) for _ in range(3)) for count in (1_000, MANY))
    found["burst_us_each"] = {"1000": round(few * 1e6, 1), "10000": round(many * 1e6, 1)}
    found["burst_ratio"] = round(many / few, 2)
    return found


if __name__ == "__main__":
    import json

    print(json.dumps(run(), indent=2))
