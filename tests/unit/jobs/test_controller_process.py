"""The controller as a process: started, asked, stopped and killed, in a store of its own."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from jobs import package
from jobs.client import ControllerClient
from jobs.controller.door import SOCKET_PATH_LIMIT
from jobs.controller.http import AiohttpTransport
from jobs.errors import Unreachable
from jobs.model import RunState
from jobs.starter import Answer, Options, carry_out, start_argv_and_input, unit_command
from jobs.wire import LaunchRequest
from tests.unit.jobs.controller_harness import WORKFLOW, short_folder, stop_request
from tests.unit.jobs.ray_stand_in import RayStandIn

ROOT = Path(package.__file__).resolve().parents[1]
NOBODY = "http://127.0.0.1:1"
"""A dashboard that never answers."""
OLD_PYTHONS = [python for python in ("python3.8", "python3.9") if shutil.which(python)]


def launch_process(store: Path, dashboard: str = NOBODY) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "jobs.controller", "--store", str(store), "--dashboard", dashboard],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> tuple[int, str]:
    """Its exit code and what it said."""
    if process.poll() is None:
        process.send_signal(number)
    said, _ = process.communicate(timeout=20)
    return process.returncode, said.decode()


@asynccontextmanager
async def client(store: Path) -> AsyncGenerator[ControllerClient]:
    transport = AiohttpTransport("http://controller", unix_socket=str(store / "controller.sock"))
    try:
        yield ControllerClient(transport)
    finally:
        await transport.close()


async def until_it_answers(store: Path, process: subprocess.Popen[bytes], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    async with client(store) as desk:
        while True:
            try:
                assert (await desk.status()).pid == process.pid
                return
            except Unreachable:
                assert process.poll() is None, end(process)
                assert time.monotonic() < deadline, "it does not answer"
                await asyncio.sleep(0.02)


@pytest.fixture
async def store() -> AsyncGenerator[Path]:
    async with short_folder() as folder:
        yield folder


async def test_there_is_one_and_it_leaves_in_order(store: Path) -> None:
    first = launch_process(store)
    try:
        await until_it_answers(store, first)
        second = launch_process(store)
        said, _ = second.communicate(timeout=20)
        assert second.returncode == 1
        assert said.decode() == (
            f"a controller already serves {store}: process {first.pid} holds controller.lock. "
            "There is one controller for each store; stop that one first\n"
        )
        # A listener is told, and does not keep it from leaving.
        async with client(store) as desk:
            stream = desk.events()
            await anext(stream)
            first.send_signal(signal.SIGTERM)
            assert [event.event async for event in stream if event.event == "run"] == []
    finally:
        code, said = end(first)
    assert (code, said) == (0, "")
    assert not (store / "controller.sock").exists()
    log = (store / "controller.log").read_text()
    assert "asked to stop" in log
    assert log.rstrip().endswith("stopped")


async def test_what_a_killed_one_left_behind_is_replaced(store: Path) -> None:
    first = launch_process(store)
    await until_it_answers(store, first)
    end(first, signal.SIGKILL)
    assert (store / "controller.sock").exists()
    second = launch_process(store)
    try:
        await until_it_answers(store, second)
    finally:
        assert end(second, signal.SIGINT)[0] == 0


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    store = tmp_path / ("x" * SOCKET_PATH_LIMIT)
    process = launch_process(store)
    said, _ = process.communicate(timeout=20)
    assert process.returncode == 1
    assert b"a Unix socket takes 100 at most" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cluster", "/none/cluster.yaml"], "the cluster file /none/cluster.yaml cannot be read"),
        (["--cluster", "BAD"], "cluster.yaml:2:3: unknown key nmae"),
    ],
)
def test_a_bad_cluster_file_is_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    bad = tmp_path / "cluster.yaml"
    bad.write_text("cluster:\n  nmae: c\n")
    arguments = [str(bad) if argument == "BAD" else argument for argument in arguments]
    store = tmp_path / "s"
    command = [sys.executable, "-m", "jobs.controller", "--store", str(store), "--dashboard", NOBODY, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert words in done.stderr
    assert words in (store / "controller.log").read_text()


def test_it_imports_neither_ray_nor_torch_nor_what_a_head_lacks() -> None:
    script = (
        "import sys; import jobs.controller.__main__; "
        "print([name for name in ('ray', 'torch', 'httpx', 'asyncssh', 'textual', 'click') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
async def test_killed_at_any_point_nothing_is_lost_and_nothing_launched_twice(store: Path) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    wanted: dict[str, str] = {}
    """Request id to the run that it was answered with, or nothing if the answer was cut off."""
    async with RayStandIn().serving() as ray:
        digest = _send_code(store)
        for _ in range(6):
            process = launch_process(store, ray.address)
            try:
                await until_it_answers(store, process)
                async with client(store) as desk:
                    killer = asyncio.get_running_loop().call_later(chance.uniform(0.0, 0.3), process.kill)
                    try:
                        while True:
                            request = next((key for key, run in wanted.items() if not run), uuid.uuid4().hex)
                            wanted.setdefault(request, "")
                            launch = LaunchRequest(request_id=request, workflow_text=WORKFLOW, package=digest)
                            wanted[request] = (await desk.launch(launch)).id
                            await asyncio.sleep(chance.uniform(0.0, 0.05))
                    except Unreachable:
                        killer.cancel()
            finally:
                end(process, signal.SIGKILL)
        process = launch_process(store, ray.address)
        try:
            await until_it_answers(store, process)
            async with client(store) as desk:
                for request in [key for key, run in wanted.items() if not run]:
                    launch = LaunchRequest(request_id=request, workflow_text=WORKFLOW, package=digest)
                    wanted[request] = (await desk.launch(launch)).id
                runs = await desk.runs(limit=10_000)
                assert sorted(run.id for run in runs) == sorted(wanted.values()), f"seed {seed}"
                deadline = time.monotonic() + 20
                while any(run.state is not RunState.STARTING for run in await desk.runs(limit=10_000)):
                    assert time.monotonic() < deadline, f"seed {seed}"
                    await asyncio.sleep(0.05)
                assert sorted(ray.posted) == sorted(f"raydeck-{run}-a1" for run in wanted.values()), f"seed {seed}"
                launches = [entry for entry in await desk.audit(10_000) if entry.action == "launch"]
                assert len(launches) == len(wanted)
                await desk.stop(next(iter(wanted.values())), stop_request())
        finally:
            assert end(process)[0] == 0


def _send_code(store: Path) -> str:
    """A package, put where the controller keeps them."""
    folder = store / "their-code"
    folder.mkdir()
    (folder / "train.py").write_text("print('training')\n")
    built = package.build(folder)
    (store / "packages").mkdir(mode=0o700)
    (store / "packages" / f"{built.digest}.zip").write_bytes(built.content)
    return built.digest


# --- the starter ---------------------------------------------------------------------------------------------------


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


def test_the_cluster_file_is_kept_and_read(started: Options, archive: tuple[str, bytes]) -> None:
    bad = Options(**{**asdict(started), "cluster_text": "cluster:\n  nmae: c\n"})
    answer = carry_out("start", bad, archive)
    assert answer.event == "failed"
    assert "cluster.yaml:2:3: unknown key nmae" in answer.reason
    good = Options(**{**asdict(started), "cluster_text": "cluster:\n  name: c\n  control_nodes: [{host: h}]\n"})
    assert carry_out("start", good, archive).event == "started"


def test_a_python_that_lacks_something_is_named(started: Options, archive: tuple[str, bytes], tmp_path: Path) -> None:
    poor = tmp_path / "poor-python"
    poor.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    poor.chmod(0o755)
    answer = carry_out("start", Options(**{**asdict(started), "python": str(poor)}), archive)
    assert answer.event == "failed"
    assert f"{poor}: No module named 'aiohttp'" in answer.reason
    assert "cluster.access.python" in answer.hint
    missing = carry_out("start", Options(**{**asdict(started), "python": "/none/python"}), archive)
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
    answer = carry_out("stop", Options(**{**asdict(started), "stop_seconds": 0.2}))
    assert (answer.event, answer.pid) == ("stopped", first.pid)
    assert "was killed" in answer.reason


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
        "SECRET": "no",
    })  # fmt: skip
    assert command[:3] == ["systemd-run", "--user", "--collect"]
    assert "--property=Restart=on-failure" in command
    assert "--property=RestartPreventExitStatus=1" in command
    assert "--setenv=PYTHONPATH=/data/meta/code/ab.zip" in command
    assert "--setenv=RAY_AUTH_TOKEN_PATH=/etc/token" in command
    assert not any("SECRET" in word for word in command)
    assert command[command.index("--") + 1 :] == ["python3", "-m", "jobs.controller"]
