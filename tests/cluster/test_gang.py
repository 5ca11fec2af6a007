"""A gang on a real Ray: it trains, it leaves when asked, it names who failed, and nothing of it outlives anything."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs import checkpoint, package
from jobs.gang.processes import Process, marked
from jobs.model import GangStatus, Launch, Outcome, Progress, job_id
from tests.cluster.conftest import RayOnThisMachine, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

GONE_SECONDS = 15.0
"""Within which nothing may be left after a kill: about 3 s were seen, on a machine with nothing else to do."""

HOLD = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
# A helper in a session of its own, whose parent is gone: no process group and no tree leads to it.
subprocess.Popen(["sh", "-c", "trap '' TERM; setsid sleep 600 & "]).wait()
print("holding with", os.environ["RAYDECK_GPU"] or "no GPU", "on", os.environ["RAYDECK_NODE"], flush=True)
print("the token has", len(os.environ["TOKEN"]), "characters", flush=True)
time.sleep(600)
"""


class Gang:
    """One attempt, submitted as the controller would."""

    ENTRYPOINT = 'exec "${RAYDECK_PYTHON:-python3}" -m jobs.gang.driver'

    def __init__(self, ray: RayOnThisMachine, code: Path | Any, launch: Launch) -> None:
        self.ray = ray
        self.launch = launch
        built = package.build(code)
        ray.upload(built.name, built.content)
        variables = {
            "RAYDECK_LAUNCH": launch.model_dump_json(),
            "RAYDECK_PYTHON": sys.executable,
            "RAY_JOB_STOP_WAIT_TIME_S": str(int(launch.stop_grace_seconds) + 15),
        }
        ray.submit(job_id(launch.run, launch.attempt), built.name, self.ENTRYPOINT, variables)

    @property
    def folder(self) -> Path:
        return Path(self.launch.attempt_directory)

    def status(self) -> GangStatus:
        """What its driver says; an empty one before it says anything."""
        try:
            return GangStatus.model_validate_json((self.folder / "status.json").read_text())
        except FileNotFoundError:
            return GangStatus(phase="submitted")

    def until(self, phase: str, seconds: float = 90.0) -> GangStatus:
        """Its status once it is in a phase. Fails at once when it ended without getting there."""

        def there() -> GangStatus | None:
            status = self.status()
            assert phase == "ended" or not (self.folder / "outcome.json").exists(), status.detail
            return status if status.phase == phase else None

        return wait_for(f"{self.launch.run} {phase}", there, seconds)

    def outcome(self, seconds: float = 90.0) -> Outcome:
        """How it ended, once it has."""
        path = self.folder / "outcome.json"
        wait_for(f"the outcome of {self.launch.run}; {self.status()}", path.exists, seconds)
        return Outcome.model_validate_json(path.read_text())

    def left(self) -> list[Process]:
        """Its processes."""
        return marked({"RAYDECK_RUN": self.launch.run, "RAYDECK_ATTEMPT": str(self.launch.attempt)})

    def gone(self) -> None:
        """Waits until it has no process any more, and no folder in the temporary directory."""
        wait_for(f"an end of {self.left()}", lambda: not self.left(), GONE_SECONDS)


@pytest.fixture
def output() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rd-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """Code whose ranks do not train, do not listen, and leave a helper where no tree leads to."""
    (tmp_path / "hold.py").write_text(HOLD)
    return tmp_path


def launch(output: Path, name: str, **fields: Any) -> Launch:
    """A launch of one process on each of two nodes, unless the fields say otherwise."""
    run = f"{name}-{uuid.uuid4().hex[:6]}"
    given: dict[str, Any] = {
        "run": run,
        "attempt": 1,
        "workflow": name,
        "script": ["hold.py"],
        "nodes": 2,
        "processes_per_node": 1,
        "gpus_per_node": 1,
        "cpus_per_node": 1,
        "run_directory": str(output / name / run),
        "stop_grace_seconds": 1.0,
        "environment": {"TOKEN": "${env:HOME}"},
    }
    return Launch(**{**given, **fields})


