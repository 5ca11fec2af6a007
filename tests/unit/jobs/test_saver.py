"""A script saves when it is due, whole or not at all; one process alone. With more of them: test_saver_gang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

import jobs
from jobs import catalogue, fence, metrics, saver
from jobs.errors import Refused

ROOT = Path(jobs.__file__).parents[1]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A run's folder, and the environment of a process in it."""
    for name in os.environ:
        if name.startswith("RAYDECK_") or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("RAYDECK_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RAYDECK_ATTEMPT", "1")
    monkeypatch.setenv("RAYDECK_CHECKPOINT_INTERVAL", "10")
    monkeypatch.setattr(metrics, "_listening", False)
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)
    metrics._stop.clear()


def test_it_is_due_at_the_interval_at_the_end_and_when_asked_to_leave(run: Path) -> None:
    saver = jobs.Saver()
    assert (saver.resume, saver.step, saver.leaving) == (None, 0, False)
    assert [step for step in range(1, 32) if saver.due(step, last=step == 31)] == [10, 20, 30, 31]
    os.kill(os.getpid(), signal.SIGTERM)
    assert saver.due(32)
    assert saver.leaving
    assert jobs.Saver(0, every=10).due(10)
    with pytest.raises(ValueError, match="at least 1"):
        jobs.Saver(every=0)


def test_between_the_steps_at_which_they_ask_nobody_leaves(run: Path) -> None:
    saver = jobs.Saver(7, every=5)
    os.kill(os.getpid(), signal.SIGTERM)
    due: list[tuple[int, bool]] = []
    for step in range(1, 6):
        due.append((step, saver.due(step)))
        assert saver.leaving == (step == 5)
    assert due == [(1, False), (2, False), (3, False), (4, False), (5, True)]
    again = jobs.Saver(3, every=5)
    assert again.due(3)
    assert again.leaving  # where it saves anyway it asks as well


def test_what_it_saves_is_in_the_catalogue(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jobs.Saver().save(10, loss=2.5) as folder:
        (folder / "model.pt").write_bytes(b"weights")
        assert catalogue.newest(run) is None
    row = catalogue.newest(run)
    assert row is not None
    assert (row.step, row.loss, row.world_size, row.attempt, row.size_bytes) == (10, 2.5, 1, 1, 7)

    monkeypatch.setenv("RAYDECK_RESUME_PATH", row.path)
    monkeypatch.setenv("RAYDECK_RESUME_STEP", "10")
    resumed = jobs.Saver(5)
    assert (resumed.resume, resumed.step) == (Path(row.path), 10)
    assert resumed.due(15)


def fail(path: Path, error: type[BaseException]) -> None:
    path.write_bytes(b"half")
    raise error


def late(path: Path, run: Path) -> None:
    path.write_bytes(b"thirty")
    fence.raise_fence(run, 2)


def test_what_goes_wrong_leaves_the_one_before(run: Path) -> None:
    saver = jobs.Saver()
    with saver.save(10) as folder:
        (folder / "model.pt").write_bytes(b"ten")
    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error), saver.save(20) as folder:
            fail(folder / "model.pt", error)
    with pytest.raises(Refused, match="holds no file"), saver.save(20):
        pass
    assert catalogue.choose(run).step == 10
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000010"]
    with saver.save(20) as folder:
        assert list(folder.iterdir()) == []
        (folder / "model.pt").write_bytes(b"twenty")
        fence.raise_fence(run, 1)
    assert catalogue.choose(run).step == 20
    with pytest.raises(Refused, match="attempt 2 of the run has begun"), saver.save(30) as folder:
        late(folder / "model.pt", run)
    assert catalogue.choose(run).step == 20


def test_outside_of_raydeck_nothing_is_due_unless_it_has_a_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAYDECK_RUN_DIR", "RAYDECK_ATTEMPT", "RAYDECK_CHECKPOINT_INTERVAL"):
        monkeypatch.delenv(name)
    monkeypatch.chdir(run)
    alone = jobs.Saver(1)
    assert not alone.due(1, last=True)
    with pytest.raises(Refused, match="no folder to save to"), alone.save(1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    assert not alone.due(2)
    assert alone.leaving
    by_hand = jobs.Saver(1, directory=".")
    assert by_hand.due(1)
    with by_hand.save(1) as folder:
        (folder / "model.pt").write_bytes(b"x")
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000001"]


def test_ranks_that_have_not_met_are_told_to(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(Refused, match="there are 4 ranks") as refused:
        jobs.Saver().due(1)
    assert "init_process_group" in refused.value.hint


def test_a_save_that_a_stop_leaves_no_time_for_is_told_once(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for grace, told in (("", 0), ("0.0001", 1)):
        monkeypatch.setenv("RAYDECK_STOP_GRACE_SECONDS", grace)
        saving = jobs.Saver()
        for step in (10, 20):
            with saving.save(step) as folder:
                (folder / "model.pt").write_bytes(b"x")
        assert len(caplog.records) == told
    assert "and a stop leaves 0 s for it" in caplog.text


def test_it_loads_nothing_heavy() -> None:
    script = """
import sys, jobs
assert "jobs.saver" not in sys.modules
jobs.Saver()
print(sorted({"pydantic", "asyncio", "ray", "torch", "numpy", "jobs.model", "jobs.wire"} & set(sys.modules)))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=20)
    assert told.stdout == "[]\n"


def test_each_file_is_read_through_by_one_rank_that_sees_it() -> None:
    seen = [{"a": 100, "b": 10, "c": 10}, {"a": 100, "d": 90}, {"a": 100, "b": 10, "e": 0}]
    shares = saver._shares(seen)
    assert sorted(name for share in shares for name in share) == ["a", "b", "c", "d", "e"]
    for share, files in zip(shares, seen, strict=True):
        assert set(share) <= files.keys()
    assert saver._shares([{}, {}]) == [[], []]
