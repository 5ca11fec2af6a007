"""Owns a look on its node, as the agent has it taken: one at a time, in a child, ended at its limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.gang.environment import PACKAGE

LIMIT_SECONDS = 10.0
_RAS = "127.0.0.1:28028"


def ras_address(variables: Mapping[str, str], gpus: Sequence[str]) -> str:
    """Where NCCL's RAS listens on this node; empty where there can be none."""
    if not gpus or variables.get("NCCL_RAS_ENABLE") == "0":
        return ""
    # It may listen on all of the node's addresses; we are on the node.
    return variables.get("NCCL_RAS_ADDR") or _RAS


class Asked:
    """The look that was asked for last."""

    def __init__(self, folder: Path, node: str, index: int) -> None:
        self._folder = folder
        self._node = node
        self._index = index
        self._id = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    def start(self, look: str, ranks: Sequence[Mapping[str, Any]], ras: str) -> None:
        """Begin to look. One that goes on already is given up."""
        self._end()
        if self._id:
            (self._folder / f"look-{self._id}.json").unlink(missing_ok=True)
        self._id, self._began = look, time.monotonic()
        request = {"id": look, "node": self._node, "index": self._index, "ranks": list(ranks), "ras": ras}
        # The ranks themselves see this file, too, and answer to it.
        partial = self._folder / "look.json.partial"
        partial.write_text(json.dumps(request), encoding="utf-8")
        partial.rename(self._folder / "look.json")
        self._child = subprocess.Popen(
            [sys.executable, "-m", "jobs.gang.gather", str(self._folder), str(os.getpid())],
            cwd=PACKAGE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def result(self, look: str) -> str | None:
        """What was found, as JSON; None as long as it is not there. An empty object when it will not come."""
        if look != self._id:
            return "{}"
        child = self._child
        # The exit code first: what it left before it ended is then on disk.
        ended = child is None or child.poll() is not None
        try:
            return (self._folder / f"look-{look}.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            if not ended and time.monotonic() - self._began < LIMIT_SECONDS:
                return None
        self._end()
        return "{}"

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.poll() is None:
            # It is not waited for: one that the kernel holds would hold us too.
            child.kill()
