"""Whoever is killed while a checkpoint is put in place: the last complete one is there afterwards, whole and found.

A child does it and leaves the world at its Nth call into the file system, for every N that there is.
"""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs import catalogue, checkpoint, fence

STEPS = ("rename", "fsync", "unlink", "rmdir", "mkdir", "open")
CUT = 77


@pytest.fixture(autouse=True)
def outside_of_raydeck(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAYDECK_ATTEMPT", "RAYDECK_RUN_DIR", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    # A process may be killed here, the machine stays up: what the disk has already is not in question, and costs time.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def cut_at(number: int, action: Callable[[], object]) -> bool:
    """Do it in a child that ends right before its ``number``th call; False once it gets to its end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            left = number

            def counted(real: Callable[..., Any]) -> Callable[..., Any]:
                def call(*args: Any, **kwargs: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left == 0:
                        os._exit(CUT)
                    return real(*args, **kwargs)

                return call

            for name in STEPS:
                setattr(os, name, counted(getattr(os, name)))
            action()
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, CUT)
    return code == CUT


def save(run: Path, step: int, content: bytes) -> None:
    draft = checkpoint.begin(run, step)
    (draft.path / "model.pt").write_bytes(content)
    (draft.path / "below").mkdir()
    (draft.path / "below" / "optimizer.pt").write_bytes(content)
    checkpoint.finish(draft)


def loaded(path: str) -> bytes:
    model = (Path(path) / "model.pt").read_bytes()
    assert (Path(path) / "below" / "optimizer.pt").read_bytes() == model
    assert checkpoint.verify(path) == []
    return model


def test_a_save_that_is_cut_short_loses_nothing(tmp_path: Path) -> None:
    number = 0
    while True:
        number += 1
        run = tmp_path / str(number)
        save(run, 10, b"ten")
        cut = cut_at(number, lambda run=run: save(run, 20, b"twenty"))
        choice = catalogue.choose(run)
        assert choice.step in ((10, 20) if cut else (20,))
        assert loaded(choice.path) == (b"ten" if choice.step == 10 else b"twenty")
        save(run, 20, b"again")
        assert loaded(catalogue.choose(run).path) == b"again"
        if not cut:
            break
    assert number > 12


@pytest.mark.parametrize("times", [1, 2])
def test_saving_a_step_again_never_loses_it(tmp_path: Path, times: int) -> None:
    number = 0
    while True:
        number += 1
        run = tmp_path / str(number)
        save(run, 10, b"older")
        save(run, 20, b"first")
        content = [b"first"]
        cut = False
        for time in range(times):
            cut = cut_at(number, lambda run=run, time=time: save(run, 20, b"%d" % time))
            content = [b"%d" % time] if not cut else [*content, b"%d" % time]
            choice = catalogue.choose(run)
            assert choice.step == 20
            assert loaded(choice.path) in content
            newest = checkpoint.newest_complete(run)
            assert newest is not None
            assert str(newest.path) == choice.path
        save(run, 20, b"last")
        assert loaded(catalogue.choose(run).path) == b"last"
        catalogue.prune(run, 1)
        assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000020"]
        if not cut:
            break
    assert number > 12


def test_where_the_newer_of_two_broke_the_older_one_is_kept_to_the_end(tmp_path: Path) -> None:
    number = 0
    while True:
        number += 1
        run = tmp_path / str(number)
        save(run, 20, b"first")
        final = checkpoint.folder(run, 20)
        shutil.copytree(final, final.with_name("step-00000020.old"))
        os.truncate(final / "model.pt", 1)
        cut = cut_at(number, lambda run=run: save(run, 20, b"second"))
        assert loaded(catalogue.choose(run).path) in ([b"first", b"second"] if cut else [b"second"])
        if not cut:
            break
    assert number > 12


def test_a_prune_that_is_cut_short_leaves_no_half_one(tmp_path: Path) -> None:
    number = 0
    while True:
        number += 1
        run = tmp_path / str(number)
        for step in (10, 20, 30, 40):
            save(run, step, b"%d" % step)
        cut = cut_at(number, lambda run=run: catalogue.prune(run, 2, 40))
        for row in catalogue.rows(run):
            assert row.complete
            assert loaded(row.path) == b"%d" % row.step
        assert {row.step for row in catalogue.rows(run)} >= {30, 40}
        catalogue.prune(run, 2)
        assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000030", "step-00000040"]
        if not cut:
            break
    assert number > 10


def test_setting_aside_that_is_cut_short_can_be_done_again(tmp_path: Path) -> None:
    number = 0
    while True:
        number += 1
        run = tmp_path / str(number)
        for step in (10, 20, 30):
            save(run, step, b"%d" % step)
        fence.raise_fence(run, 2)
        cut = cut_at(number, lambda run=run: catalogue.set_aside(run, 10, 2))
        catalogue.set_aside(run, 10, 2)
        assert catalogue.choose(run).step == 10
        assert [row.step for row in catalogue.rows(run)] == [10, 20, 30]
        if not cut:
            break
    assert number > 2
