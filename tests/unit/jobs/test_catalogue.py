"""What a run's checkpoints are, which one is taken, set aside, deleted: never a broken one, never the last one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jobs import catalogue, checkpoint, fence
from jobs.errors import Refused
from tests.unit.jobs.test_recognise import distributed, torch_file, trainer


@pytest.fixture(autouse=True)
def outside_of_raydeck(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAYDECK_ATTEMPT", "RAYDECK_RUN_DIR", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    # Whether the disk has it is not in question here, and costs time.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def save(run: Path, step: int, **facts: Any) -> Path:
    draft = checkpoint.begin(run, step)
    (draft.path / "model.pt").write_bytes(b"weights")
    return checkpoint.finish(draft, **facts).path


def damage(path: Path) -> None:
    os.truncate(path / "model.pt", 1)


def known(run: Path) -> list[tuple[int, str, bool]]:
    return [(row.step, row.format, row.complete) for row in catalogue.rows(run)]


def test_all_makes_stand_side_by_side(tmp_path: Path) -> None:
    save(tmp_path, 100, loss=2.5, world_size=4)
    distributed(tmp_path / "checkpoints" / "step_200")
    trainer(tmp_path, 300)
    torch_file(tmp_path / "checkpoints" / "epoch=1-step=400.ckpt")
    distributed(tmp_path / "checkpoints" / "step-00000500")
    checkpoint.begin(tmp_path, 600)
    (tmp_path / "attempt-1").mkdir()
    (tmp_path / "metrics.jsonl").write_text("")
    distributed(tmp_path / "samples-900")
    assert known(tmp_path) == [
        (100, "raydeck", True),
        (200, "dcp", True),
        (300, "huggingface", True),
        (400, "lightning", True),
        (500, "dcp", True),
        (600, "raydeck", False),
    ]
    first = catalogue.rows(tmp_path)[0]
    assert (first.loss, first.world_size, first.attempt, first.size_bytes, first.reason) == (2.5, 4, None, 7, "")
    assert first.seconds is not None
    assert first.path == str(tmp_path / "checkpoints" / "step-00000100")
    newest = catalogue.newest(tmp_path)
    assert newest is not None
    assert newest == catalogue.rows(tmp_path)[4]
    assert catalogue.choose(tmp_path) == catalogue.Choice(
        500, newest.path, ["the checkpoint of step 600 is passed over: it is not finished"], world_size=2
    )


def test_a_run_without_any_begins_from_nothing(tmp_path: Path) -> None:
    for run in (tmp_path, tmp_path / "none"):
        assert catalogue.rows(run) == []
        assert catalogue.newest(run) is None
        assert catalogue.choose(run) == catalogue.Choice(None)
        assert catalogue.prune(run, 1) == []
        assert catalogue.set_aside(run, 0, 1) == []


def test_newer_ones_that_are_broken_are_passed_over_with_the_reason(tmp_path: Path) -> None:
    save(tmp_path, 100)
    damage(save(tmp_path, 200))
    checkpoint.mark_broken(save(tmp_path, 300), "rank 1 could not read it")
    choice = catalogue.choose(tmp_path)
    assert (choice.step, choice.set_aside) == (100, [])
    assert choice.skipped == [
        "the checkpoint of step 300 is passed over: it was found to be broken: rank 1 could not read it",
        "the checkpoint of step 200 is passed over: model.pt has 1 bytes instead of 7",
    ]


def test_a_chosen_step_must_be_complete(tmp_path: Path) -> None:
    for step in (100, 200, 300, 400):
        save(tmp_path, step)
    damage(checkpoint.folder(tmp_path, 300))
    choice = catalogue.choose(tmp_path, 100)
    assert (choice.step, choice.set_aside, choice.skipped) == (100, [200, 400], [])
    assert catalogue.choose(tmp_path, 0) == catalogue.Choice(None, set_aside=[100, 200, 400])
    with pytest.raises(Refused, match=r"the checkpoint of step 300 cannot be used: model\.pt has 1 bytes") as refused:
        catalogue.choose(tmp_path, 300)
    assert refused.value.hint == "Complete are those of 100, 200, 400"
    with pytest.raises(Refused, match="there is no checkpoint of step 150"):
        catalogue.choose(tmp_path, 150)
    with pytest.raises(Refused) as refused:
        catalogue.choose(tmp_path / "none", 1)
    assert refused.value.hint == "No checkpoint of this run is complete"


def test_a_course_that_was_left_is_renamed_and_never_chosen(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save(tmp_path, step)
    damage(checkpoint.folder(tmp_path, 200))
    trainer(tmp_path, 400)
    torch_file(tmp_path / "checkpoints" / "step=500.ckpt")
    assert catalogue.set_aside(tmp_path, 100, 2) == [300, 400, 500]
    assert (tmp_path / "checkpoint-400-left-by-attempt-2").is_dir()
    assert catalogue.set_aside(tmp_path, 100, 2) == []
    rows = catalogue.rows(tmp_path)
    assert [(row.step, row.format, row.complete) for row in rows] == [
        (100, "raydeck", True),
        (200, "raydeck", False),
        (300, "raydeck", False),
        (400, "huggingface", False),
        (500, "lightning", False),
    ]
    assert {row.reason for row in rows[1:]} == {"attempt 2 went back to an earlier step and left it behind"}
    assert rows[2].size_bytes == 7
    choice = catalogue.choose(tmp_path)
    assert (choice.step, choice.skipped) == (100, [])
    with pytest.raises(Refused, match="cannot be used: attempt 2 went back"):
        catalogue.choose(tmp_path, 300)

    # The new course comes to the same step, is left in its turn, and both are kept apart.
    save(tmp_path, 300)
    assert catalogue.choose(tmp_path).step == 300
    assert catalogue.set_aside(tmp_path, 100, 2) == [300]
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert "step-00000300-left-by-attempt-2-2" in names


def test_what_was_replaced_does_not_come_back_when_a_course_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in range(1, 9):
        save(tmp_path, step)
        shutil.copytree(folder / f"step-{step:08d}", folder / f"step-{step:08d}.old")
    assert [row.complete for row in catalogue.rows(tmp_path)] == [True] * 8
    assert catalogue.set_aside(tmp_path, 2, 1) == [3, 4, 5, 6, 7, 8]
    assert catalogue.choose(tmp_path).step == 2
    shutil.rmtree(folder / "step-00000002")
    assert catalogue.choose(tmp_path).path == str(folder / "step-00000002.old")


def test_what_another_run_needs_is_neither_renamed_nor_deleted(tmp_path: Path) -> None:
    needed = save(tmp_path, 300)
    lightning = torch_file(tmp_path / "checkpoints" / "step=400.ckpt")
    for path in (needed, lightning):
        catalogue.pin(path, "lm-b2")
        catalogue.pin(path, "lm-a1")
        catalogue.pin(path, "lm-a1")
        catalogue.unpin(path, "lm-b2")
    assert [row.in_use_by for row in catalogue.rows(tmp_path)] == [["lm-a1"], ["lm-a1"]]
    assert checkpoint.verify(needed) == []
    save(tmp_path, 500)
    assert catalogue.prune(tmp_path, 1) == []
    assert catalogue.set_aside(tmp_path, 100, 2) == [300, 400, 500]
    assert needed.is_dir()
    assert lightning.is_file()
    assert [row.complete for row in catalogue.rows(tmp_path)] == [False] * 3
    assert catalogue.choose(tmp_path) == catalogue.Choice(None)
    for path in (needed, lightning):
        catalogue.unpin(path, "lm-a1")
        catalogue.unpin(path, "lm-a1")
    assert [row.in_use_by for row in catalogue.rows(tmp_path)] == [[]] * 3
    catalogue.unpin(tmp_path / "gone", "lm-a1")
    with pytest.raises(Refused, match="is not there"):
        catalogue.pin(tmp_path / "gone", "lm-a1")
    for run in ("", "../a", "a/b", "a\nb"):
        with pytest.raises(ValueError, match="is not the id of a run"):
            catalogue.pin(needed, run)


def test_a_pin_that_comes_at_the_last_moment_still_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = save(tmp_path, 100)
    save(tmp_path, 200)
    rows = catalogue.rows

    def pinned_after_the_look(run: Any) -> Any:
        found = rows(run)
        catalogue.pin(needed, "lm-a1")
        return found

    monkeypatch.setattr(catalogue, "rows", pinned_after_the_look)
    assert catalogue.prune(tmp_path, 1) == []
    assert [row.in_use_by for row in rows(tmp_path)] == [["lm-a1"], []]


def test_pruning_keeps_what_it_should(tmp_path: Path) -> None:
    for step in range(10, 100, 10):
        save(tmp_path, step)
    damage(checkpoint.folder(tmp_path, 90))
    damage(checkpoint.folder(tmp_path, 10))
    trainer(tmp_path, 5)
    trainer(tmp_path / "checkpoints", 35)
    torch_file(tmp_path / "checkpoints" / "step=45.ckpt")
    catalogue.pin(checkpoint.folder(tmp_path, 20), "lm-a1")
    checkpoint.begin(tmp_path, 100)
    assert catalogue.prune(tmp_path, None, 10) == []
    assert catalogue.prune(tmp_path, 2, 60) == [30, 35, 40, 45, 50]
    assert [row.step for row in catalogue.rows(tmp_path)] == [5, 10, 20, 60, 70, 80, 90, 100]
    assert catalogue.prune(tmp_path, 2, 60) == []
    with pytest.raises(ValueError, match="at least 1"):
        catalogue.prune(tmp_path, 0)


def test_what_is_half_done_is_cleared_and_nothing_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints"
    save(tmp_path, 10)
    for name in ("step-00000020.attempt-1.partial", "step-00000020.attempt-2.partial", "step-00000020.partial"):
        (folder / name).mkdir()
    (folder / "step-00000005.gone").mkdir()
    shutil.copytree(folder / "step-00000010", folder / "step-00000010.old")
    fence.raise_fence(tmp_path, 2)
    assert catalogue.prune(tmp_path, 1, attempt=2) == []
    drafts = [f"step-00000020.{name}" for name in ("attempt-1.partial", "attempt-2.partial", "partial")]
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000010", *drafts]
    monkeypatch.setenv("RAYDECK_ATTEMPT", "2")
    checkpoint.begin(tmp_path, 30)
    left = ["step-00000010", *drafts[1:], "step-00000030.attempt-2.partial"]
    assert sorted(path.name for path in folder.iterdir()) == left


def test_an_attempt_that_is_fenced_off_deletes_and_renames_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    fence.raise_fence(tmp_path, 3)
    for act in (
        lambda: catalogue.prune(tmp_path, 1, attempt=2),
        lambda: catalogue.set_aside(tmp_path, 10, 2),
    ):
        with pytest.raises(Refused, match="attempt 3 of the run has begun"):
            act()
    monkeypatch.setenv("RAYDECK_ATTEMPT", "2")
    with pytest.raises(Refused, match="attempt 3 of the run has begun"):
        catalogue.prune(tmp_path, 1)
    assert len(catalogue.rows(tmp_path)) == 3


def test_hostile_names_and_links_do_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    outside = save(tmp_path / "elsewhere", 77)
    (folder / "step-00000077").symlink_to(outside)
    (folder / "step-99999999999999999999999").mkdir()
    (folder / "step-\u0663\u0663\u0663\u0663\u0663\u0663\u0663\u0663").mkdir()
    os.mkfifo(folder / "step=8.ckpt")
    torch_file(Path(os.fsdecode(os.fsencode(folder) + b"/\xff-step=9.ckpt")))
    torch_file(folder / "a\nb-step=10.ckpt")
    (folder / "step-00000011").write_text("a file")
    (folder / "checkpoint-12").write_text("a file")
    assert [(row.step, row.complete, row.reason) for row in catalogue.rows(tmp_path)] == [
        (9, False, "its name is not text"),
        (10, True, ""),
        (11, False, "its manifest cannot be read: Not a directory"),
    ]
    for row in catalogue.rows(tmp_path):
        row.model_dump_json()
    assert catalogue.set_aside(tmp_path, 0, 1) == [10]
    assert checkpoint.verify(outside) == []


@pytest.fixture
def nobody() -> Generator[Path]:
    """A folder of a user to whom permissions apply."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    root = os.geteuid() == 0
    if root:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    yield folder
    if root:
        os.seteuid(0)
    subprocess.run(["chmod", "-R", "u+rwx", folder], check=True)
    shutil.rmtree(folder)


