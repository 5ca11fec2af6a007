"""The controller on a real Ray: one launch is one job, a stop saves and leaves nothing behind, a kill loses nothing."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from console.sources.http import HttpTransport
from jobs import package
from jobs.client import ControllerClient
from jobs.errors import Refused
from jobs.gang.processes import marked
from jobs.load import FileMistakes
from jobs.model import Failure, Run, RunState
from jobs.rayapi import RayApi
from jobs.starter import Options, carry_out
from jobs.wire import LaunchRequest, StopRequest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

NODES = [{"name": "head", "gpus": 0, "cpus": 4}, {"name": "worker-1", "gpus": 2, "cpus": 4}]
SINGLE = package.sample_folder().joinpath("lm-single.yaml").read_text()


@pytest.fixture(scope="module")
def dashboard() -> Generator[str]:
    """A small Ray of this module's own."""
    folder = Path(tempfile.mkdtemp(prefix="rd-"))
    command = [sys.executable, "-m", "jobs.local", "--temp-dir", str(folder), "--nodes-json", json.dumps(NODES)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        events = (json.loads(line) for line in child.stdout)
        ready = next((event for event in events if event["event"] in ("ready", "failed")), None)
        assert ready is not None, "the cluster ended before it was ready"
        assert ready["event"] == "ready", ready
        yield f"http://{ready['dashboard']}"
    finally:
        child.stdin.close()
        rest = [json.loads(line) for line in child.stdout]
        child.wait(30)
        child.stdout.close()
        shutil.rmtree(folder)
    assert rest[-1] == {"event": "stopped", "survivors": []}


@dataclass(frozen=True, slots=True)
class Desk:
    """A controller on that Ray, started as on any head."""

    options: Options
    client: ControllerClient
    ray: RayApi

    def start(self) -> int:
        """Start it; its process id."""
        answer = carry_out("start", self.options, package.controller_archive())
        assert answer.event == "started", answer
        assert answer.pid is not None
        return answer.pid

    async def until(self, run: str, what: Callable[[Run], bool], seconds: float = 60.0) -> Run:
        """The run, once it is so. Fails with the run as it is after the limit."""
        deadline = time.monotonic() + seconds
        while True:
            found = await self.client.run(run)
            if what(found):
                return found
            assert time.monotonic() < deadline, f"still {found.state.value}: {found.reason}"
            assert not found.state.ended, f"{found.state.value}: {found.reason}"
            await asyncio.sleep(0.1)

    async def our_jobs(self, run: str) -> list[str]:
        """The jobs that Ray has of a run."""
        return [job.submission_id for job in await self.ray.jobs() if job.metadata.get("raydeck_run") == run]


@pytest.fixture
async def desk(dashboard: str) -> AsyncGenerator[Desk]:
    folder = Path(tempfile.mkdtemp(prefix="rd-"))
    options = Options(store=str(folder / "s"), dashboard=dashboard, supervisor="none")
    transport = HttpTransport.to_socket(f"{options.store}/controller.sock")
    to_ray = HttpTransport.to_address(dashboard)
    desk = Desk(options, ControllerClient(transport), RayApi(to_ray))
    try:
        desk.start()
        yield desk
    finally:
        await transport.close()
        await to_ray.close()
        assert carry_out("stop", options).event == "stopped"
        shutil.rmtree(folder)


def request(text: str = SINGLE, request_id: str = "") -> LaunchRequest:
    return LaunchRequest(request_id=request_id or uuid.uuid4().hex, workflow_text=text, workflow_file="lm.yaml")


def stop(reason: str = "", now: bool = False) -> StopRequest:
    return StopRequest(request_id=uuid.uuid4().hex, reason=reason, now=now)


def step(run: Run) -> int:
    """How far it is; -1 before its first step."""
    attempt = run.attempt
    known = attempt is not None and attempt.status is not None and attempt.status.progress is not None
    return attempt.status.progress.step if known else -1  # type: ignore[union-attr]


async def test_what_cannot_be_launched_is_refused_with_the_reason(desk: Desk) -> None:
    with pytest.raises(FileMistakes) as caught:
        (await desk.client.launch(request(SINGLE.replace("training:", "trainning:"))))[0]
    line = SINGLE.splitlines().index("  training:") + 1
    assert [(mistake.line, mistake.column) for mistake in caught.value.mistakes] == [(line, 3)]
    assert caught.value.mistakes[0].suggestion == "training"
    with pytest.raises(Refused, match=r"only 0 can ever hold that \(head: it has 0 GPUs, not 3; worker-1: it has 2"):
        (await desk.client.launch(request(SINGLE.replace("accelerators_per_node: 1", "accelerators_per_node: 3"))))[0]
    assert await desk.client.runs() == []


async def test_one_launch_is_one_job_and_outlives_the_controller(desk: Desk) -> None:
    asked = request(request_id=uuid.uuid4().hex)
    (first,), (second,) = await asyncio.gather(desk.client.launch(asked), desk.client.launch(asked))
    assert first.id == second.id
    run = await desk.until(first.id, lambda run: run.state is RunState.RUNNING and step(run) > 0)
    assert run.attempt is not None
    assert run.attempt.status is not None
    assert [rank.gpu for rank in run.attempt.status.ranks] == ["0"]
    assert marked({"RAYDECK_RUN": run.id})
    assert await desk.our_jobs(run.id) == [f"raydeck-{run.id}-a1"]

    status = await desk.client.status()
    os.kill(status.pid, signal.SIGKILL)
    assert desk.start() != status.pid
    assert ((await desk.client.launch(asked))[0]).id == run.id
    run = await desk.until(run.id, lambda now: now.state is RunState.RUNNING and step(now) > step(run))
    assert await desk.our_jobs(run.id) == [f"raydeck-{run.id}-a1"]

    points = await desk.client.series(run.id)
    assert points[-1].step >= 1
    assert points[-1].loss is not None
    await desk.client.stop(run.id, stop("enough"))
    run = await desk.until(run.id, lambda run: run.state in (RunState.SAVING, RunState.STOPPING))
    run = await desk.until(run.id, lambda run: run.state is RunState.STOPPED)
    assert "enough" in run.reason
    assert run.attempt is not None
    assert run.attempt.outcome is not None
    assert run.attempt.outcome.survivors == []
    saved = run.attempt.outcome.checkpoint_step
    assert saved is not None
    assert (Path(run.run_directory) / "checkpoints" / f"step-{saved:08}" / "manifest.json").exists()
    assert marked({"RAYDECK_RUN": run.id}) == []
    assert await desk.our_jobs(run.id) == [f"raydeck-{run.id}-a1"]
    assert [entry.action for entry in await desk.client.audit()] == ["stop", "launch"]


async def test_a_stop_that_cannot_wait_ends_it_at_once(desk: Desk) -> None:
    run = (await desk.client.launch(request()))[0]
    await desk.until(run.id, lambda run: run.state is RunState.RUNNING)
    began = time.monotonic()
    await desk.client.stop(run.id, stop(now=True))
    run = await desk.until(run.id, lambda run: run.state is RunState.STOPPED)
    assert time.monotonic() - began < 15
    assert run.attempt is not None
    assert run.attempt.outcome is not None
    assert run.attempt.outcome.survivors == []
    assert marked({"RAYDECK_RUN": run.id}) == []


async def test_a_plain_ray_job_fails_in_its_own_words(desk: Desk) -> None:
    text = "workflow:\n  name: plain\n  kind: ray\n  entrypoint: python3 -c \"raise SystemExit('no luck today')\"\n"
    run = (await desk.client.launch(request(text)))[0]
    await desk.until(run.id, lambda run: run.state is RunState.FAILED)
    run = await desk.client.run(run.id)
    assert run.reason.startswith("its command on head (127.0.0.1) exited 1: no luck today")
    assert run.failure is Failure.APPLICATION
