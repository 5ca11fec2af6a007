"""Figures that compare: a GPU with its peers in the run, a node with the others like it. Over the whole fleet at once.

Both write into what they are given; call them on what `NodeMeasures.seen` returned, before the rules are judged.
"""

from __future__ import annotations

from collections import Counter
from typing import Collection, Dict, Iterable, List, Sequence, Tuple

from probes.health.gpus import LOAD, USUAL_WATTS, WATTS
from probes.health.rule import Measure, Missing, Seen
from probes.reading import ERROR, UNSUPPORTED

LEAST_PEERS = 3
NOTABLE_SHARE = 0.95
"""No rule asks about a GPU that does more than this share of what its peers do."""
BUSY_PERCENT = 80.0
USUAL_SHARE = 0.75
"""Peers that draw less than this share of their usual power wait for something, as while a checkpoint is written."""

_TOO_FEW = Missing(UNSUPPORTED, "its run has too few GPUs to compare with")
_UNKNOWN = Missing(ERROR, "its utilisation or power is not known")

_VERSIONS = (
    ("node_driver_minority", "node_driver_version"),
    ("node_kernel_minority", "node_kernel"),
)


def peers(seen: Iterable[Seen], pausing: Collection[str] = ()) -> None:
    """Add ``gpu_peer_share`` and ``gpu_peers_busy`` to each GPU that works for a run.

    ``pausing``: runs of which it is known that they save or evaluate: one rank may be alone at work there.
    """
    runs: Dict[str, List[Seen]] = {}
    for each in seen:
        entity = each.entity
        if entity.kind == "gpu" and entity.run:
            runs.setdefault(entity.run, []).append(each)
    for run, gpus in runs.items():
        _compare(gpus, run in pausing)


def majority(seen: Iterable[Seen]) -> None:
    """Add ``node_driver_minority`` and ``node_kernel_minority`` to nodes; those with the same GPUs vote together."""
    groups: Dict[str, List[Seen]] = {}
    for each in seen:
        if each.entity.kind == "node" and "node_kernel" in each.details:
            groups.setdefault(each.details.get("node_accelerator", ""), []).append(each)
    for nodes in groups.values():
        for measure, name in _VERSIONS:
            _vote(nodes, measure, name)


def _compare(gpus: Sequence[Seen], pausing: bool) -> None:
    known: List[Tuple[Seen, float, float]] = []
    usual: List[float] = []
    for gpu in gpus:
        figures = gpu.beside
        load, watts = figures.get(LOAD), figures.get(WATTS)
        gpu.measures["gpu_peers_busy"] = 0
        gpu.measures["gpu_peer_share"] = _TOO_FEW if load is not None and watts is not None else _UNKNOWN
        if load is None or watts is None:
            continue
        known.append((gpu, load, watts))
        mean = figures.get(USUAL_WATTS)
        if mean:
            usual.append(watts / mean)
    if pausing or len(known) <= LEAST_PEERS or not usual:
        return
    usual.sort()
    at_work = usual[len(usual) // 2] >= USUAL_SHARE
    loads, powers = sorted(load for _, load, _ in known), sorted(watts for _, _, watts in known)
    for gpu, load, watts in known:
        other_load, other_watts = _median_without(loads, load), _median_without(powers, watts)
        busy = at_work and other_load >= BUSY_PERCENT
        gpu.measures["gpu_peers_busy"] = int(busy)
        share: Measure = _UNKNOWN
        if other_load > 0 and other_watts > 0:
            share = min(load / other_load, watts / other_watts)
        gpu.measures["gpu_peer_share"] = share
        if busy and not isinstance(share, Missing) and share < NOTABLE_SHARE:
            gpu.calm = False
            gpu.details["gpu_peer_share"] = "{:.0f} % and {:.0f} W; the others {:.0f} % and {:.0f} W".format(
                load, watts, other_load, other_watts
            )


def _median_without(figures: Sequence[float], one: float) -> float:
    """The median of the others, in a sorted list that holds ``one``."""
    count = len(figures) - 1
    middle = count // 2

    def other(place: int) -> float:
        # What stands behind the one that is left out moves up by one.
        return figures[place] if figures[place] < one else figures[place + 1]

    return other(middle) if count % 2 else (other(middle - 1) + other(middle)) / 2


def _vote(nodes: Sequence[Seen], measure: str, name: str) -> None:
    votes = Counter(node.details[name] for node in nodes if node.details[name])
    most, count = votes.most_common(1)[0] if votes else ("", 0)
    decided = 2 * count > sum(votes.values())
    for node in nodes:
        here = node.details[name]
        differs = decided and bool(here) and here != most
        node.measures[measure] = int(differs)
        if differs:
            node.calm = False
            node.details[measure] = "{} here, {} on {} of {} nodes".format(here, most, count, sum(votes.values()))
