"""Local sockets and ports that lead, over one node's SSH connection, to a socket or port on that node.

The listening ends are ours, not the SSH library's: they keep their path and number through every reconnect, so nobody
who holds one ever talks to a stranger. Unix sockets lie in a folder with mode 0700.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from console.sources.sshlink import load_wire
from jobs.errors import RaydeckError, Refused

if TYPE_CHECKING:
    import asyncssh

CHUNK_BYTES = 64 * 1024

Target = str | tuple[str, int]
"""A path of a Unix socket, or a host and a port, as the node sees them."""


class Opener(Protocol):
    """What can open a byte stream to a target: a connection."""

    async def open_channel(self, target: Target) -> tuple[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]]: ...


class Forwards:
    """The forwards of one connection."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._folder: Path | None = None
        self._paths: dict[Target, str] = {}
        self._ports: dict[Target, int] = {}
        self._servers: list[asyncio.Server] = []
        self._streams: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()
        self._closed = False

    async def to_path(self, target: Target) -> str:
        """The local Unix socket that leads to ``target``. Raises `Refused` after `close`."""
        async with self._lock:
            self._require_open()
            if target not in self._paths:
                if self._folder is None:
                    self._folder = Path(tempfile.mkdtemp(prefix="raydeck-"))
                path = str(self._folder / f"{len(self._paths)}.sock")
                self._servers.append(await asyncio.start_unix_server(self._handler(target), path))
                self._paths[target] = path
            return self._paths[target]

    async def to_port(self, target: Target) -> int:
        """The port on 127.0.0.1 that leads to ``target``. Raises `Refused` after `close`."""
        async with self._lock:
            self._require_open()
            if target not in self._ports:
                server = await asyncio.start_server(self._handler(target), "127.0.0.1", 0)
                self._servers.append(server)
                self._ports[target] = server.sockets[0].getsockname()[1]
            return self._ports[target]

    async def close(self) -> None:
        """Stop listening, cut what runs, remove the folder."""
        async with self._lock:
            self._closed = True
        for server in self._servers:
            server.close()
        for stream in list(self._streams):
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        self._servers.clear()
        self._paths.clear()
        self._ports.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _require_open(self) -> None:
        if self._closed:
            raise Refused("the connection that this forward goes through has been closed")

    def _handler(self, target: Target) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._streams.add(task)
            try:
                await self._join(target, reader, writer)
            except asyncio.CancelledError:
                writer.transport.abort()
            finally:
                self._streams.discard(task)

        return accepted

    async def _join(self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes both ways until both sides have ended, or one is cut."""
        try:
            far_reader, far_writer = await self._opener.open_channel(target)
        except RaydeckError:
            # The client sees a connection that closes without a byte; the reason stands in the node's status.
            writer.transport.abort()
            return
        wire = await load_wire()
        ways = [asyncio.create_task(_pump(reader, far_writer)), asyncio.create_task(_pump(far_reader, writer))]
        try:
            await asyncio.gather(*ways)
        except (OSError, wire.asyncssh.Error):
            writer.transport.abort()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.close()
            far_writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _pump(
    source: asyncio.StreamReader | asyncssh.SSHReader[bytes],
    target: asyncio.StreamWriter | asyncssh.SSHWriter[bytes],
) -> None:
    while data := await source.read(CHUNK_BYTES):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()
