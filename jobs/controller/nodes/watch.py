"""Looks after held nodes: ends holds whose time has come, carries drains on, holds idle GPUs, sees what slips in.

Everything here may be repeated: what is wanted is in the journal, and each step looks before it acts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from jobs.controller import occupants
from jobs.controller.audit import Act
from jobs.controller.events import Hub
from jobs.controller.nodes import drainstep
from jobs.controller.nodes.drainstep import Ask, EndOther, SeenNode
from jobs.controller.nodes.identity import Known
from jobs.controller.nodes.look import Looker
from jobs.controller.nodes.places import on_nodes
from jobs.controller.nodes.rows import NodeRows
from jobs.controller.nodes.state import Nodes
from jobs.controller.nodes.turns import budget
from jobs.controller.record import Record, StopWanted
from jobs.controller.runs import Runs
from jobs.controller.schedule.types import Room
from jobs.controller.wishes import stop
from jobs.errors import RaydeckError
from jobs.model import Run
from jobs.nodeview import Drain, DrainRun, NodesView
from jobs.within import within

log = logging.getLogger(__name__)

STEP_SECONDS = 0.5
"""While a drain goes on."""
CALM_SECONDS = 2.0
AGAIN_SECONDS = 5.0
"""How long after it was asked something is asked to end again."""
FOLLOWED_SECONDS = 86400.0
"""For so long after its end a drain's runs are followed, to tell where they went on."""


