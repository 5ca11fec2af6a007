"""Controllers that start in milliseconds: a process that has imported everything, and forks one when it is asked.

``python -m tests.crash.nest ORIGIN FACTOR`` reads a JSON line for each controller to start and writes one for each that
started or ended. It ends with its standard input, and takes what still runs along.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.clock import FastClock, hasten
from tests.crash.killpoint import KillPoint

ROOT = Path(__file__).resolve().parents[2]
ANSWER_SECONDS = 30.0


@dataclass(slots=True)
class Hatched:
    """A controller that was started."""

    pid: int
    ended: asyncio.Future[int] = field(repr=False)

    @property
    def alive(self) -> bool:
        """As far as its parent has told."""
        return not self.ended.done()

    async def wait(self, seconds: float = 20.0) -> int:
        """Its exit code (negative for a signal). Fails when it has not ended within the limit."""
        return await asyncio.wait_for(asyncio.shield(self.ended), seconds)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal, if it lives."""
        if self.alive:
            # Its parent reaps it before it tells: in between, the number could not belong to anybody else so soon.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Nest:
    """The forking process, seen from the test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._alive: dict[int, Hatched] = {}
        self._started: asyncio.Queue[Hatched] = asyncio.Queue()

    async def start(self, arguments: Sequence[str], log: Path, point: KillPoint | None = None) -> Hatched:
        """Start ``python -m jobs.controller`` with these arguments; what it prints goes to ``log``."""
        assert self._process.stdin is not None
        order = {"arguments": list(arguments), "log": str(log), "point": asdict(point) if point else None}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        await self._process.stdin.drain()
        return await asyncio.wait_for(self._started.get(), ANSWER_SECONDS)

    async def listen(self) -> None:
        """Take in what it tells, until it ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            told = json.loads(line)
            if "started" in told:
                hatched = Hatched(told["started"], asyncio.get_running_loop().create_future())
                self._alive[hatched.pid] = hatched
                self._started.put_nowait(hatched)
            else:
                self._alive.pop(told["ended"]).ended.set_result(told["code"])


@asynccontextmanager
async def nest(clock: FastClock) -> AsyncGenerator[Nest]:
    """A nest whose controllers live by this clock."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.crash.nest",
        *clock.arguments,
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    ready = await asyncio.wait_for(process.stdout.readline(), ANSWER_SECONDS)
    assert ready, "the controller could not be imported; what it says stands above"
    made = Nest(process)
    listening = asyncio.create_task(made.listen())
    try:
        yield made
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait_for(process.wait(), ANSWER_SECONDS)
        await listening


def _hatch(order: dict[str, Any], main: Any) -> int:
    """In the forked child: its exit code."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(number, target)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if order["point"] is not None:
        KillPoint(**order["point"]).arm()
    return main(order["arguments"])


def _serve() -> None:
    # After `hasten`: from here on every module finds the fast clock.
    from jobs.controller.__main__ import main

    alive: set[int] = set()

    def tell(**what: int) -> None:
        os.write(1, json.dumps(what).encode() + b"\n")

    def reap(*_: object) -> None:
        for pid in list(alive):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                alive.discard(pid)
                tell(ended=pid, code=os.waitstatus_to_exitcode(status))

    signal.signal(signal.SIGCHLD, reap)
    gc.collect()
    gc.freeze()
    os.write(1, b"ready\n")
    for line in sys.stdin:
        order = json.loads(line)
        # Until the child is known, its end must not be missed.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
                code = _hatch(order, main)
            finally:
                os._exit(code)
        alive.add(pid)
        tell(started=pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    hasten(FastClock(float(sys.argv[1]), float(sys.argv[2])))
    _serve()
