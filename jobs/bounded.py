"""Owns how small files on shared storage are read and made durable: within limits, whatever somebody put there."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_STALE_TRIES = 3


def read(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most ``limit`` bytes.

    Raises OSError as open and read do, and ValueError for what is too large or no file (a pipe would keep us waiting).
    """
    for _ in range(_STALE_TRIES - 1):
        try:
            return _read(path, limit)
        except OSError as error:
            # NFS, when another machine put a new file in its place between our look and our read.
            if error.errno != errno.ESTALE:
                raise
    return _read(path, limit)


def _read(path: Path, limit: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a file")
        if status.st_size > limit:
            raise ValueError(f"it has {status.st_size} bytes, which is more than the {limit} that are read")
        blocks: list[bytes] = []
        left = limit + 1
        while left > 0 and (block := os.read(descriptor, min(left, 1 << 20))):
            blocks.append(block)
            left -= len(block)
    finally:
        os.close(descriptor)
    if left <= 0:
        raise ValueError(f"it has more than the {limit} bytes that are read")
    return b"".join(blocks)


def sync_folder(path: Path) -> None:
    """Make names in a folder durable, on file systems that can."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems know no fsync of a folder; their renames are durable by themselves, or never.
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)


def shown(name: str, limit: int = 80) -> str:
    """A name from a disk or a file, fit for a sentence: printable, and not longer than ``limit``."""
    safe = "".join(sign if sign.isprintable() else "?" for sign in name[: limit + 1])
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"
