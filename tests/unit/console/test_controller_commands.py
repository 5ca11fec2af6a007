"""`raydeck controller backups` and `restore`, with the starter really run: what travels over SSH is executed here."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from console.cli import controllers
from console.cli.main import command_line
from jobs.controller.backup import make
from jobs.controller.journal import Journal


@dataclass
class Head:
    """A session whose head is this machine."""

    store: Path

    def __post_init__(self) -> None:
        self.head = self
        self.host = SimpleNamespace(name="head")
        self.context = SimpleNamespace(cluster_file=None, dashboard="http://127.0.0.1:1", python=sys.executable)

    async def store_path(self) -> str:
        """The controller's folder."""
        return str(self.store)

    async def run_command(self, argv: list[str], *, input: bytes, timeout: float) -> Any:  # noqa: A002
        """What sshd would run."""
        made = await asyncio.create_subprocess_exec(*argv, stdin=-1, stdout=-1, stderr=-1)
        out, err = await asyncio.wait_for(made.communicate(input), timeout)
        return SimpleNamespace(stdout=out, stderr=err, exit_status=made.returncode)

    async def __aenter__(self) -> Head:
        return self

    async def __aexit__(self, *_error: object) -> None:
        return None


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A store with a journal."""
    folder = tmp_path / "store"
    folder.mkdir()
    for name in ("RAYDECK_CONFIG_DIR", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("RAYDECK_CONTEXT", raising=False)
    (tmp_path / "lab.yaml").write_text("nodes:\n- {name: head, address: 127.0.0.1, role: head}\n")
    monkeypatch.setattr(controllers, "opened", lambda context, **what: Head(folder))  # pyright: ignore[reportUnknownLambdaType]
    return folder


def call(store: Path, *words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(command_line, ["-c", str(store.parent / "lab.yaml"), "controller", *words])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.slow
def test_without_a_backup_it_says_so(store: Path) -> None:
    code, out, err = call(store, "restore", "--yes")
    assert (code, out) == (1, "")
    assert "no backup" in err


@pytest.mark.slow
def test_a_backup_is_listed_and_restored(store: Path) -> None:
    journal = store / "journal.sqlite"
    Journal(journal).close()
    made = make(journal, time.time())
    code, out, _ = call(store, "backups")
    assert code == 0
    assert out.splitlines()[0].split() == ["MADE", "AGE", "SIZE", "PATH"]
    assert str(made.path) in out
    code, out, err = call(store, "restore", "--from", str(made.path), "--yes")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith(f"restored from {made.path}")
    assert lines[0].endswith(": 0 active runs")
    assert lines[-1] == "start it with: raydeck controller start"


def test_a_restore_is_never_done_unasked(store: Path) -> None:
    code, _, err = call(store, "restore")
    assert code == 2
    assert "--yes" in err
