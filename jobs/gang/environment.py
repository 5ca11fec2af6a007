"""Owns the environment that a gang's processes get, and the references to secrets in it, resolved on the node only.

A resolved value is never logged, stored or put into an error: errors name the variable and the reference.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.errors import Refused
from jobs.interfaces import interface_of
from jobs.model import Launch

PACKAGE = Path(__file__).resolve().parents[2]
"""The unpacked package: ``jobs/`` and ``probes/``, and the user's code in ``workload/``."""
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def marks(launch: Launch, node: str) -> dict[str, str]:
    """What tells the processes of this attempt on this node from all others."""
    return {"RAYDECK_RUN": launch.run, "RAYDECK_ATTEMPT": str(launch.attempt), "RAYDECK_NODE": node}


def of_gang(launch: Launch, node: str, address: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of torchrun on a node, and so of its ranks. Raises Refused for a dead reference."""
    environment = {"OMP_NUM_THREADS": "1", **_inherited(inherited)}
    if device := "lo" if address.startswith("127.") else interface_of(address):
        # Gloo otherwise listens on what the host's own name resolves to: on many machines that is the loopback address,
        # which the other nodes cannot reach.
        environment.setdefault("GLOO_SOCKET_IFNAME", device)
    if launch.gpus_per_node:
        for name, value in _flight_recorder(launch).items():
            environment.setdefault(name, value)
    return environment | resolve(launch.environment, inherited) | marks(launch, node) | of_script(launch)


def _flight_recorder(launch: Launch) -> dict[str, str]:
    """Has NCCL's ranks remember their collectives, and write them down at a time-out. Older torch has other names."""
    size, file = "2000", f"{launch.attempt_directory}/flight-rank-"
    return {
        "TORCH_FR_BUFFER_SIZE": size,
        "TORCH_NCCL_TRACE_BUFFER_SIZE": size,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": file,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": file,
    }


def workload() -> Path:
    """The folder of the user's code. Raises Refused where the package holds none."""
    folder = PACKAGE / "workload"
    if not folder.is_dir():
        raise Refused("the run's package holds no workload folder, so there is no script to start")
    return folder


def of_command(launch: Launch, node: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a command of the kind ``ray``. Raises Refused for a dead reference.

    Its ``python`` is the one that has Ray, and the workers that Ray starts for it know the run, but no secret:
    Ray shows a job's environment to everybody.
    """
    ours = marks(launch, node) | of_script(launch)
    environment = _inherited(inherited) | resolve(launch.environment, inherited) | ours
    python = inherited.get("RAYDECK_PYTHON") or sys.executable
    environment["PATH"] = os.pathsep.join([os.path.dirname(python), environment.get("PATH", os.defpath)])
    paths = [str(PACKAGE / "workload"), str(PACKAGE), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    # Workers run on any node, so they do not know this one's name.
    theirs = {name: value for name, value in ours.items() if name != "RAYDECK_NODE"}
    environment[_JOB_CONFIG] = _for_workers(inherited.get(_JOB_CONFIG, ""), theirs)
    return environment


def of_script(launch: Launch) -> dict[str, str]:
    """What a script is told by raydeck, the same on all nodes."""
    return {
        "PYTHONUNBUFFERED": "1",
        "RAYDECK_WORKFLOW": launch.workflow,
        "RAYDECK_RUN_DIR": launch.run_directory,
        "RAYDECK_DATA_ROOT": launch.data_root,
        "RAYDECK_CONFIG": json.dumps(launch.config),
        "RAYDECK_CHECKPOINT_INTERVAL": str(launch.checkpoint_interval_steps),
        "RAYDECK_METRICS_INTERVAL_SECONDS": f"{launch.metrics_interval_seconds:g}",
        "RAYDECK_RESUME_STEP": "" if launch.resume_from_step is None else str(launch.resume_from_step),
        "RAYDECK_RESUME_PATH": launch.resume_path,
        "RAYDECK_STOP_GRACE_SECONDS": f"{launch.stop_grace_seconds:g}",
    }


def _inherited(inherited: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in inherited.items() if name != "RAYDECK_LAUNCH"}


def _for_workers(text: str, ours: Mapping[str, str]) -> str:
    """The job's configuration, as Ray hands it to its driver, with our variables for the driver's workers."""
    config: Any = json.loads(text or "{}")
    if not isinstance(config, dict):
        raise Refused(f"{_JOB_CONFIG} is not what a Ray job has there")
    runtime = {**(config.get("runtime_env") or {})}
    runtime["env_vars"] = {**(runtime.get("env_vars") or {}), **ours}
    runtime["env_vars"].pop("RAYDECK_LAUNCH", None)
    return json.dumps({**config, "runtime_env": runtime})


def resolve(values: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """``${env:NAME}`` and ``${file:PATH}`` replaced by what they refer to on this node."""

    def lookup(name: str, kind: str, what: str) -> str:
        if kind == "env":
            if what not in inherited:
                raise Refused(f"env.{name} refers to the environment variable {what}, which this node does not have")
            return inherited[what]
        try:
            return Path(os.path.expanduser(what)).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise Refused(f"env.{name} refers to the file {what}, which cannot be read on this node: {why}") from None

    return {
        name: _REFERENCE.sub(lambda match, name=name: lookup(name, match.group(1), match.group(2)), value)
        for name, value in values.items()
    }
