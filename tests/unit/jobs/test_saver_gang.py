"""Several ranks, with real torch: they decide, save, fail and leave together, and a resumed run gives the same figures.

Torch is loaded once, in a process that forks all ranks of all tests here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from jobs import catalogue, checkpoint
from jobs.manifest import read
from tests.unit.jobs.ranks import ROOT, Ranks

LM = ROOT / "jobs" / "samples" / "lm.py"

TOGETHER = """
import json, os, signal, sys, time
from pathlib import Path
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import jobs
from jobs import fence

saver = jobs.Saver(every=2)
dist.init_process_group("gloo")
rank, run = dist.get_rank(), Path(os.environ["RAYDECK_RUN_DIR"])
told = {}

def attempt(step, action):
    try:
        with saver.save(step, loss=torch.tensor(1.5)) as folder:
            action(folder)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "saved"

def own(folder):
    (folder / f"rank-{rank}.bin").write_bytes(bytes([rank]) * 100)

def one_fails(folder):
    own(folder)
    if rank == 1:
        raise OSError(28, "No space left on device")

def fenced_off(folder):
    own(folder)
    if rank == 0:
        fence.raise_fence(run, 9)

told["saved"] = attempt(10, own)
told["one fails"] = attempt(20, one_fails)
told["saved again"] = attempt(20, own)
told["shards"] = attempt(30, lambda folder: dcp.save({"w": torch.full((4,), rank), "x": 1}, checkpoint_id=folder))
dcp.save({"w": torch.ones(1000), "x": 1}, checkpoint_id=run / "checkpoints" / "step_40")
if rank == 0:
    torch.save({"w": torch.ones(1000)}, run / "checkpoints" / "epoch=1-step=50.ckpt")
    torch.save({"w": torch.ones(10)}, run / "checkpoints" / "step=60.ckpt", _use_new_zipfile_serialization=False)

began = time.perf_counter()
for step in range(200):
    dist.barrier() if step == 0 else saver.due(1001 + 2 * step) or saver.due(1002 + 2 * step)
told["microseconds"] = (time.perf_counter() - began) / 200 * 1e6

told["left at"] = None
for step in range(1, 10):
    if step == 3 and rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    due = saver.due(step)
    if saver.leaving:
        told["left at"] = [step, due]
        break
told["fenced off"] = attempt(70, fenced_off)
(run / f"told-{rank}.json").write_text(json.dumps(told))
dist.barrier()
"""


@pytest.fixture(scope="module")
def ranks() -> Generator[Ranks]:
    with Ranks() as process:
        yield process


@pytest.fixture(scope="module")
def together(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in which two ranks did it all."""
    run = tmp_path_factory.mktemp("together")
    script = run / "together.py"
    script.write_text(TOGETHER)
    codes = ranks.run(script, run / "log", {"RAYDECK_RUN_DIR": str(run), "RAYDECK_ATTEMPT": "1"})
    assert codes == [0, 0], (run / "log-0").read_text() + (run / "log-1").read_text()
    return run


def told(run: Path) -> list[dict[str, Any]]:
    return [json.loads((run / f"told-{rank}.json").read_text()) for rank in range(2)]


def test_each_rank_writes_its_own_and_the_whole_is_one_checkpoint(together: Path) -> None:
    path = checkpoint.folder(together, 10)
    manifest = read(path)
    assert {name: file.size for name, file in manifest.files.items()} == {"rank-0.bin": 100, "rank-1.bin": 100}
    assert (manifest.world_size, manifest.attempt, manifest.loss) == (2, 1, 1.5)
    assert manifest.versions["torch"].startswith("2.")
    assert checkpoint.verify(path) == []


def test_what_fails_on_one_rank_fails_on_all_and_the_next_one_works(together: Path) -> None:
    first, second = told(together)
    why = "OSError: [Errno 28] No space left on device"
    assert second["one fails"] == why
    assert first["one fails"] == f"Refused: rank 1 could not save the checkpoint of step 20: {why}"
    assert [each["saved again"] for each in (first, second)] == ["saved", "saved"]
    assert checkpoint.verify(checkpoint.folder(together, 20)) == []


