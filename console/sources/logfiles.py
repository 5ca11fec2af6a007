"""Reading bytes of one file where it lies: over SFTP, with a small command where there is no SFTP, or on this machine.

All three answer the same three questions, so that `console.sources.logs` need not know where a log is.
"""

from __future__ import annotations

import asyncio
import glob
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from console.sources.sshlink import load_wire
from jobs.errors import RaydeckError, Refused, Unreachable
from jobs.within import within

if TYPE_CHECKING:
    import asyncssh

    from console.sources.ssh import Connection

REQUEST_SECONDS = 15.0
LISTED_AT_MOST = 10_000

FX_NO_SUCH_FILE, FX_PERMISSION_DENIED, FX_NO_CONNECTION, FX_CONNECTION_LOST, FX_NO_SUCH_PATH = 2, 3, 6, 7, 10

T = TypeVar("T")


class NotThereYet(RaydeckError):
    """The file does not exist. For a log that is a state, not a mistake: whoever writes it may not have begun."""


class NoSftp(Refused):
    """The node's sshd offers no SFTP."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One entry of a listing."""

    path: str
    size_bytes: int
    modified_wall: float
    """By the node's own clock, seconds since 1970."""


class File(Protocol):
    """One file. Every method raises `NotThereYet`, `Refused` (permission) or `Unreachable` (for now)."""

    async def size(self) -> int:
        """Bytes of what the path names now."""
        ...

    async def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer at the end. May come from a file that has been replaced, until `reopen`."""
        ...

    async def reopen(self) -> None:
        """Let go of the file that was read so far; the next `read` takes what the path names then."""
        ...

    async def list(self, pattern: str) -> list[LogFile]:
        """The files that a glob pattern matches beside this one, sorted by path; empty if there is none."""
        ...


class LocalFile:
    """A file on this machine."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor: int | None = None

    async def size(self) -> int:
        return (await self._do(lambda: os.stat(self.path))).st_size

    async def read(self, offset: int, size: int) -> bytes:
        def work() -> bytes:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDONLY)
            parts: list[bytes] = []
            at, left = offset, size
            while left > 0 and (data := os.pread(self._descriptor, left, at)):
                parts.append(data)
                at, left = at + len(data), left - len(data)
            return b"".join(parts)

        return await self._do(work)

    async def reopen(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    async def list(self, pattern: str) -> list[LogFile]:
        def work() -> list[LogFile]:
            found: list[LogFile] = []
            for path in sorted(glob.glob(pattern))[:LISTED_AT_MOST]:
                if os.path.isfile(path):
                    stat = os.stat(path)
                    found.append(LogFile(path, stat.st_size, stat.st_mtime))
            return found

        return await self._do(work)

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except FileNotFoundError:
            raise NotThereYet(f"{self.path} is not there yet") from None
        except OSError as error:
            raise Refused(f"{self.path}: {error.strerror}") from error


class SftpFile:
    """A file on a node, through the SFTP of its one connection. Raises `NoSftp` where there is none."""

    def __init__(self, connection: Connection, path: str) -> None:
        self.path = path
        self._connection = connection
        self._client: asyncssh.SFTPClient | None = None
        self._handle: asyncssh.SFTPClientFile | None = None

    async def size(self) -> int:
        sftp = await self._sftp()
        attributes = await self._ask(sftp.stat(self.path))
        return attributes.size or 0

    async def read(self, offset: int, size: int) -> bytes:
        sftp = await self._sftp()
        if self._handle is None:
            self._handle = await self._ask(sftp.open(self.path, "rb", encoding=None))
        handle = self._handle
        return await self._ask(handle.read(size, offset))

    async def reopen(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None and self._connection.is_up:
            await self._ask(handle.close())

    async def list(self, pattern: str) -> list[LogFile]:
        sftp = await self._sftp()
        names = await self._ask(sftp.glob_sftpname(pattern, error_handler=lambda _: None))
        found = [
            LogFile(os.fsdecode(entry.filename), entry.attrs.size or 0, float(entry.attrs.mtime or 0))
            for entry in names
            if entry.attrs.type in (1, 5)  # a regular file, or a server that does not say
        ]
        return sorted(found, key=lambda file: file.path)[:LISTED_AT_MOST]

    async def _sftp(self) -> asyncssh.SFTPClient:
        try:
            client = await self._connection.open_sftp()
        except Refused as error:
            raise NoSftp(error.sentence, error.hint) from error
        if client is not self._client:
            self._client, self._handle = client, None
        return client

    async def _ask(self, request: Awaitable[T]) -> T:
        module = await load_wire()
        name = self._connection.host.name
        try:
            return await within(request, REQUEST_SECONDS)
        except asyncio.TimeoutError:
            raise Unreachable(f"SFTP on {name} did not answer within {REQUEST_SECONDS:.0f} s") from None
        except module.asyncssh.Error as error:
            raise _sftp_error(error.code, error.reason, self.path, name) from error
        except OSError as error:
            raise Unreachable(f"{name}: {error}") from error


def _sftp_error(code: int, reason: str, path: str, name: str) -> RaydeckError:
    if code in (FX_NO_SUCH_FILE, FX_NO_SUCH_PATH):
        return NotThereYet(f"{path} is not there yet on {name}")
    if code == FX_PERMISSION_DENIED:
        return Refused(f"{path} on {name}: permission denied")
    if code in (FX_NO_CONNECTION, FX_CONNECTION_LOST):
        return Unreachable(f"the connection to {name} went away")
    return Refused(f"{path} on {name}: {reason}")


_SCRIPT = """
import glob, json, os, sys
op, path, a, b = sys.argv[1:5]
try:
    if op == 'size':
        print(os.stat(path).st_size)
    elif op == 'read':
        with open(path, 'rb') as f:
            f.seek(int(a))
            sys.stdout.buffer.write(f.read(int(b)))
    else:
        found = [(p, os.stat(p)) for p in sorted(glob.glob(path))[:int(b)] if os.path.isfile(p)]
        print(json.dumps([(p, s.st_size, s.st_mtime) for p, s in found]))
except FileNotFoundError:
    sys.exit(44)
except OSError as e:
    sys.stderr.write(e.strerror or str(e))
    sys.exit(45)
"""


class CommandFile:
    """A file on a node without SFTP: one short `python3` for each question."""

    def __init__(self, connection: Connection, path: str) -> None:
        self.path = path
        self._connection = connection

    async def size(self) -> int:
        return int(await self._run("size", self.path))

    async def read(self, offset: int, size: int) -> bytes:
        return await self._run("read", self.path, offset, size)

    async def reopen(self) -> None:
        """Nothing to do: each question opens the file anew."""

    async def list(self, pattern: str) -> list[LogFile]:
        answer = json.loads(await self._run("list", pattern, 0, LISTED_AT_MOST))
        return [LogFile(str(path), int(size), float(modified)) for path, size, modified in answer]

    async def _run(self, what: str, path: str, first: int = 0, second: int = 0) -> bytes:
        argv = ["python3", "-I", "-S", "-c", _SCRIPT, what, path, str(first), str(second)]
        done = await self._connection.run_command(argv, timeout=REQUEST_SECONDS)
        name = self._connection.host.name
        if done.exit_status == 44:
            raise NotThereYet(f"{path} is not there yet on {name}")
        if done.exit_status != 0:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.exit_status}"]
            raise Refused(f"{path} on {name}: {last[0]}")
        return done.stdout
