"""Who serves a store on a head: whoever holds its lock, and what that one says of itself.

It travels to the head beside `jobs.starter`, as source: standard library only, and nothing newer than Python 3.8.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import socket
from typing import Any

LOCK_NAME = "controller.lock"
SOCKET_NAME = "controller.sock"
ASK_SECONDS = 3.0


def holder(store: str) -> dict[str, Any] | None:
    """What the controller that holds the store's lock wrote there; None if nobody holds it."""
    try:
        file = os.open(os.path.join(store, LOCK_NAME), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # Held for an instant; a controller that starts right now tries for longer than that.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with os.fdopen(os.dup(file), "rb") as stream:
            try:
                facts = json.loads(stream.read())
            except ValueError:
                facts = {}
        return facts if isinstance(facts, dict) else {}
    finally:
        os.close(file)
    return None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, limit: float) -> None:
        super().__init__("controller", timeout=limit)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(store: str) -> dict[str, Any]:
    """The running controller's own status. Raises `OSError` or `ValueError` if it does not answer."""
    connection = _UnixConnection(os.path.join(store, SOCKET_NAME), ASK_SECONDS)
    try:
        connection.request("GET", "/v1/status")
        answer = connection.getresponse()
        body = json.loads(answer.read())
        if answer.status != 200 or not isinstance(body, dict):
            raise ValueError(f"status {answer.status}")
        return body
    except http.client.HTTPException as error:
        raise ValueError(str(error)) from error
    finally:
        connection.close()
