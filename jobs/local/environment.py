"""Owns what the local cluster's processes have in common: their mark in the environment, and the sweep by that mark.

Free of ray, since it has to run before ray is imported.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from jobs.gang import processes

MARK = "RAYDECK_LOCAL_CLUSTER"
"""Environment variable that every process of a local cluster inherits; its value is the cluster's folder."""

POLITE_SECONDS = 1.0
LIMIT_SECONDS = 5.0


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


def marked(temp_dir: Path) -> list[processes.Process]:
    """Processes that belong to the cluster in ``temp_dir``, without this one."""
    return processes.marked({MARK: str(temp_dir)})


def sweep(temp_dir: Path) -> list[int]:
    """End all processes of the cluster; gives the ids of those that could not be ended."""
    return processes.end(lambda: marked(temp_dir), POLITE_SECONDS, LIMIT_SECONDS)
