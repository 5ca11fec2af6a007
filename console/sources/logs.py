"""A log as byte ranges of a file on a node or here: any part of it, its last lines, or everything that is added.

The end of the file is not the end of the job: `Log.follow` goes on until it is told to stop, over lost connections, and
says where lines may be missing. Bytes are handed on as they are; making them safe to show is for whoever paints them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from console.sources.logfiles import CommandFile, File, LocalFile, LogFile, NoSftp, NotThereYet, SftpFile
from jobs.errors import Unreachable

if TYPE_CHECKING:
    from console.sources.ssh import Connection

__all__ = ["LocalLog", "Log", "LogChunk", "LogFile", "NotThereYet", "RemoteLog", "Tail"]

T = TypeVar("T")

POLL_SECONDS = 0.5
CHUNK_BYTES = 1024 * 1024
TAIL_BLOCK_BYTES = 64 * 1024
TAIL_LIMIT_BYTES = 8 * 1024 * 1024
MEMORY_BYTES = 256
"""How much of what was read last is compared with the file, to notice that another one has taken its place."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a followed log, or something to say about it (then ``data`` is empty)."""

    offset: int
    """Where ``data`` begins; the next piece begins at ``offset + len(data)`` unless a note says otherwise."""
    data: bytes
    note: str = ""
    """A sentence: not there yet, connection lost, truncated or replaced (reading then begins anew at 0), going on."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The last lines of a log."""

    offset: int
    """Where ``data`` begins in the file; ``offset + len(data)`` is where to follow from."""
    data: bytes


class Log:
    """One log. All methods may raise `NotThereYet`, `Refused` (no permission) or `Unreachable` (no connection)."""

    def __init__(self, file: File, path: str) -> None:
        self.path = path
        self._file = file

    async def size(self) -> int:
        """How many bytes there are now."""
        return await self._file.size()

    async def read(self, offset: int, size: int) -> bytes:
        """The bytes from ``offset``, up to ``size`` of them; fewer, or none, at the end."""
        return await self._file.read(offset, size)

    async def list(self, pattern: str) -> list[LogFile]:
        """The files that match a glob pattern such as ``/runs/7/attempt-1/rank-*.log`` on the same machine."""
        return await self._file.list(pattern)

    async def close(self) -> None:
        """Let go of the file."""
        await self._file.reopen()

    async def tail(self, lines: int) -> Tail:
        """The last lines, read backwards from the end; never more than 8 MB. The very last may lack its newline."""
        end = await self.size()
        begin, data, block = end, b"", TAIL_BLOCK_BYTES
        while begin > 0 and len(data) < TAIL_LIMIT_BYTES:
            # The newline that ends the last line does not begin another one.
            if data.count(b"\n", 0, max(0, len(data) - 1)) >= lines:
                break
            step = min(block, begin, TAIL_LIMIT_BYTES - len(data))
            begin -= step
            data = await self.read(begin, step) + data
            block *= 2
        return _last_lines(begin, data, lines)

    async def follow(self, offset: int = 0) -> AsyncIterator[LogChunk]:
        """What the file holds from ``offset``, and all that is added, in pieces of at most 1 MB; looks twice a second.

        Ends only when its caller closes it. Raises `Refused` for a file that may not be read.
        """
        memory, told = b"", ""
        if offset:
            memory = await self._before(offset)
        while True:
            note = ""
            try:
                async for chunk in self._new(offset, memory):
                    if told:
                        yield LogChunk(offset, b"", f"{self.path}: going on at byte {chunk.offset}")
                        told = ""
                    yield chunk
                    memory = b"" if chunk.note else (memory + chunk.data)[-MEMORY_BYTES:]
                    offset = chunk.offset + len(chunk.data)
            except NotThereYet as error:
                note = error.sentence
            except Unreachable as error:
                note = f"{error.sentence}; going on at byte {offset} when it is back"
            if note != told and note:
                told = note
                yield LogChunk(offset, b"", note)
            await asyncio.sleep(POLL_SECONDS)

    async def _before(self, offset: int) -> bytes:
        begin = max(0, offset - MEMORY_BYTES)
        try:
            return await self.read(begin, offset - begin)
        except (NotThereYet, Unreachable):
            return b""

    async def _new(self, offset: int, memory: bytes) -> AsyncIterator[LogChunk]:
        """Everything between ``offset`` and the end of the file as it is now; notices another file in its place."""
        size = await self.size()
        fresh = False
        while size > offset:
            wanted = min(size - offset, CHUNK_BYTES)
            data = await self._file.read(offset - len(memory), len(memory) + wanted)
            if data.startswith(memory) and len(data) > len(memory):
                chunk = data[len(memory) :]
                yield LogChunk(offset, chunk)
                memory = data[-MEMORY_BYTES:]
                offset += len(chunk)
                fresh = False
            elif not fresh:
                # Nothing where there should be more: the old file is still held, and the path names a new one.
                await self._file.reopen()
                fresh = True
            else:
                break
        if size < offset or fresh:
            if not fresh:
                rest = await self._rest(offset, memory)
                if rest:
                    yield LogChunk(offset, rest)
                await self._file.reopen()
            yield LogChunk(0, b"", f"{self.path} was truncated or replaced: from its start again, lines may be missing")

    async def _rest(self, offset: int, memory: bytes) -> bytes:
        """The last lines of a file that another one has replaced, as long as the old one is still held open."""
        try:
            data = await self._file.read(offset - len(memory), len(memory) + CHUNK_BYTES)
        except NotThereYet:
            return b""
        return data[len(memory) :] if data.startswith(memory) else b""


def _last_lines(begin: int, data: bytes, lines: int) -> Tail:
    at = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return Tail(begin, data)
    return Tail(begin + at + 1, data[at + 1 :])


class LocalLog(Log):
    """A log on this machine."""

    def __init__(self, path: str) -> None:
        super().__init__(LocalFile(path), path)


class RemoteLog(Log):
    """A log on a node, through its one connection: by SFTP, or by small commands where sshd offers none."""

    def __init__(self, connection: Connection, path: str) -> None:
        super().__init__(_SftpOrCommand(connection, path), path)


class _SftpOrCommand:
    """SFTP until it turns out that there is none."""

    def __init__(self, connection: Connection, path: str) -> None:
        self._file: File = SftpFile(connection, path)
        self._other = CommandFile(connection, path)

    async def size(self) -> int:
        return await self._ask(lambda file: file.size())

    async def read(self, offset: int, size: int) -> bytes:
        return await self._ask(lambda file: file.read(offset, size))

    async def list(self, pattern: str) -> list[LogFile]:
        return await self._ask(lambda file: file.list(pattern))

    async def reopen(self) -> None:
        await self._file.reopen()

    async def _ask(self, question: Callable[[File], Awaitable[T]]) -> T:
        try:
            return await question(self._file)
        except NoSftp:
            self._file = self._other
            return await question(self._file)
