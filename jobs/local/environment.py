"""Owns what the local cluster's processes have in common: their mark in the environment, and the sweep by that mark.

Free of ray, since it has to run before ray is imported.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

MARK = "RAYDECK_LOCAL_CLUSTER"
"""Environment variable that every process of a local cluster inherits; its value is the cluster's folder."""


class NodeSpec(BaseModel):
    """A node as the caller wants it."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$")
    gpus: int = Field(default=0, ge=0)
    """Simulated: Ray counts them, no driver knows them."""
    cpus: int = Field(default=8, ge=1)
    memory_bytes: int = Field(default=64 * 2**30, ge=2**20)
    """What Ray may give away; nobody checks that the machine has it."""


@dataclass(frozen=True, slots=True)
class StartedNode:
    """A node as it came up."""

    name: str
    node_id: str
    """Ray's id, hexadecimal."""
    address: str
    raylet_pid: int
    gpus: int


def prepare(temp_dir: Path) -> None:
    """Set this process' environment so that Ray, once imported, keeps to ``temp_dir`` and to itself."""
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_OVERRIDE_NODE_ID_FOR_TESTING"):
        os.environ.pop(name, None)
    os.environ[MARK] = str(temp_dir)
    os.environ["RAY_TMPDIR"] = str(temp_dir)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # With no mode set, Ray turns tokens on where the person has one for another cluster.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")


def marked(temp_dir: Path) -> list[int]:
    """Process ids that belong to the cluster in ``temp_dir``, without this process."""
    wanted = f"{MARK}={temp_dir}".encode()
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            # Empty for a zombie, so one that only waits for its parent does not count.
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(entry))
    return found


def sweep(temp_dir: Path, polite_seconds: float = 1.0, limit_seconds: float = 5.0) -> list[int]:
    """End all processes of the cluster, first with SIGTERM, then with SIGKILL; gives those still there at the limit."""
    began = time.monotonic()
    asked: set[int] = set()
    while alive := marked(temp_dir):
        waited = time.monotonic() - began
        if waited > limit_seconds:
            break
        for pid in alive:
            if waited > polite_seconds:
                _signal(pid, signal.SIGKILL)
            elif pid not in asked:
                asked.add(pid)
                _signal(pid, signal.SIGTERM)
        time.sleep(0.05)
    return alive


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
