"""Accounts and a group on this machine that are made for one test, and are gone after it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import uuid
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.ssh.servers import keygen

COMMAND_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Account:
    """A user who may log in with a key of their own."""

    name: str
    key: Path


def why_not() -> str:
    """What is missing for making accounts here; empty if nothing is."""
    if os.getuid() != 0:
        return "only root can make accounts"
    missing = [name for name in ("useradd", "userdel", "groupadd", "groupdel", "ssh-keygen") if not shutil.which(name)]
    return f"not installed: {', '.join(missing)}" if missing else ""


@contextmanager
def accounts(
    folder: Path, names: Iterable[str], groups: Mapping[str, str]
) -> Generator[tuple[dict[str, Account], dict[str, str]]]:
    """Accounts by the names that a test calls them, and groups likewise; ``groups`` says who is in which.

    Their real names (``rd-1a2b3c-alice``) are free ones. Homes are made below ``folder``.
    """
    stamp = f"rd-{uuid.uuid4().hex[:6]}"
    made: list[list[str]] = []
    """How to take back what was made, in the order in which it was made."""
    try:
        real_groups = {name: f"{stamp}-{name}" for name in groups.values()}
        for group in real_groups.values():
            _run("groupadd", "--system", group)
            made.append(["groupdel", group])
        people: dict[str, Account] = {}
        for name in names:
            account = Account(f"{stamp}-{name}", folder / name / "key")
            more = ["--groups", real_groups[groups[name]]] if name in groups else []
            # A locked account is refused by an sshd without PAM; `*` is a password that nobody has.
            _run("useradd", "--system", "--no-user-group", "--no-create-home", "--password", "*", "--shell", "/bin/sh",
                 "--home-dir", str(folder / name), *more, account.name)  # fmt: skip
            made.append(["userdel", account.name])
            _furnish(folder / name, account)
            people[name] = account
        yield people, real_groups
    finally:
        for command in reversed(made):
            _run(*command)


def _furnish(home: Path, account: Account) -> None:
    """A home with the key that may log in."""
    entry = pwd.getpwnam(account.name)
    home.mkdir(mode=0o755)
    (home / ".ssh").mkdir(mode=0o700)
    public = keygen(account.key).with_suffix(".pub")
    allowed = home / ".ssh" / "authorized_keys"
    shutil.copy(public, allowed)
    for path in (home, allowed.parent, allowed):
        os.chown(path, entry.pw_uid, entry.pw_gid)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