def test_a_fence_that_rises_meanwhile_refuses_all(together: Path) -> None:
    first, second = told(together)
    assert first["fenced off"].startswith("Refused: this is attempt 1, and attempt 9 of the run has begun")
    assert second["fenced off"].startswith("Refused: rank 0 could not save the checkpoint of step 70: Refused: this is")
    assert not checkpoint.folder(together, 70).exists()


def test_they_leave_at_the_same_step_though_one_was_asked(together: Path) -> None:
    assert [each["left at"] for each in told(together)] == [[4, True], [4, True]]


def test_to_ask_each_other_is_cheap(together: Path) -> None:
    assert max(each["microseconds"] for each in told(together)) < 20_000


def test_what_torch_writes_is_recognised_and_a_cut_is_seen(together: Path) -> None:
    rows = {row.step: row for row in catalogue.rows(together)}
    assert [(row.step, row.format, row.complete, row.world_size) for row in rows.values()] == [
        (10, "raydeck", True, 2),
        (20, "raydeck", True, 2),
        (30, "raydeck", True, 2),
        (40, "dcp", True, 2),
        (50, "lightning", True, None),
        (60, "lightning", False, None),
    ]
    assert "not a zip file" in rows[60].reason
    for step, name in ((40, "__0_0.distcp"), (50, "")):
        path = Path(rows[step].path) / name
        content = path.read_bytes()
        for size in (0, *([len(content) // 2, len(content) - 1] if step == 50 else [])):
            os.truncate(path, size)
            assert {row.step: row.complete for row in catalogue.rows(together)}[step] is False
        path.write_bytes(content)
    shard = Path(rows[40].path) / "__1_0.distcp"
    if shard.exists():
        shard.rename(shard.with_suffix(".away"))
        assert catalogue.choose(together).step == 50
        shard.with_suffix(".away").rename(shard)


def losses(run: Path) -> dict[int, float]:
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines}


@pytest.mark.slow
def test_a_run_that_failed_and_was_resumed_gives_the_same_figures_to_the_last_bit(ranks: Ranks, tmp_path: Path) -> None:
    def launch(name: str, attempt: int, resume: catalogue.Choice | None = None, **parameters: Any) -> list[int]:
        run = tmp_path / name
        run.mkdir(exist_ok=True)
        training = {"batch_size": 8, "learning_rate": 0.003, "seed": 7, "parameters": {"steps": 30, **parameters}}
        environment = {
            "RAYDECK_RUN_DIR": str(run),
            "RAYDECK_ATTEMPT": str(attempt),
            "RAYDECK_CHECKPOINT_INTERVAL": "10",
            "RAYDECK_CONFIG": json.dumps(training),
            "RAYDECK_RESUME_STEP": str(resume.step) if resume else "",
            "RAYDECK_RESUME_PATH": resume.path if resume else "",
        }
        return ranks.run(LM, tmp_path / f"log-{name}-{attempt}", environment)

    assert launch("whole", 1) == [0, 0]
    assert 1 in launch("failing", 1, fail_at_step=25, fail_rank=1)
    log = (tmp_path / "log-failing-1-1").read_text()
    assert "RuntimeError: this rank was told to fail at step 25" in log
    choice = catalogue.choose(tmp_path / "failing")
    assert (choice.step, choice.world_size) == (20, 2)
    assert max(losses(tmp_path / "failing")) == 20
    assert launch("failing", 2, choice, fail_at_step=25, fail_rank=1) == [0, 0]
    assert "resumed from the checkpoint of step 20" in (tmp_path / "log-failing-2-0").read_text()

    whole, resumed = losses(tmp_path / "whole"), losses(tmp_path / "failing")
    assert whole.keys() >= {5, 10, 15, 20, 25, 30}
    assert {step: resumed[step] for step in whole} == whole
    assert len({*whole.values()}) == len(whole)
