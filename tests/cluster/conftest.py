"""A real Ray cluster for a session of tests: a head and two workers with four simulated GPUs each."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from jobs.model import job_id

NODES = [
    {"name": "head", "gpus": 0, "cpus": 4},
    {"name": "worker-1", "gpus": 4, "cpus": 8},
    {"name": "worker-2", "gpus": 4, "cpus": 8},
]


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What ``condition`` gives once it is true; fails with ``what`` after the limit."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
    return value


@dataclass(frozen=True, slots=True)
class RayOnThisMachine:
    """The cluster, as its own process told of it."""

    dashboard: str
    """``http://host:port``."""
    nodes: dict[str, dict[str, Any]]
    """``{"name", "node_id", "address", "raylet_pid", "gpus"}`` by name."""

    def upload(self, name: str, content: bytes) -> None:
        """Put a package in Ray's store, where it is not there yet."""
        url = f"{self.dashboard}/api/packages/gcs/{name}"
        if httpx.get(url, timeout=30).status_code != 200:
            httpx.put(url, content=content, timeout=60).raise_for_status()

    def submit(self, submission: str, package: str, entrypoint: str, variables: dict[str, str]) -> None:
        """Start a job."""
        environment = {"working_dir": f"gcs://{package}", "env_vars": variables}
        body = {"submission_id": submission, "entrypoint": entrypoint, "runtime_env": environment}
        httpx.post(f"{self.dashboard}/api/jobs/", json=body, timeout=60).raise_for_status()

    def job(self, run: str, attempt: int = 1) -> dict[str, Any]:
        """Ray's own view of an attempt."""
        answer = httpx.get(f"{self.dashboard}/api/jobs/{job_id(run, attempt)}", timeout=30)
        answer.raise_for_status()
        return answer.json()

    def job_log(self, run: str, attempt: int = 1) -> str:
        """What the attempt's driver printed."""
        answer = httpx.get(f"{self.dashboard}/api/jobs/{job_id(run, attempt)}/logs", timeout=30)
        return answer.raise_for_status().json()["logs"]

    def stop(self, run: str, attempt: int = 1) -> None:
        """Ray's job stop."""
        httpx.post(f"{self.dashboard}/api/jobs/{job_id(run, attempt)}/stop", timeout=30).raise_for_status()


@pytest.fixture(scope="session")
def ray_cluster() -> Generator[RayOnThisMachine]:
    """The cluster; when the session ends nothing of it may be left."""
    folder = Path(tempfile.mkdtemp(prefix="rd-"))
    command = [sys.executable, "-m", "jobs.local", "--temp-dir", str(folder), "--nodes-json", json.dumps(NODES)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        events = (json.loads(line) for line in child.stdout)
        ready = next((event for event in events if event["event"] in ("ready", "failed")), None)
        assert ready is not None, "the cluster's process ended before it was ready"
        assert ready["event"] == "ready", ready
        yield RayOnThisMachine(f"http://{ready['dashboard']}", {node["name"]: node for node in ready["nodes"]})
    finally:
        child.stdin.close()
        try:
            rest = [json.loads(line) for line in child.stdout]
            child.wait(20)
        except subprocess.TimeoutExpired:
            os.kill(child.pid, signal.SIGKILL)
            raise
        finally:
            child.stdout.close()
            shutil.rmtree(folder)
    assert rest[-1] == {"event": "stopped", "survivors": []}
