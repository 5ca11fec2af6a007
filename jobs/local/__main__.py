"""Owns the local cluster's process: ``python -m jobs.local --temp-dir DIR --nodes-json JSON``.

NDJSON on standard output: ``{"event": "step", "name", "state": "start"|"done", "seconds"}``, then one ``{"event":
"ready", "dashboard", "gcs", "ray_version", "nodes": [{"name", "node_id", "address", "raylet_pid", "gpus"}]}``, or
``{"event": "failed", "sentence"}`` and exit code 1. A node whose raylet ends is told as ``{"event": "lost", "name"}``.
It stops everything within 5 s when standard input closes, or on SIGTERM or SIGINT, and then says ``{"event": "stopped",
"survivors": [pid, …]}``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from jobs.errors import RaydeckError
from jobs.local import environment

SOCKET_NAME_LIMIT = 107
"""Bytes that Linux allows in the name of a Unix socket."""
SOCKET_NAME_BELOW = len("/s/99/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store.99")

LOOK_EVERY_SECONDS = 0.25
GUARD_LIMIT_SECONDS = 30.0


class _Stop(BaseException):
    """Somebody wants the cluster to end."""


def main(arguments: list[str]) -> int:
    """Run until told to stop; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m jobs.local")
    parser.add_argument("--temp-dir", required=True, type=Path, help="an own, short, existing folder for Ray's files")
    parser.add_argument(
        "--nodes-json", required=True, help="a list of {name, gpus, cpus, memory_bytes}; the head first"
    )
    parser.add_argument("--dashboard-port", type=int, default=0, help="0 takes a free one")
    options = parser.parse_args(arguments)
    temp_dir: Path = options.temp_dir.resolve()
    try:
        specs = TypeAdapter(list[environment.NodeSpec]).validate_json(options.nodes_json)
    except ValidationError as error:
        parser.error(f"--nodes-json: {error}")
    if not specs:
        parser.error("--nodes-json names no node")
    if len(str(temp_dir)) + SOCKET_NAME_BELOW > SOCKET_NAME_LIMIT:
        parser.error(f"--temp-dir {temp_dir} is too long for the names of Ray's sockets")

    said = threading.Lock()

    def say(**event: Any) -> None:
        # With nobody listening any more the input is closed too, and that is what ends us, in order.
        with said, contextlib.suppress(BrokenPipeError):
            # In one piece: a stop may interrupt anywhere.
            sys.stdout.write(json.dumps(event) + "\n")
            sys.stdout.flush()

    def step(name: str, seconds: float | None) -> None:
        if seconds is None:
            say(event="step", name=name, state="start")
        else:
            say(event="step", name=name, state="done", seconds=round(seconds, 2))

    # Kept for as long as this process lives: the guard acts when its input closes.
    guard = environment.start_guard(temp_dir)
    guard.wait(GUARD_LIMIT_SECONDS)
    environment.prepare(temp_dir)
    _stop_on_signal()
    threading.Thread(target=_stop_when_input_closes, name="stdin", daemon=True).start()
    code = 0
    try:
        began = time.monotonic()
        step("import ray", None)
        from jobs.local import cluster  # ray is imported only now, in the prepared environment

        step("import ray", time.monotonic() - began)
        local = cluster.LocalCluster(specs, temp_dir, step, options.dashboard_port)
        nodes = local.start()
        environment.tell_guard(guard)
        say(
            event="ready",
            dashboard=local.dashboard,
            gcs=local.gcs,
            ray_version=cluster.RAY_VERSION,
            nodes=[dataclasses.asdict(node) for node in nodes],
        )
        while True:
            time.sleep(LOOK_EVERY_SECONDS)
            for name in local.lost():
                say(event="lost", name=name)
    except _Stop:
        pass
    except ImportError as error:
        say(event="failed", sentence=f"the local cluster needs Ray, which is not installed: {error}")
        code = 1
    except RaydeckError as error:
        say(event="failed", sentence=str(error))
        code = 1
    survivors = environment.sweep(temp_dir)
    if code == 0:
        for name in ("s", "ray"):
            shutil.rmtree(temp_dir / name, ignore_errors=True)
    say(event="stopped", survivors=survivors)
    # Threads that still wait for a part of the cluster to come up have nothing left to wait for.
    os._exit(1 if survivors else code)


def _stop_on_signal() -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise _Stop

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)


def _stop_when_input_closes() -> None:
    while os.read(0, 4096):
        continue
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
