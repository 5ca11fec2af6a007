"""Each way in which a connection does not come about is one clear sentence, and the other nodes go on."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from console.sources import sshwire
from console.sources.ssh import Connection, Connections, Host, State
from jobs.errors import Unreachable

from .servers import Sshd, deaf_port, free_port, keygen, until

SETTLED = (State.REFUSED, State.WAITING, State.LOST)


async def outcome(connection: Connection) -> tuple[State, str]:
    """The state and the reason after the first try."""
    await until(lambda: connection.status.state in SETTLED, what="an outcome")
    return connection.status.state, connection.status.reason


@asynccontextmanager
async def listener(handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]) -> AsyncGenerator[int]:
    """Something that is not sshd, on a free port."""
    writers: list[asyncio.StreamWriter] = []

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        handle(reader, writer)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def test_a_name_that_does_not_resolve(sshd: Sshd, connections: Connections) -> None:
    state, reason = await outcome(connections.add(sshd.host(address="no-such-host.invalid")))
    assert state is State.WAITING
    assert reason.startswith("the name no-such-host.invalid is not known: ")


async def test_nobody_listens_and_the_others_go_on(sshd: Sshd, connections: Connections) -> None:
    port = free_port()
    dead = connections.add(sshd.host("dead", port=port))
    alive = connections.add(sshd.host("alive"))
    assert await outcome(dead) == (State.WAITING, f"connection refused by 127.0.0.1:{port}: no sshd there")
    assert dead.status.retry_at is not None
    await alive.ready()
    with pytest.raises(Unreachable, match="no SSH connection to dead: connection refused"):
        await dead.run_command(["true"])  # says so at the end of its patience, and not before


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sshwire, "CONNECT_SECONDS", 0.4)


@pytest.mark.usefixtures("impatient")
async def test_a_peer_that_says_nothing(sshd: Sshd, connections: Connections) -> None:
    async with listener(lambda _reader, _writer: None) as port:
        state, reason = await outcome(connections.add(sshd.host(port=port)))
    assert (state, reason) == (State.WAITING, f"127.0.0.1:{port} takes connections, but sshd says nothing within 0 s")


@pytest.mark.usefixtures("impatient")
async def test_a_peer_that_does_not_even_take_the_connection(sshd: Sshd, connections: Connections) -> None:
    with deaf_port() as port:
        state, reason = await outcome(connections.add(sshd.host(port=port)))
    assert (state, reason) == (State.WAITING, f"no answer from 127.0.0.1:{port} within 0 s")


async def test_a_connection_that_closes_at_once(sshd: Sshd, connections: Connections) -> None:
    async with listener(lambda _reader, writer: writer.close()) as port:
        state, reason = await outcome(connections.add(sshd.host(port=port)))
    assert state is State.WAITING
    assert reason.startswith("sshd throttled us: ")


def unfinished_login(port: int) -> socket.socket:
    """A connection that sshd has greeted and that never logs in."""
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline:
        crowd = socket.create_connection(("127.0.0.1", port))
        with suppress(ConnectionResetError):
            if crowd.recv(100).startswith(b"SSH-2.0"):
                return crowd
        crowd.close()
        time.sleep(0.02)
    raise AssertionError("sshd greets nobody")


async def test_max_startups(make_sshd: Callable[..., Sshd], connections: Connections) -> None:
    sshd = make_sshd("MaxStartups 1:100:1")
    with await asyncio.to_thread(unfinished_login, sshd.port):
        connection = connections.add(sshd.host())
        state, reason = await outcome(connection)
        assert state is State.WAITING
        assert reason.startswith(f"sshd throttled us: 127.0.0.1:{sshd.port} closed the connection before its banner")
    await until(lambda: connection.status.state is State.UP, what="up when the crowd has gone")


async def test_something_that_is_not_ssh(sshd: Sshd, connections: Connections) -> None:
    async with listener(lambda _reader, writer: writer.write(b"SSH-1.5-ancient\r\n")) as port:
        state, reason = await outcome(connections.add(sshd.host(port=port)))
    assert state is State.WAITING
    assert "Unsupported SSH version" in reason


async def test_a_key_that_is_not_accepted(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    wrong = keygen(tmp_path / "wrong")
    locked = keygen(tmp_path / "locked", passphrase="secret")
    connection = connections.add(sshd.host(identity_files=(str(wrong), str(locked)), user="root"))
    state, reason = await outcome(connection)
    assert state is State.REFUSED
    assert reason == (
        f"permission denied for root on 127.0.0.1:{sshd.port}; keys tried: {wrong}, "
        f"{locked} (not used: it has a passphrase, and only an agent could hold it)"
    )
    with pytest.raises(Unreachable, match="permission denied for root"):
        await connection.ready()


async def test_a_refusal_is_tried_again_on_request(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    key = keygen(tmp_path / "late")
    connection = connections.add(sshd.host(identity_files=(str(key),)))
    assert (await outcome(connection))[0] is State.REFUSED
    with sshd.user_key.with_suffix(".pub").open("a") as file:
        file.write(key.with_suffix(".pub").read_text())
    connection.retry()
    await until(lambda: connection.status.state is State.UP, what="up after the key was let in")


async def test_a_key_file_that_is_not_there(sshd: Sshd, connections: Connections) -> None:
    state, reason = await outcome(connections.add(sshd.host(identity_files=("/nonexistent/key",))))
    assert state is State.REFUSED
    assert reason == "cannot read /nonexistent/key: No such file or directory"


async def test_a_config_that_cannot_be_read_as_one(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  Port twenty-two\n")
    state, reason = await outcome(connections.add(sshd.host(config=str(config))))
    assert state is State.REFUSED
    assert reason.startswith("the ssh settings for this host do not work: ")
    assert "Invalid Port integer value" in reason


async def test_the_users_config_is_followed(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"Host gpu-*\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentityFile {sshd.user_key}\n"
        f"  IdentityFile /nonexistent/as-ssh-ignores\n  UserKnownHostsFile {sshd.known_hosts}\n"
        "  Compression yes\n  RemoteCommand reboot\n  RequestTTY force\n"
    )
    connection = connections.add(Host("node", "gpu-7", config=str(config)))
    done = await connection.run_command(["sh", "-c", "echo $SSH_CONNECTION; test -t 0 || echo no tty"])
    assert done.stdout.decode().splitlines()[1:] == ["no tty"]
    wire = connection._wire
    assert wire is not None
    assert wire.get_extra_info("send_cipher") == "aes128-gcm@openssh.com"
    assert wire.get_extra_info("recv_compression") == "none"
