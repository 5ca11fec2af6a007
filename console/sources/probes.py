"""The probe on one node: shipped over its connection, started, read line by line, started again when it ends.

Owns what its end means in words, and the measuring of the node's clock. Lines are decoded by `probes.reading`, and
handed to a sink as they come; a line costs a split, a decode and a call.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from console.sources.sshtypes import CommandEnd, State, Status
from jobs.clock import Clock
from jobs.errors import RaydeckError
from probes.reading import Facts, Fault, Health, Pong, Sample, WireError, decode

if TYPE_CHECKING:
    from console.sources.ssh import Connection
    from console.sources.sshwire import Session

LINE_LIMIT_BYTES = 4 * 1024 * 1024
BANNER_LIMIT_BYTES = 64 * 1024
"""How much text of login scripts may come before the probe's first line."""
SILENT_SECONDS = 2.5
FIRST_LINE_SECONDS = 15.0
"""A login shell may be slow; longer than this and the probe is started anew."""
HUNG_SECONDS = 15.0
"""A probe that says nothing for this long, while sshd answers, is started anew."""
PAUSES = (1.0, 3.0, 10.0, 30.0, 60.0)
STABLE_SECONDS = 10.0
PING_SECONDS = 5.0
"""Between the first pings; then a clock is known, drifts slowly, and is asked for less often."""
LATER_PING_SECONDS = 30.0
UNANSWERED_KEPT = 5


class Sink(Protocol):
    """Who takes what a node tells. Called in the event loop; must be quick and must not raise."""

    def ssh_state(self, name: str, state: str, reason: str, since: float) -> None:
        """The connection's `State` value. ``up`` with a reason: SSH is fine, the reason says what the probe lacks.

        ``since`` is `time.monotonic` seconds.
        """
        ...

    def facts(self, name: str, facts: Facts) -> None:
        """What the node is."""
        ...

    def sample(self, name: str, sample: Sample, received: float) -> None:
        """One second of the node; ``received`` by `time.monotonic`."""
        ...

    def health(self, name: str, health: Health, received: float) -> None:
        """What health rules ask of the node, and what happened on it; ``received`` by `time.monotonic`."""
        ...

    def clock(self, name: str, offset_seconds: float, round_trip_ms: float) -> None:
        """How far the node's clock is ahead of ours, to within half of the round trip."""
        ...


@dataclass(frozen=True, slots=True)
class Program:
    """What runs on the node: the command, and what it reads first from its standard input."""

    argv: tuple[str, ...]
    blob: bytes


class LineSplitter:
    """Bytes as they come to whole lines, without their newline. Raises `ValueError` for a line over the limit."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that this piece completes."""
        *lines, rest = data.split(b"\n")
        if lines and self._parts:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts.clear()
            self._size = 0
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
        if self._size > self._limit or (lines and len(lines[0]) > self._limit):
            raise ValueError(f"a line of more than {self._limit} bytes")
        return lines


