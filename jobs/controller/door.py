"""The lock that makes the controller the only one of its store, and the Unix socket that it answers on."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path

from jobs.errors import Busy, Refused

LOCK_NAME = "controller.lock"
SOCKET_NAME = "controller.sock"
SOCKET_PATH_LIMIT = 100
"""In bytes. The kernel takes 107; some room is left for clients that forward the socket under a longer name."""


class StoreLock:
    """An advisory lock on ``controller.lock``, held until the process ends, however it ends.

    The file says who holds it; it stays there afterwards, since removing it would let two holders in.
    """

    def __init__(self, store: Path) -> None:
        self._path = store / LOCK_NAME
        self._file = -1

    def acquire(self, patience_seconds: float = 1.0) -> None:
        """Take the lock. Raises `Busy`, naming the process that holds it.

        The patience is for those who only look whether it is held: they hold it for an instant.
        """
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(file)
                    raise Busy(
                        f"a controller already serves {self._path.parent}: {_holder(self._path)} holds {LOCK_NAME}",
                        "There is one controller for each store; stop that one first",
                    ) from None
                time.sleep(0.05)
        self._file = file
        # At once, or the name of the last holder would stand for this one.
        self.tell({"pid": os.getpid()})

    def tell(self, facts: dict[str, object]) -> None:
        """Write down who holds the lock: JSON with at least ``pid``, ``socket`` and ``digest``."""
        body = json.dumps(facts).encode()
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, body, 0)

    def release(self) -> None:
        """Give it back."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _holder(path: Path) -> str:
    """Who the lock file says it is; it may have been written a moment ago, or not yet."""
    try:
        return f"process {int(json.loads(path.read_text())['pid'])}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def open_socket(store: Path) -> socket.socket:
    """A listening Unix socket in the store. Call it only under the lock: whatever stands there is then stale.

    Everybody on this machine may connect: who asks is known from the kernel, and what they may do is decided for each
    request. Raises `Refused` for a path that is too long.
    """
    path = store / SOCKET_NAME
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_LIMIT:
        raise Refused(
            f"the socket's path {path} is {length} bytes long, and a Unix socket takes {SOCKET_PATH_LIMIT} at most",
            "Choose a shorter metadata store",
        )
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(path))
        path.chmod(0o666)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise Refused(f"the socket {path} cannot be opened: {error.strerror}") from error
    return listener


def remove_socket(store: Path) -> None:
    """Take the socket's name away, so that nobody waits at a door without a house."""
    with contextlib.suppress(FileNotFoundError):
        (store / SOCKET_NAME).unlink()
