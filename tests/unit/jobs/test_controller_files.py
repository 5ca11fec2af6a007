"""An attempt's files: whole, half written, missing, foreign, or on storage that hangs."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.controller import files
from jobs.controller.files import STOP_NOW_NAME, RunFiles, thin
from jobs.controller.rundir import check, make
from jobs.errors import Refused, Unreachable
from jobs.model import GangStatus, Outcome, Progress
from jobs.wire import Release


@pytest.fixture
def reader() -> RunFiles:
    return RunFiles()


async def test_what_is_not_there_yet_is_no_fault(reader: RunFiles, tmp_path: Path) -> None:
    report = await reader.report(str(tmp_path / "attempt-1"))
    assert (report.status, report.outcome, report.unreadable) == (None, None, "")


async def test_what_is_there_is_read(reader: RunFiles, tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(GangStatus(phase="running").model_dump_json())
    (tmp_path / "outcome.json").write_text(Outcome(verdict="failed", survivors=[4]).model_dump_json())
    report = await reader.report(str(tmp_path))
    assert report.status is not None
    assert report.status.phase == "running"
    assert report.outcome is not None
    assert report.outcome.survivors == [4]


async def test_what_is_there_and_is_something_else_is_said(
    reader: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "status.json").write_text('{"phase": ')
    (tmp_path / "outcome.json").mkdir()
    report = await reader.report(str(tmp_path))
    assert "status.json is not a status" in report.unreadable
    assert "outcome.json: Is a directory" in report.unreadable
    monkeypatch.setattr(files, "FILE_LIMIT_BYTES", 5)
    assert "larger than any status" in (await reader.report(str(tmp_path))).unreadable


async def test_storage_that_hangs_holds_up_nobody_else(reader: RunFiles, tmp_path: Path) -> None:
    released = threading.Event()
    with pytest.raises(Unreachable, match="does not answer"):
        await reader.apart("/hung", released.wait, limit=0.05)
    with pytest.raises(Unreachable, match="does not answer"):
        await reader.apart("/hung", lambda: None)
    assert await reader.apart(str(tmp_path), lambda: 1) == 1
    for number in range(files.THREADS - 1):
        with pytest.raises(Unreachable):
            await reader.apart(f"/hung/{number}", released.wait, limit=0.05)
    with pytest.raises(Unreachable, match="holds all readers"):
        await reader.apart(str(tmp_path), lambda: 1)
    released.set()
    for _ in range(200):
        await asyncio.sleep(0.01)
        if (await reader.report(str(tmp_path))).unreadable == "":
            break
    else:
        raise AssertionError("the readers did not come back")
    reader.close()


async def test_many_at_once_only_wait_for_a_reader(reader: RunFiles, tmp_path: Path) -> None:
    reports = await asyncio.gather(*(reader.report(str(tmp_path / str(number))) for number in range(50)))
    assert [report.unreadable for report in reports] == [""] * 50


async def test_the_word_to_stop_now_is_left(reader: RunFiles, tmp_path: Path) -> None:
    await reader.ask_to_stop_now(str(tmp_path / "attempt-1"))
    assert (tmp_path / "attempt-1" / STOP_NOW_NAME).exists()
    with pytest.raises(Unreachable, match="cannot be written"):
        await reader.ask_to_stop_now("/proc/nothing")


def write_course(folder: Path, steps: range, loss: float) -> None:
    folder.mkdir(parents=True)
    with (folder / "progress.jsonl").open("w") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "loss": loss, "wall": float(step)}) + "\n")


async def test_a_later_attempt_replaces_what_it_did_again(reader: RunFiles, tmp_path: Path) -> None:
    write_course(tmp_path / "attempt-1", range(100), 1.0)
    write_course(tmp_path / "attempt-2", range(50, 70), 2.0)
    course = await reader.series(str(tmp_path), 1000)
    assert [point.step for point in course] == list(range(70))
    assert [point.loss for point in course] == [1.0] * 50 + [2.0] * 20


async def test_a_long_course_is_sampled_and_not_read_whole(
    reader: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WHOLE_SERIES_BYTES", 1000)
    write_course(tmp_path / "attempt-1", range(20_000), 1.0)
    course = await reader.series(str(tmp_path), 100)
    steps = [point.step for point in course]
    assert (steps[0], steps[-1]) == (0, 19_999)
    assert 80 <= len(steps) <= 100
    assert max(after - before for before, after in itertools.pairwise(steps)) < 500


@given(st.integers(0, 300), st.integers(0, 60))
def test_thinning_keeps_the_ends_and_the_order(count: int, points: int) -> None:
    course = [Progress(step=step) for step in range(count)]
    thinned = [point.step for point in thin(course, points)]
    assert len(thinned) == min(count, points)
    assert thinned == sorted(set(thinned))
    if thinned:
        assert thinned[-1] == count - 1
    if len(thinned) > 1:
        assert thinned[0] == 0


def make_release(name: str = "r1") -> Release:
    return Release(id=name, workflow="lm", created_at=1.0, user="alice", config={}, code_digest="d")


def test_a_run_directory_belongs_to_one_release(tmp_path: Path) -> None:
    folder = tmp_path / "lm" / "lm-aaaaaa"
    check(str(folder))
    make(str(folder), make_release())
    make(str(folder), make_release())
    assert Release.model_validate_json((folder / "release.json").read_text()) == make_release()
    assert folder.stat().st_mode & 0o700 == 0o700
    with pytest.raises(Refused, match="belongs to another run"):
        make(str(folder), make_release("r2"))
    (folder / "release.json").write_text("{}")
    with pytest.raises(Refused, match="is no release"):
        make(str(folder), make_release())


def test_a_run_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for function in (check, lambda folder: make(folder, make_release())):  # pyright: ignore[reportUnknownVariableType]
        with pytest.raises(Refused, match="cannot be made on the head"):
            function(str(tmp_path / "file" / "lm" / "lm-aaaaaa"))
