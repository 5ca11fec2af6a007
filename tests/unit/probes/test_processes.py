"""`probes.processes`: whose process, from real ones and from trees of ``/proc``."""

from __future__ import annotations

import getpass
import os
import pwd
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.processes import COMMAND_LENGTH, RECHECK_PASSES, Processes, environment, stat_fields, whole
from tests.unit.probes.live import few, until

Start = Callable[..., int]


@pytest.fixture
def start() -> Generator[Start]:
    running: list[subprocess.Popen[bytes]] = []

    def run(*argv: str, **marks: str) -> int:
        running.append(subprocess.Popen(argv, env={"PATH": os.environ["PATH"], **marks}))
        pid = running[-1].pid
        until(lambda: Path(f"/proc/{pid}/comm").read_text().strip() == argv[0])
        return pid

    yield run
    for process in running:
        process.kill()
        process.wait()


def test_a_rank_is_known_by_its_environment(start: Start) -> None:
    pid = start("sleep", "60", RAYDECK_RUN="lm-7", RAYDECK_ATTEMPT="3", RANK="12", LOCAL_RANK="4")
    owner = Processes().owner(pid)
    assert owner is not None
    assert (owner.run, owner.attempt, owner.rank) == ("lm-7", 3, 12)
    assert owner.user in (getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name)
    assert owner.command == "sleep 60"


def test_a_process_of_nobody_has_no_run(start: Start) -> None:
    owner = Processes().owner(start("sleep", "60"))
    assert owner is not None
    assert (owner.run, owner.attempt, owner.rank) == ("", 0, None)


def test_a_command_line_is_bounded(start: Start) -> None:
    owner = Processes().owner(start("sleep", "60", *(["0"] * 3000)))
    assert owner is not None
    assert len(owner.command) == COMMAND_LENGTH


def test_a_process_that_has_gone_is_nobody() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert Processes().owner(process.pid) is None
    assert environment("/proc", process.pid) == {}


def _tree(root: Path, pid: int, started: int, command: str = "python train.py") -> None:
    folder = root / str(pid)
    folder.mkdir(exist_ok=True)
    fields = ["S", "1", *["0"] * 17, str(started), "0"]
    (folder / "stat").write_text(f"{pid} (a) b (c)) " + " ".join(fields))
    (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    (folder / "environ").write_bytes(b"RANK=1\0RAYDECK_RUN=r\0HOME=/root\0")


def test_a_pid_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    _tree(tmp_path, 50, 1000)
    processes = Processes(str(tmp_path))
    first = processes.owner(50)
    processes.forget_unseen()
    _tree(tmp_path, 50, 2000, "python other.py")
    later = [(processes.owner(50), processes.forget_unseen())[0] for _ in range(RECHECK_PASSES)]
    second = later[-1]
    assert first is not None
    assert second is not None
    assert (first.command, second.command) == ("python train.py", "python other.py")


def test_a_pid_that_was_away_for_a_pass_is_looked_at_again(tmp_path: Path) -> None:
    _tree(tmp_path, 50, 1000)
    processes = Processes(str(tmp_path))
    processes.owner(50)
    processes.forget_unseen()
    processes.forget_unseen()
    _tree(tmp_path, 50, 2000, "python other.py")
    owner = processes.owner(50)
    assert owner is not None
    assert owner.command == "python other.py"


def test_names_with_brackets_do_not_shift_the_fields(tmp_path: Path) -> None:
    _tree(tmp_path, 50, 1234)
    assert stat_fields(str(tmp_path), 50) == (1, 1234)


def test_one_that_ended_and_was_not_collected_is_gone() -> None:
    process = subprocess.Popen(["sleep", "60"])
    assert stat_fields("/proc", process.pid) is not None
    process.kill()
    until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] == "Z")
    assert stat_fields("/proc", process.pid) is None
    process.wait()


@few
@given(st.binary(max_size=300))
def test_anything_may_stand_in_proc(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    root = tmp_path_factory.getbasetemp() / "anything"
    folder = root / "7"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("stat", "cmdline", "environ"):
        (folder / name).write_bytes(text)
    Processes(str(root)).owner(7)
    (folder / "stat").write_bytes(b"7 (x) S 1 " + b"0 " * 17 + b"55 0")
    owner = Processes(str(root)).owner(7)
    assert owner is not None
    assert len(owner.command) <= COMMAND_LENGTH


@few
@given(st.text())
def test_a_marks_number_is_a_number_or_none(text: str) -> None:
    value = whole(text)
    assert value is None or (value >= 0 and str(value) == (text.lstrip("0") or "0"))
