"""What runs on a connection: commands, forwards, files; against OpenSSH's sshd."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from console.sources.ssh import Connections, State
from jobs.errors import Refused, Unreachable

from .servers import Sshd, commands, until


async def test_commands_get_their_arguments_as_given(sshd: Sshd, connections: Connections) -> None:
    connection = connections.add(sshd.host())
    awkward = ["a b", "c'd", '"', "$HOME", "`id`", "*", "", "semi;colon", "new\nline", "-n"]
    done = await connection.run_command(["printf", "%s\\0", *awkward])
    assert done.exit_status == 0
    assert done.stdout.decode().split("\0")[:-1] == awkward
    assert connection.status.state is State.UP
    assert connection.status.reason == ""


async def test_a_command_gets_input_and_gives_status_and_stderr(sshd: Sshd, connections: Connections) -> None:
    connection = connections.add(sshd.host())
    big = os.urandom(3_000_000)
    done = await connection.run_command(["cat"], input=big)
    assert done.stdout == big
    done = await connection.run_command(["sh", "-c", "echo broken >&2; exit 7"])
    assert (done.exit_status, done.stdout, done.stderr) == (7, b"", "broken\n")
    done = await connection.run_command(["sh", "-c", "kill -9 $$"])
    assert done.signal == "KILL" or done.exit_status == 137


async def test_a_command_that_takes_or_prints_too_much_is_cut(sshd: Sshd, connections: Connections) -> None:
    connection = connections.add(sshd.host())
    with pytest.raises(Unreachable, match=r"sleep on node did not end within 0\.1 s"):
        await connection.run_command(["sleep", "30"], timeout=0.1)
    with pytest.raises(Refused, match="prints more than 1000 bytes"):
        await connection.run_command(["yes"], limit_bytes=1000)
    assert (await connection.run_command(["echo", "still here"])).stdout == b"still here\n"


async def test_a_command_that_loses_its_connection_says_so(sshd: Sshd, connections: Connections) -> None:
    connection = connections.add(sshd.host())
    await connection.ready()
    running = asyncio.create_task(connection.run_command(["sleep", "30"]))
    await until(
        lambda: any(b"sleep" in command for command in commands(sshd.sessions()).values()), what="the command runs"
    )
    sshd.stop()
    with pytest.raises(Unreachable, match="sleep on node was cut off"):
        await running


async def test_no_more_sessions_is_a_sentence(make_sshd: Callable[..., Sshd], connections: Connections) -> None:
    sshd = make_sshd("MaxSessions 1")
    connection = connections.add(sshd.host())
    session = await connection.open_stream(["cat"], lambda _: None, lambda _: None)
    with pytest.raises(Refused, match=r"refused another session on this connection \(MaxSessions\)"):
        await connection.run_command(["true"])
    session.close()
    for _ in range(200):  # sshd needs a moment to notice that the first one is closed
        try:
            assert (await connection.run_command(["echo", "again"])).stdout == b"again\n"
            break
        except Refused:
            await asyncio.sleep(0.02)
    else:
        pytest.fail("the session was not given back")


class Peer:
    """A Unix socket and a port that answer each line with who asks (by the kernel) and the line."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "peer.sock")
        self.servers: list[asyncio.Server] = []
        self.port = 0

    async def __aenter__(self) -> Peer:
        self.servers = [
            await asyncio.start_unix_server(self._answer, self.path),
            await asyncio.start_server(self._answer, "127.0.0.1", 0),
        ]
        self.port = self.servers[1].sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self.servers:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(b"heard " + line)
        writer.write(b"bye\n")
        writer.close()


async def _talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for number in range(3):
        writer.write(b"%d\n" % number)
        assert await asyncio.wait_for(reader.readline(), 5) == b"heard %d\n" % number
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 5) == b"bye\n"
    writer.close()
    await writer.wait_closed()


