"""Moves the work off nodes: what a drain begins with, and what people decide about one that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobs.controller.access import Caller, Role
from jobs.controller.audit import Act
from jobs.controller.nodes import plan
from jobs.controller.nodes.asked import Asked, Seen, Worked, listed, made_id
from jobs.controller.nodes.holds import HoldRecord
from jobs.controller.nodes.plan import Target
from jobs.controller.nodes.rows import NodeRows
from jobs.controller.nodes.turns import turns
from jobs.controller.record import Record
from jobs.controller.runs import NoSuch, request_digest
from jobs.controller.wishes import WrongState
from jobs.errors import Refused
from jobs.model import RunState
from jobs.nodeview import Drain, DrainNode, Hold
from jobs.spans import clock
from jobs.wire import DecideRequest, DrainRequest, NodesReply


class Drains:
    """Drains that people ask for."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    async def drain(self, request: DrainRequest, caller: Caller) -> NodesReply:
        """Cordon nodes and move the work off them. Raises `NotAllowed`, `WrongState`, or `Refused`."""
        self._asked.allow(caller, "drain", request.nodes)
        seen = await self._asked.seen(request.nodes, reaching=True)
        drain_id = made_id("d", request.request_id, caller.user)

        def work() -> Worked:
            return self._drained(request, caller, seen, drain_id)

        return await self._asked.carried_out("drain", request, caller, seen, work)

    def _drained(self, request: DrainRequest, caller: Caller, seen: Seen, drain_id: str) -> Worked:
        policy, now = request.policy, self._asked.wall()
        running: list[Drain] = []
        for target in seen.targets:
            name = target.known.name
            drain = self._asked.nodes.draining(name)
            if drain is not None and drain.user != caller.user:
                raise WrongState(
                    f"{name} is being drained by {drain.user} since {clock(drain.at)}"
                    f"{f': {drain.reason}' if drain.reason else ''}",
                    f"It is drain {drain.id}; raydeck drains shows how far it is",
                )
            if drain is not None:
                running.append(drain)
            if policy.gone and target.known.alive and not target.at_once:
                raise Refused(
                    f"{name} answers, so it is not off", "Drain it without that word; its runs save and leave then"
                )
        fresh = [each for each in seen.targets if self._asked.nodes.draining(each.known.name) is None]
        names = ", ".join(drain.id for drain in running)
        order = turns(fresh, self._asked.nodes, seen.situation, policy)
        targets = [
            replace(each, turn=order[each.known.name], at_once=each.at_once or policy.gone)
            if each in fresh
            else replace(each, already=(f"being drained by you, in drain {names}",))
            for each in seen.targets
        ]
        first = [each for each in targets if each in fresh or each.turn == 1]
        moved = {
            run.id: self._asked.admission.waiter(_back(seen.records[run.id]))
            for target in first
            if target.known.name in order and order[target.known.name] == 1
            for run in target.runs
        }
        notes = _drain_notes(request, targets, order)
        told = plan.worked_out("drain", targets, seen.situation, moved, notes, bool(fresh))
        if not fresh:
            return Worked(told, drain=running[0].id)
        drain = Drain(
            id=drain_id,
            at=now,
            user=caller.user,
            reason=request.reason,
            policy=policy,
            nodes=[DrainNode(node=each.known.ref, node_id=each.node_id) for each in fresh],
        )
        holds = tuple(
            HoldRecord(
                hold=Hold(
                    id=made_id("h", drain_id, each.known.name),
                    node=each.known.name,
                    user=caller.user,
                    at=now,
                    reason=request.reason,
                    kind="drain",
                    drain=drain_id,
                    gpus=policy.gpus,
                ),
                ref=each.known.ref,
                there=[other.id for other in each.others],
            )
            for each in fresh
        )
        return Worked(told, NodeRows(holds=holds, drains=(drain,)), drain_id)

    async def decide(self, drain_id: str, request: DecideRequest, caller: Caller) -> Drain:
        """What becomes of a drain. Raises `NoSuch`, `NotAllowed`, or `WrongState` for one that has ended."""
        self._asked.access.require(caller, Role.OPERATOR, f"decide about drain {drain_id}")
        digest = request_digest("decide", drain_id, request.model_dump_json())
        async with self._asked.nodes.lock:
            drain = self._asked.nodes.drains.get(drain_id)
            if drain is None:
                raise NoSuch(f"there is no drain {drain_id} that goes on, or ended lately", "raydeck drains lists them")
            if await self._asked.runs.repeated(request.request_id, digest) is not None:
                return drain
            if drain.state != "running":
                by = f" by {drain.ended_by}" if drain.ended_by else ""
                raise WrongState(f"drain {drain_id} has ended already: {drain.state}{by}")
            now = self._asked.wall()
            after = _decided(drain, request, caller.user, now)
            word = f"drain {request.decision.replace('_', ' ')}"
            rows = NodeRows(drains=(after,))
            await self._asked.accept(
                rows, Act(caller.user, word, drain_id, True, request.reason), request.request_id, digest
            )
            return after


def _back(record: Record) -> Record:
    """A run as it will wait once it has left."""
    run = record.run.model_copy(update={"state": RunState.QUEUED, "not_before": None})
    return record.model_copy(update={"run": run, "stop": None})


def _drain_notes(request: DrainRequest, targets: Sequence[Target], order: dict[str, int]) -> list[str]:
    policy = request.policy
    notes: list[str] = []
    rounds = max(order.values(), default=1)
    if rounds > 1:
        notes.append(
            f"{rounds} rounds: a node's turn comes when one that is away takes work again (uncordon or rejoin it)"
        )
    dead = [each.known.name for each in targets if each.at_once]
    if dead and not policy.gone:
        notes.append(f"{listed(dead)}: no answer, so nothing is waited for; its runs are ended and start elsewhere")
    others = [each for each in targets if each.others]
    if others and policy.others == "leave":
        notes.append(f"what raydeck did not start is left alone on {listed([each.known.name for each in others])}")
    if policy.gpus:
        notes.append("idle GPUs are held in Ray too; best effort: what waits in Ray already goes first")
    return notes


def _decided(drain: Drain, request: DecideRequest, user: str, now: float) -> Drain:
    """The drain after somebody chose."""
    changes: dict[str, object] = {}
    if request.decision in ("cancel", "give_up"):
        state = "stopped" if request.decision == "cancel" else "given up"
        note = f"{'stopped' if request.decision == 'cancel' else 'given up'} by {user}; it stays cordoned"
        nodes = [
            each if each.over else each.model_copy(update={"state": state, "ended_at": now, "note": note})
            for each in drain.nodes
        ]
        changes = {"nodes": nodes, "state": state, "ended_at": now, "ended_by": user}
    elif request.decision == "wait":
        nodes = [
            each
            if each.over or each.deadline_at is None
            else each.model_copy(update={"deadline_at": max(now, each.deadline_at) + request.seconds, "overdue": False})
            for each in drain.nodes
        ]
        changes = {"nodes": nodes}
    else:
        nodes = [
            each if each.over or each.deadline_at is None else each.model_copy(update={"deadline_at": now})
            for each in drain.nodes
        ]
        changes = {"nodes": nodes, "policy": drain.policy.model_copy(update={"at_deadline": "stop"})}
    return drain.model_copy(update=changes)