class NodeWatcher:
    """Watches one node: its connection's state and its probe's lines go to ``sink``. `start` it, and `close` it."""

    def __init__(
        self, connection: Connection, sink: Sink, *, disks: Sequence[str] = (), program: Program | None = None
    ) -> None:
        """``disks`` are the paths whose fill level is wanted; ``program`` stands in for the real probe."""
        self.connection = connection
        self.clock_offset_seconds: float | None = None
        """How far the node's clock is ahead of ours; ``None`` until measured."""
        self.round_trip_ms: float | None = None
        self._sink = sink
        self._disks = tuple(disks)
        self._program = program
        self._name = connection.host.name
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""
        self._trouble_since = 0.0
        self._stream: _Stream | None = None
        self._calm = True
        """The probe was not silent when last looked at."""
        self._pings = itertools.count(1)
        self._asked: dict[str, tuple[float, float]] = {}
        self._clock = Clock()

    def start(self) -> None:
        """Begin to watch."""
        self._task = asyncio.create_task(self._watch(), name=f"probe {self._name}")

    async def close(self) -> None:
        """Stop watching: the probe ends with its channel. The connection stays."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _watch(self) -> None:
        end_listening = self.connection.listen(self._state_changed)
        self.connection.on_tick.append(self._tick)
        tries = 0
        try:
            while True:
                await self.connection.until_up()
                began = time.monotonic()
                trouble = await self._run_once()
                if time.monotonic() - began >= STABLE_SECONDS:
                    tries = 0
                if trouble:
                    self._say(trouble)
                    await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)] * random.uniform(0.75, 1.25))  # noqa: S311
                    tries += 1
        finally:
            end_listening()
            self.connection.on_tick.remove(self._tick)

    async def _run_once(self) -> str:
        """Run the probe once, to its end. Returns why it ended; empty if the connection went away under it."""
        stream = _Stream(self._took_line, self._say)
        try:
            program = self._program or await asyncio.to_thread(_probe, self._disks)
            stream.session = await self.connection.open_stream(program.argv, stream.on_data, stream.on_end)
        except RaydeckError as error:
            return error.sentence if self.connection.is_up else ""
        self._stream, self._calm = stream, True
        stream.session.write(program.blob)
        try:
            end = await stream.ended
            return explain(end, stream) if self.connection.is_up else ""
        finally:
            stream.session.close()
            self._stream = None
            self._asked.clear()
            self.connection.set_quiet("")

    # -- what comes

    def _took_line(self, line: Facts | Sample | Health | Pong, received: float) -> None:
        if type(line) is Sample:
            note = self._stream.note if self._stream is not None else ""
            if self._trouble != note:
                self._say(note)
            self._sink.sample(self._name, line, received)
        elif type(line) is Facts:
            self._sink.facts(self._name, line)
        elif type(line) is Health:
            self._sink.health(self._name, line, received)
        elif type(line) is Pong:
            self._took_pong(line, received)

    def _took_pong(self, pong: Pong, received: float) -> None:
        asked = self._asked.pop(pong.id, None)
        if asked is None:
            return
        asked_wall, asked_at = asked
        round_trip = received - asked_at
        offset, best = self._clock.take(round_trip, asked_wall, pong.wall)
        self.clock_offset_seconds, self.round_trip_ms = offset, best * 1000
        self._sink.clock(self._name, offset, self.round_trip_ms)

    def _tick(self, now: float) -> None:
        """Four times a second while connected: silence, and the next ping."""
        stream = self._stream
        if stream is None or stream.session is None:
            return
        quiet = now - stream.heard
        if quiet <= SILENT_SECONDS and self._calm and now < stream.next_ping:
            return  # the usual case
        if stream.lines == 0:
            if quiet > FIRST_LINE_SECONDS:
                stream.give_up(f"the probe was started and says nothing for {FIRST_LINE_SECONDS:.0f} s")
            return
        if quiet > HUNG_SECONDS:
            stream.give_up(f"the probe hung for {HUNG_SECONDS:.0f} s and is started again")
        self._calm = quiet <= SILENT_SECONDS
        self.connection.set_quiet("" if self._calm else "the probe says nothing, though sshd answers")
        if now >= stream.next_ping:
            stream.next_ping = now + (LATER_PING_SECONDS if self._clock.settled else PING_SECONDS)
            name = str(next(self._pings))
            if len(self._asked) > UNANSWERED_KEPT:
                self._asked.clear()
            self._asked[name] = (time.time(), time.monotonic())
            stream.session.write(b"ping %s\n" % name.encode())

    # -- what is told

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble, self._trouble_since = trouble, time.monotonic()
            self._state_changed(self.connection.status)

    def _state_changed(self, status: Status) -> None:
        reason, since = status.reason, status.since
        if status.state is State.UP and self._trouble:
            reason, since = self._trouble, self._trouble_since
        self._sink.ssh_state(self._name, status.state.value, reason, since)


class _Stream:
    """The output of one run of the probe."""

    def __init__(
        self, took: Callable[[Facts | Sample | Health | Pong, float], None], say: Callable[[str], None]
    ) -> None:
        self.session: Session | None = None
        self.ended: asyncio.Future[CommandEnd] = asyncio.get_running_loop().create_future()
        self.heard = time.monotonic()
        """When facts or a sample came last. An answer to a ping and a line of health are no sign of readings."""
        self.lines = 0
        self.next_ping = 0.0
        self.fault = ""
        self.text = ""
        """The last line that was not ours."""
        self.note = ""
        """What a person should know although all is well."""
        self._took = took
        self._say = say
        self._splitter = LineSplitter()
        self._banner: list[bytes] = []
        self._banner_bytes = 0

    def on_data(self, data: bytes) -> None:
        """A piece of the probe's standard output."""
        try:
            lines = self._splitter.feed(data)
        except ValueError as error:
            self.give_up(f"the probe prints {error}")
            return
        if not lines:
            return
        received = time.monotonic()
        for line in lines:
            try:
                decoded = decode(line)
            except WireError as error:
                self._foreign(line, error)
                continue
            if type(decoded) is not Pong and type(decoded) is not Health:
                self.heard = received
            if self.lines == 0 and self._banner:
                first = self._banner[0].decode(errors="replace").strip()[:60]
                self.note = f"a login script prints to standard output ({first!r}), which is passed over"
            self.lines += 1
            if isinstance(decoded, Fault):
                self.fault = decoded.reason
            else:
                self._took(decoded, received)

    def _foreign(self, line: bytes, error: WireError) -> None:
        if not line.strip():
            return
        self.text = line.decode(errors="replace").strip()[:200]
        if self.lines:
            self._say(f"a line of the probe cannot be read: {error}")
            return
        self._banner.append(line[:200])
        self._banner_bytes += len(line) + 1
        if self._banner_bytes > BANNER_LIMIT_BYTES:
            self.give_up(f"login scripts print without end to standard output, such as {self.text[:60]!r}")

    def on_end(self, end: CommandEnd) -> None:
        """The channel is gone."""
        if not self.ended.done():
            self.ended.set_result(end)

    def give_up(self, reason: str) -> None:
        """End this run of the probe from our side."""
        self.fault = self.fault or reason
        self.on_end(CommandEnd(None, None, "", ""))


