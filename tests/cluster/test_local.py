"""The local cluster keeps to itself, and is gone when it is told to, also while it starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from jobs.gang import processes
from jobs.local import environment
from tests.cluster.conftest import NODES, RayOnThisMachine, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def run(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "jobs.local", "--temp-dir", str(folder), "--nodes-json", json.dumps(NODES)]
    return subprocess.Popen(
        [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def folder() -> Generator[Path]:
    """For Ray's files; pytest's own folders have names that are too long for Ray's sockets."""
    made = Path(tempfile.mkdtemp(prefix="rd-"))
    yield made
    assert processes.end(lambda: environment.marked(made), 0.0, 10.0) == []
    shutil.rmtree(made)


def listening(pids: Iterable[int]) -> set[str]:
    """The addresses on which these processes listen, as the kernel writes them."""
    sockets: set[str] = set()
    for pid in pids:
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            if (found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor.path))) is not None:
                sockets.add(found.group(1))
    addresses: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                addresses.add(fields[1].split(":")[0])
    return addresses


def test_it_has_what_was_asked_for_and_nobody_outside_reaches_it(ray_cluster: RayOnThisMachine) -> None:
    answer = httpx.get(f"{ray_cluster.dashboard}/api/v0/nodes", timeout=30).raise_for_status().json()
    seen = {node["labels"]["raydeck.io/node"]: node for node in answer["data"]["result"]["result"]}
    assert sorted(seen) == ["head", "worker-1", "worker-2"]
    for name, node in ray_cluster.nodes.items():
        assert seen[name]["node_id"] == node["node_id"]
        assert seen[name]["node_ip"] == node["address"]
        assert seen[name]["resources_total"].get("GPU", 0) == node["gpus"]
    folder = Path(f"/proc/{ray_cluster.nodes['head']['raylet_pid']}/environ").read_bytes()
    mark = next(entry for entry in folder.split(b"\0") if entry.startswith(environment.MARK.encode() + b"="))
    pids = [process.pid for process in environment.marked(Path(mark.decode().split("=", 1)[1]))]
    # 127.0.0.1, as bytes in the machine's own order; behind ::ffff: in the table for IPv6.
    assert listening(pids) == {"0100007F", "0000000000000000FFFF00000100007F"}


def test_a_lost_node_is_told_within_seconds_and_a_killed_parent_takes_all_along(folder: Path) -> None:
    child = run(folder)
    assert child.stdout is not None
    try:
        events: list[dict[str, Any]] = []
        for line in child.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] in ("ready", "failed"):
                break
        assert events[-1]["event"] == "ready", events[-1]
        nodes = {node["name"]: node for node in events[-1]["nodes"]}
        steps = {event["name"] for event in events if event.get("state") == "done"}
        assert steps == {"import ray", "ray head", "ray dashboard", "ray worker-1", "ray worker-2"}
        os.kill(nodes["worker-2"]["raylet_pid"], 9)
        assert json.loads(child.stdout.readline()) == {"event": "lost", "name": "worker-2"}
        url = f"http://{events[-1]['dashboard']}/api/v0/nodes"

        def dead() -> bool:
            rows = httpx.get(url, timeout=30).json()["data"]["result"]["result"]
            return {row["labels"]["raydeck.io/node"] for row in rows if row["state"] == "DEAD"} == {"worker-2"}

        wait_for("worker-2 dead", dead, 20)
        family = {*processes.tree(child.pid), *environment.marked(folder)}
        assert len(family) > 15
        child.kill()
        child.wait(10)
        wait_for("all gone", lambda: not any(processes.alive(process) for process in family), 20)
        assert environment.marked(folder) == []
    finally:
        child.kill()
        child.communicate(timeout=20)


def test_it_stops_while_it_starts(folder: Path) -> None:
    child = run(folder)
    assert child.stdout is not None
    assert child.stdin is not None
    head = {"event": "step", "name": "ray dashboard", "state": "start"}
    assert head in (json.loads(line) for line in child.stdout)
    family = processes.tree(child.pid)
    began = time.monotonic()
    child.stdin.close()
    child.stdin = None
    output, errors = child.communicate(timeout=30)
    assert json.loads(output.splitlines()[-1]) == {"event": "stopped", "survivors": []}, errors
    assert child.returncode == 0
    assert time.monotonic() - began < 10
    assert not any(processes.alive(process) for process in family)
    assert environment.marked(folder) == []
    assert list(folder.iterdir()) == []


def test_what_cannot_start_says_why(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        child = run(folder, "--dashboard-port", str(taken.getsockname()[1]))
        assert child.stdout is not None
        events = [json.loads(line) for line in child.stdout]
        child.communicate(timeout=30)
    failed, stopped = events[-2:]
    assert child.returncode == 1
    assert failed["event"] == "failed"
    assert failed["sentence"].startswith("the local Ray cluster did not start: ")
    assert "already occupied" in failed["sentence"]
    assert stopped == {"event": "stopped", "survivors": []}

    child = run(folder / ("x" * 80))
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 2
    assert "too long for the names of Ray's sockets" in errors
