"""The archives that launches refer to, kept in the store by their digest."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from jobs import package
from jobs.errors import Refused, Usage

PACKAGE_LIMIT_BYTES = 100 * 1024 * 1024
"""What Ray's package route takes at most."""
_DIGEST = re.compile(r"^[0-9a-f]{16,64}$")


class Packages:
    """``packages/<digest>.zip`` below the store."""

    def __init__(self, store: Path) -> None:
        self._folder = store / "packages"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._code_digests: dict[str, str] = {}

    def path(self, digest: str) -> Path:
        """Where a package lies. Raises `Usage` for what is no digest."""
        if not _DIGEST.match(digest):
            raise Usage(f"{digest!r} is not a package's digest")
        return self._folder / f"{digest}.zip"

    def has(self, digest: str) -> bool:
        """Is it here?"""
        return self.path(digest).is_file()

    async def code_digest(self, digest: str) -> str:
        """What a package that is here is known by whichever version of raydeck packed it. Raises `Refused`."""
        if digest not in self._code_digests:
            self._code_digests[digest] = await asyncio.to_thread(package.code_digest, self.path(digest))
        return self._code_digests[digest]

    async def renewed(self, digest: str) -> str:
        """The digest of the same code packed with this version's own beside it; it is kept here. Raises `Refused`."""

        def pack() -> str:
            built = package.renewed(self.path(digest))
            self.store(built.digest, built.content)
            return built.digest

        return await asyncio.to_thread(pack)

    async def receive(self, digest: str, chunks: AsyncIterator[bytes]) -> bool:
        """Store what is sent under its digest; False if it was here already. Raises `Refused` if it is another."""
        target = self.path(digest)
        if target.is_file():
            return False
        try:
            await self._receive(target, digest, chunks)
        except OSError as error:
            raise Refused(
                f"the package cannot be kept on the head: {error.strerror}", f"Look at the disk of {self._folder}"
            ) from error
        return True

    async def _receive(self, target: Path, digest: str, chunks: AsyncIterator[bytes]) -> None:
        file, name = await asyncio.to_thread(tempfile.mkstemp, dir=self._folder, prefix="incoming-")
        try:
            with os.fdopen(file, "wb") as out:
                told, size = hashlib.sha256(), 0
                async for chunk in chunks:
                    size += len(chunk)
                    if size > PACKAGE_LIMIT_BYTES:
                        limit = PACKAGE_LIMIT_BYTES // 1024 // 1024
                        raise Refused(
                            f"the package is larger than {limit} MiB", "Keep data out of the code folder; ship it apart"
                        )
                    told.update(chunk)
                    await asyncio.to_thread(out.write, chunk)
                out.flush()
                await asyncio.to_thread(os.fsync, out.fileno())
            if told.hexdigest() != digest:
                raise Refused("the package does not have the digest that it was sent under", "Send it again")
            await asyncio.to_thread(_put, name, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise

    def store(self, digest: str, body: bytes) -> None:
        """Keep a package that was made here. Blocks for as long as the disk takes. Raises `Refused`."""
        target = self.path(digest)
        if target.is_file():
            return
        try:
            file, name = tempfile.mkstemp(dir=self._folder, prefix="incoming-")
            try:
                with os.fdopen(file, "wb") as out:
                    out.write(body)
                    out.flush()
                    os.fsync(out.fileno())
                _put(name, target)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
                raise
        except OSError as error:
            raise Refused(
                f"the package cannot be kept on the head: {error.strerror}", f"Look at the disk of {self._folder}"
            ) from error


def _put(name: str, target: Path) -> None:
    """Give a file that is written its name, for good: a launch that was promised needs it after a power cut too."""
    os.replace(name, target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
