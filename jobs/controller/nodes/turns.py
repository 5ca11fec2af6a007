"""How much may be away at a time: whose turn it is in a drain of several nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jobs.controller.nodes.drainstep import Budget
from jobs.controller.nodes.plan import Target
from jobs.controller.nodes.state import Nodes
from jobs.controller.schedule.types import Room, Situation
from jobs.errors import Refused
from jobs.nodeview import DrainPolicy


def budget(nodes: Nodes, rooms: Iterable[Room], policy: DrainPolicy) -> Budget:
    """What may still go away at this moment. What is held already counts, but for nodes that wait for their turn."""
    left = Budget()
    rooms = list(rooms)
    away = [room for room in rooms if room.cordoned]
    there = {room.name for room in rooms}
    # A node that was drained and has left Ray since is away all the more.
    gone = {ref.name for ref in nodes.table.refs() if ref.name not in there and nodes.table.kept(ref.name).cordoned}
    if policy.most_nodes is not None:
        left.nodes = policy.most_nodes - len(away) - len(gone)
    if policy.most_share is not None:
        lost = sum(_last_gpus(nodes, name) for name in gone)
        total = sum(map(_gpus, rooms)) + lost
        left.gpus = policy.most_share * total - sum(map(_gpus, away)) - lost
    return left


def turns(targets: Sequence[Target], nodes: Nodes, situation: Situation, policy: DrainPolicy) -> dict[str, int]:
    """In which round each node comes, if each round takes as many as may be away. Raises `Refused` if none ever may."""
    rooms = situation.rooms or ()
    by_name = {room.name: room for room in rooms}
    total = sum(map(_gpus, rooms))
    fresh = Budget(
        nodes=policy.most_nodes if policy.most_nodes is not None else float("inf"),
        gpus=policy.most_share * total if policy.most_share is not None else float("inf"),
    )
    for target in targets:
        gpus = _gpus(by_name.get(target.known.name))
        if policy.most_share is not None and gpus > fresh.gpus and not target.at_once:
            raise Refused(
                f"{policy.most_share:.0%} of {total:g} accelerators are {fresh.gpus:g}, and {target.known.name} alone "
                f"has {gpus:g}: it could never be drained",
                "Allow a larger share",
            )
    found: dict[str, int] = {}
    turn, left = 1, budget(nodes, rooms, policy)
    for target in targets:
        room = by_name.get(target.known.name)
        if target.at_once or (room is not None and room.cordoned):
            found[target.known.name] = 1  # it is away already
            continue
        gpus = _gpus(room)
        if not left.take(gpus):
            turn, left = turn + 1, Budget(fresh.nodes, fresh.gpus)
            left.take(gpus)
        found[target.known.name] = turn
    return found


def _gpus(room: Room | None) -> float:
    return room.total.get("GPU", 0.0) if room is not None else 0.0


def _last_gpus(nodes: Nodes, name: str) -> float:
    known = nodes.known.get(name)
    return (known.node.gpus or 0.0) if known is not None and known.node is not None else 0.0
