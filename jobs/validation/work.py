"""Runs one program of checks in a process of its own: ``python -m jobs.validation.work PROGRAM RESULTS``.

The request comes as JSON on standard input, what is measured goes line by line to the file ``RESULTS``. It dies with
whoever started it. Exit code 0 is no verdict: what counts is what was told.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
from typing import Any

from jobs.validation.measured import Program, Teller

PROGRAMS = {
    "preflight": "jobs.validation.preflight:run",
    "shared": "jobs.validation.paths:seen",
    "clean": "jobs.validation.paths:clean",
    "gpu": "jobs.validation.onegpu:run",
    "ranks": "jobs.validation.ranks:run",
    "data": "jobs.validation.data:run",
}
_PR_SET_PDEATHSIG = 1


def main(name: str, results: str, request: dict[str, Any]) -> None:
    """Run a program to its end."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != request["parent"]:
        return  # whoever wanted to know is gone already
    # A program that hangs is asked where it stands, before it is ended.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    module, _, function = PROGRAMS[name].partition(":")
    program: Program = getattr(importlib.import_module(module), function)
    with open(results, "a", encoding="utf-8") as out:
        program(request, Teller(out, request.get("rank")))
    # Gloo's threads can abort a process that has done all that it should, while it goes: it leaves without them.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.stdin.read()))
