"""Owns the environment that a gang's processes get, and the references to secrets in it, resolved on the node only.

A resolved value is never logged, stored or put into an error: errors name the variable and the reference.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from jobs.errors import Refused
from jobs.model import Launch

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def marks(launch: Launch, node: str) -> dict[str, str]:
    """What tells the processes of this attempt on this node from all others."""
    return {"RAYDECK_RUN": launch.run, "RAYDECK_ATTEMPT": str(launch.attempt), "RAYDECK_NODE": node}


def of_gang(launch: Launch, node: str, address: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of torchrun on a node, and so of its ranks. Raises Refused for a dead reference."""
    environment = {name: value for name, value in inherited.items() if name != "RAYDECK_LAUNCH"}
    environment.setdefault("OMP_NUM_THREADS", "1")
    if address.startswith("127."):
        # Gloo otherwise listens on what the host's name resolves to, which need not reach the loopback address.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    environment |= resolve(launch.environment, inherited)
    environment |= marks(launch, node)
    environment |= {
        "PYTHONUNBUFFERED": "1",
        "RAYDECK_WORKFLOW": launch.workflow,
        "RAYDECK_RUN_DIR": launch.run_directory,
        "RAYDECK_DATA_ROOT": launch.data_root,
        "RAYDECK_CONFIG": json.dumps(launch.config),
        "RAYDECK_CHECKPOINT_INTERVAL": str(launch.checkpoint_interval_steps),
        "RAYDECK_METRICS_INTERVAL_SECONDS": f"{launch.metrics_interval_seconds:g}",
        "RAYDECK_RESUME_STEP": "" if launch.resume_from_step is None else str(launch.resume_from_step),
    }
    return environment


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
