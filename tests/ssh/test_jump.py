"""Jump hosts: one shared connection to each, its troubles told as such, and no crowd of logins through it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from console.sources.ssh import Connections, Host, State, _split_port

from .servers import Sshd, free_port, until


async def test_through_a_jump_host(make_sshd: Callable[..., Sshd], connections: Connections, tmp_path: Path) -> None:
    jump, node = make_sshd(), make_sshd()
    node.known_hosts.write_text(node.known_hosts.read_text() + jump.known_hosts.read_text())
    made = [connections.add(node.host(f"n{i}", jump=f"root@127.0.0.1:{jump.port}")) for i in range(4)]
    for connection in made:
        done = await connection.run_command(["sh", "-c", "echo $SSH_CONNECTION"])
        assert done.stdout.decode().split()[3] == str(node.port)
    assert jump.logins() == 1


async def test_the_jump_host_of_the_config_and_one_behind_another(
    make_sshd: Callable[..., Sshd], connections: Connections, tmp_path: Path
) -> None:
    outer, inner, node = make_sshd(), make_sshd(), make_sshd()
    known = tmp_path / "known_hosts"
    known.write_text("".join(server.known_hosts.read_text() for server in (outer, inner, node)))
    config = tmp_path / "config"
    config.write_text(
        f"Host *\n  IdentityFile {node.user_key}\n  UserKnownHostsFile {known}\n  HostName 127.0.0.1\n"
        f"Host outer\n  Port {outer.port}\n"
        f"Host inner\n  Port {inner.port}\n"
        f"Host worker-*\n  Port {node.port}\n  ProxyJump outer,inner\n"
    )
    connection = connections.add(Host("w", "worker-1", config=str(config)))
    assert (await connection.run_command(["echo", "there"])).stdout == b"there\n"
    assert outer.sessions() != []
    assert inner.sessions() != []


async def test_a_node_of_the_fleet_can_be_the_jump_host(
    make_sshd: Callable[..., Sshd], connections: Connections, tmp_path: Path
) -> None:
    head, node = make_sshd(), make_sshd()
    known = tmp_path / "known_hosts"
    known.write_text(head.known_hosts.read_text() + node.known_hosts.read_text())
    first = connections.add(head.host("head", known_hosts=str(known)))
    behind = connections.add(node.host("worker", known_hosts=str(known), jump=f"127.0.0.1:{head.port}"))
    await behind.ready()
    assert first.is_up
    assert head.logins() == 1


async def test_a_dead_jump_host_is_what_the_node_says(sshd: Sshd, connections: Connections) -> None:
    port = free_port()
    connection = connections.add(sshd.host(jump=f"127.0.0.1:{port}"))
    await until(lambda: "refused" in connection.status.reason, what="the jump host's reason")
    assert connection.status.reason == (
        f"jump host 127.0.0.1:{port}: connection refused by 127.0.0.1:{port}: no sshd there"
    )


async def test_a_node_behind_the_jump_host_that_is_not_there(
    make_sshd: Callable[..., Sshd], connections: Connections
) -> None:
    jump = make_sshd()
    port = free_port()
    connection = connections.add(jump.host(port=port, jump=f"127.0.0.1:{jump.port}"))
    await until(lambda: connection.status.state is State.WAITING)
    assert connection.status.reason.startswith(f"the jump host cannot reach 127.0.0.1:{port}: ")


async def test_nodes_come_back_when_their_jump_host_does(
    make_sshd: Callable[..., Sshd], connections: Connections
) -> None:
    jump, node = make_sshd(), make_sshd()
    node.known_hosts.write_text(node.known_hosts.read_text() + jump.known_hosts.read_text())
    connection = connections.add(node.host(jump=f"127.0.0.1:{jump.port}"))
    await connection.ready()
    jump.stop()
    await until(lambda: connection.status.state is State.LOST)
    jump.start()
    await until(lambda: connection.status.state is State.UP, what="up through the new jump host")


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("host", ("host", None)),
        ("host:22", ("host", 22)),
        ("[::1]:2222", ("::1", 2222)),
        ("[fe80::1]", ("fe80::1", None)),
        ("fe80::1", ("fe80::1", None)),
    ],
)
def test_places(place: str, expected: tuple[str, int | None]) -> None:
    assert _split_port(place) == expected
