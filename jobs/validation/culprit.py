"""Who is to blame, from what several measured together: a node, a link, an uplink, a straggler. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from jobs.validationview import Culprit

Edge = tuple[str, str]
"""Two ends, in order."""
LOW, CPU_LOW = 0.7, 0.2
"""A link with less than this share of the good ones is slow. Shared processors make one vary threefold."""
ALL_BUT_A_FEW = 0.75
"""Of a node's links: where two nodes have equally many bad ones, both are to blame if it is so many of them."""
SLOWER, SLOWER_SECONDS = 1.5, 0.005
CPU_SLOWER, CPU_SLOWER_SECONDS = 2.0, 0.015
"""Who works so many times as long as the others usually do, and so much longer, is slow; on shared processors more."""


def rounds(members: Sequence[str]) -> list[list[Edge]]:
    """A tournament: every two meet once, and in each round nobody is in two pairs (the circle method)."""
    circle: list[str | None] = [*members, *([None] if len(members) % 2 else [])]
    found: list[list[Edge]] = []
    for _ in range(len(circle) - 1):
        pairs: list[Edge] = []
        for at in range(len(circle) // 2):
            a, b = circle[at], circle[-1 - at]
            if a is not None and b is not None:
                pairs.append((a, b))
        found.append(pairs)
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def score(edges: Mapping[Edge, float], low: float = LOW, reference: float | None = None) -> list[Culprit]:
    """Who makes links slow. ``edges``: a rate for each pair, the worse of both ends.

    What is good is told by ``reference``, else by the best quarter: with three nodes one bad one slows two links of
    three, and so more than half. Nodes are to blame where all their links but at most a few are slow; an uplink where
    exactly the links between two parts are; what is left are links. Of two nodes only a reference tells anything.
    """
    if not edges:
        return []
    good = sorted(edges.values())[-max(1, len(edges) // 4)] if reference is None else reference
    slow = {edge for edge, rate in edges.items() if rate < low * good}
    if not slow:
        return []
    nodes = sorted({node for edge in edges for node in edge})
    if (part := _uplink(nodes, edges, slow)) is not None:
        return [Culprit(kind="uplink", nodes=part)]
    blamed: list[str] = []
    while more := _worst_nodes(nodes, edges, slow, blamed):
        blamed += more
        slow = {edge for edge in slow if not set(more) & set(edge)}
    return [
        *(Culprit(kind="node", nodes=[node]) for node in blamed),
        *(Culprit(kind="link", nodes=list(edge)) for edge in sorted(slow)),
    ]


def _worst_nodes(
    nodes: Sequence[str], edges: Mapping[Edge, float], slow: set[Edge], blamed: Sequence[str]
) -> list[str]:
    """Those with the most slow links beside those of the ``blamed``, if that makes them the culprits."""
    degrees = {node: sum(node in edge for edge in slow) for node in nodes}
    most = max(degrees.values())
    worst = [node for node in nodes if degrees[node] == most]
    of_each = min(sum(node in edge and not set(blamed) & set(edge) for edge in edges) for node in worst)
    share = 0.5 if len(worst) == 1 else ALL_BUT_A_FEW
    if most < 2 or most < share * of_each or (len(blamed) + len(worst)) * 2 > max(3, len(nodes)):
        return []  # what is bad about most of them is bad about none
    return worst


def _uplink(nodes: Sequence[str], edges: Mapping[Edge, float], slow: set[Edge]) -> list[str] | None:
    """The smaller part, where exactly the links between two parts of two or more nodes are slow."""
    part, reached = {nodes[0]}, [nodes[0]]
    while reached:  # all that the first node still reaches by links that are good
        at = reached.pop()
        for edge in edges:
            if at in edge and edge not in slow:
                other = edge[0] if edge[1] == at else edge[1]
                if other not in part:
                    part.add(other)
                    reached.append(other)
    rest = set(nodes) - part
    crossing = {edge for edge in edges if (edge[0] in part) != (edge[1] in part)}
    if len(part) < 2 or len(rest) < 2 or crossing != slow:
        return None
    return sorted(min(part, rest, key=lambda side: (len(side), sorted(side))))


def straggler(
    compute: Mapping[str, Sequence[float]], waiting: Mapping[str, Sequence[float]], cpu: bool = False
) -> tuple[str, str] | None:
    """Who works longest and waits least, with the sentence; None where nobody stands out.

    Args:
        compute: Seconds that each spent on its own work, by turn.
        waiting: And then waiting for the others.
        cpu: It was done by processors that others use too.
    """
    both = [name for name, seconds in compute.items() if seconds and waiting.get(name)]
    if len(both) < 2:
        return None
    works = {name: median(compute[name]) for name in both}
    waits = {name: median(waiting[name]) for name in both}
    slow = max(works, key=lambda name: works[name])
    others = median(value for name, value in works.items() if name != slow)
    times, more = (CPU_SLOWER, CPU_SLOWER_SECONDS) if cpu else (SLOWER, SLOWER_SECONDS)
    if works[slow] < times * others or works[slow] - others < more:
        return None
    if waits[slow] > min(waits.values()):
        return None  # somebody else waits less: what it did was not what the others waited for
    told = (
        f"{slow} works {works[slow] * 1000:.1f} ms a turn, the others {others * 1000:.1f} ms; "
        f"it waits {waits[slow] * 1000:.1f} ms"
    )
    return slow, told
