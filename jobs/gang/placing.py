"""Owns what a gang asks of the cluster, and says in words what is missing; Ray only says "pending". Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.model import Launch

NODE_LABEL = "raydeck.io/node"
"""Ray node label with the name that people know a node by; nodes without it go by their host name."""
MAX_NAMED = 8
"""Nodes that a sentence names; the rest it counts."""
_GB = 1e9
_NODE_ID = "ray.io/node-id"


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node that is alive: what it has, and what of that is free."""

    node_id: str
    name: str
    address: str
    total: Mapping[str, float]
    """By Ray's resource name (``GPU``, ``CPU``, ``memory`` in bytes)."""
    free: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)


def bundle(launch: Launch) -> dict[str, float]:
    """What each node of the gang has to give, by Ray's resource names."""
    wanted = {"GPU": launch.gpus_per_node, "CPU": launch.cpus_per_node, "memory": float(launch.memory_bytes_per_node)}
    # An empty bundle is refused by Ray; a thousandth of a CPU stands for "any node".
    return {name: amount for name, amount in wanted.items() if amount > 0} or {"CPU": 0.001}


def selectors(launch: Launch) -> list[dict[str, str]]:
    """The label selector of each bundle: the pool's labels, and the chosen node or none of the excluded."""
    pool = dict(launch.node_labels)
    if launch.node_ids:
        return [{**pool, _NODE_ID: node_id} for node_id in launch.node_ids]
    if launch.excluded_node_ids:
        pool[_NODE_ID] = f"!in({','.join(launch.excluded_node_ids)})"
    return [pool] * launch.nodes


def gone(launch: Launch, rooms: Sequence[NodeRoom]) -> list[str]:
    """Those of the chosen nodes, by id, that Ray has no more."""
    there = {room.node_id for room in rooms}
    return [node_id for node_id in launch.node_ids if node_id not in there]


def missing(launch: Launch, rooms: Sequence[NodeRoom]) -> str:
    """Why the gang cannot start now: what it wants, what each node has free, or why it cannot be used.

    Empty when enough nodes could take it: Ray then places it within moments.
    """
    wanted = bundle(launch)
    able: list[str] = []
    notes: list[str] = []
    if launch.node_ids:
        rooms = [room for room in rooms if room.node_id in launch.node_ids]
    for room in sorted(rooms, key=lambda room: room.name):
        note = _note(launch, wanted, room)
        if note is None:
            able.append(room.name)
        else:
            notes.append(f"{room.name} {note}")
    need = f"needs {_count(launch.nodes, 'node')} with {_amounts(wanted)}{' each' if launch.nodes > 1 else ''}"
    ready = f"{_listed(able)} could take it" if able else "no node could take it now"
    if len(able) >= launch.nodes:
        return ""
    ever = sum(_fits(wanted, room.total) and _usable(launch, room) is None for room in rooms)
    verdict = ""
    if ever < launch.nodes:
        enough = {0: "no node is", 1: "only 1 node is"}.get(ever, f"only {ever} nodes are")
        verdict = f"; this can never start here: {enough} large enough"
    if len(notes) > MAX_NAMED:
        notes[MAX_NAMED:] = [f"{len(notes) - MAX_NAMED} more nodes cannot take it either"]
    return "; ".join([need, ready, *notes]) + verdict


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _note(launch: Launch, wanted: Mapping[str, float], room: NodeRoom) -> str | None:
    if (reason := _usable(launch, room)) is not None:
        return reason
    for name, amount in wanted.items():
        if room.total.get(name, 0.0) < amount:
            has = room.total.get(name, 0.0)
            return f"has {_amount(name, has)} in all" if has else f"has no {_unit(name)}"
    for name, amount in wanted.items():
        free = room.free.get(name, 0.0)
        if free < amount:
            return f"has {_amount(name, free)} of {_figure(name, room.total[name])} free"
    return None


def _usable(launch: Launch, room: NodeRoom) -> str | None:
    if room.node_id in launch.excluded_node_ids:
        return "is excluded (cordoned or suspected)"
    for label, value in launch.node_labels.items():
        if room.labels.get(label) != value:
            return f"is not in the pool ({label}={value})"
    return None


def _fits(wanted: Mapping[str, float], has: Mapping[str, float]) -> bool:
    return all(has.get(name, 0.0) >= amount for name, amount in wanted.items())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _amounts(wanted: Mapping[str, float]) -> str:
    return ", ".join(_amount(name, amount) for name, amount in wanted.items())


def _amount(name: str, amount: float) -> str:
    if name == "memory":
        return f"{_figure(name, amount)} GB of memory"
    return f"{_figure(name, amount)} {name}{'' if amount == 1 else 's'}"


def _figure(name: str, amount: float) -> str:
    return f"{amount / _GB if name == 'memory' else amount:.4g}"


def _unit(name: str) -> str:
    return "memory to give" if name == "memory" else name


def rooms(nodes: Sequence[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]]) -> list[NodeRoom]:
    """Ray's own listing of nodes, and its free resources by node id, as values; dead nodes are left out."""
    return [
        NodeRoom(
            node_id=str(node["NodeID"]),
            name=name_of(node),
            address=str(node.get("NodeManagerAddress", "")),
            total=dict(node.get("Resources", {})),
            free=dict(free.get(str(node["NodeID"]), {})),
            labels=dict(node.get("Labels", {})),
        )
        for node in nodes
        if node.get("Alive")
    ]


def name_of(node: Mapping[str, Any]) -> str:
    """The name that people know a node of Ray's listing by."""
    return str(node.get("Labels", {}).get(NODE_LABEL) or node.get("NodeManagerHostname") or node["NodeID"])