def test_what_cannot_be_read_gives_a_reason(nobody: Path) -> None:
    save(nobody, 10)
    for path in (save(nobody, 20), distributed(nobody / "checkpoints" / "step_30")):
        path.chmod(0)
    assert [(row.step, row.format, row.reason) for row in catalogue.rows(nobody)] == [
        (10, "raydeck", ""),
        (20, "raydeck", "it cannot be read: Permission denied"),
        (30, "unknown", "it cannot be read: Permission denied"),
    ]
    assert catalogue.choose(nobody).step == 10
    assert checkpoint.verify(nobody / "checkpoints" / "step_30") == ["it cannot be read: Permission denied"]
    (nobody / "checkpoints").chmod(0)
    with pytest.raises(Refused, match=r"the checkpoints in .* cannot be read: Permission denied"):
        catalogue.rows(nobody)
    with pytest.raises(Refused, match="Permission denied"):
        catalogue.choose(nobody)


def test_what_goes_away_meanwhile_is_no_error(tmp_path: Path) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []

    def look() -> None:
        try:
            while not stop.is_set():
                catalogue.rows(tmp_path)
                choice = catalogue.choose(tmp_path)
                assert choice.step is None or choice.path
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for step in range(1, 60):
            save(tmp_path, step)
            shutil.rmtree(distributed(tmp_path / "checkpoints" / f"other_{step}"))
            torch_file(tmp_path / "checkpoints" / f"step={step}.ckpt").unlink()
            catalogue.prune(tmp_path, 2)
            if step % 10 == 0:
                catalogue.set_aside(tmp_path, step - 2, step)
    finally:
        stop.set()
        thread.join(10)
    assert errors == []


