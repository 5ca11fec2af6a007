"""The flight recorder inside the controller: nobody waits for it, trouble is said, its routes, what goes into it."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.controller.recorder import Recorder
from jobs.recording import Segment
from probes.reading import Event, Facts, Health
from tests.unit.recorded import START, parts, played, run, sample


class Clock:
    """The wall, which a test moves."""

    def __init__(self) -> None:
        self.at = START

    def __call__(self) -> float:
        return self.at


class Disk:
    """What the recorder writes goes through it: it can be full, and it can hang."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.free = threading.Event()
        self.free.set()
        self.reached = False
        self._folder, self._write = str(folder), os.write
        monkeypatch.setattr("jobs.recordfiles.os.write", self.write)

    def write(self, descriptor: int, content: Any) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(self._folder):
            self.reached = True
            assert self.free.wait(10)
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(descriptor, content)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.controller.recorder.TICK_SECONDS", 0.02)
    monkeypatch.setattr("jobs.controller.recorder.PAUSE_SECONDS", 0.1)


@pytest.fixture
async def recorder(tmp_path: Path, clock: Clock) -> AsyncGenerator[Recorder]:
    made = Recorder(tmp_path, clock, flush_seconds=0.0)
    made.start()
    yield made
    await made.close()


async def until(so: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.005)


def told(part: Segment) -> list[int | None]:
    """The loads of gpu-1 that stand in a segment, in their order."""
    return [played(part, record.at + 0.004).nodes["gpu-1"].lanes[0] for record in part.by_node.get("gpu-1", ())
            if record.kind == 2]  # fmt: skip


# --- what is taken ----------------------------------------------------------------------------------------------------


async def test_all_that_was_told_is_in_the_files_when_somebody_asks(
    recorder: Recorder, clock: Clock, tmp_path: Path
) -> None:
    recorder.take_facts("gpu-1", Facts(hostname="gpu-1"))
    for second in range(90):
        clock.at = START + second
        recorder.take_sample("gpu-1", sample(second))
    recorder.take_health("gpu-1", Health(oom_kills=3, events=[Event("oom", "Killed process 7", START)]))
    recorder.take_state("gpu-1", "ray", "alive", since=START - 900)
    recorder.take_view("runs", [run()])
    recorder.take_view("alerts", {"alerts": [{"id": "a", "state": "firing", "title": "gpu-1 is hot", "level": "info"}]})
    await recorder.fresh()
    index = recorder.index()
    assert [(each.seq, each.since, each.complete) for each in index.segments] == [
        (1, START, True), (2, START + 60, False),
    ]  # fmt: skip
    assert (index.now, index.trouble, index.dropped) == (START + 89, "", 0)
    assert [mark.kind for mark in index.marks] == ["event", "alert"]
    first, second_part = parts(tmp_path)
    assert told(first) == list(range(60))
    then = played(second_part)
    node = then.nodes["gpu-1"]
    health = node.health()
    assert health is not None
    assert health.oom_kills == 3
    assert node.states["ray"] == ("alive", "", START - 900)
    assert then.runs.keys() == {"lm-k3f9qz"}


async def test_of_a_span_only_its_files_are_told(recorder: Recorder, clock: Clock) -> None:
    for second in range(0, 300, 10):
        clock.at = START + second
        recorder.take_sample("gpu-1", sample(1))
    await recorder.fresh()
    names = [path.name for path in recorder.files(START + 130, START + 200)]
    assert names == [f"{seq:010d}.rdseg" for seq in (3, 4)]
    assert len(recorder.files(0, 1e12)) == 5
    assert recorder.files(START + 400, START + 500) == []
    assert recorder.files(0, START - 1) == []


