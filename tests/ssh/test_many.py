"""Many hosts at once, on one asyncssh server: turns are taken, nobody is forgotten, the settings are read once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from console.sources import sshlink
from console.sources.ssh import Connections, Host, State

from .servers import deaf_port, until


class Server(asyncssh.SSHServer):
    """Counts how many logins are going on at once."""

    now = 0
    most = 0

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        Server.now += 1
        Server.most = max(Server.most, Server.now)
        self.waiting = True

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True

    async def begin_auth(self, username: str) -> bool:
        await asyncio.sleep(0.01)
        self._done()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._done()

    def _done(self) -> None:
        if self.waiting:
            self.waiting = False
            Server.now -= 1


@pytest.fixture
async def crowded(tmp_path: Path) -> AsyncIterator[Host]:
    Server.now = Server.most = 0
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key])
    port = server.get_port()
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} {key.export_public_key().decode()}")
    yield Host("", "127.0.0.1", port, "anyone", known_hosts=str(known), config=str(tmp_path / "none"))
    server.close()
    await server.wait_closed()


async def test_logins_take_turns(crowded: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sshlink, "HANDSHAKES", 5)
    async with Connections() as few:
        made = [few.add(replace(crowded, name=f"n{i}")) for i in range(40)]
        await until(lambda: all(connection.is_up for connection in made), limit=20, what="all of them up")
        assert 2 <= Server.most <= 5
        assert {connection.status.state for connection in made} == {State.UP}


async def test_logins_through_a_jump_host_take_turns(crowded: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sshlink, "HANDSHAKES_PER_JUMP", 2)
    async with Connections() as few:
        made = [few.add(replace(crowded, name=f"n{i}", jump=f"j@127.0.0.1:{crowded.port}")) for i in range(12)]
        await until(lambda: all(connection.is_up for connection in made), limit=20, what="all of them up")
        assert Server.most == 2


async def test_dead_hosts_do_not_keep_the_others_waiting(crowded: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that does not take the connection gives its place back."""
    monkeypatch.setattr(sshlink, "HANDSHAKES", 2)
    monkeypatch.setattr(sshlink, "DIAL_SECONDS", 0.05)
    with deaf_port() as port:
        async with Connections() as few:
            dead = [few.add(replace(crowded, name=f"dead{i}", port=port)) for i in range(6)]
            alive = few.add(replace(crowded, name="alive"))
            await alive.ready(5)
            assert {connection.status.state for connection in dead} == {State.CONNECTING}
