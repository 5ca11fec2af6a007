"""Fixtures of the SSH tests. The servers themselves are in `servers`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from console.sources.ssh import Connections

from .servers import SSHD, Sshd, free_port, keygen


@pytest.fixture(scope="session")
def user_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keygen(tmp_path_factory.mktemp("user") / "id_user")


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' keys are the only ones, whatever the developer's agent holds."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def make_sshd(tmp_path: Path, user_key: Path) -> Iterator[Callable[..., Sshd]]:
    """Start an sshd; its key is trusted unless ``trusted=False``. ``extra`` are lines of its configuration."""
    if not Path(SSHD).exists():
        pytest.skip("OpenSSH's sshd is not installed")
    made: list[Sshd] = []

    def make(*extra: str, trusted: bool = True) -> Sshd:
        folder = tmp_path / f"sshd-{len(made)}"
        folder.mkdir()
        server = Sshd(folder, user_key, free_port(), keygen(folder / "host_key"), list(extra))
        server.start()
        if trusted:
            server.trust()
        made.append(server)
        return server

    yield make
    for server in made:
        server.stop()


@pytest.fixture
def sshd(make_sshd: Callable[..., Sshd]) -> Sshd:
    return make_sshd()


@pytest.fixture
async def connections() -> AsyncIterator[Connections]:
    async with Connections() as made:
        yield made
