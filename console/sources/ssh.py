"""One SSH connection a node, shared by everything that needs that node: commands, the probe, files, forwards.

`Connections` owns them all: ``connection = connections.add(Host(...))`` starts a task that connects, and connects again
with growing pauses for as long as it is wanted. Each failure is a sentence in ``connection.status``.

Nothing here imports the SSH library before the first connection is made: it costs 250 ms, and the screen paints first.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from console.sources.forwards import Forwards
from console.sources.hostkeys import AskHostKey, HostKeyQuestion, HostKeys
from console.sources.sshlink import Commons, Link, load_wire
from console.sources.sshtypes import CommandEnd, Completed, Host, State, Status
from jobs.errors import Refused, Unreachable
from jobs.within import within

if TYPE_CHECKING:
    import asyncssh

    from console.sources import sshwire

__all__ = [
    "AskHostKey",
    "CommandEnd",
    "Completed",
    "Connection",
    "Connections",
    "Host",
    "HostKeyQuestion",
    "State",
    "Status",
]

TICK_SECONDS = 0.25
STALLED_SECONDS = 1.0
"""A tick this late says that this process slept, not that the nodes did."""
COMMANDS_AT_ONCE = 3
"""Beside the probe and SFTP; sshd allows 10 sessions a connection."""
OUTPUT_LIMIT_BYTES = 64 * 1024 * 1024
CHANNEL_SECONDS = 10.0
"""How long opening a channel may take on a connection that is up."""


class Connection(Link):
    """The connection to one host. Made by `Connections.add`; every method may be called in any state of it."""

    def __init__(self, host: Host, commons: Commons) -> None:
        super().__init__(host, commons)
        self._session_seen: asyncssh.SSHClientConnection | None = None
        self._sftp: asyncssh.SFTPClient | None = None
        self._sftp_lock = asyncio.Lock()
        self._commands = asyncio.Semaphore(COMMANDS_AT_ONCE)
        self._forwards = Forwards(self)

    async def open_stream(
        self, argv: Sequence[str], on_data: Callable[[bytes], None], on_end: Callable[[CommandEnd], None]
    ) -> sshwire.Session:
        """Start a command and hand on its output as it comes; ``on_end`` is called exactly once, if this returns.

        The session has ``write``, ``write_eof`` and ``close``. Raises `Unreachable`, or `Refused` if sshd opens no more
        sessions.
        """
        await self.ready()
        module = await load_wire()
        session: sshwire.Session = module.Session(on_data, on_end)
        wire = self._require()
        try:
            opening = wire.create_session(lambda: session, shlex.join(argv), encoding=None)
            await within(opening, CHANNEL_SECONDS)
        except module.asyncssh.ChannelOpenError as error:
            raise Refused(f"{self.host.name}: {module.channel_refused(error, 'session')}") from error
        except (module.asyncssh.Error, OSError) as error:
            raise Unreachable(f"{self.host.name}: {error}") from error
        except asyncio.TimeoutError:
            raise Unreachable(f"{self.host.name} opened no session within {CHANNEL_SECONDS:.0f} s") from None
        self._session_seen = wire
        return session

    async def run_command(
        self,
        argv: Sequence[str],
        input: bytes | None = None,  # noqa: A002
        timeout: float = 30.0,
        limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> Completed:
        """Run a command to its end, ``timeout`` seconds at most once it has begun.

        Arguments are quoted; nothing is expanded by the node's shell.

        Raises `Unreachable` when the connection goes or the time is up (the command is then told to end, and loses its
        input and output), and `Refused` for more than ``limit_bytes`` of output or no more sessions.
        """
        ended: asyncio.Future[CommandEnd] = asyncio.get_running_loop().create_future()
        parts: list[bytes] = []
        room = limit_bytes

        def on_data(data: bytes) -> None:
            nonlocal room
            room -= len(data)
            if room >= 0:
                parts.append(data)
            elif not ended.done():
                ended.set_exception(Refused(f"{argv[0]} on {self.host.name} prints more than {limit_bytes} bytes"))

        def on_end(end: CommandEnd) -> None:
            if not ended.done():
                ended.set_result(end)

        async with self._commands:
            session = await self.open_stream(argv, on_data, on_end)
            try:
                if input is not None:
                    session.write(input)
                session.write_eof()
                end = await within(ended, timeout)
            except asyncio.TimeoutError:
                raise Unreachable(f"{argv[0]} on {self.host.name} did not end within {timeout:g} s") from None
            finally:
                session.close()
        if end.lost:
            raise Unreachable(f"{argv[0]} on {self.host.name} was cut off: {end.lost}")
        return Completed(end.exit_status, end.signal, b"".join(parts), end.stderr)

    async def forward_unix(self, remote_path: str) -> str:
        """A local Unix socket, in a folder that only this user may enter, that leads to one on the node.

        The same path for the life of this object, through reconnects. sshd opens the far end as the logged-in user.
        While the node is away, a connection to the socket is closed after some seconds without a byte.
        """
        return await self._forwards.to_path(remote_path)

    async def forward_port_to_path(self, host: str, port: int) -> str:
        """As `forward_unix`, leading to ``host:port`` as the node sees it. No other local user can reach it."""
        return await self._forwards.to_path((host, port))

    async def forward_port(self, host: str, port: int) -> int:
        """A port on 127.0.0.1 that leads to ``host:port`` as the node sees it. Any local user can connect to it."""
        return await self._forwards.to_port((host, port))

    async def open_channel(
        self, target: str | tuple[str, int]
    ) -> tuple[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]]:
        """A byte stream to a Unix socket (a path) or a port (host and number) as the node sees it.

        Raises `Unreachable` without a connection, `Refused` if sshd or the far end says no.
        """
        await self.ready()
        module = await load_wire()
        if self._session_seen is not self._wire:
            # sshd turns Nagle's algorithm off at the first session; before one, each request takes 44 ms.
            await self.run_command(["true"], timeout=CHANNEL_SECONDS)
        wire = self._require()
        try:
            if isinstance(target, str):
                return await within(wire.open_unix_connection(target), CHANNEL_SECONDS)
            return await within(wire.open_connection(*target), CHANNEL_SECONDS)
        except module.asyncssh.ChannelOpenError as error:
            name = target if isinstance(target, str) else f"{target[0]}:{target[1]}"
            raise Refused(f"{self.host.name}: {module.channel_refused(error, name)}") from error
        except (module.asyncssh.Error, OSError) as error:
            raise Unreachable(f"{self.host.name}: {error}") from error
        except asyncio.TimeoutError:
            raise Unreachable(f"{self.host.name} opened no channel within {CHANNEL_SECONDS:.0f} s") from None

    async def open_sftp(self) -> asyncssh.SFTPClient:
        """The SFTP client of this connection, one for all. Raises `Refused` if there is no SFTP, `Unreachable`."""
        await self.ready()
        module = await load_wire()
        async with self._sftp_lock:
            if self._sftp is None:
                wire = self._require()
                try:
                    self._sftp = await within(wire.start_sftp_client(), CHANNEL_SECONDS)
                except asyncio.TimeoutError:
                    raise Unreachable(
                        f"SFTP on {self.host.name} did not start within {CHANNEL_SECONDS:.0f} s"
                    ) from None
                except (module.asyncssh.Error, OSError) as error:
                    if self._wire is not wire:
                        raise Unreachable(f"{self.host.name}: {error}") from error
                    raise Refused(f"{self.host.name} offers no SFTP: {error}") from error
                self._session_seen = wire
            return self._sftp

    async def close(self) -> None:
        """End the forwards, the connection and its task. Takes about a second at most."""
        await self._forwards.close()
        await super().close()

    async def _after_loss(self) -> None:
        self._sftp = None

    def _require(self) -> asyncssh.SSHClientConnection:
        if self._wire is None:
            raise Unreachable(f"no SSH connection to {self.host.name}: {self.status.reason}")
        return self._wire


class Connections:
    """All SSH connections of this process. ``ask`` is awaited for each unknown host key; without it they are refused.

    Use as ``async with Connections(ask) as connections``, or call `close` at the end.
    """

    def __init__(self, ask: AskHostKey | None = None) -> None:
        self.keys = HostKeys(ask)
        self._commons = Commons(self.keys, self._jump_to)
        self._by_name: dict[str, Connection] = {}
        self._by_address: dict[str, Connection] = {}
        self._jumps: dict[Host, Connection] = {}
        self._ticker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def add(self, host: Host) -> Connection:
        """Start to connect to a host; the one that is there already if the name is known. Needs a running loop."""
        known = self._by_name.get(host.name)
        if known is not None:
            return known
        connection = self._started(host)
        self._by_name[host.name] = connection
        self._by_address.setdefault(host.address, connection)
        return connection

    def get(self, name: str) -> Connection | None:
        """The connection of the node with this name."""
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._by_name.values())

    async def remove(self, name: str) -> None:
        """End one node's connection."""
        connection = self._by_name.pop(name, None)
        if connection is not None:
            if self._by_address.get(connection.host.address) is connection:
                del self._by_address[connection.host.address]
            await connection.close()

    async def close(self) -> None:
        """End all connections, nodes before the jump hosts that they go through."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
            self._ticker = None
        nodes = list(self._by_name.values())
        await asyncio.gather(*(connection.close() for connection in nodes))
        await asyncio.gather(*(connection.close() for connection in self._jumps.values()))
        self._by_name.clear()
        self._by_address.clear()
        self._jumps.clear()
        self._commons.close()

    def _started(self, host: Host) -> Connection:
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick(), name="ssh ticker")
        connection = Connection(host, self._commons)
        connection.start()
        return connection

    def _jump_to(self, spec: str, through: Host) -> Link:
        """The connection to a jump host, shared by all nodes behind it. The last of several is nearest to the node."""
        *before, last = [part.strip() for part in spec.removeprefix("ssh://").split(",")]
        user, _, place = last.rpartition("@")
        address, port = _split_port(place)
        known = self._by_address.get(address)
        if known is not None and not before and port in (None, known.host.port) and user in ("", known.host.user):
            return known
        host = replace(
            through,
            name=last,
            address=address,
            port=port,
            user=user or None,
            jump=",".join(before) or None,
        )
        if host not in self._jumps:
            self._jumps[host] = self._started(host)
        return self._jumps[host]

    async def _tick(self) -> None:
        """Four times a second: who is silent, and whoever watches a connection."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            if now - last < STALLED_SECONDS:
                for connection in [*self._by_name.values(), *self._jumps.values()]:
                    if connection.is_up:
                        connection.tick(now)
                        for callback in connection.on_tick:
                            callback(now)
            last = now


def _split_port(place: str) -> tuple[str, int | None]:
    if place.startswith("["):
        address, _, rest = place[1:].partition("]")
        return address, int(rest[1:]) if rest.startswith(":") and rest[1:].isdigit() else None
    address, colon, port = place.rpartition(":")
    if colon and port.isdigit() and ":" not in address:
        return address, int(port)
    return place, None
