"""The starter: over a pipe and by call, with the real archive, in a store of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from jobs import package
from jobs.starter import Answer, Options, carry_out, start_argv_and_input
from jobs.supervision import unit_command
from tests.unit.jobs.test_controller_process import CLUSTER, NOBODY, end, launch_process


def works(python: str) -> bool:
    """Is it there, and not only a version manager's stand-in for it?"""
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "-c", ""], capture_output=True, timeout=20, check=False).returncode == 0


OLD_PYTHONS = [python for python in ("python3.8", "python3.9") if works(python)]


@pytest.fixture
def store() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rd-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def archive() -> tuple[str, bytes]:
    return package.controller_archive()


@pytest.fixture
def started(store: Path) -> Generator[Options]:
    """Options for a store; whatever was started in it is stopped at the end."""
    options = Options(store=str(store / "s"), dashboard=NOBODY, python=sys.executable, supervisor="none")
    yield options
    assert carry_out("stop", options).event == "stopped"


def sent(command: str, options: Options, archive: tuple[str, bytes] | None, python: str = sys.executable) -> Answer:
    """As the console does it: source on standard input."""
    argv, body = start_argv_and_input(command, options, archive)
    done = subprocess.run([python, *argv[1:]], input=body, capture_output=True, timeout=60, check=False)
    assert done.stderr == b""
    answer = Answer(**json.loads(done.stdout))
    assert done.returncode == (1 if answer.event == "failed" else 0)
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("python", [*OLD_PYTHONS[:1], sys.executable])
def test_it_is_started_asked_and_stopped_over_a_pipe(started: Options, archive: tuple[str, bytes], python: str) -> None:
    assert sent("status", started, None, python).event == "stopped"
    first = sent("start", started, archive, python)
    assert (first.event, first.digest, first.offered, first.supervised_by) == (
        "started",
        archive[0],
        archive[0],
        "none",
    )
    assert first.pid is not None
    assert os.getsid(first.pid) == first.pid
    again = sent("start", started, archive, python)
    assert (again.event, again.pid, again.reason) == ("running", first.pid, "")
    status = sent("status", started, None, python)
    assert (status.event, status.pid, status.digest) == ("running", first.pid, archive[0])
    stopped = sent("stop", started, None, python)
    assert (stopped.event, stopped.pid, stopped.reason) == ("stopped", first.pid, "")
    assert sent("stop", started, None, python).reason == "no controller was running"


@pytest.mark.slow
def test_a_restart_takes_the_newer_code(started: Options, archive: tuple[str, bytes]) -> None:
    first = carry_out("start", started, archive)
    assert first.event == "started", first.reason
    newer = ("ab" * 32, archive[1])
    held = carry_out("start", started, newer)
    assert (held.event, held.digest, held.offered) == ("running", archive[0], newer[0])
    assert "it runs other code than yours" in held.reason
    restarted = carry_out("restart", started, newer)
    assert (restarted.event, restarted.digest) == ("started", newer[0])
    assert restarted.pid != first.pid


def test_old_code_is_pruned(started: Options, archive: tuple[str, bytes]) -> None:
    code = Path(started.store) / "code"
    code.mkdir(parents=True)
    for number in range(5):
        (code / f"{number}.zip").write_bytes(b"old")
        os.utime(code / f"{number}.zip", (number, number))
    assert carry_out("start", started, archive).event == "started"
    assert sorted(path.name for path in code.iterdir()) == sorted(["3.zip", "4.zip", f"{archive[0]}.zip"])


@pytest.mark.slow
def test_the_cluster_file_is_kept_and_read(started: Options, archive: tuple[str, bytes]) -> None:
    answer = carry_out("start", replace(started, cluster_text=CLUSTER + "  nmae: c\n"), archive)
    assert answer.event == "failed"
    assert "cluster.yaml:4:3: unknown key 'nmae'" in answer.reason
    assert carry_out("start", replace(started, cluster_text=CLUSTER), archive).event == "started"


def test_a_python_that_lacks_something_is_named(started: Options, archive: tuple[str, bytes], tmp_path: Path) -> None:
    poor = tmp_path / "poor-python"
    poor.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    poor.chmod(0o755)
    answer = carry_out("start", replace(started, python=str(poor)), archive)
    assert answer.event == "failed"
    assert f"{poor}: No module named 'aiohttp'" in answer.reason
    assert "cluster.access.python" in answer.hint
    missing = carry_out("start", replace(started, python="/none/python"), archive)
    assert "/none/python: it is not there" in missing.reason


