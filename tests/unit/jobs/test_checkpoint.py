"""A checkpoint counts when it is complete, and never before: the newest may be broken, half written or cut."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import checkpoint
from jobs.errors import Refused


def make(run: Path, step: int, files: dict[str, bytes] | None = None) -> checkpoint.Checkpoint:
    draft = checkpoint.begin(run, step)
    for name, content in (files or {"model.pt": b"weights" * step}).items():
        path = draft.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return checkpoint.finish(draft)


def test_a_finished_one_is_complete_and_says_how_large_it_is(tmp_path: Path) -> None:
    made = make(tmp_path, 500, {"model.pt": b"12345", "shards/a b.pt": b"678", "empty": b""})
    assert made.path == tmp_path / "checkpoints" / "step-00000500"
    assert (made.complete, made.reason, made.size_bytes) == (True, "", 8)
    assert made.seconds is not None
    assert made.written_at is not None
    assert checkpoint.verify(made.path) == []
    assert checkpoint.newest_complete(tmp_path) == made
    assert checkpoint.list_checkpoints(tmp_path) == [made]


def test_one_that_is_being_written_does_not_count(tmp_path: Path) -> None:
    made = make(tmp_path, 100)
    draft = checkpoint.begin(tmp_path, 200)
    (draft.path / "model.pt").write_bytes(b"half")
    assert checkpoint.newest_complete(tmp_path) == made
    partial = checkpoint.list_checkpoints(tmp_path)[-1]
    assert (partial.step, partial.complete, partial.reason) == (200, False, "it is not finished")
    assert not (checkpoint.begin(tmp_path, 200).path / "model.pt").exists()


Damage = Callable[[Path], object]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: (path / "manifest.json").unlink(), "it has no manifest"),
        (lambda path: (path / "manifest.json").write_text("{"), "its manifest cannot be read: "),
        (lambda path: (path / "manifest.json").write_bytes(b"\xff"), "its manifest cannot be read: "),
        (lambda path: (path / "manifest.json").write_text("[]"), "its manifest is not one: "),
        (lambda path: (path / "manifest.json").write_text('{"step": 200}'), "its manifest is not one: "),
        (lambda path: os.truncate(path / "model.pt", 3), "model.pt has 3 bytes instead of 1400"),
        (lambda path: (path / "model.pt").unlink(), "model.pt is missing"),
        (lambda path: path.rename(path.with_name("step-00000300")), "its manifest is of step 200"),
    ],
)
def test_a_broken_newest_one_is_passed_over_and_says_why(tmp_path: Path, damage: Damage, reason: str) -> None:
    older = make(tmp_path, 100)
    damage(make(tmp_path, 200).path)
    assert checkpoint.newest_complete(tmp_path) == older
    newest = checkpoint.list_checkpoints(tmp_path)[-1]
    assert not newest.complete
    assert newest.reason.startswith(reason)


def test_a_changed_byte_is_found_by_reading(tmp_path: Path) -> None:
    made = make(tmp_path, 10, {"a model.pt": b"weights", "other": b"x"})
    (made.path / "a model.pt").write_bytes(b"weighty")
    assert checkpoint.inspect(made.path).complete
    assert checkpoint.verify(made.path) == ["a model.pt does not have the content that was saved (its SHA-256 differs)"]
    (made.path / "other").unlink()
    assert len(checkpoint.verify(made.path)) == 2


def test_a_manifest_that_leads_outside_is_refused(tmp_path: Path) -> None:
    made = make(tmp_path, 10)
    manifest = json.loads((made.path / "manifest.json").read_text())
    manifest["files"]["../../../etc/passwd"] = {"size": 1, "sha256": "0"}
    (made.path / "manifest.json").write_text(json.dumps(manifest))
    assert checkpoint.verify(made.path) == [
        "its manifest is not one: it names ../../../etc/passwd, which is outside",
    ]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    make(tmp_path, 10, {"model.pt": b"old"})
    again = make(tmp_path, 10, {"model.pt": b"newer"})
    assert (again.path / "model.pt").read_bytes() == b"newer"
    assert checkpoint.list_checkpoints(tmp_path) == [again]
    assert [path.name for path in again.path.parent.iterdir()] == ["step-00000010"]


def test_nothing_and_links_are_not_kept(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="holds no file"):
        checkpoint.finish(checkpoint.begin(tmp_path, 1))
    draft = checkpoint.begin(tmp_path, 2)
    (draft.path / "model.pt").symlink_to("/etc/hostname")
    with pytest.raises(Refused, match="is a link"):
        checkpoint.finish(draft)
    assert checkpoint.newest_complete(tmp_path) is None


def test_a_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert checkpoint.newest_complete(tmp_path) is None
    assert checkpoint.list_checkpoints(tmp_path / "none") == []
    assert checkpoint.verify(checkpoint.folder(tmp_path, 5)) == ["it has no manifest"]


def test_pruning_keeps_the_newest_those_asked_for_and_what_is_broken(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40, 50):
        make(tmp_path, step)
    os.truncate(checkpoint.folder(tmp_path, 50) / "model.pt", 0)
    checkpoint.begin(tmp_path, 60)
    assert checkpoint.prune(tmp_path, keep_last=2, keep_steps=frozenset({10})) == [20]
    left = [(each.step, each.complete) for each in checkpoint.list_checkpoints(tmp_path)]
    assert left == [(10, True), (30, True), (40, True), (50, False), (60, False)]
    with pytest.raises(ValueError, match="at least 1"):
        checkpoint.prune(tmp_path, keep_last=0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 10**9), unique=True, min_size=1, max_size=6), st.data())
def test_the_newest_complete_one_is_always_the_highest_whole_step(steps: list[int], data: st.DataObject) -> None:
    run = Path(tempfile.mkdtemp())
    try:
        for step in steps:
            make(run, step, {"model.pt": b"x" * 5})
        broken = data.draw(st.sets(st.sampled_from(steps)))
        for step in broken:
            os.truncate(checkpoint.folder(run, step) / "model.pt", 2)
        whole = [step for step in steps if step not in broken]
        newest = checkpoint.newest_complete(run)
        assert (newest.step if newest else None) == (max(whole) if whole else None)
    finally:
        shutil.rmtree(run)