NAMES = st.one_of(
    st.sampled_from(
        ["step-00000010", "step-00000020", "step-00000020.old", "step-00000030.partial", "checkpoint-20", "step_40"]
    ),
    st.sampled_from(["step=50.ckpt", "step-00000010-left-by-attempt-1", "checkpoint-20.gone", "fence.json", "x"]),
    st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=20).filter(
        lambda name: name not in (".", "..")
    ),
)
INNER = st.sampled_from(
    [
        "manifest.json",
        ".metadata",
        "__0_0.distcp",
        "trainer_state.json",
        "model.safetensors",
        "broken.json",
        "left.json",
    ]
)
CONTENTS = st.one_of(
    st.binary(max_size=60), st.sampled_from([b"{}", b'{"attempt": 1}', b'{"global_step": 20}', b"[[["])
)


@settings(max_examples=120, deadline=None)
@given(
    st.dictionaries(NAMES, st.one_of(CONTENTS, st.dictionaries(INNER, CONTENTS, max_size=4)), max_size=6), st.booleans()
)
def test_any_content_of_the_folder_is_told_without_an_error(content: dict[str, Any], nested: bool) -> None:
    run = Path(tempfile.mkdtemp())
    try:
        folder = run / "checkpoints" if nested else run
        folder.mkdir(exist_ok=True)
        for name, inner in content.items():
            if isinstance(inner, bytes):
                (folder / name).write_bytes(inner)
                continue
            (folder / name).mkdir()
            for inner_name, value in inner.items():
                (folder / name / inner_name).write_bytes(value)
        rows = catalogue.rows(run)
        for row in rows:
            row.model_dump_json()
            assert row.complete == (row.reason == "")
        choice = catalogue.choose(run)
        complete = [row.step for row in rows if row.complete]
        assert choice.step == (max(complete) if complete else None)
        try:
            catalogue.set_aside(run, -1, 1)
        except Refused as refused:
            assert "fence.json" in refused.sentence  # noqa: PT017 - the one thing that may be in the way
        else:
            assert catalogue.choose(run).step is None
    finally:
        shutil.rmtree(run)


