"""What the rules are to judge besides the nodes' figures: Ray's view of the nodes, runs, queues, the cluster itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jobs.controller.health.courses import GpuNow
from jobs.controller.health.fleet import WatchedFleet
from jobs.controller.nodes.identity import Known
from jobs.model import Run
from jobs.queueview import QueueView
from jobs.spec import Cluster
from probes.health.rule import Entity, Seen
from probes.reading import ERROR, Missing

ROOM_KINDS = frozenset({"resources", "order"})
"""Reasons to wait that have to do with room: who waits for a quota or for a person does not wait in vain."""

LEAST_WAITS = 5
SHORT_WAIT_SECONDS = 60.0
"""Waits below this are all the same."""


def placed(runs: Iterable[Run], names: Mapping[str, str], over: bool = False) -> dict[str, dict[int, str]]:
    """By node: the index of each GPU that a run holds (or held, with ``over``), and that run.

    ``names``: Ray's node ids to names.
    """
    found: dict[str, dict[int, str]] = {}
    for run in runs:
        attempt = run.attempt
        if attempt is None or attempt.status is None or run.state.waiting or run.state.ended is not over:
            continue
        for rank in attempt.status.ranks:
            name = names.get(rank.node_id)
            for index in _indexes(rank.gpu) if name is not None else ():
                found.setdefault(name or "", {})[index] = run.id
    return found


def gpus_now(fleet: WatchedFleet, placed_runs: Mapping[str, Mapping[int, str]]) -> dict[str, list[GpuNow]]:
    """By run: its GPUs as they are at this moment; a run with one that is not known is left out."""
    found: dict[str, list[GpuNow]] = {}
    unknown: set[str] = set()
    for name, on in placed_runs.items():
        node = fleet.nodes.get(name)
        for index, run in on.items():
            if node is None or node.sample is None or node.sample.devices_age_seconds > 0:
                unknown.add(run)
                continue
            used, power = node.sample.reading(index, "utilization_percent"), node.sample.reading(index, "power_watts")
            if isinstance(used, (Missing, str)):
                unknown.add(run)
                continue
            found.setdefault(run, []).append(GpuNow(used, None if isinstance(power, (Missing, str)) else power))
    return {run: gpus for run, gpus in found.items() if run not in unknown}


def expected_gpus(cluster: Cluster, known: Mapping[str, Known]) -> dict[str, int]:
    """By node: the GPUs that the cluster file says it has; else those that Ray was started with."""
    said = {node.host: node.accelerators for node in cluster.worker_nodes}
    found: dict[str, int] = {}
    for name, node in known.items():
        there = said.get(name) or (said.get(node.ref.address) if node.ref.address else None)
        if there is None and node.node is not None:
            there = int(node.node.resources_total.get("GPU", 0.0))
        if there is not None:
            found[name] = there
    return found


def wait_with_room(queue: QueueView | None) -> list[str]:
    """Runs that wait though as many GPUs are free as they need."""
    if queue is None or queue.free_accelerators is None:
        return []
    free = queue.free_accelerators
    return [
        each.run
        for each in queue.waiting
        if each.kind in ROOM_KINDS and each.gpus <= free and each.position is not None
    ]


def queues(queue: QueueView | None, waited: Mapping[str, Sequence[float]], now: float) -> list[Seen]:
    """Each queue: how long those wait that are in it now, against what was usual there. ``waited``: by queue."""
    if queue is None:
        return []
    waiting: dict[str, list[float]] = {}
    for each in queue.waiting:
        if each.position is not None:
            waiting.setdefault(each.queue, []).append(now - each.since)
    found: list[Seen] = []
    for use in queue.queues:
        seen = Seen(Entity("queue", use.name))
        usual = waited.get(use.name, ())
        if len(usual) < LEAST_WAITS:
            seen.measures["queue_wait_share"] = Missing(ERROR, "what is usual there is not known yet")
        else:
            long = _ninety_fifth(waiting.get(use.name, [0.0]))
            median = max(SHORT_WAIT_SECONDS, _ninety_fifth(usual))
            seen.measures["queue_wait_share"] = long / median
            seen.details["queue_wait_share"] = f"{use.waiting} wait, for up to {long:.0f} s; usually {median:.0f} s"
        found.append(seen)
    return found


def _ninety_fifth(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def _indexes(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip().isdigit()]