async def test_nobody_waits_for_a_disk_that_hangs_and_what_does_not_fit_is_counted(
    tmp_path: Path, clock: Clock, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.controller.recorder.QUEUE_ENTRIES", 50)
    monkeypatch.setattr("jobs.controller.recorder.FRESH_SECONDS", 0.05)
    recorder = Recorder(tmp_path, clock)
    disk.free.clear()
    recorder.start()
    recorder.take_sample("gpu-1", sample(0))
    await until(lambda: disk.reached)
    begun = time.monotonic()
    for number in range(80):
        clock.at += 1
        recorder.take_sample("gpu-1", sample(number + 1))
    await recorder.fresh()
    assert time.monotonic() - begun < 0.5
    assert recorder.dropped == 31, "thirty, and the asking"
    assert recorder.index().dropped == recorder.dropped
    disk.free.set()
    await recorder.close()
    assert told(parts(tmp_path)[0])[:50] == list(range(50))


async def test_what_waited_for_a_disk_keeps_its_own_time(tmp_path: Path, clock: Clock, disk: Disk) -> None:
    recorder = Recorder(tmp_path, clock)
    disk.free.clear()
    recorder.start()
    for second in range(0, 200, 10):
        clock.at = START + second
        recorder.take_sample("gpu-1", sample(second % 100))
    disk.free.set()
    await recorder.fresh()
    await recorder.close()
    found = parts(tmp_path)
    assert [part.since for part in found] == [START, START + 60, START + 120, START + 180]
    assert [round(record.at - START) for part in found for key, record in part.records
            if not key and record.kind == 2] == list(range(0, 200, 10))  # fmt: skip


async def test_what_is_told_before_it_is_closed_is_written_and_the_next_one_goes_on(tmp_path: Path) -> None:
    clock = Clock()
    for number in range(3):
        recorder = Recorder(tmp_path, clock)
        recorder.start()
        recorder.take_sample("gpu-1", sample(number))
        await recorder.close()
        await recorder.close()
        clock.at += 10
    assert [told(part) for part in parts(tmp_path)] == [[0], [1], [2]]
    await Recorder(tmp_path, clock).close()  # one that never began


async def test_the_end_is_not_waited_for_without_limit(
    tmp_path: Path, clock: Clock, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.controller.recorder.CLOSE_SECONDS", 0.05)
    monkeypatch.setattr("jobs.controller.recorder.QUEUE_ENTRIES", 1)
    recorder = Recorder(tmp_path, clock)
    disk.free.clear()
    recorder.start()
    recorder.take_sample("gpu-1", sample(0))
    await until(lambda: disk.reached)
    while not recorder.dropped:
        recorder.take_sample("gpu-1", sample(0))
    await recorder.close()
    assert "did not keep up" in recorder.trouble
    disk.free.set()
    monkeypatch.setattr("jobs.controller.recorder.CLOSE_SECONDS", 5.0)
    await recorder.close()


# --- trouble ----------------------------------------------------------------------------------------------------------


async def test_a_full_disk_is_said_and_ends_nothing(
    recorder: Recorder, clock: Clock, disk: Disk, tmp_path: Path
) -> None:
    recorder.take_sample("gpu-1", sample(1))
    await recorder.fresh()
    disk.full = True
    clock.at += 1
    recorder.take_sample("gpu-1", sample(2))
    await until(lambda: recorder.trouble)
    assert recorder.trouble == f"nothing is recorded: {tmp_path}: No space left on device"
    assert recorder.index().trouble == recorder.trouble
    before = recorder.dropped
    recorder.take_sample("gpu-1", sample(3))
    await until(lambda: recorder.dropped > before)
    disk.full = False
    clock.at += 10

    def again() -> bool:
        recorder.take_sample("gpu-1", sample(4))
        return not recorder.trouble

    await until(again)
    await recorder.fresh()
    found = parts(tmp_path)
    assert [part.seq for part in found] == [1, 2]
    assert 4 in told(found[1])
    assert [each.seq for each in recorder.index().segments] == [1, 2]


async def test_to_ask_during_trouble_takes_no_time_and_does_not_hide_it(
    recorder: Recorder, clock: Clock, disk: Disk
) -> None:
    disk.full = True
    recorder.take_sample("gpu-1", sample(1))
    await until(lambda: recorder.trouble)
    dropped, deadline = recorder.dropped, time.monotonic() + 0.25
    while time.monotonic() < deadline:  # longer than the pause: the disk may be tried again, but nothing is told
        begun = time.monotonic()
        await recorder.fresh()
        assert time.monotonic() - begun < 0.2
        assert recorder.index().trouble
        await asyncio.sleep(0.01)
    assert recorder.dropped == dropped


async def test_a_folder_that_cannot_be_made_is_tried_again(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "in-the-way").write_text("")
    recorder = Recorder(tmp_path / "in-the-way" / "recorder", clock)
    recorder.start()
    await until(lambda: recorder.trouble)
    assert "in-the-way" in recorder.trouble
    assert recorder.files(0, 1e12) == []
    (tmp_path / "in-the-way").unlink()

    def again() -> bool:
        recorder.take_sample("gpu-1", sample(4))
        return not recorder.trouble

    await until(again)
    await recorder.close()
    assert told(parts(tmp_path / "in-the-way" / "recorder")[0])[0] == 4


async def test_what_one_node_makes_up_costs_the_others_nothing(
    recorder: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hostile = sample(1)
    hostile.host.memory_used_bytes = 10**400
    recorder.take_sample("gpu-1", sample(1))
    for _ in range(5):
        recorder.take_sample("gpu-2", hostile)
    recorder.take_health("gpu-2", Health(events=[Event("xid", "\ud800", START)]))
    recorder.take_sample("gpu-1", sample(2))
    await recorder.fresh()
    assert (recorder.dropped, recorder.trouble) == (5, "")
    assert told(parts(tmp_path)[0])[-1] == 2
    assert len([each for each in caplog.records if "left out" in each.message]) == 1, "said once, not five times"


async def test_a_mistake_of_its_own_ends_it_and_is_said(recorder: Recorder) -> None:
    recorder.take_view("runs", [{"no": "id"}])
    await until(lambda: recorder.trouble)
    assert "made a mistake" in recorder.trouble
    recorder.take_sample("gpu-1", sample(1))
    begun = time.monotonic()
    await recorder.fresh()
    assert time.monotonic() - begun < 0.2
