"""Takes nodes out of Ray, and answers who asks whether something may be done to a node over SSH."""

from __future__ import annotations

from dataclasses import replace

from jobs.controller.access import Caller
from jobs.controller.audit import Act
from jobs.controller.journal import Journal
from jobs.controller.nodes import plan
from jobs.controller.nodes.asked import NAMED_AT_MOST, Asked, Worked, made_id
from jobs.controller.nodes.holds import HoldRecord
from jobs.controller.nodes.plan import Target
from jobs.controller.nodes.rows import NodeRows
from jobs.controller.runs import NoSuch, request_digest
from jobs.controller.wishes import WrongState
from jobs.errors import Refused
from jobs.nodeview import Hold
from jobs.spans import clock
from jobs.wire import NodesReply, Permit, PermitDone, PermitRequest, RetireRequest


class Retirements:
    """Retirements, and permits for what the console does itself."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    async def retire(self, request: RetireRequest, caller: Caller) -> NodesReply:
        """Take nodes out of Ray. Raises `NotAllowed`, `WrongState` for one with runs on it, `Refused` for the head."""
        self._asked.allow(caller, "retire", request.nodes)
        seen = await self._asked.seen(request.nodes)

        def work() -> Worked:
            now = self._asked.wall()
            records: list[HoldRecord] = []
            targets: list[Target] = []
            for target in seen.targets:
                known = target.known
                if known.node is not None and known.node.is_head:
                    raise Refused(f"{known.name} is the head: Ray as a whole would end with it")
                if target.runs:
                    names = ", ".join(run.id for run in target.runs[:NAMED_AT_MOST])
                    raise WrongState(f"{known.name} has runs: {names}", f"Drain it first: raydeck drain {known.name}")
                own = next((each for each in target.holds if each.hold.kind == "retire"), None)
                already: list[str] = []
                if own is not None and (own.node_id == known.node_id or not known.alive):
                    already = [f"{own.hold.sentence}, since {clock(own.hold.at)}"]
                elif not known.alive:
                    already = ["Ray does not have it"]
                else:
                    hold = Hold(
                        id=made_id("h", request.request_id, known.name),
                        node=known.name,
                        user=caller.user,
                        at=now,
                        reason=request.reason,
                        kind="retire",
                    )
                    there = [each.id for each in target.others]
                    records.append(
                        HoldRecord(
                            hold=hold,
                            ref=known.ref,
                            there=there,
                            node_id=known.node_id,
                            deadline_seconds=request.deadline_seconds,
                        )
                    )
                targets.append(replace(target, already=tuple(already)))
            notes = ["Ray's own drain cannot be taken back: only starting Ray there again brings a node back"]
            busy = [each.known.name for each in seen.targets if each.others]
            if busy:
                notes.append(f"work that raydeck did not start goes on for now on {', '.join(busy)}")
            told = plan.worked_out("retire", targets, seen.situation, {}, notes, bool(records))
            return Worked(told, NodeRows(holds=tuple(records)))

        reply = await self._asked.carried_out("retire", request, caller, seen, work)
        if request.dry_run or not reply.plan.changes:
            return reply
        said = await self._asked.look.retire()
        view = self._asked.look.view()
        return reply.model_copy(
            update={"view": view, "plan": reply.plan.model_copy(update={"notes": [*reply.plan.notes, *said]})}
        )

    async def permit(self, request: PermitRequest, caller: Caller) -> Permit:
        """May the caller do this to a node over SSH? Raises `NotAllowed`. It is in the audit when this returns."""
        asked = self._asked
        asked.allow(caller, request.action, [request.node])
        digest = request_digest("permit", request.model_dump_json())
        async with asked.nodes.lock:
            known = await asked.runs.repeated(request.request_id, digest)
            if known is not None:
                return await self._stored(known.answer)
            permit = Permit(
                id=made_id("p", request.request_id, request.node.name),
                node=request.node.name,
                action=request.action,
                user=caller.user,
                at=asked.wall(),
            )
            reason = "; ".join(part for part in (request.detail, request.reason) if part)
            act = Act(caller.user, request.action, request.node.name, True, reason)
            await asked.accept(NodeRows(permits=(permit,)), act, request.request_id, digest, permit.id)
            return permit

    async def done(self, permit_id: str, done: PermitDone, caller: Caller) -> Permit:
        """What came of it, said by the one who was permitted. Raises `NoSuch` or `WrongState`."""
        asked = self._asked
        async with asked.nodes.lock:
            permit = await self._stored(permit_id)
            if permit.user != caller.user:
                raise WrongState(f"permit {permit_id} is {permit.user}'s")
            if permit.outcome:
                return permit
            words = "done" if done.ok else "failed"
            told = permit.model_copy(update={"outcome": f"{words}: {done.outcome}"})
            act = Act(caller.user, f"{permit.action} {words}", permit.node, True, done.outcome)
            await asked.nodes.write(NodeRows(permits=(told,)), [(act, asked.wall())])
            return told

    async def _stored(self, permit_id: str) -> Permit:
        permit = await self._asked.nodes.journal(Journal.permit, permit_id)
        if permit is None:
            raise NoSuch(f"there is no permit {permit_id}")
        return permit
