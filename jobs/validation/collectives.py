"""Collectives, checked to the last element, and their bandwidth as nccl-tests counts it.

Every rank gives values that depend on the rank and on the position, so that a swapped or shifted part is seen; all of
them are whole numbers that every type here holds exactly, so that right means equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from jobs.validation.measured import Measured

if TYPE_CHECKING:
    from jobs.validation.ranks import Group

TYPES = (torch.float32, torch.bfloat16, torch.int64)
SIZES = (1, 1023, 262_144, 16_777_216)
"""Elements of a rank's part; an odd one, since real buffers are seldom even."""
CPU_SIZES = (1, 1023, 65_536)
SWEEP_BYTES = (8, 1 << 20, 256 << 20, 4 << 30)
CPU_SWEEP_BYTES = (1024, 1 << 20, 8 << 20)
WARM_UP, TIMED = 5, 20
CPU_WARM_UP, CPU_TIMED = 1, 5
STABLE_SECONDS, CPU_STABLE_SECONDS = 60.0, 4.0
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or getattr(dist, "reduce_scatter_tensor")  # noqa: B009
"""Its name since torch 2.13, and before."""
_BFLOAT16_EXACT = 256
"""Whole numbers up to this are exact in bfloat16."""


def part(rank: int, count: int, kind: torch.dtype, device: torch.device, start: int = 0) -> torch.Tensor:
    """What a rank gives: 0, 1 or 2 at each position, another row for each rank. Shape ``(count,)``."""
    at = torch.arange(start, start + count, device=device)
    return ((7 * at + rank) % 3).to(kind)


def all_reduce_bus_bytes(size: int, world: int) -> float:
    """How many bytes each rank's bus moves for an all_reduce of ``size`` bytes (nccl-tests, PERFORMANCE.md)."""
    return 2 * (world - 1) / world * size


def exact(group: Group, measured: Measured) -> None:
    """Every collective, in several types and sizes, against what must come out."""
    wrong: list[str] = []
    tried = 0
    for kind in TYPES:
        if kind is torch.bfloat16 and 2 * group.world > _BFLOAT16_EXACT:
            continue
        for count in CPU_SIZES if group.cpu else SIZES[: 3 if group.quick else 4]:
            for name, got, wanted in _collectives(group, count, kind):
                tried += 1
                if (sentence := _difference(got, wanted)) and len(wrong) < 20:
                    wrong.append(f"{name} of {count} {str(kind).removeprefix('torch.')}: {sentence}")
    measured.facts["tried"] = tried
    if wrong:
        measured.wrong, measured.evidence = f"{wrong[0]} (on rank {group.rank})", wrong


def _collectives(group: Group, count: int, kind: torch.dtype) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Each collective's name, what came out, and what should have."""
    rank, world, device = group.rank, group.world, group.device
    parts = [part(each, count, kind, device) for each in range(world)]
    rows = torch.stack(parts)
    found: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    reduced = parts[rank].clone()
    dist.all_reduce(reduced)
    found.append(("all_reduce sum", reduced, rows.sum(0).to(kind)))
    largest = parts[rank].clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    found.append(("all_reduce max", largest, rows.amax(0)))

    gathered = [torch.empty_like(parts[0]) for _ in range(world)]
    dist.all_gather(gathered, parts[rank])
    found.append(("all_gather", torch.cat(gathered), torch.cat(parts)))

    whole = part(rank, count * world, kind, device)
    share = torch.empty_like(parts[0])
    _reduce_scatter(share, whole)
    wholes = torch.stack([part(each, count, kind, device, start=rank * count) for each in range(world)])
    found.append(("reduce_scatter", share, wholes.sum(0).to(kind)))

    for root in range(world):
        sent = parts[rank].clone() if rank == root else torch.zeros_like(parts[0])
        dist.broadcast(sent, root)
        found.append((f"broadcast from rank {root}", sent, parts[root]))

    given = torch.cat([part(rank * world + to, count, kind, device) for to in range(world)])
    taken = torch.empty_like(given)
    dist.all_to_all_single(taken, given)
    wanted = torch.cat([part(each * world + rank, count, kind, device) for each in range(world)])
    found.append(("all_to_all", taken, wanted))

    received = torch.empty_like(parts[0])
    before, after = (rank - 1) % world, (rank + 1) % world
    # Even ranks send first: a ring in which all send first would wait for itself.
    steps: list[Callable[[], object]] = [lambda: dist.send(parts[rank], after), lambda: dist.recv(received, before)]
    for step in steps if rank % 2 == 0 else reversed(steps):
        step()
    found.append((f"send to rank {after}, from rank {before}", received, parts[before]))
    return found


