"""The one door to asyncssh: settings resolved, a connection opened, a session run, and every failure as a sentence.

Importing this costs 250 ms, so `console.sources.sshlink` does it inside the function that connects, in a thread.
Nothing here keeps state between connections, and nothing retries.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import asyncssh
from asyncssh.constants import (
    DISC_CONNECTION_LOST,
    DISC_HOST_KEY_NOT_VERIFIABLE,
    DISC_KEY_EXCHANGE_FAILED,
    DISC_NO_MORE_AUTH_METHODS_AVAILABLE,
    OPEN_ADMINISTRATIVELY_PROHIBITED,
)

from console.sources.hostkeys import HostKeys, Offered
from console.sources.sshconfig import UserConfig
from console.sources.sshtypes import CommandEnd, Failure, Host
from jobs.within import within

ENCRYPTION = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com", "aes128-ctr")
"""GCM costs a third less than the library's own first choice; the last one is for old servers without any of these."""

CONNECT_SECONDS = 12.0
"""From the first packet to logged in."""
KEEPALIVE_MISSES = 1000
"""More than can be missed: whoever watches the connection decides when it is given up."""
STDERR_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator's words and ssh config come to for one host."""

    address: str
    """The name or address to connect to (`HostName`)."""
    port: int
    user: str
    jump: str | None
    known_hosts: tuple[str, ...]
    """Files to read."""
    new_keys: str | None
    """The file that an accepted key goes to; ``None``: nowhere (`UserKnownHostsFile none`)."""
    identities: tuple[str, ...]
    """Key files to offer; empty: the default ones."""
    with_agent: bool
    alias: str | None
    """`HostKeyAlias`."""
    arguments: dict[str, Any] = field(repr=False)
    """For `asyncssh.connect`."""


def resolve(host: Host, config: UserConfig) -> Settings:
    """Work out the settings of one host. Blocks (reads files). Raises `OSError`, `ValueError` for a bad line."""
    reduced = config.for_host(host.address)
    paths = [str(reduced)] if reduced else []
    arguments: dict[str, Any] = {"config": paths or None}
    if host.port is not None:
        arguments["port"] = host.port
    if host.user is not None:
        arguments["username"] = host.user
    plain = asyncssh.SSHClientConnectionOptions(
        **arguments, host=host.address, client_keys=None, known_hosts=None, agent_path=None
    )
    named = cast("list[str]", plain.config.get("IdentityFile", []))
    identities = host.identity_files or tuple(path for path in named if os.path.isfile(os.path.expanduser(path)))
    user_files, system_files = _known_hosts_files(host, plain)
    jump = host.jump if host.jump is not None else cast("str | None", plain.tunnel or None)
    agent = plain.config.get("IdentityAgent", os.environ.get("SSH_AUTH_SOCK", ""))
    arguments |= {
        "host": host.address,
        "encryption_algs": list(ENCRYPTION),
        "compression_algs": ["none"],
        "keepalive_interval": 0,
        "keepalive_count_max": KEEPALIVE_MISSES,
        "login_timeout": CONNECT_SECONDS,
        "agent_forwarding": False,
        "x11_forwarding": False,
        "command": None,
        "request_pty": False,
        "send_env": None,
    }
    if identities:
        arguments |= {"client_keys": list(identities), "ignore_encrypted": True}
    return Settings(
        address=plain.host,
        port=plain.port,
        user=plain.username,
        jump=None if jump in ("none", "") else jump,
        known_hosts=(*user_files, *system_files),
        new_keys=user_files[0] if user_files else None,
        identities=identities,
        with_agent=bool(agent),
        alias=plain.host_key_alias,
        arguments=arguments,
    )


def _known_hosts_files(host: Host, plain: asyncssh.SSHClientConnectionOptions) -> tuple[list[str], list[str]]:
    """The user's files and the system's."""
    if host.known_hosts is not None:
        return [host.known_hosts], []
    user_files = cast("list[str]", plain.config.get("UserKnownHostsFile", ["~/.ssh/known_hosts"]))
    system_files = cast("list[str]", plain.config.get("GlobalKnownHostsFile", ["/etc/ssh/ssh_known_hosts"]))
    return [os.path.expanduser(name) for name in user_files], [os.path.expanduser(name) for name in system_files]


