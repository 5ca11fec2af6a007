"""The controller as a process: started, asked, stopped and killed, in a store of its own."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from console.sources.http import HttpTransport
from jobs import package
from jobs.client import ControllerClient
from jobs.controller.door import SOCKET_PATH_LIMIT
from jobs.errors import Unreachable
from jobs.model import RunState
from jobs.wire import LaunchRequest
from tests.unit.jobs.controller_harness import short_folder, stop_request
from tests.unit.jobs.ray_stand_in import RayStandIn

ROOT = Path(package.__file__).resolve().parents[1]
CLUSTER = "cluster:\n  name: c\n  control_nodes: [{host: h}]\n"
EASY = "workflow: {name: lm, resources: {cpu_cores_per_node: 0}}"
"""A workflow that asks for nothing: none of its runs waits for another."""
NOBODY = "http://127.0.0.1:1"
"""A dashboard that never answers."""


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
    transport = HttpTransport.to_socket(str(store / "controller.sock"))
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
        (["--cluster", "BAD"], "cluster.yaml:4:3: unknown key 'nmae'"),
    ],
)
def test_a_bad_cluster_file_is_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    bad = tmp_path / "cluster.yaml"
    bad.write_text(CLUSTER + "  nmae: c\n")
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


def restored(store: Path) -> str:
    """What a restore says."""
    command = [sys.executable, "-m", "jobs.controller", "restore", "--store", str(store)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
async def test_a_damaged_journal_is_never_served(store: Path) -> None:
    first = launch_process(store)
    await until_it_answers(store, first)
    assert end(first)[0] == 0
    (backup,) = (store / "backups").iterdir()
    (store / "journal.sqlite").write_bytes(b"garbage" * 4000)
    second = launch_process(store)
    said, _ = second.communicate(timeout=20)
    assert second.returncode == 1
    assert b"is damaged" in said
    assert b"raydeck controller restore" in said
    assert backup.name in restored(store)
    third = launch_process(store)
    try:
        await until_it_answers(store, third)
        async with client(store) as desk:
            assert [entry.action for entry in await desk.audit()] == ["restore"]
            assert await desk.audit_broken() == ""
    finally:
        assert end(third)[0] == 0


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
                            launch = LaunchRequest(request_id=request, workflow_text=EASY, package=digest)
                            wanted[request] = (await desk.launch(launch))[0].id
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
                    launch = LaunchRequest(request_id=request, workflow_text=EASY, package=digest)
                    wanted[request] = (await desk.launch(launch))[0].id
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
