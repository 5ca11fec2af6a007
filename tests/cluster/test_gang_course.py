"""What comes before and after a gang's ranks on a real Ray: chosen nodes, leftovers, checkpoints, kinds of failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from jobs import catalogue, checkpoint, fence, marks
from jobs.gang.processes import end, marked, of
from jobs.model import Failure, Launch, Progress
from tests.cluster.conftest import RayOnThisMachine, wait_for
from tests.cluster.test_gang import Gang, launch
from tests.cluster.test_gang import output as output

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

STEPS = """
import os, pathlib, time
import jobs
from jobs import checkpoint

rank, run = int(os.environ["RANK"]), os.environ["RAYDECK_RUN_DIR"]
left = pathlib.Path("/proc", os.environ["LEFT"])
print("the process of attempt 1 is", "there" if left.exists() else "gone", flush=True)
print("begins from", os.environ["RAYDECK_RESUME_PATH"], "at", os.environ["RAYDECK_RESUME_STEP"], flush=True)
seen = pathlib.Path(run, "seen")
while rank == 0 and not seen.exists():
    time.sleep(0.05)
for step in range(21, 25):
    if rank == 0:
        draft = checkpoint.begin(run, step)
        (draft.path / "weights").write_bytes(b"x" * 1000)
        checkpoint.finish(draft, loss=1.0)
        jobs.report(step=step, loss="nan" if step == 22 else 1.0)
"""

FAIL = """
import datetime, os, sys, time
rank = int(os.environ["RANK"])
if sys.argv[1] == "memory":
    if rank == 0:
        raise MemoryError("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 79.15 GiB total capacity)")
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))
if rank == 1:
    time.sleep(600)
dist.all_reduce(torch.zeros(1))
"""

RAY = """
import os, signal, subprocess, sys, time
import ray

stops = []
signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
print("the token is", os.environ["TOKEN"], flush=True)
subprocess.Popen(["sh", "-c", "trap '' TERM; setsid sleep 600 & "]).wait()


@ray.remote(num_cpus=1)
def work(step):
    import jobs
    jobs.report(step=step, loss=2.0 / step, samples_per_second=5)
    return os.environ["RAYDECK_RUN"], "TOKEN" in os.environ


ray.init()
# Ray takes SIGTERM for itself when it starts.
signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
print("a worker knows", *ray.get(work.remote(7)), flush=True)
while not stops:
    time.sleep(0.05)
