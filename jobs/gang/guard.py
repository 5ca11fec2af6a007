"""Owns the last word on a node: when its agent is gone, however it went, nothing of the attempt stays behind.

``python -m jobs.gang.guard FOLDER NAME=VALUE…`` leaves its parent at once, waits until standard input closes (its
other end is the agent's), then ends every process with those marks in its environment and removes the agent's folder
(an empty text removes none). Ranks die with their parents anyway; this is for what they started in sessions of its own.
A line ``PID STARTED`` on standard input names one more process to end. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from jobs.errors import Refused
from jobs.gang.processes import Process, end, marked

LIMIT_SECONDS = 30.0
POLITE_SECONDS = 0.5
_START_SECONDS = 30.0


def start(folder: str, marks: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start one for this process; keep what this gives for as long as this process lives. Raises Refused."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "jobs.gang.guard", folder, *(f"{name}={value}" for name, value in marks.items())],
        cwd=Path(__file__).resolve().parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # It has forked and goes on without us; its pipe closes when this process ends, however that happens.
    if guard.wait(timeout=_START_SECONDS) != 0:
        raise Refused(f"the guard of this node did not start (exit code {guard.returncode})")
    return guard


def main(folder: str, marks: dict[str, str]) -> None:
    """Wait for the agent's end, then sweep."""
    # Ray ends the children of a worker it kills: leave the family first.
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    named = b""
    while chunk := os.read(0, 65536):
        named += chunk
    if folder:
        # At once, too: where a whole cluster is torn down, nobody waits for us.
        shutil.rmtree(folder, ignore_errors=True)
    # Who was killed while it wrote leaves half a line, and half a number is another one.
    whole = named[: named.rfind(b"\n") + 1].splitlines()
    others = [Process(int(pid), int(started)) for pid, started in (line.split() for line in whole)]
    end(lambda: [*others, *marked(marks)], POLITE_SECONDS, LIMIT_SECONDS)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], dict(argument.split("=", 1) for argument in sys.argv[2:]))
