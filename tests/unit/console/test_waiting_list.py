"""The line of those that wait, of which events bring the head: order, pages, and news while pages are read."""

from __future__ import annotations

from console.sources.waiting import PAGE, WaitingList
from jobs.client import ControllerClient
from jobs.queueview import QueueView, Waiting

HEAD = 200


class Line(ControllerClient):
    """A controller with a line."""

    def __init__(self, count: int) -> None:
        super().__init__(None)  # pyright: ignore[reportArgumentType]
        self.runs_in_line = [f"r{number:05d}" for number in range(count)]
        self.asked: list[tuple[int, int]] = []

    def view(self, offset: int, limit: int) -> QueueView:
        rows = [
            Waiting(run=run, position=offset + number + 1, queue="q", priority="low", user="a", nodes=1, gpus=1,
                    since=0.0, sentence="", kind="order")
            for number, run in enumerate(self.runs_in_line[offset : offset + limit])
        ]  # fmt: skip
        return QueueView(at=0.0, waiting=rows, waiting_total=len(self.runs_in_line))

    async def queue(self, offset: int = 0, limit: int = HEAD) -> QueueView:
        self.asked.append((offset, limit))
        return self.view(offset, limit)


async def whole(line: Line) -> WaitingList:
    waits = WaitingList()
    waits.take(line.view(0, HEAD))
    for _ in range(100):
        if waits.complete:
            return waits
        await waits.load(line)
    raise AssertionError("never complete")


async def test_a_short_line_asks_for_nothing() -> None:
    line = Line(7)
    waits = await whole(line)
    assert waits.keys == line.runs_in_line
    assert line.asked == []


async def test_a_long_line_is_read_page_by_page_in_order() -> None:
    line = Line(HEAD + 2 * PAGE + 450)
    waits = await whole(line)
    assert waits.keys == line.runs_in_line
    assert line.asked == [(HEAD, PAGE), (HEAD + PAGE, PAGE), (HEAD + 2 * PAGE, PAGE)]


async def test_a_page_is_asked_for_anew_each_time_and_what_changed_is_told() -> None:
    line = Line(HEAD + 2 * PAGE + 450)
    waits = await whole(line)
    line.asked.clear()
    gone = line.runs_in_line.pop(900)
    changed: set[str] = set(waits.take(line.view(0, HEAD)))
    for _ in range(3):
        changed |= await waits.load(line)
    assert {offset for offset, _ in line.asked} == {HEAD, HEAD + PAGE, HEAD + 2 * PAGE}
    assert gone in changed
    assert gone not in waits.keys
    assert waits.row("r00901").position == 901


async def test_an_event_moves_a_run_from_the_pages_to_the_head_once() -> None:
    line = Line(900)
    waits = await whole(line)
    line.runs_in_line.insert(0, line.runs_in_line.pop(800))
    assert "r00800" in waits.take(line.view(0, HEAD))
    assert waits.keys[0] == "r00800"
    assert waits.keys.count("r00800") == 1


async def test_fewer_than_was_said_is_the_end_of_it() -> None:
    line = Line(300)
    waits = WaitingList()
    waits.take(line.view(0, HEAD).model_copy(update={"waiting_total": 5_000}))
    for _ in range(3):
        await waits.load(line)
    assert waits.complete
    assert len(waits.keys) == 300