async def test_forwards_lead_to_sockets_and_ports(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    connection = connections.add(sshd.host())
    async with Peer(tmp_path) as peer:
        local = await connection.forward_unix(peer.path)
        assert await connection.forward_unix(peer.path) == local
        assert stat.S_IMODE(Path(local).parent.stat().st_mode) == 0o700
        await _talk(*await asyncio.open_unix_connection(local))
        port = await connection.forward_port("127.0.0.1", peer.port)
        await _talk(*await asyncio.open_connection("127.0.0.1", port))
        await _talk(*await asyncio.open_unix_connection(await connection.forward_port_to_path("localhost", peer.port)))
    await connections.close()
    assert not list(Path(local).parent.parent.glob(Path(local).parent.name))
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    with pytest.raises(Refused, match="has been closed"):
        await connection.forward_unix(peer.path)


async def test_a_forward_to_nothing_closes(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    connection = connections.add(sshd.host())
    local = await connection.forward_unix(str(tmp_path / "nobody.sock"))
    reader, writer = await asyncio.open_unix_connection(local)
    assert await asyncio.wait_for(_read_or_reset(reader), 5) == b""
    writer.close()
    with pytest.raises(Refused, match=r"nothing answers at .*nobody\.sock on the node"):
        await connection.open_channel(str(tmp_path / "nobody.sock"))
    assert connection.is_up


async def _read_or_reset(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_forwarding_that_is_forbidden_is_a_sentence(
    make_sshd: Callable[..., Sshd], connections: Connections
) -> None:
    sshd = make_sshd("AllowTcpForwarding no", "AllowStreamLocalForwarding no")
    connection = connections.add(sshd.host())
    with pytest.raises(Refused, match="sshd does not allow forwarding to"):
        await connection.open_channel(("127.0.0.1", 9))


async def test_forwards_outlive_a_restart(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    connection = connections.add(sshd.host())
    seen: list[State] = []
    connection.listen(lambda status: seen.append(status.state))
    async with Peer(tmp_path) as peer:
        local = await connection.forward_unix(peer.path)
        await _talk(*await asyncio.open_unix_connection(local))
        sshd.stop()
        await until(lambda: connection.status.state is State.LOST, what="lost")
        sshd.start()
        await until(lambda: connection.status.state is State.UP, what="up again")
        await _talk(*await asyncio.open_unix_connection(local))
    assert State.WAITING not in seen
    assert [state for state, _ in groupby(seen[seen.index(State.UP) :])] == [State.UP, State.LOST, State.UP]


@pytest.mark.skipif(sys.platform != "linux", reason="Nagle's delay was measured on Linux")
async def test_a_forwarded_request_is_quick_before_any_other_session(
    sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    """Without a session first, sshd leaves Nagle's algorithm on, and each request takes 44 ms."""
    connection = connections.add(sshd.host())
    async with Peer(tmp_path) as peer:
        reader, writer = await asyncio.open_unix_connection(await connection.forward_unix(peer.path))
        times: list[float] = []
        for number in range(6):
            began = time.monotonic()
            writer.write(b"%d" % number)
            writer.write(b"\n")
            await asyncio.wait_for(reader.readline(), 5)
            times.append(time.monotonic() - began)
        writer.close()
    assert sorted(times[1:])[2] < 0.035


async def test_sftp_is_there_and_comes_back_after_a_restart(
    sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"content")
    connection = connections.add(sshd.host())
    sftp = await connection.open_sftp()
    assert await connection.open_sftp() is sftp
    assert (await sftp.stat(str(tmp_path / "file"))).size == 7
    sshd.stop()
    await until(lambda: not connection.is_up)
    sshd.start()
    await until(lambda: connection.is_up)
    assert (await (await connection.open_sftp()).stat(str(tmp_path / "file"))).size == 7


async def test_no_sftp_is_a_sentence(make_sshd: Callable[..., Sshd], connections: Connections) -> None:
    connection = connections.add(make_sshd("Subsystem sftp /bin/false").host())
    with pytest.raises(Refused, match="node offers no SFTP"):
        await connection.open_sftp()


async def test_nothing_is_left_after_close(sshd: Sshd) -> None:
    before = asyncio.all_tasks()
    async with Connections() as connections:
        connection = connections.add(sshd.host())
        await connection.run_command(["true"])
        assert connections.get("node") is connection
        assert connections.add(sshd.host()) is connection
    assert asyncio.all_tasks() - before == set()
    await until(lambda: not sshd.sessions(), what="sshd sees the end")
    with pytest.raises(Unreachable):
        await connection.run_command(["true"])


async def test_types_are_there_without_the_library() -> None:
    code = (
        "import sys, console.sources.ssh, console.sources.probes, console.sources.logs\n"
        "bad = {'asyncssh', 'cryptography', 'textual', 'httpx'} & set(sys.modules)\n"
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
