"""Which node is meant, and whether it is the same one after Ray gave it a new id. Pure."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jobs.errors import Refused
from jobs.nodeview import NodeRef
from jobs.raymodel import RayNode

NAME_LABEL = "raydeck.io/node"
SHORTEST_ID = 6
"""So many characters of a Ray id are taken for the start of one."""


def name_of(node: RayNode) -> str:
    """What people call it."""
    return node.labels.get(NAME_LABEL) or node.node_name or node.node_id[:8]


def same(ref: NodeRef, name: str, address: str, machine_id: str) -> bool:
    """Whether a node is the one that was meant.

    A name is what people hold on to. A machine that came back under another name and address is told by its machine id;
    at the same address that proves nothing, since several nodes of a test cluster may be on one machine, and neither
    does the id of a copied image, which is empty here (see `unique`).
    """
    if ref.name == name:
        return True
    return bool(ref.machine_id) and ref.machine_id == machine_id and ref.address != address


def unique(machines: Mapping[str, str]) -> dict[str, str]:
    """Ray's ids of nodes to their machine ids, without those that several nodes share: copied images prove nothing."""
    shared = [machine for machine, count in Counter(machines.values()).items() if count > 1]
    return {node: "" if machine in shared else machine for node, machine in machines.items()}


@dataclass(frozen=True, slots=True)
class Known:
    """A node that somebody means, as Ray has it."""

    ref: NodeRef
    node: RayNode | None = None
    """Its newest form in Ray, alive if there is one that is; None if Ray does not have it."""

    @property
    def name(self) -> str:
        """What people call it."""
        return self.ref.name

    @property
    def node_id(self) -> str:
        """Ray's id; empty for one that is not in Ray."""
        return self.node.node_id if self.node is not None else ""

    @property
    def alive(self) -> bool:
        """Ray thinks so."""
        return self.node is not None and self.node.alive


def newest(nodes: Iterable[RayNode], machine_ids: Mapping[str, str]) -> dict[str, Known]:
    """All nodes by name: of those with the same name the one that is alive, else the one that died last."""
    found: dict[str, RayNode] = {}
    for node in nodes:
        name = name_of(node)
        other = found.get(name)
        if other is None or (node.alive, node.started_at or 0.0) > (other.alive, other.started_at or 0.0):
            found[name] = node
    return {
        name: Known(NodeRef(name=name, address=node.node_ip, machine_id=machine_ids.get(node.node_id, "")), node)
        for name, node in found.items()
    }


def resolve(refs: Sequence[NodeRef], known: Mapping[str, Known], held: Iterable[NodeRef], answers: bool) -> list[Known]:
    """The nodes that are meant, each once. Raises `Refused` for a name that nothing here has.

    Args:
        refs: As a person named them.
        known: All that Ray has, by name.
        held: Nodes that are held already; they may have left Ray.
        answers: Whether Ray answers. As long as it does not, a name is believed.
    """
    gone = {ref.name: ref for ref in held}
    chosen: dict[str, Known] = {}
    for ref in refs:
        found = _find(ref, known)
        if found is None and ref.name in gone:
            found = Known(gone[ref.name])
        if found is None and (ref.address or not answers):
            found = Known(ref)
        if found is None:
            near = difflib.get_close_matches(ref.name, [*known, *gone], 1)
            hint = f"Did you mean {near[0]}?" if near else f"Ray has {', '.join(sorted(known)[:8]) or 'no node'}"
            raise Refused(f"there is no node {ref.name}", hint)
        merged = NodeRef(
            name=found.name,
            address=found.ref.address or ref.address,
            machine_id=found.ref.machine_id or ref.machine_id,
        )
        chosen.setdefault(found.name, Known(merged, found.node))
    return list(chosen.values())


def _find(ref: NodeRef, known: Mapping[str, Known]) -> Known | None:
    if ref.name in known:
        return known[ref.name]
    for address in (ref.name, ref.address):
        by_address = [each for each in known.values() if address and each.ref.address == address and each.alive]
        if len(by_address) == 1:
            return by_address[0]
    if len(ref.name) >= SHORTEST_ID:
        by_id = [each for each in known.values() if each.node_id.startswith(ref.name)]
        if len(by_id) == 1:
            return by_id[0]
    return None
