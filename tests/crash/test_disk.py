"""A full disk, a locked journal, a damaged one: a clear refusal, never silence, and nothing half done."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from jobs.calls import CALL_SECONDS
from jobs.model import Run
from tests.crash.operations import Operation
from tests.crash.world import World, world

pytestmark = pytest.mark.slow

DISK_BYTES = 8 * 2**20
LAUNCHES = 200


@pytest.fixture
def small_disk() -> Generator[Path]:
    """A file system of 8 MiB."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = Path(tempfile.mkdtemp(prefix="rd-", dir="/tmp"))
    folder.chmod(0o711)
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=711", "none", str(folder)]
    done = subprocess.run(mounting, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode != 0:
        folder.rmdir()
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], timeout=20, check=True)
    folder.rmdir()


def fill(folder: Path) -> Path:
    """A file that takes all the room that is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return filler


async def settled(made: World, operation: Operation) -> Operation:
    """The operation, asked for until it is carried out or refused for good."""
    made.history.append(operation)
    await made.carry_out(operation)
    assert operation.tries[-1] != "no answer", made.said()
    return operation


async def known(made: World) -> set[str]:
    """The ids of all runs that the controller has."""
    return {run["id"] for run in (await made.read("/v1/runs?limit=10000"))["runs"]}


def run_of(operation: Operation) -> Run:
    """What an accepted launch was answered with."""
    assert operation.answer is not None
    return Run.model_validate(operation.answer.body["runs"][0])


async def test_a_full_disk_refuses_and_loses_nothing(small_disk: Path) -> None:
    async with world(1, store=small_disk / "s") as made:
        controller = await made.start()
        assert await made.answers(controller), made.said()
        launches = [await settled(made, made.users.launch(hold=True))]
        filler = fill(small_disk)
        while launches[-1].answer is not None:
            assert len(launches) < LAUNCHES, "the disk is full, and still everything is accepted"
            launches.append(await settled(made, made.users.launch(hold=True)))
        refused = launches[-1]
        assert "there is no room left on its disk" in refused.tries[-1]
        accepted = {run_of(operation).id for operation in launches[:-1]}
        stop = await settled(made, made.users.stop(run_of(launches[0])))
        assert "there is no room left on its disk" in stop.tries[-1]
        # Looking still works, and shows that nothing of it happened.
        assert await known(made) == accepted
        assert (await made.read(f"/v1/runs/{run_of(launches[0]).id}"))["state"] == "queued"

        await made.end(controller)
        controller = await made.start()
        if not await made.answers(controller):
            assert await controller.wait() == 1
            assert "there is no room left on its disk" in made.said()
        filler.unlink()
        if not controller.alive:
            controller = await made.start()
            assert await made.answers(controller), made.said()
        assert await known(made) == accepted
        await made.carry_out(refused)
        await made.carry_out(stop)
        assert refused.took_effect(), refused
        assert stop.took_effect(), stop
        await made.end(controller)
        await made.settle()
        await made.check(allowed_errors=("there is no room left on its disk", "no backup of the journal was made"))


async def test_a_locked_journal_refuses_and_goes_on_when_it_is_free(crash_seed: int) -> None:
    async with world(crash_seed) as made:
        controller = await made.start()
        assert await made.answers(controller), made.said()
        other = sqlite3.connect(made.store / "journal.sqlite", isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            launch = await settled(made, made.users.launch(hold=True))
            assert "another process has had it locked for 3 s" in launch.tries[-1]
            assert time.monotonic() - began < CALL_SECONDS, "whoever asked would have given up before"
            began = time.monotonic()
            assert (await made.read("/v1/status"))["runs_active"] == 0
            assert await known(made) == set()
            assert time.monotonic() - began < 2.0
            other.execute("ROLLBACK")
        finally:
            other.close()
        await made.carry_out(launch)
        assert launch.took_effect(), launch
        await made.end(controller)
        await made.settle()
        await made.check(allowed_errors=("locked for 3 s",))


def _middle(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 4)
        file.write(os.urandom(size // 2))


def _beginning(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"this was a database" * 10)


def _end(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("harm", [_middle, _beginning, _end])
async def test_a_damaged_journal_is_refused_with_the_way_back(crash_seed: int, harm: Callable[[Path], None]) -> None:
    async with world(crash_seed) as made:
        controller = await made.start()
        assert await made.answers(controller), made.said()
        launched = {run_of(await settled(made, made.users.launch(hold=True))).id for _ in range(20)}
        await made.end_in_order(controller)
        harm(made.store / "journal.sqlite")
        controller = await made.start()
        assert not await made.answers(controller)
        assert await controller.wait() == 1
        said = made.said()
        assert "journal.sqlite is damaged" in said
        assert "raydeck controller restore" in said
        restoring = await made.command("restore", "--store", str(made.store))
        assert await restoring.wait() == 0, made.said()
        controller = await made.start()
        assert await made.answers(controller), made.said()
        # It left in order, so its last backup has everything.
        assert await known(made) == launched
        assert (await made.read("/v1/audit?limit=1&verify=1"))["broken"] == ""
        await made.end_in_order(controller)