def sample(output: Path, name: str, **fields: Any) -> Launch:
    """The launch of a sample that ships with raydeck, as its file has it."""
    file = yaml.safe_load(package.sample_folder().joinpath(f"{name}.yaml").read_text())["workflow"]
    resources, training = file["resources"], file["training"]
    given: dict[str, Any] = {
        "script": [file["entrypoint"]],
        "nodes": resources["nodes"],
        "processes_per_node": training["processes_per_node"],
        "gpus_per_node": resources["accelerators_per_node"],
        "cpus_per_node": resources["cpu_cores_per_node"],
        "memory_bytes_per_node": int(resources["memory_gb_per_node"] * 1e9),
        "config": {**training, "seed": file["seed"]},
        "checkpoint_interval_steps": training["checkpoint_interval_steps"],
        "stop_grace_seconds": 30.0,
        "environment": {},
    }
    return launch(output, name, **{**given, **fields})


def parent(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text[text.rindex(")") + 2 :].split()[1])


def test_the_sample_trains_saves_when_asked_and_leaves_nothing(ray_cluster: RayOnThisMachine, output: Path) -> None:
    gang = Gang(ray_cluster, package.sample_folder(), sample(output, "lm"))

    def loss_fell() -> bool:
        points = gang.folder / "progress.jsonl"
        losses = [Progress.model_validate_json(line).loss for line in points.read_text().splitlines()]
        return len(losses) > 3 and all(losses) and losses[-1] < 0.8 * losses[0]  # type: ignore[operator]

    status = gang.until("running")
    assert [(rank.rank, rank.gpu) for rank in status.ranks] == [(0, "0"), (1, "1"), (2, "0"), (3, "1")]
    workers = {ray_cluster.nodes[name]["node_id"] for name in ("worker-1", "worker-2")}
    assert {rank.node_id for rank in status.ranks} == workers
    assert len({rank.pid for rank in status.ranks} - {None}) == 4
    wait_for("progress", (gang.folder / "progress.jsonl").exists)
    wait_for("a loss that falls", loss_fell)
    seen = gang.status().progress
    assert seen is not None
    assert seen.throughput_unit == "tokens"
    assert seen.throughput is not None
    assert seen.throughput > 0
    environment = Path(f"/proc/{status.ranks[3].pid}/environ").read_bytes().decode().split("\0")
    assert "RAYDECK_GPU=1" in environment
    assert any(entry.startswith("RAYDECK_NODE=worker-") for entry in environment)
    assert f"RAYDECK_RUN_DIR={gang.launch.run_directory}" in environment
    assert not any(entry.startswith("RAYDECK_LAUNCH=") for entry in environment)

    ray_cluster.stop(gang.launch.run)
    outcome = gang.outcome()
    assert outcome.verdict == "stopped"
    assert outcome.exit_codes == {0: 0, 1: 0, 2: 0, 3: 0}
    assert outcome.survivors == []
    assert gang.left() == []
    step = outcome.checkpoint_step
    assert step is not None
    assert step >= seen.step
    assert checkpoint.verify(checkpoint.folder(gang.launch.run_directory, step)) == []
    assert outcome.reason == f"stopped on request, the newest checkpoint is of step {step}"
    wait_for("Ray's word", lambda: ray_cluster.job(gang.launch.run)["status"] == "STOPPED")
    log = ray_cluster.job_log(gang.launch.run)
    assert "[rank 3] step 1 loss" in log
    assert "[rank 0] step 1 loss" in log

    last = step + 8
    parameters = {**gang.launch.config["parameters"], "steps": last}
    fields = {"attempt": 2, "resume_from_step": step, "config": {**gang.launch.config, "parameters": parameters}}
    again = Gang(ray_cluster, package.sample_folder(), gang.launch.model_copy(update=fields))
    outcome = again.outcome()
    assert (outcome.verdict, outcome.checkpoint_step) == ("succeeded", last)
    assert f"resumed from the checkpoint of step {step}" in (again.folder / "rank-0.log").read_text()
    points = [Progress.model_validate_json(line) for line in (again.folder / "progress.jsonl").read_text().splitlines()]
    assert points[0].step == step + 1
    assert points[0].loss is not None
    assert points[0].loss < 3.5
    assert again.left() == []


