"""Errors in the logs of runs that go on."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from jobs.controller.files import RunFiles
from jobs.controller.health.logs import MOST_BYTES, RECENT_SECONDS, RunLogs
from jobs.model import Attempt, GangStatus, Rank, Run, RunState

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


class Bench:
    def __init__(self, folder: Path, files: RunFiles) -> None:
        self.now = 100.0
        self.folder = folder
        self.logs = RunLogs(files, lambda: self.now)
        self.attempt = 1

    def run(self) -> Run:
        status = GangStatus(phase="running", ranks=[Rank(rank=0), Rank(rank=1)])
        attempts = [Attempt(number=self.attempt, job_id="j", state=RunState.RUNNING, status=status)]
        return Run(
            id="lm-1", workflow="lm", release="r", state=RunState.RUNNING, nodes=1, gpus=2, submitted_at=0.0,
            run_directory=str(self.folder), attempts=attempts,
        )  # fmt: skip

    def write(self, text: str, rank: int = 0) -> None:
        folder = self.folder / f"attempt-{self.attempt}"
        folder.mkdir(exist_ok=True)
        with (folder / f"rank-{rank}.log").open("a") as file:
            file.write(text)

    async def look(self) -> list[tuple[str, str]]:
        await self.logs.look([self.run()])
        return [(each.place, each.text) for each in self.logs.recent("lm-1")]


@pytest.fixture
def bench(tmp_path: Path) -> Generator[Bench]:
    files = RunFiles()
    yield Bench(tmp_path, files)
    files.close()


async def test_a_known_error_is_found_once_with_its_place(bench: Bench) -> None:
    bench.write(f"step 1 loss 2.0\n{OOM}\n", rank=1)
    assert await bench.look() == [("rank-1.log", OOM)]
    assert await bench.look() == [("rank-1.log", OOM)]
    bench.write("step 2\n", rank=1)
    assert len(await bench.look()) == 1


async def test_half_a_line_is_waited_for(bench: Bench) -> None:
    bench.write(OOM[:30])
    assert await bench.look() == []
    bench.write(OOM[30:] + "\n")
    assert await bench.look() == [("rank-0.log", OOM)]


async def test_consequences_and_plain_words_are_no_errors(bench: Bench) -> None:
    bench.write("step 3 loss 0.1\nRuntimeError: Connection reset by peer\nall is well\n")
    assert await bench.look() == []


async def test_a_flood_is_read_at_its_end_only(bench: Bench) -> None:
    bench.write(f"{OOM}\n" + "x" * 99 + "\n" * 1)
    bench.write(("y" * 99 + "\n") * (2 * MOST_BYTES // 100))
    bench.write(f"{OOM}\n")
    assert await bench.look() == [("rank-0.log", OOM)]


async def test_old_ones_and_those_of_another_attempt_are_gone(bench: Bench) -> None:
    bench.write(f"{OOM}\n")
    assert len(await bench.look()) == 1
    bench.now += RECENT_SECONDS + 1
    assert await bench.look() == []
    bench.write(f"{OOM}\n")
    bench.attempt = 2
    assert await bench.look() == []


async def test_a_run_without_logs_is_no_trouble(bench: Bench) -> None:
    assert await bench.look() == []


async def test_a_log_that_cannot_be_read_is_no_trouble_either(bench: Bench) -> None:
    bench.write(f"{OOM}\n", rank=1)
    (bench.folder / "attempt-1" / "rank-0.log").mkdir()
    assert await bench.look() == [("rank-1.log", OOM)]
