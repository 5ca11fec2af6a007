"""Several hosts with Ray on them: a head and workers, each started over real SSH, as somebody would by hand."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from console.demo.hosts.host import CONNECT_SECONDS, Host
from console.demo.hosts.net import Network, run
from console.settings import Context, NodeEntry, SshOptions
from jobs.errors import Refused

RAY = (str(Path(sys.executable).with_name("ray")),)
"""By its whole path: a login shell's own files may set another PATH."""
GCS_PORT = 6379
DASHBOARD_PORT = 8265
RAY_SECONDS = 60.0
OBJECT_STORE_BYTES = 80_000_000
CPUS = 8
NODE_LABEL = "raydeck.io/node"
SYSTEM: dict[str, object] = {"prestart_worker_first_driver": False}
"""Idle workers started ahead of any need cost a second of CPU and 60 MB each."""


@dataclass
class Bed:
    """A network of hosts. `up` makes it, `start_ray` starts Ray everywhere, `down` takes all of it away."""

    folder: Path
    """Short: Ray's sockets lie below it. All hosts see it."""
    names: Sequence[str]
    gpus: int = 4
    """On each worker, simulated."""
    system: dict[str, object] = field(default_factory=dict[str, object])
    """Further settings of Ray's own, for the head."""
    marks: dict[str, str] = field(default_factory=dict[str, str])
    """Environment of everything that runs there."""
    hosts: dict[str, Host] = field(default_factory=dict[str, Host])
    network: Network = field(default_factory=lambda: Network(secrets.token_hex(3)))

    @property
    def head(self) -> Host:
        """The first one."""
        return self.hosts[self.names[0]]

    @property
    def workers(self) -> list[Host]:
        """All others."""
        return [self.hosts[name] for name in self.names[1:]]

    @property
    def key(self) -> Path:
        """What root logs in with."""
        return self.folder / "keys" / "root.key"

    def up(self) -> None:
        """All hosts, with their sshd. Raises `Refused`."""
        self.folder.chmod(0o711)
        keys = self.folder / "keys"
        keys.mkdir(mode=0o755)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key))
        (keys / "root").write_text((self.folder / "keys" / "root.key.pub").read_text())
        (self.folder / "r").mkdir()
        self.network.up()
        for number, name in enumerate(self.names):
            self.script(name).write_text(json.dumps(self.simulated(name)))
            self.kernel_log(name).touch()
            host = Host(
                name,
                self.network.add(number),
                self.folder / "h" / name,
                keys,
                self.environment(name),
                private=(self.folder / "r",),
                known_hosts=self.folder / "known_hosts",
            )
            host.furnish()
            self.hosts[name] = host
        with ThreadPoolExecutor() as pool:
            list(pool.map(Host.start, self.hosts.values()))

    def script(self, name: str) -> Path:
        """What a host's accelerators act out; see `probes.simulated`. It may be written anew at any time."""
        return self.folder / f"simulated-{name}.json"

    def kernel_log(self, name: str) -> Path:
        """A host's own in place of the machine's, in the form of ``/dev/kmsg``: they share one kernel."""
        return self.folder / f"kmsg-{name}"

    def environment(self, name: str) -> dict[str, str]:
        """Of everything that runs on a host."""
        return {
            "RAYDECK_SIMULATED": str(self.script(name)),
            "RAYDECK_KMSG": str(self.kernel_log(name)),
            "RAY_TMPDIR": str(self.folder / "r"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            **self.marks,
        }

    def simulated(self, name: str) -> dict[str, object]:
        """The script of a host's accelerators."""
        return {
            "node": name,
            "owner": self.marks,
            "gpus": self.gpus_of(name),
            "memory_total_bytes": 80 * 1024**3,
            "power_limit_watts": 700,
        }

    def gpus_of(self, name: str) -> int:
        """How many accelerators a host has: the head has none."""
        return 0 if name == self.names[0] else self.gpus

    def down(self) -> None:
        """All of it, however far it came."""
        for host in self.hosts.values():
            host.stop()
        self.network.down()

    # --- Ray ----------------------------------------------------------------------------------------------------------

    def ray_start(self, name: str) -> list[str]:
        """The command that starts Ray on a host, as its words."""
        host = self.hosts[name]
        common = [
            f"--node-ip-address={host.address}",
            f"--num-cpus={CPUS}",
            f"--num-gpus={self.gpus_of(name)}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            f"--labels={NODE_LABEL}={name}",
            "--disable-usage-stats",
        ]
        if host is self.head:
            own = [
                "--head",
                f"--port={GCS_PORT}",
                "--dashboard-host=127.0.0.1",
                f"--dashboard-port={DASHBOARD_PORT}",
                f"--system-config={json.dumps({**SYSTEM, **self.system})}",
                f"--temp-dir={self.folder / 'r' / 'ray'}",
            ]
            return [*RAY, "start", *own, *common]
        return [*RAY, "start", f"--address={self.head.address}:{GCS_PORT}", *common]

    def start_ray(self, tell: Callable[[str], None] = lambda name: None) -> None:
        """On the head, then on all workers at once. Raises `Refused`."""
        self.start_ray_on(self.names[0])
        tell(self.names[0])

        def start(name: str) -> None:
            self.start_ray_on(name)
            tell(name)

        with ThreadPoolExecutor() as pool:
            list(pool.map(start, self.names[1:]))

    def start_ray_on(self, name: str) -> None:
        """On one host. Raises `Refused` with what it said last."""
        self.ssh(name, *self.ray_start(name), seconds=RAY_SECONDS)

    def ssh(self, name: str, *command: str, seconds: float = 20.0, user: str = "root", key: Path | None = None) -> str:
        """Run a command on a host through its sshd; what it prints. Raises `Refused`."""
        asked = [
            "ssh", "-F", "none", "-i", str(key or self.key), "-o", f"UserKnownHostsFile={self.folder / 'known_hosts'}",
            "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}", f"{user}@{self.hosts[name].address}",
            shlex.join(command),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise Refused(f"{name}: {command[0]} did not end within {seconds:.0f} s") from None
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise Refused(f"{name}: {' '.join(command[:2])}: {said[-1] if said else f'exit code {done.returncode}'}")
        return done.stdout

    # --- how it is reached --------------------------------------------------------------------------------------------

    def context(self, name: str) -> Context:
        """How an operator on this machine reaches it."""
        ssh = SshOptions(
            user="root",
            identity_files=[self.key],
            known_hosts=self.folder / "known_hosts",
            config=Path(os.devnull),
        )
        return Context(
            name=name,
            nodes=[
                NodeEntry(
                    name=each,
                    address=host.address,
                    role="head" if host is self.head else "worker",
                    accelerators=self.gpus_of(each),
                    ray_stop=shlex.join([*RAY, "stop"]),
                    ray_start="" if host is self.head else shlex.join(self.ray_start(each)),
                    ssh=ssh,
                )
                for each, host in self.hosts.items()
            ],
            dashboard=f"http://127.0.0.1:{DASHBOARD_PORT}",
            metadata_store=str(self.folder / "store"),
            python=sys.executable,
            disks=[str(self.folder)],
            simulated=True,
        )