def test_a_failure_names_the_rank_that_failed_first(ray_cluster: RayOnThisMachine, output: Path) -> None:
    gang = Gang(ray_cluster, package.sample_folder(), sample(output, "failing"))
    outcome = gang.outcome()
    second = next(rank for rank in gang.status().ranks if rank.rank == 1)
    node = next(node for node in ray_cluster.nodes.values() if node["node_id"] == second.node_id)
    assert outcome.verdict == "failed"
    assert outcome.first_failing_rank == 1
    assert outcome.reason == (
        f"rank 1 on {node['name']} ({node['address']}) exited 1: RuntimeError: "
        "this rank was told to fail at step 25 (training.parameters.fail_at_step)"
    )
    assert outcome.exit_codes[1] == 1
    assert outcome.checkpoint_step == 20
    assert outcome.survivors == []
    assert gang.left() == []
    wait_for("Ray's word", lambda: ray_cluster.job(gang.launch.run)["status"] == "FAILED")


def test_what_finds_no_place_says_what_is_missing_and_gives_up(ray_cluster: RayOnThisMachine, output: Path) -> None:
    excluded = ray_cluster.nodes["worker-1"]["node_id"]
    wanted = launch(output, "wide", gpus_per_node=3, excluded_node_ids=[excluded], start_timeout_seconds=2.0)
    (output / "code").mkdir()
    (output / "code" / "hold.py").write_text(HOLD)
    gang = Gang(ray_cluster, output / "code", wanted)
    missing = (
        "needs 2 nodes with 3 GPUs, 1 CPU each; worker-2 could take it; head has no GPU; "
        "worker-1 is excluded (cordoned or suspected); this can never start here: only 1 node is large enough"
    )
    outcome = gang.outcome()
    assert outcome.verdict == "failed"
    assert outcome.reason == f"no place for it within 2 s: {missing}"
    assert f"waiting for a place: {missing}" in ray_cluster.job_log(gang.launch.run)
    assert gang.left() == []


def test_a_stop_ends_what_does_not_listen(ray_cluster: RayOnThisMachine, output: Path, hold: Path) -> None:
    gang = Gang(ray_cluster, hold, launch(output, "deaf"))
    gang.until("running")
    log = gang.folder / "rank-1.log"
    wait_for("the script's lines", lambda: log.exists() and log.read_text().count("\n") == 2)
    home = os.environ["HOME"]
    assert log.read_text().splitlines()[1] == f"the token has {len(home)} characters"
    assert len(gang.left()) >= 6  # torchrun, the rank and its helper, on each node
    ray_cluster.stop(gang.launch.run)
    outcome = gang.outcome()
    assert outcome.verdict == "stopped"
    assert outcome.reason == "stopped; not all ranks left within 1 s and were ended: 0, 1"
    assert outcome.survivors == []
    assert gang.left() == []


def test_it_keeps_off_a_node_and_nothing_outlives_a_killed_driver(
    ray_cluster: RayOnThisMachine, output: Path, hold: Path
) -> None:
    excluded, allowed = (ray_cluster.nodes[name]["node_id"] for name in ("worker-1", "worker-2"))
    gang = Gang(ray_cluster, hold, launch(output, "orphan", nodes=1, excluded_node_ids=[excluded]))
    assert [rank.node_id for rank in gang.until("running").ranks] == [allowed]
    assert len(gang.left()) >= 2
    driver = wait_for("the driver's id", lambda: (ray_cluster.job(gang.launch.run)["driver_info"] or {}).get("pid"))
    os.kill(int(driver), signal.SIGKILL)
    gang.gone()
    wait_for("Ray's word", lambda: ray_cluster.job(gang.launch.run)["status"] == "FAILED")


def test_a_killed_agent_ends_the_gang_and_is_named(ray_cluster: RayOnThisMachine, output: Path, hold: Path) -> None:
    gang = Gang(ray_cluster, hold, launch(output, "agentless"))
    status = gang.until("running")
    rank = status.ranks[1]
    assert rank.pid is not None
    agent = parent(parent(rank.pid))
    assert b"ray::Agent" in Path(f"/proc/{agent}/cmdline").read_bytes()
    began = time.monotonic()
    os.kill(agent, signal.SIGKILL)
    outcome = gang.outcome()
    node = next(node for node in ray_cluster.nodes.values() if node["node_id"] == rank.node_id)
    assert outcome.verdict == "failed"
    who = f"the agent on {node['name']} ({node['address']})"
    assert outcome.reason == (
        f"{who} is lost: its process was killed, or crashed; what is left on {node['name']} is not known, "
        "its guard ends it"
    )
    gang.gone()
    assert time.monotonic() - began < 2 * GONE_SECONDS
