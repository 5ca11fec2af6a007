"""What an attempt begins on and keeps in order: the fence, its checkpoints, those it prunes, room, the kernel."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import catalogue, checkpoint, fence, marks
from jobs.gang import ground, keeper, processes
from jobs.gang.apart import apart
from jobs.gang.keeper import Keeper
from jobs.gang.kernel import Kernel
from jobs.gang.leftovers import Swept, end_here
from jobs.gang.verdict import Broken
from jobs.model import Failure, Launch


def launch(run_directory: Path, **fields: Any) -> Launch:
    given: dict[str, Any] = {
        "run": "lm-1",
        "attempt": 2,
        "workflow": "lm",
        "script": ["train.py"],
        "nodes": 1,
        "processes_per_node": 1,
        "gpus_per_node": 1,
        "cpus_per_node": 1,
        "run_directory": str(run_directory),
    }
    return Launch(**{**given, **fields})


def save(run_directory: Path, step: int) -> Path:
    draft = checkpoint.begin(run_directory, step)
    (draft.path / "weights").write_bytes(b"w" * 100)
    return checkpoint.finish(draft).path


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_fence_goes_up_and_an_older_attempt_is_told(tmp_path: Path) -> None:
    ground.raise_fence(launch(tmp_path))
    ground.raise_fence(launch(tmp_path))
    assert fence.newest(tmp_path) == 2
    with pytest.raises(Broken) as raised:
        ground.raise_fence(launch(tmp_path, attempt=1))
    assert raised.value.blame.failure is Failure.UNKNOWN
    assert raised.value.sentence.startswith("this is attempt 1, and attempt 2 of the run has begun")


def test_a_step_alone_is_enough_to_find_the_checkpoint(tmp_path: Path) -> None:
    assert ground.whole(launch(tmp_path, resume_from_step=20)).resume_path == str(checkpoint.folder(tmp_path, 20))
    assert ground.whole(launch(tmp_path)).resume_path == ""
    assert ground.whole(launch(tmp_path, resume_from_step=20, resume_path="/x")).resume_path == "/x"


def test_a_whole_checkpoint_is_pinned_and_taken(tmp_path: Path) -> None:
    path = save(tmp_path / "other", 20)
    said: list[str] = []
    ground.take_checkpoint(launch(tmp_path, resume_from_step=20, resume_path=str(path)), said.append)
    assert marks.pins(path) == ["lm-1"]
    assert said == [f"begins from the checkpoint of step 20 ({path}), which is whole"]


def test_a_broken_one_is_marked_and_the_next_choice_is_another(tmp_path: Path) -> None:
    save(tmp_path, 10)
    path = save(tmp_path, 20)
    (path / "weights").unlink()
    with pytest.raises(Broken) as raised:
        ground.take_checkpoint(launch(tmp_path, resume_from_step=20, resume_path=str(path)), print)
    blame = raised.value.blame
    assert (blame.failure, blame.evidence, blame.suspects) == (Failure.CHECKPOINT, "weights is missing", [])
    assert catalogue.choose(tmp_path).step == 10


def test_what_is_not_there_costs_a_retry_and_is_no_broken_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "step-00000020"
    with pytest.raises(Broken, match="it is not there on the node of its driver") as raised:
        ground.take_checkpoint(launch(tmp_path, resume_from_step=20, resume_path=str(path)), print)
    assert raised.value.blame.failure is Failure.DATA


def test_storage_that_fails_marks_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, 20)
    sentence = "weights cannot be read: Input/output error"

    def verify(where: object) -> list[str]:
        return [sentence]

    # A disk that fails at this moment cannot be had in a test.
    monkeypatch.setattr(checkpoint, "verify", verify)
    with pytest.raises(Broken, match=sentence) as raised:
        ground.take_checkpoint(launch(tmp_path, resume_from_step=20, resume_path=str(path)), print)
    assert raised.value.blame.failure is Failure.DATA
    assert catalogue.choose(tmp_path).step == 20


def test_nothing_is_started_beside_what_may_live() -> None:
    said: list[str] = []
    ground.judge_sweep(Swept(ended={"b": [3, 4], "a": [1]}, gone=["c"]), said.append)
    assert said == [
        "ended what an earlier attempt had left on a: 1",
        "ended what an earlier attempt had left on b: 3, 4",
        "c is not in Ray any more: what an earlier attempt left there cannot be ended; the fence keeps it out",
    ]
    with pytest.raises(
        Broken, match="these processes of an earlier attempt could not be ended: 7 on a; 8, 9 on b"
    ) as one:
        ground.judge_sweep(Swept(survivors={"b": [8, 9], "a": [7]}, unanswered=["c"]), print)
    assert (one.value.blame.survivors, one.value.blame.unanswered) == ([7, 8, 9], ["c"])
    with pytest.raises(Broken, match="whether processes of an earlier attempt live on c, d could not be found") as two:
        ground.judge_sweep(Swept(unanswered=["d", "c"]), print)
    assert (two.value.blame.failure, two.value.blame.unanswered) == (Failure.UNKNOWN, ["c", "d"])


@pytest.fixture
def run() -> Generator[str]:
    name = uuid.uuid4().hex
    yield name
    assert processes.end(lambda: processes.marked({"RAYDECK_RUN": name}), 0.0, 5.0) == []


def test_the_sweep_ends_other_attempts_and_only_those(run: str) -> None:
    def start(**variables: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "60"], env={**os.environ, **variables}, start_new_session=True)

    with (
        start(RAYDECK_RUN=run, RAYDECK_ATTEMPT="1") as older,
        start(RAYDECK_RUN=run, RAYDECK_ATTEMPT="2") as own,
        start(RAYDECK_RUN=f"{run}-x", RAYDECK_ATTEMPT="1") as foreign,
        start(RAYDECK_RUN=run) as without,
    ):
        assert end_here(run, 2) == ([older.pid], [])
        assert older.wait(5) != 0
        assert [each.poll() for each in (own, foreign, without)] == [None, None, None]
        for each in (own, foreign, without):
            each.kill()


def test_own_checkpoints_are_pruned_and_free_the_one_it_began_from(tmp_path: Path) -> None:
    base = save(tmp_path / "other", 20)
    marks.pin(base, "lm-1")
    for step in (1, 2, 3):
        save(tmp_path, step)
    watch = Keeper(launch(tmp_path, resume_path=str(base), resume_from_step=20, keep_last=2))
    watch.start()
    until(lambda: watch.step == 3)
    watch.begin()
    until(lambda: watch._has_ground)
    # What was there before is not of this attempt: it frees nothing.
    assert (watch.has_own, marks.pins(base)) == (False, ["lm-1"])
    save(tmp_path, 4)
    until(lambda: watch.has_own)
    watch.close()
    watch.release(ended_well=False)
    assert watch.step == 4
    assert [row.step for row in catalogue.rows(tmp_path) if row.complete] == [3, 4]
    assert marks.pins(base) == []


@pytest.mark.parametrize(
    ("of_other", "ended_well", "stays"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_without_one_of_its_own_it_still_needs_the_one_of_another_run(
    tmp_path: Path, of_other: bool, ended_well: bool, stays: bool
) -> None:
    base = save(tmp_path / ("other" if of_other else "own"), 20)
    marks.pin(base, "lm-1")
    watch = Keeper(launch(tmp_path / "own", resume_path=str(base), resume_from_step=20))
    watch.start()
    watch.begin()
    watch.close()
    watch.release(ended_well=ended_well)
    assert bool(marks.pins(base)) is stays


def test_an_attempt_that_is_fenced_off_hears_of_it(tmp_path: Path) -> None:
    fence.raise_fence(tmp_path, 2)
    watch = Keeper(launch(tmp_path))
    watch.start()
    until(lambda: watch.warnings == [] and watch._thread.is_alive())
    fence.raise_fence(tmp_path, 3)
    until(lambda: watch.fenced)
    watch.close()
    assert watch.fenced.startswith("this is attempt 2, and attempt 3 of the run has begun")


def test_a_keeper_that_was_never_started_can_be_closed(tmp_path: Path) -> None:
    watch = Keeper(launch(tmp_path))
    watch.close()
    assert watch.step is None


@pytest.mark.parametrize(
    ("free", "total", "size", "said"),
    [
        (100e9, 1000e9, 10e9, []),
        (100e9, 1000e9, None, []),
        (19e9, 100e9, 10e9, ["the run's file system has 19 GB left, and a checkpoint takes 10 GB"]),
        (4.9e9, 100e9, 1e6, ["the run's file system has 4.9 GB left of 100 GB (4.9 %)"]),
        (0, 100e9, None, ["the run's file system has 0 bytes left of 100 GB (0.0 %)"]),
        (0, 0, None, []),
    ],
)
def test_too_little_room_is_said(free: float, total: float, size: float | None, said: list[str]) -> None:
    assert keeper.room(int(free), int(total), None if size is None else int(size)) == said


@given(st.integers(0, 10**18))
def test_an_amount_is_short(count: int) -> None:
    text = keeper.amount(count)
    assert len(text) <= 11
    assert float(text.split()[0]) >= 0


def test_the_kernels_counters_tell_of_processes_that_it_ended(tmp_path: Path) -> None:
    events = tmp_path / "sys/fs/cgroup/job/memory.events"
    vmstat = tmp_path / "proc/vmstat"
    for path, text in {
        tmp_path / "proc/self/cgroup": "0::/job\n",
        events: "low 0\noom 3\noom_kill 3\n",
        vmstat: "nr_free_pages 1\noom_kill 7\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    kernel = Kernel(tmp_path)
    assert kernel.notes() == []
    events.write_text("low 0\noom 4\noom_kill 4\n")
    vmstat.write_text("nr_free_pages 1\noom_kill 9\n")
    assert [note.partition(" since")[0] for note in kernel.notes()] == [
        "the kernel's out-of-memory killer ended 1 process of its cgroup",
        "the kernel's out-of-memory killer ended 2 processes on this node",
    ]


def test_the_kernels_own_lines_are_taken_as_far_as_they_tell_something(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    log = tmp_path / "dev/kmsg"
    log.write_text("6,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, of long ago\n")
    kernel = Kernel(tmp_path)
    with log.open("a") as file:
        file.write("6,2,2,-;usb 1-1: new device\n6,3,3,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=7\n SUBSYSTEM=pci\n")
    assert kernel.notes() == ["NVRM: Xid (PCI:0000:3b:00): 48, pid=7"]


def test_work_apart_hands_on_what_it_raises_and_a_wait_can_be_left() -> None:
    seen: list[int] = []
    apart(lambda: seen.append(1), lambda: None, 0.01)
    assert seen == [1]

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        apart(fail, lambda: None, 0.01)

    def leave() -> None:
        raise ground.Stopped

    with pytest.raises(ground.Stopped):
        apart(lambda: time.sleep(0.2), leave, 0.01)
