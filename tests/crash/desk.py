"""How the users of the controller ask it: each over a connection that the kernel knows to be theirs."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 30.0
_ACCOUNTS = ("daemon", "bin", "games", "mail", "nobody")
"""Accounts that every Linux has: three submitters, an operator, a viewer."""


@dataclass(frozen=True, slots=True)
class Person:
    """A user of this machine, and what the cluster file lets them do."""

    name: str
    uid: int
    role: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the controller said."""

    status: int
    body: Any

    @property
    def fine(self) -> bool:
        """It was done."""
        return 200 <= self.status < 300

    @property
    def sentence(self) -> str:
        """Why it was not done."""
        return str(self.body["error"]["sentence"])


def people() -> list[Person]:
    """Who asks: several users where the tests run as root, else only whoever runs them (the controller's own user)."""
    if os.getuid() != 0:
        return [Person(pwd.getpwuid(os.getuid()).pw_name, os.getuid(), "admin")]
    accounts = [pwd.getpwnam(name) for name in _ACCOUNTS]
    roles = ("submitter", "submitter", "submitter", "operator", "viewer")
    return [Person(each.pw_name, each.pw_uid, role) for each, role in zip(accounts, roles, strict=True)]


def _connected(path: Path, uid: int) -> socket.socket:
    """A connection whose other end sees ``uid``. The kernel takes it from the moment of connecting."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    own = os.geteuid()
    try:
        connection.setblocking(False)
        if uid != own:
            os.seteuid(uid)
        try:
            connection.connect(os.fspath(path))
        finally:
            if uid != own:
                os.seteuid(own)
    except BaseException:
        connection.close()
        raise
    return connection


async def ask(path: Path, uid: int, method: str, where: str, body: Any = None) -> Answer | None:
    """One request over a connection of its own. None if no whole answer came: it may have been carried out or not."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {where} HTTP/1.1\r\nHost: controller\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    try:
        reader, writer = await asyncio.open_unix_connection(sock=_connected(path, uid), limit=2**26)
        try:
            writer.write(head.encode() + content)
            await writer.drain()
            raw = await asyncio.wait_for(reader.read(-1), ANSWER_SECONDS)
        finally:
            writer.transport.abort()
    except (ConnectionError, FileNotFoundError, BlockingIOError):
        return None
    return _parsed(raw)


def _parsed(raw: bytes) -> Answer | None:
    head, gap, body = raw.partition(b"\r\n\r\n")
    if not gap:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if len(body) != int(fields["content-length"]):
        return None
    return Answer(int(first.split()[1]), json.loads(body))
