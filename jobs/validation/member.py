"""Owns one node of a validation: starts programs of checks there, watches their time, tells what they measured.

The driver makes one of these on each node, as a Ray actor that needs nothing. It only supervises; what may hang, crash
or fill a GPU's memory is a process in a session of its own, and is ended with all that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.interfaces import interface_of
from jobs.validation.measured import Measured, read
from probes.clock import wall_clock

STACKS_SECONDS = 0.3
"""How long a program that is late may take to say where it stands."""
POLL_SECONDS = 0.02
TAIL_BYTES = 4000
PACKAGE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one process."""

    results: list[Measured] = field(default_factory=list[Measured])
    unfinished: tuple[str, int | None] | None = None
    """The check that it was at when it ended, with its GPU; None where it had finished all that it began."""
    exit_code: int | None = None
    """Negative for a signal; None for one that was ended because its time was up."""
    seconds: float = 0.0
    tail: str = ""
    """The end of its own output: its last words, and where it stood."""

    @property
    def hung(self) -> bool:
        """Its time was up."""
        return self.exit_code is None


@dataclass(slots=True)
class _Started:
    process: subprocess.Popen[bytes]
    results: Path
    log: Path
    began: float
    deadline: float
    ended: float | None = None
    hung: bool = False


class Member:
    """One node."""

    def __init__(self, node: str, address: str) -> None:
        self._node = node
        # Gloo and NCCL otherwise take what the host's own name resolves to, or the first interface that there is.
        self._interface = "lo" if address.startswith("127.") else interface_of(address)
        self._folder = Path(tempfile.mkdtemp(prefix="raydeck-validation-"))
        self._started: list[_Started] = []
        self._python = os.environ.get("RAYDECK_PYTHON") or sys.executable
        if not os.access(self._python, os.X_OK):
            self._python = sys.executable  # the head's Python need not lie there on every node

    def hello(self) -> tuple[float, int]:
        """This node's clock, and a port that is free at this moment."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return wall_clock(os.environ)(), int(probe.getsockname()[1])

    def run(self, programs: list[tuple[str, dict[str, Any], dict[str, str]]], seconds: float) -> list[Ran]:
        """Run these at the same time: each a program's name, its request and its environment. Returns when all ended.

        One that is not done after ``seconds`` is asked where it stands, and killed with everything it started.
        """
        started = [self._start(name, request, more, seconds) for name, request, more in programs]
        self._started = started
        try:
            while any(each.ended is None for each in started):
                for each in started:
                    self._watch(each)
                time.sleep(POLL_SECONDS)
        finally:
            self._started = []
            for each in started:
                _kill(each.process.pid)
        return [self._ran(each) for each in started]

    def so_far(self) -> tuple[str, int | None] | None:
        """A check that is being done now, with its GPU."""
        doing: tuple[str, int | None] | None = None
        for each in list(self._started):
            with contextlib.suppress(FileNotFoundError):  # it has just ended
                doing = read(each.results.read_text(encoding="utf-8", errors="replace"))[1] or doing
        return doing

    def close(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, name: str, request: dict[str, Any], more: dict[str, str], seconds: float) -> _Started:
        folder = Path(tempfile.mkdtemp(dir=self._folder, prefix=f"{name}-"))
        results, log = folder / "results.jsonl", folder / "output.log"
        results.touch()
        environment = {
            "PYTHONFAULTHANDLER": "1", "OMP_NUM_THREADS": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "NCCL_DEBUG": "WARN",
            "TORCH_FR_DUMP_TEMP_FILE": str(folder / "flight-"), "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            **({"GLOO_SOCKET_IFNAME": self._interface} if self._interface else {}),
            **os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONUNBUFFERED": "1", **more,
        }  # fmt: skip
        with log.open("wb") as out:
            process = subprocess.Popen(
                [self._python, "-m", "jobs.validation.work", name, str(results)],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps({**request, "node": self._node, "parent": os.getpid()}).encode())
        began = time.monotonic()
        return _Started(process, results, log, began, began + seconds)

    def _watch(self, each: _Started) -> None:
        if each.ended is not None:
            return
        if each.process.poll() is not None:
            each.ended = time.monotonic()
        elif time.monotonic() > each.deadline:
            each.hung = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.process.pid, signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.process.wait(STACKS_SECONDS)
            _kill(each.process.pid)
            each.process.wait()
            each.ended = time.monotonic()

    def _ran(self, each: _Started) -> Ran:
        results, unfinished = read(each.results.read_text(encoding="utf-8", errors="replace"))
        with each.log.open("rb") as log:
            log.seek(max(0, each.log.stat().st_size - TAIL_BYTES))
            tail = log.read().decode("utf-8", "replace")
        code = None if each.hung else each.process.returncode
        shutil.rmtree(each.results.parent, ignore_errors=True)
        return Ran(results, unfinished, code, (each.ended or 0.0) - each.began, tail)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
