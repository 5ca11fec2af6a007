"""The node's network ports: InfiniBand and RoCE from ``/sys/class/infiniband``, and interfaces with an address."""

from __future__ import annotations

import os
import re

from probes.files import text, whole
from probes.reading import Port

MOST_PORTS = 64
TABLES_EVERY = 6
"""In so many readings the tables of addresses are read once."""
_IB_ERRORS = ("symbol_error", "port_rcv_errors", "local_link_integrity_errors", "port_xmit_discards")
_NOT_TRAFFIC = (
    *("lo", "docker", "br-", "virbr", "vnet", "cni", "flannel", "cali", "cilium", "lxc", "kube", "nodelocaldns"),
    *("veth", "dummy", "ifb", "tun", "tap", "wg", "vxlan", "geneve", "gre", "sit", "ip6tnl"),
)
"""How the names of interfaces begin that a machine makes for itself."""
_UP = ("up", "unknown")
"""Those that have no notion of a link say "unknown" for as long as they are there."""


class Ports:
    """All ports; one that had an address once stays in the list, also when it has lost it or is gone."""

    def __init__(self, sysfs: str = "/sys", proc: str = "/proc") -> None:
        self.blind = ""
        """Why no interface could be found; empty if they were."""
        self._infiniband = os.path.join(sysfs, "class", "infiniband")
        self._net = os.path.join(sysfs, "class", "net")
        self._proc = proc
        self._known: list[str] = []
        self._rates: dict[str, float] = {}
        """Of interfaces that were up: to ask for it takes a lock of the kernel's that a stuck driver may hold."""
        self._readings = 0

    def read(self) -> list[Port]:
        """All of them as they are now. A card's firmware may keep this waiting."""
        ports = [self._port(card, number) for card in _names(self._infiniband) for number in self._numbers(card)]
        if self._readings % TABLES_EVERY == 0 or not self._known:
            self._known += [name for name in self._with_address() if name not in self._known]
        self._readings += 1
        return [*ports, *map(self._interface, self._known)][:MOST_PORTS]

    def _numbers(self, card: str) -> list[str]:
        return _names(os.path.join(self._infiniband, card, "ports"))

    def _port(self, card: str, number: str) -> Port:
        folder = os.path.join(self._infiniband, card, "ports", number)
        rate = re.match(r"([\d.]+) Gb/sec", text(os.path.join(folder, "rate")))
        errors = [whole(os.path.join(folder, "counters", name)) for name in _IB_ERRORS]
        known = [count for count in errors if count is not None]
        return Port(
            "{}/{}".format(card, number),
            text(os.path.join(folder, "state")).startswith("4:"),
            whole(os.path.join(folder, "counters", "link_downed")),
            sum(known) if known else None,
            float(rate[1]) if rate else None,
        )

    def _interface(self, name: str) -> Port:
        folder = os.path.join(self._net, name)
        errors = [whole(os.path.join(folder, "statistics", which)) for which in ("rx_errors", "tx_errors")]
        known = [count for count in errors if count is not None]
        up = text(os.path.join(folder, "operstate"), 32) in _UP
        if not up:
            self._rates.pop(name, None)
        elif name not in self._rates:
            self._rates[name] = (whole(os.path.join(folder, "speed")) or 0) / 1000.0
        return Port(
            name,
            up,
            whole(os.path.join(folder, "carrier_down_count")),
            sum(known) if known else None,
            self._rates.get(name) or None,
        )

    def _with_address(self) -> list[str]:
        """By the kernel's routing table, which knows every interface that has an address."""
        table = text(os.path.join(self._proc, "net", "route"), 1 << 16)
        six = text(os.path.join(self._proc, "net", "if_inet6"), 1 << 16)
        self.blind = "" if table or six else "the kernel shows no routes"
        found = {line.split()[0] for line in table.splitlines()[1:] if line.strip()}
        # address, index, prefix, scope (00: not of the link alone), flags, name
        found |= {fields[5] for fields in map(str.split, six.splitlines()) if len(fields) == 6 and fields[3] == "00"}
        return sorted(name for name in found if not name.startswith(_NOT_TRAFFIC))


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
