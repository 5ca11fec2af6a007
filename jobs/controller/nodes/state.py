"""What the controller knows of nodes beyond what Ray says: holds, drains, and what was last seen there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jobs.controller.audit import Act
from jobs.controller.journal import Journal, JournalThread
from jobs.controller.nodes.holds import HoldRecord, Kept, Table
from jobs.controller.nodes.identity import Known
from jobs.controller.nodes.rows import NodeRows
from jobs.controller.schedule.types import Room
from jobs.model import Run
from jobs.nodeview import Drain, GpuHold, Hold, NodeState, NodesView, NodeView, Other

SHOWN_DRAINS = 20
"""So many of those that ended last are told of."""


@dataclass(slots=True)
class Nodes:
    """The one place where holds and drains change. A change is on disk before it is seen."""

    journal: JournalThread
    table: Table = field(default_factory=Table)
    drains: dict[str, Drain] = field(default_factory=dict[str, Drain])
    """Those that go on, or whose runs have not all come to rest, and the newest that ended."""
    known: dict[str, Known] = field(default_factory=dict[str, Known])
    """All that Ray has, by name, as it was last seen."""
    answers: bool = False
    """Ray did when it was last asked for them."""
    machines: dict[str, str] = field(default_factory=dict[str, str])
    """Ray's id of a node to its machine id, where that was asked."""
    others: dict[str, tuple[Other, ...]] = field(default_factory=dict[str, tuple[Other, ...]])
    """By Ray's id: what raydeck did not start on held nodes."""
    others_trouble: str = ""
    """Why that is not known."""
    gpu_holds: dict[str, GpuHold] = field(default_factory=dict[str, GpuHold])
    leaving: dict[str, float] = field(default_factory=dict[str, float])
    """Nodes that Ray itself drains, by its id, and until when."""
    silent: set[str] = field(default_factory=set[str])
    """Nodes that Ray has as alive and that do not answer, by its id."""
    troubles: dict[str, str] = field(default_factory=dict[str, str])
    """By node name: what could not be done there, in words."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while holds or drains change; never while Ray is asked. The runs' own lock comes inside it."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def recover(self) -> None:
        """Take up what was in force when the last controller ended."""
        self.table.put(await self.journal(Journal.holds))
        drains = await self.journal(Journal.drains, SHOWN_DRAINS)
        going_on = await self.journal(Journal.drains, 10_000, going_on=True)
        self.drains = {drain.id: drain for drain in (*drains, *going_on)}
        self._turns()

    def kept(self, room: Room) -> Kept:
        """How the queue has to treat a node."""
        machine = self.machines.get(room.node_id, "")
        kept = self.table.kept(room.name, room.address, machine)
        if room.node_id not in self.silent:
            return kept
        drains = {record.hold.drain for record in self.table.on(room.name, room.address, machine)}
        off = any(drain.id in drains and drain.policy.gone for drain in self.drains.values())
        return replace(kept, silent=not off, off=off)

    def take(self, rows: NodeRows) -> None:
        """What was just written, from now on."""
        self.table.put(rows.holds)
        self.table.drop(rows.over)
        for drain in rows.drains:
            self.drains[drain.id] = drain
        ended = sorted((each for each in self.drains.values() if each.ended_at is not None), key=lambda each: each.at)
        for old in ended[:-SHOWN_DRAINS]:
            del self.drains[old.id]
        self._turns()
        self.changed.set()

    def _turns(self) -> None:
        self.table.waiting = {
            (drain.id, node.node.name) for drain in self.running() for node in drain.nodes if node.state == "waiting"
        }

    async def write(self, rows: NodeRows, acts: Sequence[tuple[Act, float]] = ()) -> None:
        """Have it on disk, then in force. Under `lock`."""
        await self.journal(Journal.put_nodes, rows, acts)
        self.take(rows)

    def running(self) -> list[Drain]:
        """The drains that go on, oldest first."""
        return sorted((each for each in self.drains.values() if each.state == "running"), key=lambda each: each.at)

    def draining(self, name: str) -> Drain | None:
        """The drain that is at work on a node, or will be."""
        for drain in self.running():
            if any(node.node.name == name and not node.over for node in drain.nodes):
                return drain
        return None

    def holds(self, known: Known) -> list[HoldRecord]:
        """The holds of a node, oldest first."""
        return self.table.on(known.name, known.ref.address, known.ref.machine_id)


def view(nodes: Nodes, on: dict[str, tuple[Run, ...]]) -> NodesView:
    """What is told to those who listen. ``on``: runs by the name of a held node."""
    rows: list[NodeView] = []
    alerts: list[str] = []
    for known in held(nodes):
        row = _row(nodes, known, on.get(known.name, ()))
        rows.append(row)
        alerts += [f"{known.name} is held, and {each.sentence} landed there all the same" for each in row.slipped]
        trouble = nodes.troubles.get(known.name)
        if trouble:
            alerts.append(f"{known.name}: {trouble}")
        if row.gpu_hold is not None and row.gpu_hold.trouble:
            alerts.append(f"{known.name}: its idle GPUs are not held: {row.gpu_hold.trouble}")
    if nodes.others_trouble and rows:
        alerts.append(f"what others run on held nodes is not known: {nodes.others_trouble}")
    newest = sorted(nodes.drains.values(), key=lambda drain: (drain.state != "running", -drain.at))
    return NodesView(nodes=sorted(rows, key=lambda row: row.name), drains=newest, alerts=alerts)


def held(nodes: Nodes) -> list[Known]:
    """The nodes that bear a hold, as Ray has them now."""
    found: dict[str, Known] = {}
    for record in nodes.table.records.values():
        match = nodes.known.get(record.ref.name)
        if match is None:
            match = next((each for each in nodes.known.values() if record in nodes.holds(each)), Known(record.ref))
        found.setdefault(match.name, match)
    return list(found.values())


def _row(nodes: Nodes, known: Known, runs: Sequence[Run]) -> NodeView:
    records = nodes.holds(known)
    holds = [record.hold for record in records]
    drain = nodes.draining(known.name)
    part = next((each for each in drain.nodes if each.node.name == known.name), None) if drain is not None else None
    leaving = nodes.leaving.get(known.node_id)
    there = {each for record in records for each in record.there}
    others = [each.model_copy(update={"slipped": each.id not in there}) for each in nodes.others.get(known.node_id, ())]
    ray = "unknown"
    if nodes.answers:
        ray = "alive" if known.alive else "dead"
    return NodeView(
        name=known.name,
        address=known.ref.address,
        node_id=known.node_id if known.alive else "",
        machine_id=known.ref.machine_id,
        ray=ray,
        state=_state(holds, part.state if part is not None else "", known.alive, bool(runs), nodes.answers),
        holds=holds,
        gpu_hold=nodes.gpu_holds.get(known.node_id),
        others=others,
        runs=[run.id for run in runs],
        gpus=known.node.gpus if known.node is not None else None,
        drain=drain.id if drain is not None else next((each.drain for each in holds if each.drain), ""),
        note=part.note if part is not None else nodes.troubles.get(known.name, ""),
        ray_draining_until=leaving if known.alive else None,
    )


def _state(holds: Sequence[Hold], part: str, alive: bool, busy: bool, answers: bool) -> NodeState:
    kinds = {hold.kind for hold in holds}
    if "retire" in kinds:
        return "retiring" if alive or not answers else "retired"
    if part == "waiting":
        return "waiting" if kinds == {"drain"} else "cordoned"
    if part in ("moving", "checking"):
        return "draining"
    if "drain" in kinds and not busy:
        return "drained"
    return "cordoned" if kinds else "open"
