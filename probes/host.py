"""The machine itself, from ``/proc``: processor, memory, network. What the kernel does not tell is None."""

from __future__ import annotations

import contextlib
import os
import sys

from probes.reading import Facts, Host

SHORTEST_WINDOW_SECONDS = 0.2
"""Rates over less than this are noise: the kernel counts processor time in hundredths of a second."""

_NOT_PHYSICAL = (
    *(
        "lo",
        "veth",
        "docker",
        "br-",
        "virbr",
        "vnet",
        "cni",
        "flannel",
        "cali",
        "cilium",
        "lxc",
        "kube",
        "nodelocaldns",
    ),
    *("tun", "tap", "wg", "dummy", "ifb", "vxlan", "geneve", "gre", "sit", "ip6tnl"),
    # What a bond or a VLAN carries is counted at the interfaces below it.
    *("bond", "team", "vlan"),
)
"""How the names of interfaces begin that carry no traffic of their own."""


class HostReader:
    """Reads the machine; rates are over the last window of at least `SHORTEST_WINDOW_SECONDS`."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._files: dict[str, int] = {}
        self._at = 0.0
        self._cpu: tuple[int, int] | None = None
        self._network: dict[str, tuple[int, int]] = {}
        self._rates: tuple[float | None, float | None, float | None] = (None, None, None)

    def facts(self) -> Facts:
        """The machine's part of what a node is."""
        system = os.uname()
        return Facts(
            hostname=system.nodename,
            machine_id=_first_line("/etc/machine-id"),
            kernel=system.release,
            python="{}.{}.{}".format(*sys.version_info[:3]),
            cpu_count=os.cpu_count() or 0,
            memory_total_bytes=memory_total_bytes(self._proc) or 0,
            boot_wall=_boot_wall(self._read("stat", 1 << 20)),
        )

    def read(self, now: float) -> Host:
        """The machine at this moment (monotonic seconds). Rates are None in the first reading, which has no before."""
        host = Host()
        with contextlib.suppress(IndexError, ValueError):
            host.load_1m = float(self._read("loadavg", 128).split()[0])
        memory = parse_meminfo(self._read("meminfo", 512))
        total, available = memory.get("MemTotal"), memory.get("MemAvailable")
        host.memory_total_bytes = total
        if total is not None and available is not None:
            host.memory_used_bytes = total - available
        if not self._at or now - self._at >= SHORTEST_WINDOW_SECONDS:
            self._rate(now)
        host.cpu_percent, host.network_receive_bytes_per_second, host.network_send_bytes_per_second = self._rates
        return host

    def _rate(self, now: float) -> None:
        """Begin a new window, and work out the one that ends here."""
        elapsed = now - self._at
        cpu, network = parse_cpu(self._read("stat", 512)), parse_network(self._read("net/dev", 65536))
        busy = received = sent = None
        if self._at:
            if cpu is not None and self._cpu is not None and cpu[1] > self._cpu[1]:
                share = (cpu[0] - self._cpu[0]) / (cpu[1] - self._cpu[1])
                busy = round(min(max(share, 0.0), 1.0) * 100.0, 1)
            if network:
                moved = _moved(self._network, network)
                received, sent = round(moved[0] / elapsed, 1), round(moved[1] / elapsed, 1)
        self._rates = (busy, received, sent)
        self._at, self._cpu, self._network = now, cpu, network

    def close(self) -> None:
        """Close what is kept open."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def _read(self, name: str, size: int) -> bytes:
        # Kept open and read anew from its start each time: half the cost of opening it every second.
        try:
            fd = self._files.get(name)
            if fd is None:
                fd = self._files[name] = os.open(os.path.join(self._proc, name), os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(fd, size, 0)
        except OSError:
            return b""


def parse_cpu(stat: bytes) -> tuple[int, int] | None:
    """``/proc/stat``: (busy, all) in clock ticks over all processors."""
    head, _, rest = stat.partition(b" ")
    if head != b"cpu":
        return None
    try:
        # user nice system idle iowait irq softirq steal; guest time is in user already
        ticks = [int(field) for field in rest.split(b"\n", 1)[0].split()[:8]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
    except (IndexError, ValueError):
        return None


def parse_meminfo(text: bytes) -> dict[str, int]:
    """``/proc/meminfo``: the first lines, in bytes."""
    found: dict[str, int] = {}
    for line in text.split(b"\n", 8)[:8]:
        name, _, rest = line.partition(b":")
        fields = rest.split()
        if len(fields) == 2 and fields[0].isdigit() and fields[1] == b"kB":
            found[name.decode("ascii", "replace")] = int(fields[0]) * 1024
    return found


def parse_network(text: bytes) -> dict[str, tuple[int, int]]:
    """``/proc/net/dev``: bytes (received, sent) of each interface that is, or stands for, a physical one."""
    found: dict[str, tuple[int, int]] = {}
    for line in text.split(b"\n")[2:]:
        name, colon, rest = line.partition(b":")
        interface = name.strip().decode("ascii", "replace")
        fields = rest.split()
        if not colon or len(fields) < 9 or interface.startswith(_NOT_PHYSICAL) or "." in interface:
            continue
        if fields[0].isdigit() and fields[8].isdigit():
            found[interface] = int(fields[0]), int(fields[8])
    return found


def memory_total_bytes(proc: str = "/proc") -> int | None:
    """The machine's memory; None where the kernel does not tell."""
    try:
        with open(os.path.join(proc, "meminfo"), "rb") as file:
            return parse_meminfo(file.read(512)).get("MemTotal")
    except OSError:
        return None


def _moved(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> tuple[int, int]:
    received = sent = 0
    for name, (now_received, now_sent) in after.items():
        was_received, was_sent = before.get(name, (now_received, now_sent))
        # A counter that went back belongs to an interface that was made anew.
        received += max(now_received - was_received, 0)
        sent += max(now_sent - was_sent, 0)
    return received, sent


def _boot_wall(stat: bytes) -> float:
    at = stat.find(b"\nbtime ")
    return float(stat[at + 7 :].split(None, 1)[0]) if at >= 0 else 0.0


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""
