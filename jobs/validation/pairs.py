"""Every two nodes with each other: bandwidth and latency of each link, all pairs of a round at the same time.

Each end times for itself. A link is as fast as the slower end says: a slow node starts its clock late and sees nothing.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from jobs.validation.culprit import rounds
from jobs.validation.measured import Measured

if TYPE_CHECKING:
    from jobs.validation.ranks import Group

SIZE_BYTES, CPU_SIZE_BYTES = 1 << 30, 4 << 20
FIRST_BYTES, TIMES_LARGER = 128 << 10, 4
"""Sizes grow from here by so many times, as long as one exchange takes less than `QUICK_SECONDS`: a link that is a
thousand times slower than it should be is measured too, and nobody waits for it for long."""
QUICK_SECONDS = 0.1
TIMES, PAIR_SECONDS = 15, 2.0
"""The best of so many is what a link can do; the others tell what else the machines did. A slow one gets fewer."""
PINGS, CPU_PINGS = 1000, 300


def bandwidth(group: Group, measured: Measured) -> None:
    """GB/s between this rank and that of the same number on each other node; facts: ``edges`` by the other's node."""
    edges: dict[str, float] = {}
    for other in _partners(group):
        group.line_up()
        if other is None:
            continue
        edges[_name(group, other)] = _rate(group, other)
    group.line_up()
    measured.facts["edges"] = edges


def _rate(group: Group, other: int) -> float:
    """GB/s, both ways together. The lower rank says how much is exchanged next; nothing: it is done."""
    began, size, took = time.perf_counter(), FIRST_BYTES, 0.0
    times: list[float] = []
    data = torch.empty(0, device=group.device)
    while True:
        if took < QUICK_SECONDS and len(times) > 1:  # the first one makes the connection
            size = min(size * TIMES_LARGER, _size(group))
        done = len(times) >= TIMES or (len(times) > 1 and time.perf_counter() - began > PAIR_SECONDS)
        told = torch.tensor([0 if done else size], device=group.device)
        if group.rank < other:
            dist.send(told, other)
        else:
            dist.recv(told, other)
        size = int(told.item())
        if not size:
            return 2 * data.numel() * 4 / min(times) / 1e9
        if size != data.numel() * 4:
            data = torch.full((size // 4,), float(group.rank), device=group.device)
            times.clear()
        took = _exchange(group, other, data)
        times.append(took)


def latency(group: Group, measured: Measured) -> None:
    """Microseconds for 8 bytes one way, by the other's node; facts: ``p50``, ``p99``, and ``lost``, packets sent again.

    TCP mends most losses within milliseconds, and the kernel counts them all.
    """
    p50: dict[str, float] = {}
    p99: dict[str, float] = {}
    lost: dict[str, int] = {}
    ping = torch.zeros(1, dtype=torch.int64, device=group.device)
    for other in _partners(group):
        group.line_up()
        if other is None:
            continue
        _exchange(group, other, ping)
        before = sent_again()
        times = sorted(_exchange(group, other, ping) / 2 * 1e6 for _ in range(CPU_PINGS if group.cpu else PINGS))
        p50[_name(group, other)] = median(times)
        p99[_name(group, other)] = times[int(0.99 * (len(times) - 1))]
        lost[_name(group, other)] = max(0, sent_again() - before)
    group.line_up()
    measured.facts.update(p50=p50, p99=p99, lost=lost)


def sent_again(net: Path = Path("/proc/self/net")) -> int:
    """Segments that TCP has sent again here and that were needed; 0 where the kernel does not count them.

    What the other end says that it had twice was not lost: on a busy machine an answer only comes late.
    """
    try:
        again = _counter((net / "snmp").read_text(encoding="ascii"), "Tcp:", "RetransSegs")
        twice = _counter((net / "netstat").read_text(encoding="ascii"), "TcpExt:", "TCPDSACKRecv")
    except OSError:
        return 0
    return again - twice


def _counter(text: str, group: str, name: str) -> int:
    """One number of ``/proc/net/snmp`` or ``netstat``: a line of names, below it a line of numbers."""
    lines = [line.split() for line in text.splitlines() if line.startswith(group)]
    for names, numbers in zip(lines[::2], lines[1::2], strict=False):
        if name in names:
            return int(numbers[names.index(name)])
    return 0


def _name(group: Group, rank: int) -> str:
    """What a rank's end of a link is called: its node, and within one node its GPU."""
    several = len(set(group.names)) > 1
    return group.names[rank] if several else f"{group.names[rank]}/{group.locals[rank]}"


def _partners(group: Group) -> list[int | None]:
    """Whom this rank meets in each round; None where it has to wait. Within one node: every other rank."""
    nodes = list(dict.fromkeys(group.names))
    if len(nodes) == 1:
        keys = [str(rank) for rank in range(group.world)]
        by_key = {key: int(key) for key in keys}
        mine = str(group.rank)
    else:
        keys, mine = nodes, group.names[group.rank]
        local = group.locals[group.rank]
        by_key = {group.names[rank]: rank for rank in range(group.world) if group.locals[rank] == local}
    found: list[int | None] = []
    for pairs in rounds(keys):
        other = next((a if b == mine else b for a, b in pairs if mine in (a, b)), None)
        found.append(by_key.get(other) if other is not None else None)
    return found


def _exchange(group: Group, other: int, data: torch.Tensor) -> float:
    """Seconds to send it there and to have as much from there: the lower rank begins."""
    received = torch.empty_like(data)
    began = time.perf_counter()
    if group.rank < other:
        dist.send(data, other)
        dist.recv(received, other)
    else:
        dist.recv(received, other)
        dist.send(data, other)
    group.wait()
    return time.perf_counter() - began


def _size(group: Group) -> int:
    return CPU_SIZE_BYTES if group.cpu else SIZE_BYTES
