"""One process of `jobs.rayside`, as asyncio sees it: requests by number, what it says besides, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jobs
from jobs.errors import Unreachable
from jobs.within import within

log = logging.getLogger(__name__)

END_SECONDS = 3.0
"""It is given so long to leave Ray, and so long to be gone after it was killed."""
WORDS_BYTES = 300
"""Of each line that it says besides, so much is logged."""


LINE_BYTES = 4 * 2**20


class Gone(Exception):
    """The process gives no more answers; the text says why."""


class RayChild:
    """One that was started."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.address = address
        """Of the GCS that it was told."""
        self._process = process
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._said: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._why = ""
        self._last_words = ""
        self._tasks = [
            asyncio.create_task(self._read_answers(), name="answers of what speaks with Ray"),
            asyncio.create_task(self._read_words(), name="words of what speaks with Ray"),
        ]

    @property
    def ended(self) -> bool:
        """It will give no answer any more."""
        return bool(self._why) or self._process.returncode is not None

    @property
    def busy(self) -> bool:
        """Somebody waits for an answer."""
        return bool(self._waiting)

    async def connected(self, seconds: float) -> None:
        """Wait until it has reached Ray. Raises `Gone`, and `asyncio.TimeoutError`."""
        told = await within(asyncio.shield(self._said), seconds)
        if "failed" in told:
            raise Gone(str(told["failed"]))
        log.info("process %d speaks with Ray at %s: %s", self._process.pid, self.address, told.get("ready"))

    async def ask(self, do: str, what: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Its answer, see `jobs.rayside.__main__`. Raises `Gone`, and `asyncio.TimeoutError`."""
        if self.ended:
            raise Gone(self._why or "it has ended")
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"id": number, "do": do, **what}).encode() + b"\n")
            told = await within(answer, seconds)
        finally:
            self._waiting.pop(number, None)
        if "stale" in told:
            raise Gone(str(told["stale"]))
        return told

    async def end(self, at_once: bool = False) -> None:
        """Let it end by itself, or kill it; then nothing of it is left."""
        self._give_up("it was ended")
        stdin = self._process.stdin
        assert stdin is not None
        stdin.close()
        try:
            if not at_once:
                with contextlib.suppress(asyncio.TimeoutError):
                    await within(self._process.wait(), END_SECONDS)
        finally:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await within(self._process.wait(), END_SECONDS)
        except asyncio.TimeoutError:
            log.error("process %d, which speaks with Ray, was killed and does not end", self._process.pid)

    async def _read_answers(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        try:
            while line := await stdout.readline():
                told = json.loads(line)
                if "id" not in told:
                    if not self._said.done():
                        self._said.set_result(told)
                elif (answer := self._waiting.get(told["id"])) is not None and not answer.done():
                    answer.set_result(told)
        except ValueError as error:
            self._give_up(f"its answer makes no sense: {error}")
            return
        try:
            code = await within(self._process.wait(), END_SECONDS)
        except asyncio.TimeoutError:
            self._give_up("it closed its output")
            return
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        self._give_up(f"it ended {how}" + (f": {self._last_words}" if self._last_words else ""))

    async def _read_words(self) -> None:
        """What it, and Ray in it, say besides: for our log, and for the reason of its end."""
        stderr = self._process.stderr
        assert stderr is not None
        while True:
            try:
                line = await stderr.readline()
            except ValueError:
                continue  # a line without an end; it was thrown away
            if not line:
                return
            words = line[:WORDS_BYTES].decode("utf-8", "replace").strip()
            if words:
                self._last_words = words
                log.info("process %d: %s", self._process.pid, words)

    def _give_up(self, why: str) -> None:
        """Nobody who waits gets an answer."""
        if not self._why:
            self._why = why
        for each in (self._said, *self._waiting.values()):
            if not each.done():
                each.set_exception(Gone(self._why))
        if self._said.done() and not self._said.cancelled():
            self._said.exception()  # it need not have anybody who waits for it


async def start(command: Sequence[str], address: str) -> asyncio.subprocess.Process:
    """Start one, with pipes. Raises `Unreachable`."""
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment(address), limit=LINE_BYTES
        )
    except OSError as error:
        raise Unreachable(f"what speaks with Ray cannot be started: {error}") from error


def _environment(address: str) -> dict[str, str]:
    """Ours, so that a token is found, but for what would lead to another Ray. Our code may be in a zip."""
    code = str(Path(jobs.__file__).parents[1])
    path = os.pathsep.join(part for part in (code, os.environ.get("PYTHONPATH", "")) if part)
    environment = {**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    for name in ("RAY_ADDRESS", "RAY_NAMESPACE", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_OVERRIDE_NODE_ID_FOR_TESTING"):
        environment.pop(name, None)
    if address.startswith("127."):
        # Ray takes the loopback address for a mistake, and another one in its place.
        environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return environment
