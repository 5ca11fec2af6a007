"""Nodes that are kept free of work, and the drains, as the controller tells them; no I/O, no clock of its own."""

from __future__ import annotations

from collections.abc import Iterable

from console.state.fleet import Finding, Node
from jobs.nodeview import Drain, DrainNode, NodesView, NodeView


class NodesStore:
    """What there is to say of nodes beyond what they are, and which of them changed since somebody last asked."""

    def __init__(self) -> None:
        self.view: NodesView | None = None
        """None until a controller told it."""
        self.doing: dict[str, str] = {}
        """Node to what this console is doing there right now, a sentence."""
        self.changed: set[str] = set()
        self.drains_changed = False
        self._by_name: dict[str, NodeView] = {}
        self._by_id: dict[str, NodeView] = {}
        self._by_address: dict[str, NodeView | None] = {}
        """None where several have the same."""
        self._parts: dict[str, tuple[Drain, DrainNode]] = {}

    def take_changed(self) -> set[str]:
        """The names of nodes of which something else is to be said since the last call."""
        changed, self.changed = self.changed, set()
        return changed

    def take_drains_changed(self) -> bool:
        """Did the drains change since the last call?"""
        changed, self.drains_changed = self.drains_changed, False
        return changed

    # --- what is told -------------------------------------------------------------------------------------------------

    def take(self, view: NodesView | None) -> None:
        """All held nodes and all drains as they are now; None: this controller does not tell."""
        before = self._by_name
        self._by_name = {each.name: each for each in view.nodes} if view else {}
        if (self.view is None) != (view is None):
            self.changed |= before.keys() | self._by_name.keys()
        for name in before.keys() | self._by_name.keys():
            if before.get(name) != self._by_name.get(name):
                self.changed.add(name)
        drains = view.drains if view else []
        if self.view is None or view is None or self.view.drains != drains:
            self.drains_changed = True
            parts = _parts(drains)
            self.changed |= {
                name for name in parts.keys() | self._parts.keys() if _other(parts.get(name), self._parts.get(name))
            }
            self._parts = parts
        self.view = view
        self._by_id = {each.node_id: each for each in self._by_name.values() if each.node_id}
        self._by_address = {}
        for each in self._by_name.values():
            if each.address:
                self._by_address[each.address] = None if each.address in self._by_address else each

    def begin(self, node: str, sentence: str) -> None:
        """This console does something on a node."""
        self.doing[node] = sentence
        self.changed.add(node)

    def finish(self, node: str) -> None:
        """And has done it."""
        if self.doing.pop(node, None) is not None:
            self.changed.add(node)

    # --- what is asked of it ------------------------------------------------------------------------------------------

    def of(self, node: Node) -> NodeView | None:
        """What is to be said of a node: found by its name, by Ray's id, or by an address that no other one has."""
        found = self._by_name.get(node.name) or self._by_id.get(node.ray_node_id)
        return found or (self._by_address.get(node.ray_address) if node.ray_address else None)

    def named(self, name: str) -> NodeView | None:
        """The same by the controller's name alone."""
        return self._by_name.get(name)

    def part(self, name: str) -> tuple[Drain, DrainNode] | None:
        """The drain that is at work on a node, or that it is still held by; and its part in that."""
        return self._parts.get(name)

    @property
    def drains(self) -> list[Drain]:
        """Those that go on first, then the newest."""
        return self.view.drains if self.view else []

    def drain(self, identity: str) -> Drain | None:
        """The drain with this id."""
        return next((drain for drain in self.drains if drain.id == identity), None)

    def retired(self) -> set[str]:
        """The nodes that are meant to be out of Ray."""
        return {each.name for each in self._by_name.values() if each.state in ("retiring", "retired")}

    def findings(self) -> Iterable[Finding]:
        """What needs someone: a drain whose time is up, work that slipped in, and what else the controller says."""
        if self.view is None:
            return
        for name, (drain, part) in self._parts.items():
            if drain.state == "running" and part.overdue and not part.over:
                text = (
                    f"{name}: the drain by {drain.user} is overdue; choose (6): wait on, end what is left, or give up"
                )
                yield Finding("critical", text, name)
        alerts = self.view.alerts
        for each in self.view.nodes:
            for other in each.slipped:
                if not any(each.name in alert and other.sentence in alert for alert in alerts):
                    yield Finding("warning", f"{each.name} is held, and {other.sentence} landed there", each.name)
        for alert in alerts:
            yield Finding("warning", alert, next((name for name in self._by_name if alert.startswith(name)), ""))


def _other(one: tuple[Drain, DrainNode] | None, two: tuple[Drain, DrainNode] | None) -> bool:
    """Whether a node's part is another one; that other nodes of the drain came on is nothing to it."""
    if one is None or two is None:
        return one is not two
    return (one[0].id, one[0].state, one[1]) != (two[0].id, two[0].state, two[1])


def _parts(drains: Iterable[Drain]) -> dict[str, tuple[Drain, DrainNode]]:
    """Node to the drain that says most about it: one that goes on before one that is over, the newest first."""
    found: dict[str, tuple[Drain, DrainNode]] = {}
    for drain in sorted(drains, key=lambda each: (each.state != "running", -each.at)):
        for part in drain.nodes:
            name = part.node.name
            if name not in found or (found[name][1].over and not part.over):
                found[name] = (drain, part)
    return found