def explain(end: CommandEnd, stream: _Stream) -> str:
    """Why a run of the probe ended while its connection stayed, for the node's row."""
    if stream.fault:
        return stream.fault
    last = _last_line(end.stderr) or (stream.text if stream.lines == 0 else "")
    says = f": {last}" if last else ""
    if end.exit_status == 127:
        return f"probe exited 127: python3 not found on the node{' (' + last + ')' if last else ''}"
    if end.exit_status == 126:
        return f"probe exited 126: python3 on the node cannot be run{says}"
    number = _signal_number(end)
    if number is not None:
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return f"probe was ended by {signal.Signals(number).name}{hint}"
    if "SyntaxError" in end.stderr:
        return f"probe exited {end.exit_status}: python3 on the node is too old, 3.8 or later is needed"
    if end.exit_status is None:
        return f"sshd closed the probe's session{says}"
    return f"probe exited {end.exit_status}{says}"


def _signal_number(end: CommandEnd) -> int | None:
    """The signal that ended the command itself, or the command under its shell (128 and more)."""
    with suppress(ValueError):
        if end.signal:
            return (
                signal.Signals[f"SIG{end.signal}"].value if f"SIG{end.signal}" in signal.Signals.__members__ else None
            )
        if end.exit_status is not None and end.exit_status > 128:
            return signal.Signals(end.exit_status - 128).value
    return None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def _probe(disks: Sequence[str]) -> Program:
    from jobs.bundle import boot_argv, bundle

    arguments = ["stream", "--health"]
    for path in disks:
        arguments += ["--disk", path]
    return Program(tuple(boot_argv(arguments)), bundle())
