"""Only the newest attempt may write, whatever order things happen in."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import fence
from jobs.errors import Refused

ROOT = Path(fence.__file__).parents[1]


def test_without_a_fence_everybody_may_write(tmp_path: Path) -> None:
    fence.check(tmp_path, 1)
    assert fence.newest(tmp_path / "none") is None


def test_an_older_attempt_is_refused_and_told_why(tmp_path: Path) -> None:
    fence.raise_fence(tmp_path / "run", 2)
    fence.raise_fence(tmp_path / "run", 2)
    fence.check(tmp_path / "run", 2)
    fence.check(tmp_path / "run", 3)
    with pytest.raises(Refused, match="this is attempt 1, and attempt 2 of the run has begun"):
        fence.check(tmp_path / "run", 1)
    with pytest.raises(Refused, match="attempt 2 of the run has begun"):
        fence.raise_fence(tmp_path / "run", 1)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["fence.json", "fence.lock"]
    with pytest.raises(ValueError, match="count from 1"):
        fence.raise_fence(tmp_path, 0)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"attempt": "2"}', '{"attempt": true}', "[" * 4000, "9" * 5000]
)
def test_a_broken_fence_lets_nobody_through(tmp_path: Path, content: str) -> None:
    (tmp_path / "fence.json").write_text(content)
    for act in (fence.check, fence.raise_fence):
        with pytest.raises(Refused, match="cannot be read") as refused:
            act(tmp_path, 5)
        assert "remove it only when nothing of the run lives" in refused.value.hint


def test_one_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match=r"fence\.json cannot be written"):
        fence.raise_fence(tmp_path / "file", 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=15))
def test_it_holds_the_newest_there_ever_was(calls: list[tuple[bool, int]]) -> None:
    run = Path(tempfile.mkdtemp())
    try:
        newest = 0
        for raising, attempt in calls:
            act = fence.raise_fence if raising else fence.check
            if attempt < newest:
                with pytest.raises(Refused):
                    act(run, attempt)
            else:
                act(run, attempt)
                newest = max(newest, attempt) if raising else newest
            assert (fence.newest(run) or 0) == newest
    finally:
        shutil.rmtree(run)


def test_many_at_once_never_take_it_back(tmp_path: Path) -> None:
    script = """
import random, sys
from jobs import fence
from jobs.errors import Refused
random.seed(int(sys.argv[2]))
seen = 0
for attempt in random.sample(range(1, 200), 60):
    try:
        fence.raise_fence(sys.argv[1], attempt)
        assert fence.newest(sys.argv[1]) >= attempt
    except Refused:
        assert fence.newest(sys.argv[1]) > attempt
    now = fence.newest(sys.argv[1])
    assert now >= seen, (now, seen)
    seen = now
"""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), str(seed)], env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        for seed in range(3)
    ]
    assert [child.wait(30) for child in children] == [0, 0, 0]
    assert json.loads((tmp_path / "fence.json").read_text())["attempt"] > 100


def test_while_it_is_held_nobody_raises_it(tmp_path: Path) -> None:
    fence.raise_fence(tmp_path, 1)
    raised = threading.Event()

    def raise_it() -> None:
        fence.raise_fence(tmp_path, 2)
        raised.set()

    thread = threading.Thread(target=raise_it)
    with fence.held(tmp_path, 1):
        thread.start()
        assert not raised.wait(0.1)
        fence.check(tmp_path, 1)
    thread.join(10)
    assert raised.is_set()
    with pytest.raises(Refused), fence.held(tmp_path, 1):
        pytest.fail("an older attempt came through")


def test_one_that_is_held_for_long_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "_LOCK_SECONDS", 0.05)
    fence.raise_fence(tmp_path, 1)
    with fence.held(tmp_path, 1), pytest.raises(Refused, match="another process has held"):
        fence.raise_fence(tmp_path, 2)
    fence.raise_fence(tmp_path, 2)


def test_storage_without_locks_still_has_the_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, kind: int) -> None:
        raise OSError(38, os.strerror(38))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    fence.raise_fence(tmp_path, 2)
    with pytest.raises(Refused), fence.held(tmp_path, 1):
        pytest.fail("an older attempt came through")


def test_a_process_of_no_attempt_or_of_another_run_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence.raise_fence(tmp_path, 5)
    monkeypatch.delenv("RAYDECK_ATTEMPT", raising=False)
    with fence.held(tmp_path):
        pass
    monkeypatch.setenv("RAYDECK_ATTEMPT", "4")
    monkeypatch.setenv("RAYDECK_RUN_DIR", str(tmp_path / "other"))
    with fence.held(tmp_path):
        pass
    monkeypatch.setenv("RAYDECK_RUN_DIR", str(tmp_path))
    with pytest.raises(Refused), fence.held(tmp_path):
        pytest.fail("an older attempt came through")
