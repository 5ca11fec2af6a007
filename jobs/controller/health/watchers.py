"""The controller's side of `jobs.rayside.watching`: one child that keeps a probe on every node, through Ray.

It is started when there is a node to watch, told what is wanted, and started again after Ray, or when it says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from jobs.controller.raychild import start
from jobs.errors import RaydeckError
from jobs.within import within
from probes.reading import Line, WireError, decode

log = logging.getLogger(__name__)

START_SECONDS = 45.0
END_SECONDS = 3.0
PAUSES = (1.0, 3.0, 10.0, 30.0)
STABLE_SECONDS = 60.0
LOOK_SECONDS = 1.0
"""How often it is seen whether the head, or what is wanted, is another one."""
WORDS_BYTES = 300

Address = Callable[[], Awaitable[str]]
Wanted = Callable[[], Mapping[str, Sequence[str]]]
"""Ray's node ids to the paths whose file systems are looked at there."""


class Eyes(Protocol):
    """Who takes what the nodes tell. Called in the event loop; must be quick."""

    def line(self, node_id: str, line: Line, text: str) -> None:
        """A line of the node's probe; ``text`` as it was told."""
        ...

    def clock(self, node_id: str, offset_seconds: float, round_trip_ms: float) -> None:
        """How far the node's clock is ahead of the head's."""
        ...

    def gone(self, node_id: str, why: str) -> None:
        """Its probe has ended, or could not be started; it is tried again."""
        ...

    def blind(self, why: str) -> None:
        """No node can be watched at the moment, and why; empty: they can."""
        ...


class Watchers:
    """One child, or none."""

    def __init__(
        self,
        address: Address,
        wanted: Wanted,
        eyes: Eyes,
        interval: float,
        *,
        command: Sequence[str] = (sys.executable, "-m", "jobs.rayside"),
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._address = address
        self._wanted = wanted
        self._eyes = eyes
        self._interval = interval
        self._command = tuple(command)
        self._start_seconds = start_seconds
        self._last_words = ""

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            if self._wanted():
                began = time.monotonic()
                try:
                    why = await self._watch(await self._address())
                except (RaydeckError, ValueError) as error:
                    why = str(error)
                self._eyes.blind(why)
                failures = 0 if time.monotonic() - began > STABLE_SECONDS else failures + 1
                if why:
                    log.info("nodes are not watched: %s", why)
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])

    async def _watch(self, address: str) -> str:
        """One child's life; why it ended."""
        process = await start((*self._command, "--address", address, "--watch"), address)
        words = asyncio.create_task(self._read_words(process), name="words of what watches the nodes")
        telling: asyncio.Task[str] | None = None
        try:
            assert process.stdout is not None
            try:
                first = await within(process.stdout.readline(), self._start_seconds)
            except asyncio.TimeoutError:
                return f"no connection to Ray at {address} within {self._start_seconds:g} s"
            told: dict[str, Any] = json.loads(first) if first else {"failed": self._last_words or "it ended at once"}
            if "ready" not in told:
                return str(told.get("failed", "it makes no sense"))
            self._eyes.blind("")
            telling = asyncio.create_task(self._tell(process, address), name="what nodes are to be watched")
            reading = asyncio.create_task(self._read(process.stdout), name="what the nodes tell")
            done, _ = await asyncio.wait((telling, reading), return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            if telling in done:
                return telling.result()
            return f"what watches the nodes ended{f': {self._last_words}' if self._last_words else ''}"
        finally:
            for task in (words, *([telling] if telling is not None else [])):
                task.cancel()
            await asyncio.gather(words, return_exceptions=True)
            await _end(process)

    async def _tell(self, process: asyncio.subprocess.Process, address: str) -> str:
        """Tell what is wanted whenever that is something else; ends with why this child is of no more use."""
        assert process.stdin is not None
        said: Mapping[str, Sequence[str]] | None = None
        while True:
            wanted = {node: list(paths) for node, paths in self._wanted().items()}
            if wanted != said:
                said = wanted
                body = json.dumps({"nodes": wanted, "interval": self._interval})
                with contextlib.suppress(ConnectionError):  # its end is seen where it is read
                    process.stdin.write(body.encode() + b"\n")
                    await process.stdin.drain()
            await asyncio.sleep(LOOK_SECONDS)
            try:
                now = await self._address()
            except RaydeckError:
                continue  # Ray does not answer; while this child lives, it may know better
            if now != address:
                return "Ray's head is another one"

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        while raw := await stdout.readline():
            told: dict[str, Any] = json.loads(raw)
            node_id = str(told.get("node", ""))
            if "lines" in told:
                for text in told["lines"]:
                    self._take(node_id, str(text))
            elif "clock" in told:
                offset, round_trip = told["clock"]
                self._eyes.clock(node_id, float(offset), float(round_trip))
            elif "gone" in told:
                self._eyes.gone(node_id, str(told["gone"]))

    def _take(self, node_id: str, text: str) -> None:
        try:
            line = decode(text)
        except WireError as error:
            self._eyes.gone(node_id, f"its probe says what cannot be understood: {error}")
            return
        self._eyes.line(node_id, line, text)

    async def _read_words(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:
                continue  # a line without an end; it was thrown away
            if not line:
                return
            words = line[:WORDS_BYTES].decode("utf-8", "replace").strip()
            if words:
                self._last_words = words
                log.debug("process %d: %s", process.pid, words)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let it leave Ray, so that its watchers go with it; or kill it."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await within(process.wait(), END_SECONDS)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(asyncio.TimeoutError):
            await within(process.wait(), END_SECONDS)
