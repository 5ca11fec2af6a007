"""Ranks of a gang without a gang: torch is loaded once, and each rank is a fork of that process.

``python -m tests.unit.jobs.ranks`` reads one JSON line for each stage from standard input and answers each with a JSON
list of exit codes; `Ranks` is the other side of that.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[3]
LIMIT_SECONDS = 60.0


class Ranks:
    """A process with torch in it, which forks ranks on demand."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAYDECK_")}
        environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-W", "ignore", "-m", "tests.unit.jobs.ranks"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )

    def run(self, script: Path, log: Path, environment: dict[str, str], ranks: int = 2) -> list[int]:
        """Run a script on all ranks, with these variables; gives exit codes. What rank R prints goes to ``<log>-R``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        stage = {"script": str(script), "log": str(log), "ranks": ranks, "environment": environment}
        self._process.stdin.write(json.dumps(stage) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _stage(stage: dict[str, Any]) -> list[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = int(stage["ranks"])
    pids = [_fork(stage, rank, ranks, port) for rank in range(ranks)]
    codes: dict[int, int] = {}
    deadline = time.monotonic() + LIMIT_SECONDS
    failed_at: float | None = None
    while len(codes) < ranks:
        for pid in pids:
            if pid not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        now = time.monotonic()
        if any(codes.values()):
            failed_at = failed_at or now
        if now > deadline or (failed_at is not None and now > failed_at + 5):
            # As torchrun does: what waits for a dead one waits for ever.
            for pid in set(pids) - codes.keys():
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[pid] for pid in pids]


def _fork(stage: dict[str, Any], rank: int, ranks: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with open(f"{stage['log']}-{rank}", "a", buffering=1, encoding="utf-8") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            os.environ.update(stage["environment"])
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            sys.argv = [stage["script"]]
            try:
                runpy.run_path(stage["script"], run_name="__main__")
                code = 0
            except SystemExit as leaving:
                code = int(leaving.code or 0)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
    finally:
        os._exit(code)


def main() -> None:
    """Serve stages until standard input ends."""
    # The last one is what the first step of an optimizer loads, in every rank anew.
    for name in ("torch.distributed", "torch.nn.parallel", "torch.distributed.checkpoint", "torch._dynamo"):
        import_module(name)
    for line in sys.stdin:
        print(json.dumps(_stage(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
