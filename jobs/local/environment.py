"""Owns what the local cluster's processes have in common: their mark in the environment, and the sweep by that mark.

Free of ray, since it has to run before ray is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from jobs.gang import processes

MARK = "RAYDECK_LOCAL_CLUSTER"
"""Environment variable that every process of a local cluster inherits; its value is the cluster's folder."""

POLITE_SECONDS = 1.0
LIMIT_SECONDS = 5.0
ADDRESS = "127.0.0.1"
"""Of all nodes: nobody outside of the machine may reach them."""


class NodeSpec(BaseModel):
    """A node as the caller wants it."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$")
    gpus: int = Field(default=0, ge=0)
    """Simulated: Ray counts them, no driver knows them."""
    cpus: int = Field(default=8, ge=1)
    memory_bytes: int = Field(default=64 * 2**30, ge=2**20)
    """What Ray may give away; nobody checks that the machine has it."""
    environment: dict[str, str] = Field(default_factory=dict)
    """What the node's raylet, and all that it starts, has in its environment besides."""


@dataclass(frozen=True, slots=True)
class StartedNode:
    """A node as it came up."""

    name: str
    node_id: str
    """Ray's id, hexadecimal."""
    address: str
    raylet_pid: int
    gpus: int


def start_guard(temp_dir: Path) -> subprocess.Popen[bytes]:
    """Start what ends the cluster when this process cannot do it any more. Call it before `prepare`.

    Most of Ray's processes die with this one, but not all: those of a node that was killed, for one.
    """
    command = [sys.executable, "-m", "jobs.gang.guard", "", f"{MARK}={temp_dir}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def tell_guard(guard: subprocess.Popen[bytes]) -> None:
    """Name this process' children to the guard: some of Ray's rename themselves, and their mark is then gone."""
    assert guard.stdin is not None
    children = (child for child in processes.tree(os.getpid()) if child.pid != os.getpid())
    guard.stdin.write("".join(f"{child.pid} {child.started}\n" for child in children).encode())
    guard.stdin.flush()


def prepare(temp_dir: Path) -> None:
    """Set this process' environment so that Ray, once imported, keeps to ``temp_dir`` and to itself."""
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_OVERRIDE_NODE_ID_FOR_TESTING"):
        os.environ.pop(name, None)
    os.environ[MARK] = str(temp_dir)
    os.environ["RAY_TMPDIR"] = str(temp_dir)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray listens on loopback only if its nodes' address is exactly this one; but its clients then replace it by the
    # machine's outer address, where nothing answers, unless they are told that this is no machine for clusters.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    # With no mode set, Ray turns tokens on where the person has one for another cluster.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")


def marked(temp_dir: Path) -> list[processes.Process]:
    """Processes that belong to the cluster in ``temp_dir``, without this one."""
    return processes.marked({MARK: str(temp_dir)})


def sweep(temp_dir: Path) -> list[int]:
    """End all processes of the cluster, this one's children; gives the ids of those that could not be ended."""

    def find() -> list[processes.Process]:
        # Ray's own processes rename themselves, and some then show no environment: only the tree leads to them.
        children = [process for process in processes.tree(os.getpid()) if process.pid != os.getpid()]
        return [*marked(temp_dir), *children]

    return processes.end(find, POLITE_SECONDS, LIMIT_SECONDS)