def test_code_that_arrived_in_part_is_not_used(started: Options, archive: tuple[str, bytes]) -> None:
    argv, body = start_argv_and_input("start", started, archive)
    done = subprocess.run([sys.executable, *argv[1:]], input=body[:-1000], capture_output=True, timeout=30, check=False)
    assert "arrived in part" in json.loads(done.stdout)["reason"]
    assert not Path(started.store).exists()


def test_one_that_does_not_leave_is_killed_and_it_is_said(started: Options, archive: tuple[str, bytes]) -> None:
    first = carry_out("start", started, archive)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGSTOP)
    answer = carry_out("stop", replace(started, stop_seconds=0.2))
    assert (answer.event, answer.pid) == ("stopped", first.pid)
    assert "was killed" in answer.reason


@pytest.mark.slow
def test_a_backup_is_listed_and_put_back_over_a_pipe(started: Options, archive: tuple[str, bytes]) -> None:
    assert carry_out("start", started, archive).event == "started"
    held = sent("restore", started, archive)
    assert held.event == "failed"
    assert "runs, and the journal is in its hands" in held.reason
    assert "raydeck controller stop" in held.hint
    assert carry_out("stop", started).event == "stopped"
    listed = sent("backups", started, archive)
    newest, *_ = listed.details["backups"]  # one of its beginning, and one of its end if something was written since
    journal = Path(started.store) / "journal.sqlite"
    journal.write_bytes(b"garbage" * 1000)
    broken = carry_out("start", started, archive)
    assert broken.event == "failed"
    assert "is damaged" in broken.reason
    missing = sent("restore", replace(started, backup="/none"), archive)
    assert (missing.event, missing.reason) == ("failed", "there is no file /none")
    answer = sent("restore", started, archive)
    assert (answer.event, answer.details["backup"], answer.details["skipped"]) == ("restored", newest["path"], [])
    (aside,) = answer.details["moved"]
    assert (Path(started.store) / aside).read_bytes() == b"garbage" * 1000
    assert carry_out("start", started, archive).event == "started"


def test_a_restore_where_no_controller_ever_was(store: Path, archive: tuple[str, bytes]) -> None:
    answer = carry_out("restore", Options(store=str(store / "none"), python=sys.executable), archive)
    assert answer.event == "failed"
    assert "there is no folder" in answer.reason
    assert not (store / "none").exists()


def test_a_process_that_is_no_controller_is_never_killed(store: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl,sys,time; f=open(sys.argv[1],'w'); fcntl.flock(f, 2); f.write(sys.argv[2]); f.flush(); "
            "print('held', flush=True); sys.stdin.read()",
            str(store / "controller.lock"),
            json.dumps({"pid": os.getpid()}),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    answer = carry_out("stop", Options(store=str(store)))
    assert answer.event == "failed"
    assert f"process {os.getpid()}" in answer.reason
    holder.communicate(timeout=10)


def test_a_silent_one_is_told_from_none(store: Path) -> None:
    """The lock is held, but nobody answers on the socket."""
    listener = socket.socket(socket.AF_UNIX)
    process = launch_process(store)
    try:
        deadline = time.monotonic() + 20
        while carry_out("status", Options(store=str(store))).event != "running":
            assert time.monotonic() < deadline
        os.kill(process.pid, signal.SIGSTOP)
        (store / "controller.sock").unlink(missing_ok=True)
        listener.bind(str(store / "controller.sock"))
        answer = carry_out("status", Options(store=str(store)))
        assert (answer.event, answer.pid) == ("running", process.pid)
        assert "does not answer" in answer.reason
    finally:
        listener.close()
        end(process, signal.SIGKILL)


def test_the_unit_is_started_again_only_when_it_was_killed() -> None:
    command = unit_command(["--user"], "/data/meta", "/data/meta/code/ab.zip", ["python3", "-m", "jobs.controller"], {
        "RAY_AUTH_TOKEN_PATH": "/etc/token",
        "RAY_AUTH_TOKEN": "secret",
    })  # fmt: skip
    assert command[:3] == ["systemd-run", "--user", "--collect"]
    assert "--property=Restart=on-failure" in command
    assert "--property=RestartPreventExitStatus=1" in command
    assert "--setenv=PYTHONPATH=/data/meta/code/ab.zip" in command
    assert "--setenv=RAY_AUTH_TOKEN_PATH=/etc/token" in command
    assert not any("secret" in word for word in command)
    assert command[command.index("--") + 1 :] == ["python3", "-m", "jobs.controller"]
