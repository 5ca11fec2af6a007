"""Host keys: known ones pass, unknown ones are asked about once and filed, changed ones are refused."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from console.sources.ssh import Connections, State

from .servers import Person, Sshd, fingerprint, keygen, until


def openssh(*arguments: str) -> str:
    """What OpenSSH's own tool makes of a known_hosts file."""
    return subprocess.run(["ssh-keygen", *arguments], check=True, capture_output=True, text=True).stdout


async def test_an_unknown_key_is_asked_about_once_and_filed(make_sshd: Callable[..., Sshd]) -> None:
    sshd = make_sshd(trusted=False)
    sshd.known_hosts.write_text("# a line without its newline")
    person = Person()
    async with Connections(person) as connections:
        first = connections.add(sshd.host("first"))
        second = connections.add(sshd.host("second"))
        await first.ready()
        await second.ready()
    (question,) = person.questions
    assert question.fingerprint == fingerprint(sshd.host_key)
    assert (question.address, question.port, question.algorithm) == ("127.0.0.1", sshd.port, "ssh-ed25519")
    assert question.path == str(sshd.known_hosts)
    assert question.other_fingerprints == ()
    assert f"shows an unknown host key, ssh-ed25519 {question.fingerprint}" in question.sentence
    key = sshd.host_key.with_suffix(".pub").read_text().split()[1]
    assert sshd.known_hosts.read_text().splitlines()[1:] == [f"[127.0.0.1]:{sshd.port} ssh-ed25519 {key}"]
    # OpenSSH itself reads the line, and another session of ours asks no more.
    assert key in openssh("-F", f"[127.0.0.1]:{sshd.port}", "-f", str(sshd.known_hosts))
    async with Connections() as connections:
        await connections.add(sshd.host()).ready()


async def test_a_new_known_hosts_file_is_private(make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    sshd = make_sshd(trusted=False)
    path = tmp_path / "fresh" / "known_hosts"
    async with Connections(Person()) as connections:
        await connections.add(sshd.host(known_hosts=str(path))).ready()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_key_that_cannot_be_filed_is_said(make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    sshd = make_sshd(trusted=False)
    (tmp_path / "file").write_text("")
    async with Connections(Person()) as connections:
        connection = connections.add(sshd.host(known_hosts=str(tmp_path / "file" / "known_hosts")))
        await connection.ready()
        assert connection.status.state is State.UP
        assert connection.status.reason.startswith("its host key is accepted for this session only, since ")


async def test_without_a_person_an_unknown_key_is_refused(
    make_sshd: Callable[..., Sshd], connections: Connections
) -> None:
    sshd = make_sshd(trusted=False)
    connection = connections.add(sshd.host())
    await until(lambda: connection.status.state is State.REFUSED)
    assert connection.status.reason == (
        f"unknown host key ssh-ed25519 {fingerprint(sshd.host_key)}, and there is nobody to ask; connect once with ssh"
    )
    assert connection.status.retry_at is None
    assert not sshd.known_hosts.exists()


async def test_a_no_holds_until_it_is_asked_for_again(make_sshd: Callable[..., Sshd]) -> None:
    sshd = make_sshd(trusted=False)
    person = Person(answer=False)
    async with Connections(person) as connections:
        connection = connections.add(sshd.host())
        await until(lambda: connection.status.state is State.REFUSED)
        assert connection.status.reason.endswith("was not accepted")
        assert not sshd.known_hosts.exists()
        person.answer = True
        connection.retry()
        await until(lambda: connection.status.state is State.UP)
    assert len(person.questions) == 2


@pytest.mark.parametrize("pattern", ["[127.0.0.1]:{port}", "127.0.0.1"])
async def test_a_changed_key_is_refused_with_both_fingerprints(
    make_sshd: Callable[..., Sshd], tmp_path: Path, pattern: str
) -> None:
    sshd = make_sshd(trusted=False)
    old = keygen(tmp_path / "old")
    public = old.with_suffix(".pub").read_text().split()
    sshd.known_hosts.write_text(f"{pattern.format(port=sshd.port)} {public[0]} {public[1]}\n")
    before = sshd.known_hosts.read_text()
    person = Person()
    async with Connections(person) as connections:
        connection = connections.add(sshd.host())
        if "[" not in pattern:
            # A key filed without the port speaks for port 22, so here it is an unknown one, as for OpenSSH.
            await connection.ready()
            assert len(person.questions) == 1
            return
        await until(lambda: connection.status.state is State.REFUSED)
        reason = connection.status.reason
    assert "has CHANGED" in reason
    assert fingerprint(old) in reason
    assert fingerprint(sshd.host_key) in reason
    assert str(sshd.known_hosts) in reason
    assert person.questions == []
    assert sshd.known_hosts.read_text() == before


async def test_a_config_without_a_file_for_keys_files_none(make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    sshd = make_sshd(trusted=False)
    config = tmp_path / "config"
    config.write_text("Host *\n  UserKnownHostsFile none\n  GlobalKnownHostsFile /nonexistent/system\n")
    person = Person()
    async with Connections(person) as connections:
        await connections.add(sshd.host("first", known_hosts=None, config=str(config))).ready()
        await connections.add(sshd.host("second", known_hosts=None, config=str(config))).ready()
    (question,) = person.questions
    assert question.path is None


async def test_a_hashed_entry_counts(make_sshd: Callable[..., Sshd], connections: Connections) -> None:
    sshd = make_sshd()
    openssh("-q", "-H", "-f", str(sshd.known_hosts))
    assert sshd.known_hosts.read_text().startswith("|1|")
    await connections.add(sshd.host()).ready()


async def test_a_bad_line_spoils_nothing(make_sshd: Callable[..., Sshd], connections: Connections) -> None:
    sshd = make_sshd()
    sshd.known_hosts.write_text("nonsense\n@unknown-marker a b c\n\n" + sshd.known_hosts.read_text())
    await connections.add(sshd.host()).ready()


async def test_a_key_of_another_type_is_a_question_that_tells(make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    sshd = make_sshd(trusted=False)
    other = keygen(tmp_path / "ecdsa", "ecdsa")
    public = other.with_suffix(".pub").read_text().split()
    sshd.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {public[0]} {public[1]}\n")
    person = Person()
    async with Connections(person) as connections:
        await connections.add(sshd.host()).ready()
    (question,) = person.questions
    assert question.other_fingerprints == (f"ecdsa-sha2-nistp256 {fingerprint(other)}",)


async def test_a_revoked_key_is_refused(make_sshd: Callable[..., Sshd]) -> None:
    sshd = make_sshd()
    sshd.known_hosts.write_text("@revoked " + sshd.known_hosts.read_text())
    person = Person()
    async with Connections(person) as connections:
        connection = connections.add(sshd.host())
        await until(lambda: connection.status.state is State.REFUSED)
    assert "revoked" in connection.status.reason
    assert person.questions == []


async def test_many_unknown_hosts_ask_one_at_a_time(make_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    servers = [make_sshd(trusted=False) for _ in range(3)]
    shared = tmp_path / "known_hosts"
    person = Person()
    async with Connections(person) as connections:
        made = [connections.add(server.host(f"n{i}", known_hosts=str(shared))) for i, server in enumerate(servers)]
        for connection in made:
            await connection.ready()
    assert len(person.questions) == 3
    assert person.most_at_once == 1
    assert shared.read_text().count("ssh-ed25519") == 3
