"""Keeping one SSH connection up: connect, watch for silence, tell why not, pause, connect again.

Owns the states of `sshtypes.State` and the moves between them. What runs on the connection is `console.sources.ssh`.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.sources.hostkeys import HostKeys
from console.sources.sshconfig import UserConfig
from console.sources.sshtypes import Failure, Host, State, Status
from jobs.errors import Unreachable
from jobs.within import within

if TYPE_CHECKING:
    import asyncssh

    from console.sources import sshwire

PAUSES = (1.0, 3.0, 10.0, 30.0, 60.0)
"""Seconds before the next try, each taken times 0.75 to 1.25."""
STABLE_SECONDS = 10.0
"""A connection that held this long starts the pauses anew."""
SILENT_SECONDS = 2.5
"""Without a byte for this long a node is silent; seen a tick later at most, so within 3 s."""
GIVEN_UP_SECONDS = 5.5
"""Without a byte for this long the connection is dropped: within 6 s."""
NUDGE_SECONDS = 1.3
"""Without a byte for this long the peer is asked for a sign of life, which leaves it half a second for the answer."""
NUDGE_PERIOD_SECONDS = 0.5
HANDSHAKES = 64
HANDSHAKES_PER_JUMP = 8
"""sshd drops logins that come in a crowd (MaxStartups 10:30:100)."""
SOON_SECONDS = 2.0
"""Who needs the connection waits for a next try that is due within this; longer and they are told the reason."""
DIAL_SECONDS = 1.0
"""A peer that has not taken the connection by now gives its place among the handshakes to the next."""
JUMP_SECONDS = 20.0
"""How long one try waits for its jump host."""


_wire_module: list[Any] = []


async def load_wire() -> Any:
    """The module `console.sources.sshwire`, which brings the SSH library: 250 ms the first time, spent in a thread."""
    if not _wire_module:
        _wire_module.append(await asyncio.to_thread(importlib.import_module, "console.sources.sshwire"))
    return _wire_module[0]


class Commons:
    """What all connections share: the known host keys, the ssh configs read so far, the places for handshakes."""

    def __init__(self, keys: HostKeys, jump_to: Callable[[str, Host], Link]) -> None:
        self.keys = keys
        self.jump_to = jump_to
        """The link to a jump host, made if there is none yet."""
        self.handshakes = asyncio.Semaphore(HANDSHAKES)
        self._configs: dict[Path, UserConfig] = {}

    def config(self, host: Host) -> UserConfig:
        """The ssh config that this host goes by, read once. Raises `OSError`."""
        path = Path(host.config or "~/.ssh/config").expanduser()
        if path not in self._configs:
            self._configs[path] = UserConfig(path)
        return self._configs[path]

    def close(self) -> None:
        """Remove the files that were written on the way."""
        for config in self._configs.values():
            config.close()


class _Failed(Exception):
    def __init__(self, sentence: str, settled: bool = False, for_a_person: bool = False) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.settled = settled
        self.for_a_person = for_a_person
        """Only a person can change this: no more tries until `Link.retry`."""


class Link:
    """One host's connection, kept up by a task of its own from `start` to `close`."""

    def __init__(self, host: Host, commons: Commons) -> None:
        self.host = host
        self.status = Status(State.CONNECTING, "", time.monotonic())
        self.settings: sshwire.Settings | None = None
        """What the host's settings came to, once resolved."""
        self.on_tick: list[Callable[[float], None]] = []
        """Called four times a second with `time.monotonic()` while connected; for those who watch this connection."""
        self.places_through = asyncio.Semaphore(HANDSHAKES_PER_JUMP)
        """Places for handshakes that go through this host as a jump host."""
        self._commons = commons
        self._listeners: list[Callable[[Status], None]] = []
        self._attempt: sshwire.Attempt | None = None
        self._wire: asyncssh.SSHClientConnection | None = None
        self._up = asyncio.Event()
        self._lost = asyncio.Event()
        self._to_wake: set[asyncio.Event] = set()
        self._hurry = asyncio.Event()
        self._loss = ""
        self._quiet_reason = ""
        self._nudging = False
        self._was_up = False
        self._task: asyncio.Task[None] | None = None

    # -- what others see

    def listen(self, callback: Callable[[Status], None]) -> Callable[[], None]:
        """Call back at once with the status and then at each change; returns what ends that."""
        self._listeners.append(callback)
        callback(self.status)

        def end() -> None:
            with suppress(ValueError):
                self._listeners.remove(callback)

        return end

    @property
    def is_up(self) -> bool:
        """Whether commands can be sent: up, or silent and not given up."""
        return self._wire is not None

    @property
    def last_heard(self) -> float:
        """When the peer last sent a byte, by `time.monotonic`; 0 before the first."""
        return self._attempt.last_heard if self._attempt else 0.0

    def retry(self) -> None:
        """Try now: somebody has put right what was refused, or does not want to wait."""
        if self.settings is not None:
            self._commons.keys.forget(self.settings.alias or self.settings.address, self.settings.port)
        self._hurry.set()

    async def ready(self, timeout: float = 15.0) -> None:
        """Wait until connected, if that can be soon.

        Raises `Unreachable` with the newest reason when the try fails and the next is not due, or ``timeout`` is over.
        """
        deadline = time.monotonic() + timeout
        while not self.is_up:
            now = time.monotonic()
            left = deadline - now
            later = self.status.retry_at is not None and self.status.retry_at - now > SOON_SECONDS
            ended = self._task is None or self._task.done()
            if self.status.state is State.REFUSED or later or ended or left <= 0:
                raise Unreachable(f"no SSH connection to {self.host.name}: {self.status.reason or 'still connecting'}")
            with suppress(asyncio.TimeoutError):
                await within(self._up.wait(), min(0.2, left))

    async def until_up(self) -> None:
        """Wait for the connection for as long as it takes; for a task that lives as long as the node is watched."""
        await self._up.wait()

    def set_quiet(self, reason: str) -> None:
        """Say that the node is silent although SSH answers (its probe says nothing), or, with ``""``, no longer."""
        if reason != self._quiet_reason:
            self._quiet_reason = reason
            self.tick(time.monotonic())

    def tick(self, now: float) -> None:
        """Judge the silence. Called four times a second by the owner of all connections."""
        if self._wire is None or self._attempt is None:
            return
        quiet = now - self._attempt.last_heard
        if quiet <= NUDGE_SECONDS and not self._nudging and not self._quiet_reason and self.status.state is State.UP:
            return  # the usual case, four times a second for each node
        if self._nudging != (quiet > NUDGE_SECONDS):
            # The library's keepalive runs only while nothing is heard: its timer costs half of what a packet does.
            self._nudging = not self._nudging
            self._wire.set_keepalive(NUDGE_PERIOD_SECONDS if self._nudging else 0)
        if quiet > GIVEN_UP_SECONDS:
            self._drop(f"no answer for {quiet:.0f} s")
        elif quiet > SILENT_SECONDS:
            self._set(State.SILENT, "nothing heard: the node, its sshd or the way there is stuck")
        elif self._quiet_reason:
            self._set(State.SILENT, self._quiet_reason)
        else:
            self._set(State.UP, self._commons.keys.unsaved.get(self.host.name, ""))

    # -- its life

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.create_task(self._keep_up(), name=f"ssh {self.host.name}")

    async def close(self) -> None:
        """End the connection and the task. Takes a second at most."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        wire = self._wire
        self._wire = None
        if wire is not None:
            wire.close()
            try:
                await within(wire.wait_closed(), 1.0)
            except asyncio.TimeoutError:
                wire.abort()
        await self._after_loss()

    async def _after_loss(self) -> None:
        """For what lives on the connection: it is gone."""

    async def _keep_up(self) -> None:
        tries = 0
        while True:
            self._hurry.clear()
            if not self._was_up:
                self._set(State.CONNECTING, self.status.reason)
            try:
                await self._open()
            except _Failed as failed:
                await self._pause_after(failed, tries)
                tries += 1
                continue
            began = time.monotonic()
            await self._lost.wait()
            if time.monotonic() - began >= STABLE_SECONDS:
                tries = 0
            await self._after_loss()
            await self._pause_after(_Failed(self._loss), tries)
            tries += 1

    async def _pause_after(self, failed: _Failed, tries: int) -> None:
        """Say what happened, and wait for the next try, or for a person's `retry`."""
        state = State.REFUSED if failed.settled else State.LOST if self._was_up else State.WAITING
        if failed.for_a_person:
            self._set(state, failed.sentence)
            await self._hurry.wait()
            return
        # `PAUSES[-1]` for what will not change by itself: an account is not to be locked by our knocking.
        pause = (PAUSES[-1] if failed.settled else PAUSES[min(tries, len(PAUSES) - 1)]) * random.uniform(0.75, 1.25)  # noqa: S311
        self._set(state, failed.sentence, time.monotonic() + pause)
        with suppress(asyncio.TimeoutError):
            await within(self._hurry.wait(), pause)

    async def _open(self) -> None:
        """One try. Raises `_Failed`."""
        wire_module = await load_wire()
        if self.settings is None:
            self.settings = await self._resolve(wire_module)
        jump = self._jump(self.settings)
        tunnel = await self._through(jump) if jump else None
        keys = self._commons.keys
        for _ in range(2):  # once more after a yes to the question about the host key
            result = await self._handshake(wire_module, jump, tunnel)
            if not isinstance(result, Failure):
                return
            if result.offered is None:
                raise _Failed(result.sentence, result.settled)
            if not keys.can_ask:
                raise _Failed(f"{result.sentence}, and there is nobody to ask; connect once with ssh", True, True)
            self._set(self.status.state, f"{result.sentence}: to be confirmed")
            if not await keys.accept(self.settings.new_keys, self.host.name, result.offered):
                raise _Failed(f"{result.sentence} was not accepted", True, True)
        raise _Failed("the host showed two different unknown keys in a row", True)

    async def _resolve(self, wire_module: Any) -> sshwire.Settings:
        def work() -> sshwire.Settings:
            return wire_module.resolve(self.host, self._commons.config(self.host))

        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            raise _Failed(f"cannot read {error.filename}: {error.strerror}", settled=True) from error
        except ValueError as error:
            raise _Failed(f"the ssh settings for this host do not work: {error}", settled=True) from error

    def _jump(self, settings: sshwire.Settings) -> Link | None:
        if not settings.jump or settings.jump == self.host.address:
            return None
        link = self._commons.jump_to(settings.jump, self.host)
        return None if link is self else link

    async def _through(self, jump: Link) -> asyncssh.SSHClientConnection:
        try:
            await jump.ready(JUMP_SECONDS)
        except Unreachable:
            jump._to_wake.add(self._hurry)
            raise _Failed(f"jump host {jump.host.name}: {jump.status.reason or 'still connecting'}") from None
        if jump._wire is None:
            raise _Failed(f"jump host {jump.host.name} went away")
        return jump._wire

    async def _handshake(
        self, wire_module: Any, jump: Link | None, tunnel: asyncssh.SSHClientConnection | None
    ) -> asyncssh.SSHClientConnection | Failure:
        """One connection, in its turn. A place is given up early by a peer that does not even take the connection."""
        assert self.settings is not None
        attempt: sshwire.Attempt = wire_module.Attempt(self.settings, self._commons.keys, self._drop)
        async with AsyncExitStack() as places:
            if jump is not None:
                await places.enter_async_context(jump.places_through)
            await places.enter_async_context(self._commons.handshakes)
            opening = asyncio.create_task(wire_module.connect(attempt, self._commons.keys, tunnel))
            try:
                await asyncio.wait([opening], timeout=DIAL_SECONDS)
                if not opening.done() and attempt.connection is None:
                    await places.aclose()
                result = await opening
            finally:
                if not opening.done():
                    opening.cancel()
                    await asyncio.gather(opening, return_exceptions=True)
        if not isinstance(result, Failure):
            self._attempt, self._wire, self._loss = attempt, result, ""
            self._quiet_reason, self._nudging = "", False
            self._lost.clear()
            self._was_up = True
            self._up.set()
            while self._to_wake:
                self._to_wake.pop().set()
            self.tick(time.monotonic())
        return result

    def _drop(self, reason: str) -> None:
        """The connection is gone, or as good as gone."""
        wire, self._wire = self._wire, None
        self._up.clear()
        self._loss = self._loss or reason
        self._lost.set()
        if wire is not None:
            wire.abort()
            self._set(State.LOST, self._loss)

    def _set(self, state: State, reason: str, retry_at: float | None = None) -> None:
        old = self.status
        if (old.state, old.reason, old.retry_at) == (state, reason, retry_at):
            return
        since = old.since if old.state is state else time.monotonic()
        self.status = Status(state, reason, since, retry_at)
        for callback in list(self._listeners):
            callback(self.status)
