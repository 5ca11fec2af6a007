"""A checkpoint counts when it is complete, and never before: the newest may be broken, half written or cut."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import checkpoint, fence
from jobs.errors import Refused


@pytest.fixture(autouse=True)
def outside_of_raydeck(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAYDECK_ATTEMPT", "RAYDECK_RUN_DIR", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    # Whether the disk has it is not in question here, and costs time.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


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


def test_the_manifest_tells_how_it_came_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYDECK_ATTEMPT", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    draft = checkpoint.begin(tmp_path, 7)
    (draft.path / "model.pt").write_bytes(b"x")
    manifest = checkpoint.finish(draft, loss=2.5).manifest
    assert manifest is not None
    assert (manifest.attempt, manifest.world_size, manifest.loss) == (3, 8, 2.5)
    assert manifest.versions["python"] == platform.python_version()
    assert "torch" not in manifest.versions or "torch" in sys.modules
    draft = checkpoint.begin(tmp_path, 8)
    (draft.path / "model.pt").write_bytes(b"x")
    kept = checkpoint.finish(draft, loss=float("nan"), world_size=2)
    assert kept.manifest is not None
    assert (kept.complete, kept.manifest.world_size, str(kept.manifest.loss)) == (True, 2, "nan")
    json.loads((kept.path / "manifest.json").read_text(), parse_constant=pytest.fail)


def test_a_manifest_of_an_earlier_version_still_counts(tmp_path: Path) -> None:
    made = make(tmp_path, 10)
    manifest = json.loads((made.path / "manifest.json").read_text())
    for name in ("world_size", "attempt", "loss", "versions"):
        manifest.pop(name, None)
    (made.path / "manifest.json").write_text(json.dumps(manifest))
    again = checkpoint.inspect(made.path)
    assert again.complete
    assert again.manifest is not None
    assert (again.manifest.world_size, again.manifest.loss, again.manifest.versions) == (None, None, {})


def test_one_that_is_being_written_does_not_count(tmp_path: Path) -> None:
    made = make(tmp_path, 100)
    draft = checkpoint.begin(tmp_path, 200)
    (draft.path / "model.pt").write_bytes(b"half")
    assert checkpoint.newest_complete(tmp_path) == made
    assert draft.path.name == "step-00000200.partial"
    assert not (checkpoint.begin(tmp_path, 200).path / "model.pt").exists()


def edit(path: Path, **changes: object) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **changes}))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


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
        (lambda path: checkpoint.mark_broken(path, "rank 3 could not read it"), "it was found to be broken: rank 3"),
        (lambda path: (path / "broken.json").write_text("?"), "it was found to be broken"),
        (lambda path: edit(path, written_at=float("inf")), "its manifest is not one: "),
        (lambda path: edit(path, files={}), "its manifest is not one: it names no file"),
        (lambda path: edit(path, files={"a": {"size": -1, "sha256": ""}}), "its manifest is not one: it has no size"),
        (lambda path: edit(path, files={"a\0b": {"size": 1, "sha256": ""}}), "a?b is missing"),
        (lambda path: (path / "manifest.json").write_text("[" * 100_000), "its manifest cannot be read: "),
        (lambda path: os.truncate(path / "manifest.json", 1 << 30), "its manifest cannot be read: it has 1073741824"),
        (lambda path: pipe(path / "manifest.json"), "its manifest cannot be read: it is not a file"),
    ],
)
def test_a_broken_newest_one_is_passed_over_and_says_why(tmp_path: Path, damage: Damage, reason: str) -> None:
    older = make(tmp_path, 100)
    damage(make(tmp_path, 200).path)
    assert checkpoint.newest_complete(tmp_path) == older
    newest = checkpoint.inspect(max((tmp_path / "checkpoints").iterdir()))
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
    assert checkpoint.verify(checkpoint.folder(tmp_path, 5)) == ["it has no manifest"]


def test_names_that_raydeck_needs_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    for name in ("manifest.json", "broken.json", "pinned-by-a"):
        draft = checkpoint.begin(tmp_path, 1)
        (draft.path / name).write_text("mine")
        with pytest.raises(Refused, match="a name that raydeck needs"):
            checkpoint.finish(draft)
    draft = checkpoint.begin(tmp_path, 1)
    os.mkfifo(draft.path / "pipe")
    with pytest.raises(Refused, match="is no file"):
        checkpoint.finish(draft)
    for step in (-1, 10**18):
        with pytest.raises(ValueError, match="is not a step"):
            checkpoint.begin(tmp_path, step)


def test_a_broken_one_is_whole_again_once_it_was_saved_again(tmp_path: Path) -> None:
    checkpoint.mark_broken(make(tmp_path, 10).path, "a reason")
    assert checkpoint.verify(checkpoint.folder(tmp_path, 10)) == ["it was found to be broken: a reason"]
    assert make(tmp_path, 10).complete
    with pytest.raises(Refused, match="is not there"):
        checkpoint.mark_broken(tmp_path / "none", "a reason")


def test_an_attempt_that_is_fenced_off_neither_begins_nor_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYDECK_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RAYDECK_ATTEMPT", "1")
    fence.raise_fence(tmp_path, 1)
    kept = make(tmp_path, 10)
    draft = checkpoint.begin(tmp_path, 20)
    (draft.path / "model.pt").write_bytes(b"late")

    fence.raise_fence(tmp_path, 2)
    with pytest.raises(Refused, match="this is attempt 1, and attempt 2 of the run has begun"):
        checkpoint.finish(draft)
    with pytest.raises(Refused, match="must not write any more"):
        checkpoint.begin(tmp_path, 30)
    assert checkpoint.newest_complete(tmp_path) == kept

    monkeypatch.setenv("RAYDECK_ATTEMPT", "2")
    other = checkpoint.begin(tmp_path, 20)
    assert other.path != draft.path  # what the old attempt still writes does not land in the new one's
    (other.path / "model.pt").write_bytes(b"new")
    assert checkpoint.finish(other).complete
    assert not draft.path.exists()

    # Another run's folder has a fence of its own.
    monkeypatch.setenv("RAYDECK_ATTEMPT", "1")
    assert make(tmp_path / "elsewhere", 1).complete


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
