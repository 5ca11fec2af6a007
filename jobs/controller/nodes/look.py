"""What is to be seen on held nodes, at a pace of its own: others' work, silence, machines; and what Ray is to do there.

Idle GPUs are taken and given back here, and retirements handed to Ray. None of it holds up a drain.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from jobs.controller.engine import Engine
from jobs.controller.nodes import reach, state
from jobs.controller.nodes.identity import Known, newest, unique
from jobs.controller.nodes.places import on_nodes
from jobs.controller.nodes.rows import NodeRows
from jobs.controller.nodes.state import Nodes
from jobs.controller.occupants import occupants
from jobs.controller.rayside import RaySide
from jobs.controller.runs import Runs
from jobs.errors import RaydeckError
from jobs.nodeview import GpuHold, NodesView

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
GPU_SECONDS = 4.0
MACHINES_AT_ONCE = 64


class Looker:
    """The eyes, and the hand in Ray."""

    def __init__(
        self,
        nodes: Nodes,
        runs: Runs,
        engine: Engine,
        rayside: RaySide,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = nodes
        self._runs = runs
        self.engine = engine
        self.rayside = rayside
        self._wall = wall
        self._clock = clock
        self._gpus_at = float("-inf")
        self._gpus_held = True
        """Placement groups of ours may be there: at first, of an earlier controller."""

    async def run(self) -> None:
        """Until cancelled. A look that goes wrong is logged, and the next one tries again."""
        while True:
            try:
                await self._look_around()
            except RaydeckError as error:
                log.info("held nodes could not be looked at: %s", error)
            except Exception:
                # The boundary of a worker: what slips in would never be seen again.
                log.exception("looking at held nodes went wrong")
            await asyncio.sleep(LOOK_SECONDS)

    def learn(self) -> None:
        """Take in the nodes as Ray last told them."""
        nodes = self._nodes
        nodes.answers = self.engine.answers
        if self.engine.nodes:
            nodes.known = newest(self.engine.nodes, nodes.machines)

    def view(self) -> NodesView:
        """What is told to those who listen, as it is now."""
        records = [record for record in self._runs.active() if not record.run.state.waiting]
        return state.view(self._nodes, on_nodes(state.held(self._nodes), records))

    async def look_at(self, node_ids: Sequence[str]) -> None:
        """Who is on these nodes that raydeck did not start, and which machines they are. Never raises for Ray."""
        nodes = self._nodes
        try:
            found = await occupants(self.engine.api, node_ids)
        except RaydeckError as error:
            nodes.others_trouble = error.sentence
            return
        nodes.others_trouble = ""
        nodes.others |= {node_id: tuple(others) for node_id, others in found.items()}

    async def _look_around(self) -> None:
        nodes = self._nodes
        if not self.engine.answers:
            return
        there = [known for known in state.held(nodes) if known.alive]
        ids = [known.node_id for known in there]
        nodes.silent &= set(ids)
        nodes.others = {node_id: others for node_id, others in nodes.others.items() if node_id in ids}
        if ids:
            await self.look_at(ids)
            await self.reach(ids)
            await self._name_machines()
        await self._hold_gpus(there)
        if any(record.hold.kind == "retire" for record in nodes.table.records.values()):
            there = {known.node_id for known in nodes.known.values() if known.alive}
            told = await self.rayside.draining()
            nodes.leaving = {each: until for each, until in nodes.leaving.items() if each in there} | told
            await self.retire()
        else:
            nodes.leaving = {}

    async def reach(self, node_ids: Sequence[str]) -> set[str]:
        """Those of these nodes on which nothing answers, though Ray has them as alive."""
        silent = await reach.silent(self.engine, node_ids)
        self._nodes.silent = (self._nodes.silent - set(node_ids)) | silent
        return silent

    async def _name_machines(self) -> None:
        """Learn which machines nodes are, where it matters: held ones, and those that a missing one may be now."""
        nodes = self._nodes
        alive = [known for known in nodes.known.values() if known.alive]
        refs = list(nodes.table.refs())
        nameless = {ref.name for ref in refs if not ref.machine_id}
        names = {known.name for known in alive}
        missing = any(ref.machine_id and ref.name not in names for ref in refs)
        there = {known.node_id for known in alive}
        nodes.machines = {each: machine for each, machine in nodes.machines.items() if each in there}
        asked = [
            known.node_id
            for known in alive
            if (missing or known.name in nameless) and known.node_id not in {*nodes.machines, *nodes.silent}
        ]
        if not asked:
            return
        found = await self.rayside.machine_ids(asked[:MACHINES_AT_ONCE])
        told = {each: found.get(each, "") for each in asked[:MACHINES_AT_ONCE]}
        nodes.machines = unique({**nodes.machines, **told})
        self.learn()
        fresh = [
            record.model_copy(update={"ref": record.ref.model_copy(update={"machine_id": machine})})
            for record in nodes.table.records.values()
            if not record.ref.machine_id
            and (known := nodes.known.get(record.ref.name)) is not None
            and (machine := nodes.machines.get(known.node_id))
        ]
        if fresh:
            async with nodes.lock:
                still = tuple(record for record in fresh if record.hold.id in nodes.table.records)
                await nodes.write(NodeRows(holds=still))

    async def _hold_gpus(self, there: Sequence[Known]) -> None:
        """Take idle GPUs of held nodes where that is wanted, and give back the others."""
        nodes = self._nodes
        wanted = [known for known in there if _wants_gpus(nodes, known) and known.node_id not in nodes.silent]
        if not wanted and not self._gpus_held:
            nodes.gpu_holds = {}
            return
        ids = {known.node_id for known in wanted}
        if self._clock() - self._gpus_at < GPU_SECONDS and ids == nodes.gpu_holds.keys():
            return
        self._gpus_at = self._clock()
        if not wanted and not await self._any_groups():
            self._gpus_held, nodes.gpu_holds = False, {}
            return
        if nodes.gpu_holds.keys() - ids or (self._gpus_held and not wanted):
            await self.rayside.let_go_all_but(sorted(ids))
        self._gpus_held = bool(wanted)
        found: dict[str, GpuHold] = {}
        for known in wanted:
            gpus = int(known.node.gpus or 0) if known.node is not None else 0
            try:
                seen = await self.rayside.hold(known.node_id, gpus)
                found[known.node_id] = GpuHold(wanted=gpus, held=seen.held)
            except RaydeckError as error:
                found[known.node_id] = GpuHold(wanted=gpus, trouble=error.sentence)
        nodes.gpu_holds = found

    async def _any_groups(self) -> bool:
        """Whether an earlier controller left any; asked without a driver of Ray's."""
        groups = await self.engine.api.placement_groups()
        return any(group.name.startswith("raydeck-hold-") and group.state != "REMOVED" for group in groups)

    async def retire(self) -> list[str]:
        """Have Ray drain the nodes that are to be retired and that it does not drain yet; what came of it, in words."""
        nodes = self._nodes
        said: list[str] = []
        for record in list(nodes.table.records.values()):
            known = nodes.known.get(record.ref.name)
            if record.hold.kind != "retire" or known is None or not known.alive:
                continue
            if known.node_id != record.node_id or known.node_id in nodes.leaving:
                continue
            name = known.name
            try:
                reason = f"retired by {record.hold.user} through raydeck: {record.hold.reason}".rstrip(": ")
                seen = await self.rayside.drain(known.node_id, reason, record.deadline_seconds)
                nodes.troubles.pop(name, None)
                said.append(f"{name}: {seen.sentence}")
                # One that was idle has left at once, and Ray's list of nodes says so a little later.
                nodes.leaving[known.node_id] = self._wall() + record.deadline_seconds
            except RaydeckError as error:
                nodes.troubles[name] = f"Ray does not drain it: {error.sentence}; it is tried again"
                said.append(f"{name}: {nodes.troubles[name]}")
        return said


def _wants_gpus(nodes: Nodes, known: Known) -> bool:
    waiting = nodes.table.waiting
    return any(
        record.hold.gpus and (record.hold.drain, record.hold.node) not in waiting for record in nodes.holds(known)
    )