time.sleep(1.0)
print("asked to stop", len(stops), "times", flush=True)
"""


def save(run_directory: Path, step: int, attempt: int = 1) -> Path:
    """A complete checkpoint."""
    draft = checkpoint.begin(run_directory, step)
    (draft.path / "weights").write_bytes(b"w" * 100)
    return checkpoint.finish(draft, world_size=2).path


def code(output: Path, **scripts: str) -> Path:
    folder = output / "code"
    folder.mkdir()
    for name, text in scripts.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture
def left() -> Generator[tuple[str, int]]:
    """A run, and a process that its first attempt left where no tree leads to, and that does not listen."""
    run = f"again-{os.getpid()}"
    variables = {**os.environ, "RAYDECK_RUN": run, "RAYDECK_ATTEMPT": "1"}
    started = subprocess.run(
        ["sh", "-c", "trap '' TERM; setsid sleep 600 >/dev/null 2>&1 & echo $!"],
        env=variables, capture_output=True, text=True, check=True,
    )  # fmt: skip
    yield run, int(started.stdout)
    assert end(lambda: marked({"RAYDECK_RUN": run}), 0.0, 5.0) == []


def test_a_later_attempt_finds_the_ground_clear_and_its_chosen_nodes(
    ray_cluster: RayOnThisMachine, output: Path, left: tuple[str, int]
) -> None:
    run, pid = left
    own, other = output / "again" / run, output / "other"
    base = save(other, 20)
    save(own, 10)
    save(own, 30)
    first, second = (ray_cluster.nodes[name]["node_id"] for name in ("worker-2", "worker-1"))
    gang = Gang(
        ray_cluster,
        code(output, steps=STEPS),
        launch(
            output, "again", run=run, run_directory=str(own), attempt=2, script=["steps.py"],
            node_ids=[first, second], previous_nodes={second: "worker-1", "f" * 56: "worker-9"},
            resume_from_step=20, resume_path=str(base), set_aside_after=0, keep_last=2,
            environment={"LEFT": str(pid)},
        ),
    )  # fmt: skip
    status = gang.until("running")
    assert [rank.node_id for rank in status.ranks] == [first, second]
    assert of(pid) is None
    assert marks.pins(base) == [run]
    (own / "seen").touch()
    outcome = gang.outcome()
    assert (outcome.verdict, outcome.reason) == ("succeeded", "all 2 ranks ended with exit code 0")
    assert (outcome.last_step, outcome.checkpoint_step, outcome.failure) == (24, 24, None)
    said = (gang.folder / "rank-1.log").read_text()
    assert said == f"the process of attempt 1 is gone\nbegins from {base} at 20\n"
    assert marks.pins(base) == []
    assert fence.newest(own) == 2
    assert [row.step for row in catalogue.rows(own) if row.complete] == [23, 24]
    assert [row.step for row in catalogue.rows(own) if not row.complete] == [10, 30]
    status = gang.status()
    assert status.warnings[0] == "loss is not a number at step 22"
    assert status.environment["python"].startswith("3.")
    assert {"torch", "ray"} <= status.environment.keys()
    log = ray_cluster.job_log(run, 2)
    assert f"ended what an earlier attempt had left on worker-1: {pid}" in log
    assert "worker-9 is not in Ray any more" in log
    assert "set aside the checkpoints beyond step 0: 10, 30" in log


def test_a_broken_checkpoint_is_marked_and_nothing_is_started(ray_cluster: RayOnThisMachine, output: Path) -> None:
    wanted = launch(output, "broken", attempt=2, script=["steps.py"])
    directory = Path(wanted.run_directory)
    save(directory, 10)
    base = save(directory, 20)
    (base / "weights").write_bytes(b"v" * 100)
    fields = {"resume_from_step": 20, "resume_path": str(base)}
    gang = Gang(ray_cluster, code(output, steps=STEPS), wanted.model_copy(update=fields))
    outcome = gang.outcome()
    assert (outcome.verdict, outcome.failure) == ("failed", Failure.CHECKPOINT)
    assert outcome.evidence == "weights does not have the content that was saved (its SHA-256 differs)"
    assert outcome.reason == f"cannot begin from the checkpoint of step 20 ({base}): {outcome.evidence}"
    assert (outcome.exit_codes, outcome.checkpoint_step, outcome.last_step) == ({}, 10, None)
    choice = catalogue.choose(directory)
    assert choice.step == 10
    assert len(choice.skipped) == 1


def test_the_kinds_of_failures_are_told(ray_cluster: RayOnThisMachine, output: Path) -> None:
    folder = code(output, fail=FAIL)
    # Both at once, to save time.
    memory = Gang(ray_cluster, folder, launch(output, "memory", nodes=1, script=["fail.py", "memory"], environment={}))
    silent = Gang(ray_cluster, folder, launch(output, "silent", script=["fail.py", "silent"], environment={}))

    outcome = memory.outcome()
    names = {node["node_id"]: node["name"] for node in ray_cluster.nodes.values()}
    assert (outcome.verdict, outcome.failure, outcome.first_failing_rank) == ("failed", Failure.OUT_OF_MEMORY, 0)
    assert outcome.evidence.startswith("MemoryError: CUDA out of memory. Tried to allocate 20.00 MiB")
    assert outcome.signature == (
        "MemoryError: CUDA out of memory. Tried to allocate <number> MiB (GPU <number>; <number> GiB total capacity)"
    )
    assert outcome.suspects == [names[memory.status().ranks[0].node_id]]

    outcome = silent.outcome()
    second = next(rank for rank in silent.status().ranks if rank.rank == 1)
    assert (outcome.verdict, outcome.failure, outcome.first_failing_rank) == ("failed", Failure.COMMUNICATION, 0)
    assert "Timed out waiting" in outcome.evidence
    # Rank 0 only waited; the one that it waited for said nothing.
    assert outcome.suspects == [names[second.node_id]]
    assert silent.left() == []


def test_a_chosen_node_that_is_gone_is_said_at_once(ray_cluster: RayOnThisMachine, output: Path) -> None:
    wanted = launch(output, "gone", script=["steps.py"], nodes=1, node_ids=["0" * 56])
    outcome = Gang(ray_cluster, code(output, steps=STEPS), wanted).outcome()
    assert (outcome.verdict, outcome.failure) == ("failed", Failure.NODE_LOST)
    assert outcome.reason == f"{'0' * 56}, which the queue chose for it, is not in Ray any more"


class Command(Gang):
    """One attempt of the kind ``ray``."""

    ENTRYPOINT = 'exec "${RAYDECK_PYTHON:-python3}" -m jobs.gang.entry'


def command(output: Path, name: str, *script: str, **fields: Any) -> Launch:
    given = {"kind": "ray", "script": list(script), "nodes": 1, "stop_grace_seconds": 20.0, "environment": {}}
    return launch(output, name, **{**given, **fields})


def test_any_ray_command_is_a_run(ray_cluster: RayOnThisMachine, output: Path) -> None:
    secret = output / "secret"
    secret.write_text("s3cr3t\n")
    folder = code(output, work=RAY)
    wanted = command(output, "command", "python", "work.py", environment={"TOKEN": f"${{file:{secret}}}"})
    gang = Command(ray_cluster, folder, wanted)
    missing = Command(ray_cluster, folder, command(output, "missing", "no-such-program"))

    def reported() -> Progress | None:
        return gang.status().progress

    assert wait_for("its figures", reported).step == 7
    status = gang.status()
    assert status.phase == "running"
    assert len(status.ranks) == 1
    assert status.ranks[0].node_id == ray_cluster.nodes["head"]["node_id"]
    log = gang.folder / "rank-0.log"
    wait_for("the worker's word", lambda: "a worker knows" in log.read_text())
    helpers = [process for process in gang.left() if process.pid != status.ranks[0].pid]
    assert helpers
    ray_cluster.stop(wanted.run)
    outcome = gang.outcome()
    assert (outcome.verdict, outcome.reason) == ("stopped", "stopped on request, there is no checkpoint")
    assert (outcome.exit_codes, outcome.last_step, outcome.survivors) == ({0: 0}, 7, [])
    assert gang.left() == []
    said = log.read_text()
    assert "the token is s3cr3t\n" in said
    assert f"a worker knows {wanted.run} False\n" in said
    # Ray asks all processes of the job by itself; a second request would be one to leave at once.
    assert said.endswith("asked to stop 1 times\n")
    lines = iter(ray_cluster.job_log(wanted.run).splitlines())
    assert all(line in lines for line in said.splitlines())  # in this order; ours stand between
    assert "s3cr3t" not in json.dumps(ray_cluster.job(wanted.run))

    outcome = missing.outcome()
    assert (outcome.verdict, outcome.failure) == ("failed", Failure.APPLICATION)
    assert outcome.reason == (
        "its command no-such-program is neither in the code that was shipped with it nor a program on head"
    )


def test_a_killed_entry_takes_its_command_along(ray_cluster: RayOnThisMachine, output: Path) -> None:
    folder = code(output, sleep="import time; print('up', flush=True); time.sleep(600)")
    gang = Command(ray_cluster, folder, command(output, "cut", sys.executable, "sleep.py"))
    status = gang.until("running")
    assert status.ranks[0].pid is not None
    assert of(status.ranks[0].pid) is not None
    stat = Path(f"/proc/{status.ranks[0].pid}/stat").read_text()
    entry = int(stat[stat.rindex(")") + 2 :].split()[1])
    assert b"jobs.gang.entry" in Path(f"/proc/{entry}/cmdline").read_bytes()
    os.kill(entry, signal.SIGKILL)
    gang.gone()
