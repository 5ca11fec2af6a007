"""Real servers for the SSH tests: OpenSSH's own sshd in a folder of its own, and what is needed around it.

Every server listens on a free port of 127.0.0.1, with its own keys, and ends with its test.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from console.sources.ssh import Host, HostKeyQuestion

SFTP = "Subsystem sftp internal-sftp"
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def until(condition: Callable[[], object], limit: float = 8.0, what: str = "") -> float:
    """Wait for a condition; returns how long it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit:
            raise AssertionError(f"not within {limit} s: {what}")
        await asyncio.sleep(0.01)
    return time.monotonic() - began


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)], check=True)
    return path


def commands(pids: list[int]) -> dict[int, bytes]:
    """The command lines of those that still run."""
    found: dict[int, bytes] = {}
    for pid in pids:
        try:
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
    return found


def fingerprint(path: Path) -> str:
    done = subprocess.run(["ssh-keygen", "-lf", str(path)], check=True, capture_output=True, text=True)
    return done.stdout.split()[1]


def children(pid: int) -> list[int]:
    """All descendants of a process, parents first."""
    found: list[int] = []
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return found  # it has ended meanwhile
    for child in listed:
        found += [int(child), *children(int(child))]
    return found


@contextmanager
def deaf_port() -> Generator[int]:
    """A port whose queue is full: connections to it are neither taken nor refused."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port
        for filler in fillers:
            filler.close()


@dataclass
class Sshd:
    """One sshd. `start` and `stop` it; `host` says how to reach it."""

    folder: Path
    user_key: Path
    port: int
    host_key: Path
    extra: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def trust(self) -> None:
        """Write the host key where the client looks."""
        public = self.host_key.with_suffix(".pub").read_text().split()
        with self.known_hosts.open("a") as file:
            file.write(f"[127.0.0.1]:{self.port} {public[0]} {public[1]}\n")

    def start(self) -> None:
        config = self.folder / f"sshd-{self.port}.conf"
        config.write_text(
            "\n".join(
                [
                    *self.extra,
                    f"Port {self.port}",
                    "ListenAddress 127.0.0.1",
                    f"HostKey {self.host_key}",
                    f"AuthorizedKeysFile {self.user_key}.pub",
                    "UsePAM no",
                    "StrictModes no",
                    "PermitRootLogin yes",
                    "PasswordAuthentication no",
                    "PidFile none",
                    "LogLevel ERROR",
                    f"SetEnv HOME={self.folder}",  # no login script of whoever runs the tests
                    *([] if any(line.startswith("Subsystem") for line in self.extra) else [SFTP]),
                ]
            )
            + "\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        with (self.folder / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None, (self.folder / "sshd.log").read_text()
            time.sleep(0.01)
        raise AssertionError("sshd does not listen")

    def stop(self) -> None:
        """End it and every session that it serves."""
        if self.process is None:
            return
        for pid in [*children(self.process.pid), self.process.pid]:
            for number in (signal.SIGKILL, signal.SIGCONT):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    break
        self.process.wait(5)
        self.process = None

    def logins(self) -> int:
        """How many connections are served."""
        return sum(b"sshd" in command for command in commands(self.sessions()).values())

    def sessions(self) -> list[int]:
        """The processes that serve logged-in connections, and what runs under them."""
        assert self.process is not None
        return children(self.process.pid)

    def host(self, name: str = "node", **changes: object) -> Host:
        values: dict[str, object] = {
            "name": name,
            "address": "127.0.0.1",
            "port": self.port,
            "identity_files": (str(self.user_key),),
            "known_hosts": str(self.known_hosts),
            "config": str(self.folder / "no-config"),
            "jump": None,
        }
        return Host(**{**values, **changes})  # type: ignore[arg-type]


class Person:
    """Answers questions about host keys, and remembers them."""

    def __init__(self, answer: bool = True) -> None:
        self.answer = answer
        self.questions: list[HostKeyQuestion] = []
        self.at_once = 0
        self.most_at_once = 0

    async def __call__(self, question: HostKeyQuestion) -> bool:
        self.questions.append(question)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.02)
        self.at_once -= 1
        return self.answer