class Attempt(asyncssh.SSHClient):
    """One try to connect: how far it came, and which host key was offered. Lives as long as the connection."""

    def __init__(self, settings: Settings, keys: HostKeys, on_lost: Callable[[str], None]) -> None:
        self.settings = settings
        self.last_heard = 0.0
        """When the peer last sent a byte, by `time.monotonic`."""
        self.connection: asyncssh.SSHClientConnection | None = None
        self.offered: Offered | None = None
        self.in_login = False
        self.logged_in = False
        self._keys = keys
        self._on_lost = on_lost

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self.connection = conn
        receive = conn.data_received

        def heard(data: bytes, datatype: int | None = None) -> None:
            self.last_heard = time.monotonic()
            receive(data, datatype)

        conn.data_received = heard

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Called for a key that was in no file: note it, and refuse. Asking takes longer than a handshake may."""
        known_hosts = self.settings.known_hosts
        self.offered = self._keys.judge(known_hosts, host, port, key, with_port=self.settings.alias is None)
        return self.offered.trusted

    def begin_auth(self, username: str) -> None:
        self.in_login = True

    def auth_completed(self) -> None:
        self.logged_in = True

    def connection_lost(self, exc: Exception | None) -> None:
        if self.logged_in:
            self._on_lost(_loss(exc))

    @property
    def saw_banner(self) -> bool:
        """Whether sshd has said what it is."""
        return self.connection is not None and self.connection.get_extra_info("server_version") is not None


async def connect(
    attempt: Attempt, keys: HostKeys, tunnel: asyncssh.SSHClientConnection | None
) -> asyncssh.SSHClientConnection | Failure:
    """Open one connection, within `CONNECT_SECONDS`. What goes wrong comes back as a `Failure`."""
    settings = attempt.settings
    arguments = dict(settings.arguments)
    arguments["known_hosts"] = keys.trusted(settings.known_hosts)
    arguments["tunnel"] = tunnel
    arguments["client_factory"] = lambda: attempt
    try:
        return await within(_connect(arguments, attempt), CONNECT_SECONDS)
    except (asyncio.TimeoutError, OSError, asyncssh.Error, ValueError) as error:
        return failure(error, attempt)


async def _connect(arguments: dict[str, Any], attempt: Attempt) -> asyncssh.SSHClientConnection:
    try:
        return await asyncssh.connect(**arguments)
    except (asyncssh.KeyExchangeFailed, asyncssh.ConnectionLost, ConnectionError):
        if not attempt.saw_banner or attempt.in_login or attempt.offered is not None:
            raise
    # Only the types on file are asked for at first, and a host that has others hangs up. It must be heard all the same,
    # or nobody could tell that its key has changed.
    return await asyncssh.connect(**arguments, server_host_key_algs="default")


def failure(error: Exception, attempt: Attempt) -> Failure:
    """What went wrong, in one sentence."""
    settings = attempt.settings
    place = f"{settings.address}:{settings.port}"
    if isinstance(error, asyncio.TimeoutError):
        return Failure(_too_slow(attempt, place), settled=False)
    if isinstance(error, asyncssh.ChannelOpenError):
        return Failure(
            f"the jump host cannot reach {place}: {error.reason.rstrip('.') or 'no reason given'}", settled=False
        )
    if isinstance(error, asyncssh.Error):
        return _refused(error, attempt, place)
    if isinstance(error, OSError):
        return _unreachable(error, attempt, place)
    return Failure(f"the ssh settings for this host do not work: {error}", settled=True)


def _too_slow(attempt: Attempt, place: str) -> str:
    limit = f"within {CONNECT_SECONDS:.0f} s"
    if attempt.connection is None:
        return f"no answer from {place} {limit}"
    if not attempt.saw_banner:
        return f"{place} takes connections, but sshd says nothing {limit}"
    return f"{place} did not finish the login {limit}"


def _unreachable(error: OSError, attempt: Attempt, place: str) -> Failure:
    if isinstance(error, socket.gaierror):
        return Failure(f"the name {attempt.settings.address} is not known: {error.strerror}", settled=False)
    if attempt.connection is not None and not attempt.saw_banner:
        return Failure(_throttled(place), settled=False)
    if isinstance(error, ConnectionRefusedError):
        return Failure(f"connection refused by {place}: no sshd there", settled=False)
    if error.filename is not None:
        return Failure(f"cannot read {error.filename}: {error.strerror}", settled=True)
    text = error.strerror or str(error) or type(error).__name__
    return Failure(f"cannot connect to {place}: {text}", settled=False)


def _throttled(place: str) -> str:
    return f"sshd throttled us: {place} closed the connection before its banner (MaxStartups), the node itself is there"


def _refused(error: asyncssh.Error, attempt: Attempt, place: str) -> Failure:
    if error.code == DISC_HOST_KEY_NOT_VERIFIABLE:
        return _host_key(error, attempt, place)
    if error.code == DISC_NO_MORE_AUTH_METHODS_AVAILABLE:
        return Failure(_denied(attempt.settings, place), settled=True)
    if error.code == DISC_KEY_EXCHANGE_FAILED:
        return Failure(f"no common cipher or key type with {place}: {error.reason}", settled=True)
    if error.code == DISC_CONNECTION_LOST and not attempt.saw_banner:
        return Failure(_throttled(place), settled=False)
    if attempt.in_login:
        return Failure(f"{place} closed the connection during the login: {error.reason}", settled=False)
    return Failure(f"{place} broke off the handshake: {error.reason}", settled=False)


def _host_key(error: asyncssh.Error, attempt: Attempt, place: str) -> Failure:
    offered = attempt.offered
    if offered is None:
        return Failure(f"the host key of {place} is not acceptable: {error.reason}", settled=True)
    if offered.revoked:
        return Failure(f"the host key of {place}, {offered.fingerprint}, is marked as revoked", settled=True)
    if offered.same_type:
        files = " or ".join(attempt.settings.known_hosts)
        return Failure(
            f"the host key of {place} has CHANGED: on file is {', '.join(offered.same_type)}, it now shows "
            f"{offered.fingerprint}; if that is right, remove the old line from {files}",
            settled=True,
        )
    return Failure(f"unknown host key {offered.algorithm} {offered.fingerprint}", settled=True, offered=offered)


def _denied(settings: Settings, place: str) -> str:
    tried = [_key_words(path) for path in settings.identities or _default_keys()]
    if settings.with_agent:
        tried.append("the agent's keys")
    keys = ", ".join(tried) if tried else "none: there is no key file and no agent"
    return f"permission denied for {settings.user} on {place}; keys tried: {keys}"


def _key_words(path: str) -> str:
    try:
        asyncssh.read_private_key(os.path.expanduser(path))
    except asyncssh.KeyImportError as error:
        locked = "assphrase" in str(error)
        return f"{path} (not used: {'it has a passphrase, and only an agent could hold it' if locked else error})"
    except OSError as error:
        return f"{path} (cannot be read: {error.strerror})"
    return path


def _default_keys() -> list[str]:
    folder = Path("~/.ssh").expanduser()
    return [f"~/.ssh/{name}" for name in ("id_ed25519", "id_ecdsa", "id_rsa", "id_dsa") if (folder / name).is_file()]


def _loss(error: Exception | None) -> str:
    """Why an established connection ended."""
    if error is None:
        return "the connection was closed"
    if isinstance(error, asyncssh.ConnectionLost):
        return "the connection broke"
    if isinstance(error, asyncssh.Error):
        return f"sshd closed the connection: {error.reason}"
    if isinstance(error, OSError):
        return f"the connection broke: {error.strerror or type(error).__name__}"
    return f"the connection failed: {error}"


def channel_refused(error: asyncssh.ChannelOpenError, what: str) -> str:
    """Why a channel on a healthy connection was not opened."""
    if what == "session":
        return f"sshd refused another session on this connection (MaxSessions): {error.reason}"
    if error.code == OPEN_ADMINISTRATIVELY_PROHIBITED:
        return f"sshd does not allow forwarding to {what} (AllowTcpForwarding, AllowStreamLocalForwarding, PermitOpen)"
    return f"nothing answers at {what} on the node: {error.reason}"


class Session(asyncssh.SSHClientSession[bytes]):
    """A command on the node. Its standard output goes to ``on_data`` as it comes, its end to ``on_end``, once."""

    def __init__(self, on_data: Callable[[bytes], None], on_end: Callable[[CommandEnd], None]) -> None:
        self.data_received = self._receive
        self._on_data = on_data
        self._on_end = on_end
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._stderr = b""
        self._status: int | None = None
        self._signal: str | None = None

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def _receive(self, data: bytes, datatype: int | None) -> None:
        if datatype is None:
            self._on_data(data)
        else:
            self._stderr = (self._stderr + data)[-STDERR_KEPT:]

    def eof_received(self) -> bool:
        return True  # the exit status comes after the end of the output

    def exit_status_received(self, status: int) -> None:
        self._status = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self._signal = signal

    def connection_lost(self, exc: Exception | None) -> None:
        ended = self._status is not None or self._signal is not None
        lost = "" if ended else _loss(exc)
        self._on_end(CommandEnd(self._status, self._signal, self._stderr.decode(errors="replace"), lost))

    def write(self, data: bytes) -> None:
        """To the command's standard input; dropped if the channel is on its way down."""
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write(data)

    def write_eof(self) -> None:
        """End the command's standard input."""
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write_eof()

    def close(self) -> None:
        """End the command if it still runs, and close the channel now.

        OpenSSH passes the SIGTERM on since 7.9, but not for root. Where it does not, a command that neither reads nor
        writes lives on until it ends by itself, and counts against ``MaxSessions``.
        """
        if self._channel is None:
            return
        if self._status is None and self._signal is None and not self._channel.is_closing():
            self._channel.terminate()
        self._channel.abort()