class NodeWatch:
    """The part that goes on beside the requests."""

    def __init__(
        self,
        nodes: Nodes,
        runs: Runs,
        look: Looker,
        hub: Hub,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = nodes
        self._runs = runs
        self._look = look
        self._hub = hub
        self._wall = wall
        self._clock = clock
        self._told: NodesView | None = None
        self._ended: dict[str, float] = {}
        """What was asked to end, by its id, and when."""

    async def run(self) -> None:
        """Until cancelled. A step that goes wrong is logged, and the next one tries again."""
        async with contextlib.AsyncExitStack() as stack:
            look = asyncio.create_task(self._look.run(), name="look at held nodes")
            stack.push_async_callback(_end, look)
            while True:
                self._nodes.changed.clear()
                try:
                    await self.step()
                except RaydeckError as error:
                    log.warning("held nodes could not be looked after: %s", error)
                except Exception:
                    # The boundary of a worker: without its steps a drain would stand still for good.
                    log.exception("a step over held nodes went wrong")
                if look.done():
                    look.result()
                pause = STEP_SECONDS if self._nodes.running() else CALM_SECONDS
                with contextlib.suppress(asyncio.TimeoutError):
                    await within(self._nodes.changed.wait(), pause)

    # --- a step -------------------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """Once: holds whose end has come, drains, and what is told of all that."""
        rooms, _ = await self._look.engine.rooms() if self._nodes.table.records or self._nodes.running() else (None, {})
        self._look.learn()
        await self._expire()
        await self._carry_on(rooms)
        view = self._look.view()
        if view != self._told:
            self._told = view
            self._hub.publish_nodes(view)

    async def _expire(self) -> None:
        nodes = self._nodes
        if not nodes.table.expired(self._wall()):
            return
        async with nodes.lock:
            over = nodes.table.expired(self._wall())
            now = self._wall()
            acts = [
                (Act("raydeck", "uncordon", each.hold.node, True, f"the end that {each.hold.user} set has come"), now)
                for each in over
            ]
            await nodes.write(NodeRows(over=tuple(each.hold.id for each in over)), acts)
        self._runs.changed.set()

    async def _carry_on(self, rooms: Iterable[Room] | None) -> None:
        """A step of each drain that goes on, or whose runs have not come to rest."""
        nodes = self._nodes
        followed = [each for each in nodes.drains.values() if _restless(each, self._wall())]
        if not followed:
            return
        names = {each.run for drain in followed for node in drain.nodes for each in node.runs if not _at_rest(each)}
        runs = {name: (await self._runs.find(name)).run for name in names}
        todo: list[tuple[Drain, Ask | EndOther]] = []
        async with nodes.lock:
            kept = [replace(room, cordoned=nodes.kept(room).cordoned) for room in rooms or ()]
            for each in sorted(followed, key=lambda drain: drain.at):
                drain = nodes.drains.get(each.id)
                if drain is None:
                    continue
                left = budget(nodes, kept, drain.policy)
                if rooms is None:
                    left.nodes = 0  # whether another may go away is not known
                stepped = drainstep.step(drain, self._seen(drain), runs, left, self._wall())
                todo += [(stepped.drain, action) for action in stepped.actions]
                if stepped.drain == drain:
                    continue
                if _lasting(stepped.drain) == _lasting(drain):
                    nodes.drains[drain.id] = stepped.drain
                    continue
                await nodes.write(NodeRows(drains=(stepped.drain,)), self._said(drain, stepped.drain))
                kept = [replace(room, cordoned=nodes.kept(room).cordoned) for room in kept]
        for drain, action in todo:
            if isinstance(action, Ask):
                await self._ask(drain, action)
            else:
                await self._end_other(action)

    def _seen(self, drain: Drain) -> dict[str, SeenNode]:
        nodes = self._nodes
        records = [record for record in self._runs.active() if not record.run.state.waiting]
        known = [nodes.known.get(node.node.name) or Known(node.node) for node in drain.nodes]
        # One that left Ray is asked for by the id that it had.
        known = [
            each if each.node is not None else Known(node.node) for each, node in zip(known, drain.nodes, strict=True)
        ]
        on = on_nodes(known, records)
        return {each.name: self._seen_node(drain, each, on[each.name]) for each in known}

    def _seen_node(self, drain: Drain, known: Known, runs: tuple[Run, ...]) -> SeenNode:
        nodes = self._nodes
        holds = nodes.holds(known)
        ray = "unknown" if not nodes.answers else ("alive" if known.alive else "dead")
        there = {other for record in holds for other in record.there}
        return SeenNode(
            held=any(record.hold.drain == drain.id for record in holds),
            node_id=known.node_id,
            ray=ray,
            silent=known.node_id in nodes.silent,
            away=any(record.hold.drain != drain.id for record in holds),
            gpus=(known.node.gpus or 0.0) if known.node is not None else 0.0,
            runs=runs,
            others=tuple(
                each.model_copy(update={"slipped": each.id not in there})
                for each in nodes.others.get(known.node_id, ())
            ),
        )

    def _said(self, before: Drain, after: Drain) -> list[tuple[Act, float]]:
        """What the audit is to say of a step: that a node was emptied, or that the whole has ended."""
        now = self._wall()
        old = {node.node.name: node.state for node in before.nodes}
        acts = [
            (Act("raydeck", f"drain {node.state}", node.node.name, True, f"{after.id}: {node.note}"), now)
            for node in after.nodes
            if node.over and old[node.node.name] != node.state
        ]
        if after.state != before.state:
            reason = f"asked for by {after.user}; {after.lost_steps} steps have to be done again"
            acts.append((Act("raydeck", f"drain {after.state}", after.id, True, reason), now))
        return acts

    async def _ask(self, drain: Drain, ask: Ask) -> None:
        """Have a run leave. What a person wants of it, and its own limits, go before."""
        reason = f"{ask.node} is drained" + (f": {drain.reason}" if drain.reason else "")

        def leave(record: Record) -> Record:
            if record.run.state.waiting:
                return record
            before = record.stop
            if before is not None and before.purpose not in ("preempt", "drain"):
                return record
            if before is not None and before.purpose == "drain" and (before.now or not ask.now):
                return record
            wanted = StopWanted(at=self._wall(), user=drain.user, reason=reason, now=ask.now, purpose="drain")
            return stop(record, wanted)

        await self._runs.change(ask.run, leave)

    async def _end_other(self, action: EndOther) -> None:
        """End what raydeck did not start, as somebody asked; not again and again."""
        other = action.other
        self._ended = {each: at for each, at in self._ended.items() if self._clock() - at < AGAIN_SECONDS}
        if other.id in self._ended:
            return
        self._ended[other.id] = self._clock()
        try:
            log.info("%s: %s", other.sentence, await occupants.end(self._look.engine.api, self._look.rayside, other))
        except RaydeckError as error:
            log.warning("%s cannot be ended: %s", other.sentence, error)


def _restless(drain: Drain, now: float) -> bool:
    if drain.state == "running":
        return True
    if drain.ended_at is None or now - drain.ended_at > FOLLOWED_SECONDS:
        return False
    return not all(_at_rest(each) for node in drain.nodes for each in node.runs)


def _at_rest(entry: DrainRun) -> bool:
    """Nothing more is told of it."""
    return entry.state in ("again", "ended")


def _lasting(drain: Drain) -> Drain:
    """The drain without what is told anew each second: it is seen again after a restart."""
    nodes = [
        node.model_copy(
            update={
                "note": node.note if node.over else "",
                "others": [],
                "runs": [
                    each if each.left_at is not None else each.model_copy(update={"step": None, "saved_step": None})
                    for each in node.runs
                ],
            }
        )
        for node in drain.nodes
    ]
    return drain.model_copy(update={"nodes": nodes})


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
