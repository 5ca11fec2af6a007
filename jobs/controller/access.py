"""Who is asking, by the kernel's word, and what that user may do here."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import socket
import struct
import time
from dataclasses import dataclass, field
from enum import IntEnum

from jobs.errors import Refused
from jobs.spec import Roles
from jobs.within import within

CACHED_SECONDS = 60.0
"""How long names and groups are believed; asking for them may go over the network (LDAP)."""
LOOKUP_SECONDS = 5.0


class Role(IntEnum):
    """What a user may do. Each includes those below it."""

    NOBODY = 0
    """Not even look: the cluster file names viewers, and this user is none."""
    VIEWER = 1
    SUBMITTER = 2
    OPERATOR = 3
    ADMIN = 4

    @property
    def word(self) -> str:
        """As it stands in the cluster file and on screen."""
        return self.name.lower()

    @property
    def with_article(self) -> str:
        """``a viewer``, ``an operator``."""
        return f"{'an' if self.word[0] in 'ao' else 'a'} {self.word}"


class NotAllowed(Refused):
    """This user may not do that here."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A user of this machine who asks for something."""

    uid: int
    user: str
    role: Role
    groups: frozenset[str] = field(default_factory=frozenset[str])


def peer_uid(connection: socket.socket) -> int:
    """The user id at the other end of a Unix socket, as the kernel knows it."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)


def _names(uid: int) -> tuple[str, frozenset[str]]:
    """The user's name and groups. Blocks for as long as the name service takes."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return f"uid {uid}", frozenset()
    groups: set[str] = set()
    for gid in os.getgrouplist(entry.pw_name, entry.pw_gid):
        try:
            groups.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue  # a group without a name cannot be named in the file either
    return entry.pw_name, frozenset(groups)


class Access:
    """Decides for each request; keeps names for a minute."""

    def __init__(self, roles: Roles, own_uid: int | None = None) -> None:
        self._roles = roles
        self._own_uid = os.getuid() if own_uid is None else own_uid
        self._known: dict[int, tuple[float, Caller]] = {}

    async def caller(self, uid: int) -> Caller:
        """Who this is. A name service that does not answer makes a viewer known by number."""
        found = self._known.get(uid)
        if found is not None and time.monotonic() - found[0] < CACHED_SECONDS:
            return found[1]
        try:
            name, groups = await within(asyncio.to_thread(_names, uid), LOOKUP_SECONDS)
        except asyncio.TimeoutError:
            return Caller(uid, f"uid {uid}", self.role(uid, f"uid {uid}", frozenset()))
        caller = Caller(uid, name, self.role(uid, name, groups), groups)
        self._known[uid] = (time.monotonic(), caller)
        return caller

    def role(self, uid: int, user: str, groups: frozenset[str]) -> Role:
        """The highest role that the file gives; where it names no viewers, everybody may look.

        The controller's own user and root are always admins: they could change its files anyway.
        """
        if uid in (0, self._own_uid):
            return Role.ADMIN
        names = {user, *(f"@{group}" for group in groups)}
        for role, given in (
            (Role.ADMIN, self._roles.admins),
            (Role.OPERATOR, self._roles.operators),
            (Role.SUBMITTER, self._roles.submitters),
            (Role.VIEWER, self._roles.viewers),
        ):
            if names & set(given):
                return role
        return Role.NOBODY if self._roles.viewers else Role.VIEWER

    def require(self, caller: Caller, needed: Role, to_do: str) -> None:
        """Raises `NotAllowed`, in words, if the caller's role is not enough ``to_do`` it."""
        if caller.role >= needed:
            return
        raise NotAllowed(
            f"{caller.user} is {caller.role.with_article} here and may not {to_do}: that takes {needed.with_article}",
            "" if self._roles != Roles() else "The cluster file names no roles; give some under cluster.roles",
        )
