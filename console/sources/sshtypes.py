"""The words of the SSH sources: a host, the state of its connection, how a command ended. No behaviour, no imports.

Light on purpose: the screen and the tests use these before the SSH library is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from console.sources.hostkeys import Offered


@dataclass(frozen=True, slots=True)
class Host:
    """How to reach one node. What is not given here comes from the user's ssh config, agent and known_hosts."""

    name: str
    """The node's name on screen."""
    address: str
    """What the operator wrote: a host name, an address, or an alias of the ssh config."""
    port: int | None = None
    user: str | None = None
    identity_files: tuple[str, ...] = ()
    """Private keys to offer; empty: the config's, the agent's, the default ones."""
    jump: str | None = None
    """`ProxyJump`: ``[user@]host[:port]``, several with commas; ``none``: direct, whatever the config says."""
    known_hosts: str | None = None
    """The known_hosts file to use instead of the config's."""
    config: str | None = None
    """The ssh config to use instead of ``~/.ssh/config``."""


class State(Enum):
    """How a node's SSH connection is."""

    CONNECTING = "connecting"
    UP = "up"
    SILENT = "silent"
    """Connected, and nothing was heard for almost 3 s."""
    LOST = "lost"
    """It was up, is gone, and is tried again."""
    REFUSED = "refused"
    """The other side, or the host key, says no; trying again soon is pointless."""
    WAITING = "waiting"
    """It never was up in this session; the next try comes at ``retry_at``."""


@dataclass(frozen=True, slots=True)
class Status:
    """A state with its reason. ``since`` and ``retry_at`` are `time.monotonic` seconds."""

    state: State
    reason: str
    """One sentence without a full stop; empty while all is well."""
    since: float
    """When this state began; a new reason does not restart it."""
    retry_at: float | None = None
    """When the next try is due; ``None`` if none is planned (connected, being tried, or waiting for a person)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a connection did not come about."""

    sentence: str
    settled: bool
    """Trying again soon will not help: a key, a permission, a setting has to change first."""
    offered: Offered | None = None
    """The unknown host key that has to be asked about, if that is all."""


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command on a node ended."""

    exit_status: int | None
    """``None`` if a signal or the loss of the connection ended it."""
    signal: str | None
    """Such as ``KILL``."""
    stderr: str
    """The last 4 KB."""
    lost: str
    """Why the channel went away before the command's end was known; empty if it did not."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ran to its end."""

    exit_status: int | None
    """``None``: ended by ``signal``."""
    signal: str | None
    stdout: bytes
    stderr: str
