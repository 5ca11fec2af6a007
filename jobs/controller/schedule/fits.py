"""Whether a run could ever start here, however long it waited."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.controller.schedule.pool import large_enough
from jobs.controller.schedule.quotas import queue_quota, user_quota
from jobs.controller.schedule.types import Demand, Room
from jobs.spec import Scheduler

SHOWN = 3


def never(demand: Demand, rules: Scheduler, queue: str, user: str, rooms: Sequence[Room] | None) -> str:
    """Why it never can, in words; empty if it can, or if Ray does not tell its nodes. Cordons may be taken back."""
    for quota, whose in (
        (queue_quota(rules, queue), f"queue {queue}"),
        (user_quota(rules, user), f"user {user}"),
    ):
        if quota is not None and demand.accelerators > quota:
            return f"it asks for {accelerators(demand.accelerators)}, and the quota of {whose} is {quota}"
    if rooms is None:
        return ""
    able = sum(large_enough(room, demand) for room in rooms)
    if able >= demand.nodes:
        return ""
    unable = [f"{room.name}: {lack(room, demand)}" for room in rooms if not large_enough(room, demand)]
    shown = "; ".join(unable[:SHOWN]) + (f"; and {len(unable) - SHOWN} more" if len(unable) > SHOWN else "")
    return f"it needs {wanted(demand)}, and of the cluster's {len(rooms)} only {able} can ever hold that" + (
        f" ({shown})" if shown else ""
    )


def lack(room: Room, demand: Demand) -> str:
    """What keeps its part of the run off this node for good; empty if nothing."""
    for name, value in demand.labels:
        has = room.labels.get(name)
        if has != value:
            return f"its label {name} is {has}, not {value}" if has else f"it has no label {name}"
    for name, asked in (("GPU", demand.gpus), ("CPU", demand.cpus)):
        has = room.total.get(name, 0.0)
        if asked > has + 1e-6:
            return f"it has {count(has, name)}, not {asked:g}"
    has = room.total.get("memory", 0.0)
    if demand.memory_bytes > has:
        return f"it has {has / 1e9:.3g} GB of memory, not {demand.memory_bytes / 1e9:.3g}"
    return ""


def wanted(demand: Demand) -> str:
    """``2 nodes with 4 GPUs and 8 CPUs each``."""
    parts = [count(demand.gpus, "GPU")] if demand.gpus else []
    if demand.cpus:
        parts.append(count(demand.cpus, "CPU"))
    if demand.memory_bytes:
        parts.append(f"{demand.memory_bytes / 1e9:.3g} GB of memory")
    if demand.labels:
        parts.append(", ".join(f"{name}={value}" for name, value in demand.labels))
    asked = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else "nothing"
    return f"{count(demand.nodes, 'node')} with {asked}{' each' if demand.nodes > 1 else ''}"


def count(amount: float, what: str) -> str:
    """``1 node``, ``2 nodes``, ``0.5 GPUs``."""
    return f"{amount:g} {what}" if amount == 1 else f"{amount:g} {what}s"


def accelerators(amount: float) -> str:
    """``1 accelerator``, ``8 accelerators``."""
    return count(amount, "accelerator")
