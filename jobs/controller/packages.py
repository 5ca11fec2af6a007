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

from jobs.errors import Refused, Usage

PACKAGE_LIMIT_BYTES = 100 * 1024 * 1024
"""What Ray's package route takes at most."""
_DIGEST = re.compile(r"^[0-9a-f]{16,64}$")


class Packages:
    """``packages/<digest>.zip`` below the store."""

    def __init__(self, store: Path) -> None:
        self._folder = store / "packages"
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where a package lies. Raises `Usage` for what is no digest."""
        if not _DIGEST.match(digest):
            raise Usage(f"{digest!r} is not a package's digest")
        return self._folder / f"{digest}.zip"

    def has(self, digest: str) -> bool:
        """Is it here?"""
        return self.path(digest).is_file()

    async def receive(self, digest: str, chunks: AsyncIterator[bytes]) -> bool:
        """Store what is sent under its digest; False if it was here already. Raises `Refused` if it is another."""
        target = self.path(digest)
        if target.is_file():
            return False
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
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
        return True

    def store(self, digest: str, body: bytes) -> None:
        """Keep a package that was made here. Blocks for as long as the disk takes."""
        target = self.path(digest)
        if target.is_file():
            return
        file, name = tempfile.mkstemp(dir=self._folder, prefix="incoming-")
        with os.fdopen(file, "wb") as out:
            out.write(body)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, target)
