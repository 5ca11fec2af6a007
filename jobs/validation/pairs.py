"""Every two nodes with each other: bandwidth and latency of each link, all pairs of a round at the same time.

Each end times for itself. A link is as fast as the slower end says: a slow node starts its clock late and sees nothing.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from jobs.validation.culprit import rounds
from jobs.validation.measured import Measured

if TYPE_CHECKING:
    from jobs.validation.ranks import Group

SIZE_BYTES, CPU_SIZE_BYTES = 1 << 30, 4 << 20
PROBE_BYTES = 128 << 10
"""Sent first. A link that needs `SLOW_SECONDS` for it is timed with no more than that."""
SLOW_SECONDS = 0.25
TIMES = 15
"""The best of so many is what a link can do; the others tell what else the machines did."""
PINGS, CPU_PINGS = 200, 100


def bandwidth(group: Group, measured: Measured) -> None:
    """GB/s between this rank and that of the same number on each other node; facts: ``edges`` by the other's node."""
    edges: dict[str, float] = {}
    for other in _partners(group):
        group.line_up()
        if other is None:
            continue
        probe = torch.ones(PROBE_BYTES // 4, device=group.device)
        took = _exchange(group, other, probe)
        took = _exchange(group, other, probe)  # the first one made the connection
        size = torch.tensor([PROBE_BYTES if took > SLOW_SECONDS else _size(group)], device=group.device)
        # The lower rank decides for both.
        if group.rank < other:
            dist.send(size, other)
        else:
            dist.recv(size, other)
        data = torch.full((int(size.item()) // 4,), float(group.rank), device=group.device)
        times = [_exchange(group, other, data) for _ in range(1 if int(size.item()) == PROBE_BYTES else TIMES)]
        edges[_name(group, other)] = 2 * int(size.item()) / min(times) / 1e9
    group.line_up()
    measured.facts["edges"] = edges


def latency(group: Group, measured: Measured) -> None:
    """Microseconds for 8 bytes one way, by the other's node; facts: ``p50`` and ``p99``."""
    p50: dict[str, float] = {}
    p99: dict[str, float] = {}
    ping = torch.zeros(1, dtype=torch.int64, device=group.device)
    for other in _partners(group):
        group.line_up()
        if other is None:
            continue
        _exchange(group, other, ping)
        times = sorted(_exchange(group, other, ping) / 2 * 1e6 for _ in range(CPU_PINGS if group.cpu else PINGS))
        p50[_name(group, other)] = median(times)
        p99[_name(group, other)] = times[int(0.99 * (len(times) - 1))]
    group.line_up()
    measured.facts.update(p50=p50, p99=p99)


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