class Course(RuleBasedStateMachine):
    """A run that saves, breaks, goes back and prunes, beside what must be true of it."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Path(tempfile.mkdtemp())
        self.attempt = 1
        self.whole: set[int] = set()
        self.pinned: set[int] = set()
        fence.raise_fence(self.run, 1)

    def teardown(self) -> None:
        shutil.rmtree(self.run)

    @rule(step=st.integers(1, 12))
    def save(self, step: int) -> None:
        save(self.run, step)
        self.whole.add(step)
        self.pinned.discard(step)

    @precondition(lambda self: self.whole)
    @rule(data=st.data())
    def breaks(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.whole)))
        damage(checkpoint.folder(self.run, step))
        self.whole.discard(step)

    @precondition(lambda self: self.whole)
    @rule(data=st.data())
    def is_needed(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.whole)))
        catalogue.pin(checkpoint.folder(self.run, step), "other")
        self.pinned.add(step)

    @rule(keep=st.integers(1, 4), every=st.none() | st.integers(2, 5))
    def prunes(self, keep: int, every: int | None) -> None:
        newest = sorted(self.whole)[-keep:]
        stay = {step for step in self.whole if step in newest or step in self.pinned or (every and step % every == 0)}
        deleted = catalogue.prune(self.run, keep, every)
        assert set(deleted) == self.whole - stay
        self.whole = stay

    @rule(after=st.integers(0, 12))
    def goes_back(self, after: int) -> None:
        self.attempt += 1
        fence.raise_fence(self.run, self.attempt)
        beyond = {step for step in self.whole if step > after}
        assert catalogue.set_aside(self.run, after, self.attempt) == sorted(beyond)
        self.whole -= beyond

    @invariant()
    def the_newest_whole_one_is_chosen(self) -> None:
        assert catalogue.choose(self.run).step == (max(self.whole) if self.whole else None)
        assert {row.step for row in catalogue.rows(self.run) if row.complete} == self.whole


Course.TestCase.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
TestCourse = Course.TestCase
