"""One host: namespaces of its own, an sshd, accounts that may log in, and Ray once it is started there over SSH."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from console.demo.hosts.net import Link, find, run
from jobs.errors import Refused

START_SECONDS = 10.0
CONNECT_SECONDS = 5
ROOT = Path(__file__).resolve().parents[3]

_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
_SSHD = """\
Port 22
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {keys}/%u .ssh/authorized_keys
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
PidFile none
LogLevel ERROR
MaxStartups 100
Subsystem sftp internal-sftp
Match User root
    SetEnv {environment} "HOME={folder}"
Match User *,!root
    SetEnv {environment}
"""
"""Root has another home there: what its shells read at home would find other programs, and be written to."""


@dataclass
class Host:
    """A machine of its own, as far as those who log in can tell."""

    name: str
    link: Link
    folder: Path
    """Its own files: key, machine id, what is private to it."""
    keys: Path
    """Public keys of those who may log in, one file a user; beside them what their homes allow."""
    environment: Mapping[str, str]
    """What each session of it has besides."""
    private: tuple[Path, ...] = ()
    """Folders of which it sees one of its own."""
    process: subprocess.Popen[bytes] | None = None
    known_hosts: Path = field(default_factory=Path)

    @property
    def address(self) -> str:
        """Where it is reached, on port 22."""
        return self.link.address

    @property
    def machine_id(self) -> str:
        """What its ``/etc/machine-id`` says."""
        return (self.folder / "machine-id").read_text().strip()

    def furnish(self) -> None:
        """Its key, its machine id and its sshd's configuration. They stay when it is started anew."""
        self.folder.mkdir(parents=True)
        (self.folder / "machine-id").write_text(secrets.token_hex(16) + "\n")
        (self.folder / "bin").mkdir()
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", str(self.folder / "host_key"))
        for number, path in enumerate(self.private):
            (self.folder / f"private-{number}").mkdir()
            path.mkdir(parents=True, exist_ok=True)
        path = (self.folder / "bin", Path(sys.executable).parent, *_PATH)
        environment = {"PATH": os.pathsep.join(map(str, path)), **self.environment}
        config = _SSHD.format(
            address=self.address,
            folder=self.folder,
            keys=self.keys,
            environment=" ".join(f'"{name}={value}"' for name, value in environment.items()),
        )
        (self.folder / "sshd.conf").write_text(config)
        public = (self.folder / "host_key.pub").read_text().split()
        with self.known_hosts.open("a") as known:
            known.write(f"{self.address} {public[0]} {public[1]}\n")

    def start(self) -> None:
        """Start it; returns when its sshd takes connections. Raises `Refused` if it does not."""
        binds = [[str(self.folder / "machine-id"), "/etc/machine-id"]]
        binds += [[str(self.folder / f"private-{number}"), str(path)] for number, path in enumerate(self.private)]
        told = {"name": self.name, "binds": binds, "sshd": find("sshd"), "config": str(self.folder / "sshd.conf")}
        spaces = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
        log = self.folder / "sshd.log"
        with log.open("ab") as said:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.link.namespace, *spaces, "--propagation", "private",
                 sys.executable, "-m", "console.demo.hosts.init", json.dumps(told)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while not self._listens():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Refused(f"the host {self.name} did not start: {log.read_text(errors='replace')[-300:]}")
            time.sleep(0.02)

    def _listens(self) -> bool:
        import socket

        with contextlib.suppress(OSError), socket.create_connection((self.address, 22), timeout=0.5):
            return True
        return False

    def stop(self) -> None:
        """Switch it off: every process of it ends at once."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            deadline = time.monotonic() + START_SECONDS
            while run("ip", "netns", "pids", self.link.namespace).split():
                if time.monotonic() > deadline:
                    raise Refused(f"processes of the host {self.name} do not end")
                time.sleep(0.02)

    def reboot(self) -> None:
        """Off and on again: the same machine, with nothing running on it."""
        self.stop()
        self.start()

    # --- what runs on it ----------------------------------------------------------------------------------------------

    def pids(self, having: str = "") -> dict[int, str]:
        """Its processes, by this machine's ids, with their command lines; those with ``having`` in it."""
        assert self.process is not None
        inside = _namespace(self._init())
        found: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or _namespace(int(entry.name)) != inside:
                continue
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if line and having in line:
                    found[int(entry.name)] = line
        return found

    def _init(self) -> int:
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def inside(self, *command: str) -> str:
        """Run a command on it, without its sshd."""
        return run("nsenter", "--all", "--target", str(self._init()), *command)

    @contextlib.contextmanager
    def stopped(self, having: str) -> Generator[list[int]]:
        """Have the processes with this in their command line stand still. Fails if there are none."""
        pids = list(self.pids(having))
        if not pids:
            raise Refused(f"nothing like {having} runs on {self.name}")
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            deadline = time.monotonic() + START_SECONDS
            while any(_state(pid) not in "TZ" for pid in pids) and time.monotonic() < deadline:
                time.sleep(0.01)
            yield pids
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def kill(self, having: str) -> list[int]:
        """Kill the processes with this in their command line, outright."""
        pids = list(self.pids(having))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pids

    def kill_raylet(self) -> list[int]:
        """Ray's process on it, and no other."""
        return self.kill("/raylet/raylet ")

    # --- its disk and its clock ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def small_disk(self, path: Path, mebibytes: int) -> Generator[Path]:
        """A file system of this size at a folder that exists, for this host alone."""
        self.inside("mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(path))
        try:
            yield path
        finally:
            self.inside("umount", "-l", str(path))

    @contextlib.contextmanager
    def skewed(self, seconds: float) -> Generator[None]:
        """Have its clock be wrong by so much, for every ``python3 -c`` that is started on it from now on."""
        wrong = (
            "import time as _t;_w,_n=_t.time,_t.time_ns;"
            f"_t.time=lambda:_w()+{seconds!r};_t.time_ns=lambda:_n()+int({seconds!r}*1e9);"
        )
        wrapper = self.folder / "bin" / "python3"
        wrapper.write_text(
            f"#!{sys.executable}\nimport os, sys\nrest = sys.argv[1:]\nif '-c' in rest:\n"
            f"    rest[rest.index('-c') + 1] = {wrong!r} + rest[rest.index('-c') + 1]\n"
            f"os.execv({sys.executable!r}, [{sys.executable!r}, *rest])\n"
        )
        wrapper.chmod(0o755)
        try:
            yield
        finally:
            wrapper.unlink()


def _namespace(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def _state(pid: int) -> str:
    """One letter, as the kernel has it; ``Z`` for one that is gone."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"
