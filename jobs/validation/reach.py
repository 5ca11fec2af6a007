"""What a node reaches: its own name and address, the way to the others, their ports."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.interfaces import interface_of
from jobs.validation.apart import at_once
from jobs.validation.measured import Measured, Skip

CONNECT_SECONDS = 2.0


def names(request: Mapping[str, Any], measured: Measured) -> None:
    """Whether its name and address lead to where the other nodes find it."""
    address = str(request["address"])
    device = "lo" if address.startswith("127.") else interface_of(address)
    measured.facts["interface"] = device
    with contextlib.suppress(OSError, ValueError):
        measured.facts["mtu"] = int(Path(f"/sys/class/net/{device}/mtu").read_text())
    if not device:
        measured.wrong = f"no interface here has the address {address} that Ray knows it by"
        return
    away = [peer for peer in request["peers"] if not peer["address"].startswith("127.")]
    host = socket.gethostname()
    try:
        told = sorted({str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except socket.gaierror:
        measured.warned = f"its own name {host} does not resolve"
        return
    measured.facts["resolves_to"] = told
    if away and all(each.startswith("127.") or each == "::1" for each in told):
        measured.warned = f"its own name {host} leads to the loopback ({', '.join(told)}) and not to {address}"
    for peer in away:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((peer["address"], 9))
            except OSError as error:
                measured.wrong = f"no way leads from here to {peer['node']} ({peer['address']}): {error.strerror}"


def ports(request: Mapping[str, Any], measured: Measured) -> None:
    """Whether it is answered at the ports of the others: "refused" is an answer, silence is a filter."""
    tries = [(peer, port) for peer in request["peers"] for port in peer["ports"]]
    if not tries:
        raise Skip("there is no other node")
    results = dict(zip([(peer["node"], port) for peer, port in tries], at_once(
        [lambda peer=peer, port=port: _connect(peer["address"], port) for peer, port in tries], CONNECT_SECONDS + 1.0
    ), strict=True))  # fmt: skip
    silent: dict[str, list[int]] = {}
    refused: list[str] = []
    for peer, port in tries:
        result = results[peer["node"], port] or "no answer"
        if result in ("no answer", "no route"):
            silent.setdefault(peer["node"], []).append(port)
        elif result == "refused" and port in peer["must"]:
            refused.append(f"{peer['node']}:{port}")
    measured.facts["silent"] = silent
    measured.facts["tried"] = len(tries)
    if silent:
        told = "; ".join(f"{node} port {', '.join(map(str, found))}" for node, found in silent.items())
        measured.wrong = f"no answer from {told}"
    elif refused:
        measured.wrong = f"nobody listens at {', '.join(refused)}"


def _connect(address: str, port: int) -> str:
    try:
        socket.create_connection((address, port), timeout=CONNECT_SECONDS).close()
    except socket.timeout:  # noqa: UP041 - before Python 3.10 it is a class of its own
        return "no answer"
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "no route"
    return "open"