def _difference(got: torch.Tensor, wanted: torch.Tensor) -> str:
    """How far it is from what it should be; empty where it is equal."""
    unequal = (got != wanted).nonzero().flatten()
    if not len(unequal):
        return ""
    first = int(unequal[0])
    return (
        f"{len(unequal)} of {got.numel()} elements are wrong, the first at {first}: "
        f"{got[first].item():g}, not {wanted[first].item():g}"
    )


def sweep(group: Group, measured: Measured) -> None:
    """The bus bandwidth of all_reduce over sizes, and the latency of the smallest; the last result is checked."""
    kind = torch.float32 if group.cpu else torch.bfloat16
    width = 4 if group.cpu else 2
    curve: dict[str, float] = {}
    for size in CPU_SWEEP_BYTES if group.cpu else SWEEP_BYTES[: 3 if group.quick else 4]:
        count = max(1, size // width)
        data = part(group.rank, count, kind, group.device)
        seconds = _timed(group, lambda data=data: dist.all_reduce(data, op=dist.ReduceOp.MAX))
        slowest = [max(each) for each in zip(*group.gathered(seconds), strict=True)]
        rates = [all_reduce_bus_bytes(size, group.world) / each / 1e9 for each in slowest]
        curve[str(size)] = median(rates)
        if size == (CPU_SWEEP_BYTES if group.cpu else SWEEP_BYTES)[0]:
            measured.figures["all_reduce_latency"] = [each * 1e6 for each in slowest]
        else:
            measured.figures["all_reduce"] = rates
        if sentence := _difference(data, _largest(group, count, kind)):
            measured.wrong = f"all_reduce of {size} bytes: {sentence}"
    measured.facts["curve"] = curve


def _largest(group: Group, count: int, kind: torch.dtype) -> torch.Tensor:
    found = part(0, count, kind, group.device)
    for rank in range(1, min(3, group.world)):  # the pattern repeats after three ranks
        found = torch.maximum(found, part(rank, count, kind, group.device))
    return found


def stability(group: Group, measured: Measured) -> None:
    """The same all_reduce over a while: how much slower the slowest ones are."""
    seconds = CPU_STABLE_SECONDS if group.cpu else STABLE_SECONDS
    data = part(group.rank, (1 << 20 if group.cpu else 256 << 20) // 4, torch.float32, group.device)
    once = median(_timed(group, lambda: dist.all_reduce(data, op=dist.ReduceOp.MAX)))
    # All ranks have to stop after the same one, so their number is agreed on before.
    count = min(int(x) for x in group.gathered(min(5000, max(20, seconds / max(once, 1e-6)))))
    times: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        dist.all_reduce(data, op=dist.ReduceOp.MAX)
        group.wait()
        times.append(time.perf_counter() - began)
    slowest = sorted(max(each) for each in zip(*group.gathered(times), strict=True))
    measured.figures["jitter"] = [slowest[int(0.99 * (len(slowest) - 1))] / median(slowest)]
    measured.facts["iterations"] = count


def _timed(group: Group, work: Callable[[], object]) -> list[float]:
    """Seconds of each call on this rank, after some that do not count."""
    for _ in range(CPU_WARM_UP if group.cpu else WARM_UP):
        work()
    group.wait()
    dist.barrier()
    found: list[float] = []
    for _ in range(CPU_TIMED if group.cpu else TIMED):
        began = time.perf_counter()
        work()
        group.wait()
        found.append(time.perf_counter() - began)
    return found
