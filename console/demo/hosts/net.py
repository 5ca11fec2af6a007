"""The network that the hosts are on: a bridge, a pair of devices for each host, and what may go wrong with them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Generator

from jobs.errors import Refused

COMMAND_SECONDS = 20.0
NEEDED = ("ip", "unshare", "nsenter", "mount", "sshd", "ssh-keygen")
PREFIX = "rd"


def why_not() -> str:
    """What is missing for hosts on this machine; empty if nothing is."""
    if not sys.platform.startswith("linux"):
        return "hosts on one machine need Linux's namespaces"
    if os.getuid() != 0:
        return "hosts on one machine are made by root"
    missing = [name for name in NEEDED if find(name) is None]
    return f"not installed: {', '.join(missing)} (iproute2, util-linux, openssh-server)" if missing else ""


def find(name: str) -> str | None:
    """A program, also where only root looks for it."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def run(*command: str) -> str:
    """What a command prints. Raises `Refused` with what it complains about."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Refused(f"{' '.join(command)}: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout


class Network:
    """A bridge with a network of its own; this machine has the address that ends in 254."""

    def __init__(self, stamp: str) -> None:
        """``stamp``: six hexadecimal digits that tell this network's devices from all others."""
        self.stamp = stamp
        self.bridge = f"{PREFIX}{stamp}"
        self.network = ""

    @property
    def outside(self) -> str:
        """This machine's address in it."""
        return f"{self.network}.254"

    def up(self) -> None:
        """Make the bridge, on a network that nobody uses here."""
        routes = json.loads(run("ip", "-j", "-4", "route", "show", "table", "all"))
        used = {str(route.get("dst", "")) for route in routes}
        while True:
            self.network = f"10.{64 + secrets.randbelow(64)}.{secrets.randbelow(256)}"
            if not any(each.startswith(f"{self.network}.") for each in used):
                break
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self.outside}/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")

    def add(self, number: int) -> Link:
        """A host's place in it, with an address of its own; there is no route to anywhere else."""
        link = Link(f"{self.bridge}-{number}", f"{self.bridge}v{number}", f"{self.network}.{10 + number}")
        run("ip", "netns", "add", link.namespace)
        run("ip", "link", "add", link.device, "type", "veth", "peer", "name", "eth0", "netns", link.namespace)
        run("ip", "link", "set", link.device, "master", self.bridge, "up")
        run("ip", "-n", link.namespace, "addr", "add", f"{link.address}/24", "dev", "eth0")
        run("ip", "-n", link.namespace, "link", "set", "lo", "up")
        run("ip", "-n", link.namespace, "link", "set", "eth0", "up")
        return link

    def down(self) -> None:
        """Take all of it away, however much of it there is."""
        take_down(self.stamp)


def take_down(stamp: str) -> None:
    """End what runs in the namespaces of this stamp, and remove them and their devices."""
    bridge = f"{PREFIX}{stamp}"
    for line in run("ip", "netns", "list").splitlines():
        name = line.split()[0] if line.split() else ""
        if not name.startswith(f"{bridge}-"):
            continue
        for pid in run("ip", "netns", "pids", name).split():
            with contextlib.suppress(Refused):
                run("kill", "-9", pid)
        run("ip", "netns", "del", name)
    for link in json.loads(run("ip", "-j", "link")):
        # The kernel takes the other ends away by itself, some time after.
        if link["ifname"].startswith(f"{bridge}v"):
            with contextlib.suppress(Refused):
                run("ip", "link", "del", link["ifname"])
    if any(link["ifname"] == bridge for link in json.loads(run("ip", "-j", "link"))):
        run("ip", "link", "del", bridge)


class Link:
    """A host's place in the network, and its faults. Each fault is there until its context ends."""

    def __init__(self, namespace: str, device: str, address: str) -> None:
        self.namespace = namespace
        self.device = device
        """The end of the cable that this machine holds."""
        self.address = address

    def inside(self, *command: str) -> str:
        """Run a command in the host's network."""
        return run("ip", "netns", "exec", self.namespace, *command)

    @contextlib.contextmanager
    def cut(self) -> Generator[None]:
        """Pull the cable: nothing comes through, and nobody is told."""
        run("ip", "link", "set", self.device, "down")
        try:
            yield
        finally:
            run("ip", "link", "set", self.device, "up")

    @contextlib.contextmanager
    def slow(self, kilobits: int) -> Generator[None]:
        """Let only so many kilobits a second through, each way."""
        limit = ("root", "tbf", "rate", f"{kilobits}kbit", "burst", "16kb", "latency", "400ms")
        run("tc", "qdisc", "replace", "dev", self.device, *limit)
        self.inside("tc", "qdisc", "replace", "dev", "eth0", *limit)
        try:
            yield
        finally:
            run("tc", "qdisc", "del", "dev", self.device, "root")
            self.inside("tc", "qdisc", "del", "dev", "eth0", "root")

    @contextlib.contextmanager
    def refuse(self, port: int) -> Generator[None]:
        """Answer connections to a port with a refusal, as if nobody listened."""
        with self._rule("-p", "tcp", "--dport", str(port), "-j", "REJECT", "--reject-with", "tcp-reset"):
            yield

    @contextlib.contextmanager
    def drop(self, port: int | None = None, share: float = 1.0) -> Generator[None]:
        """Lose packets that come in: of one port or of all, all of them or a share."""
        which = ("-p", "tcp", "--dport", str(port)) if port is not None else ()
        some = ("-m", "statistic", "--mode", "random", "--probability", f"{share:g}") if share < 1 else ()
        with self._rule(*which, *some, "-j", "DROP"):
            yield

    @contextlib.contextmanager
    def _rule(self, *rule: str) -> Generator[None]:
        self.inside("iptables", "-I", "INPUT", *rule)
        try:
            yield
        finally:
            self.inside("iptables", "-D", "INPUT", *rule)
