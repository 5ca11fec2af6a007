"""Keeps new work off nodes, and takes that back."""

from __future__ import annotations

from dataclasses import replace

from jobs.controller.access import Caller
from jobs.controller.nodes import plan
from jobs.controller.nodes.asked import Asked, Worked, made_id
from jobs.controller.nodes.holds import HoldRecord
from jobs.controller.nodes.plan import Target
from jobs.controller.nodes.rows import NodeRows
from jobs.controller.wishes import WrongState
from jobs.nodeview import Hold
from jobs.spans import clock
from jobs.wire import CordonRequest, NodesReply, UncordonRequest


class Cordons:
    """Holds that people place and take back."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    async def cordon(self, request: CordonRequest, caller: Caller) -> NodesReply:
        """Keep new work off nodes. Raises `NotAllowed` or `Refused`."""
        self._asked.allow(caller, "cordon", request.nodes)
        seen = await self._asked.seen(request.nodes)

        def work() -> Worked:
            now = self._asked.wall()
            until = None if request.seconds is None else now + request.seconds
            records: list[HoldRecord] = []
            targets: list[Target] = []
            for target in seen.targets:
                made, already = self._cordoned(target, request, caller.user, until, now)
                records += [made] if made is not None else []
                targets.append(replace(target, already=tuple(already)))
            notes = [f"they end by themselves {clock(until)}"] if until is not None else []
            if request.gpus:
                notes.append("idle GPUs are held in Ray too; best effort: what waits in Ray already goes first")
            told = plan.worked_out("cordon", targets, seen.situation, {}, notes, bool(records))
            return Worked(told, NodeRows(holds=tuple(records)))

        return await self._asked.carried_out("cordon", request, caller, seen, work)

    def _cordoned(
        self, target: Target, request: CordonRequest, user: str, until: float | None, now: float
    ) -> tuple[HoldRecord | None, list[str]]:
        """The hold as it is to be, None if it is so already; and what was so already."""
        own = next((each for each in target.holds if each.hold.user == user and each.hold.kind == "cordon"), None)
        others = [each for each in target.holds if each is not own]
        said = [f"{each.hold.sentence}, since {clock(each.hold.at)}" for each in others]
        if own is None:
            hold = Hold(
                id=made_id("h", request.request_id, target.known.name),
                node=target.known.name,
                user=user,
                at=now,
                reason=request.reason,
                until=until,
                gpus=request.gpus,
            )
            return HoldRecord(hold=hold, ref=target.known.ref, there=[each.id for each in target.others]), said
        said.insert(0, f"{own.hold.sentence}, since {clock(own.hold.at)}")
        changes: dict[str, object] = {}
        if request.reason and request.reason != own.hold.reason:
            changes["reason"] = request.reason
        if request.seconds is not None or (own.hold.until is not None and request.reason):
            changes["until"] = until
        if request.gpus and not own.hold.gpus:
            changes["gpus"] = True
        if not changes:
            return None, said
        return own.model_copy(update={"hold": own.hold.model_copy(update=changes)}), said

    async def uncordon(self, request: UncordonRequest, caller: Caller) -> NodesReply:
        """Take holds back. Raises `NotAllowed`, or `Refused` where all that is there is another person's."""
        self._asked.allow(caller, "uncordon", request.nodes)
        seen = await self._asked.seen(request.nodes)
        owner = request.of or caller.user

        def work() -> Worked:
            over: list[str] = []
            targets: list[Target] = []
            notes: list[str] = []
            foreign: list[str] = []
            for target in seen.targets:
                name = target.known.name
                mine = [each for each in target.holds if each.hold.user == owner]
                rest = [each for each in target.holds if each not in mine]
                already: list[str] = []
                if rest:
                    words = ", ".join(f"{each.hold.sentence} since {clock(each.hold.at)}" for each in rest)
                    foreign.append(f"{name} is {words}")
                    already.append(f"still {words}")
                elif not mine:
                    already.append("it is not cordoned")
                drain = self._asked.nodes.draining(name)
                if drain is not None and any(each.hold.drain == drain.id for each in mine):
                    notes.append(f"the drain of {name} by {drain.user} stops")
                if any(each.hold.kind == "retire" for each in mine) and target.known.alive:
                    notes.append(f"Ray itself still drains {name}: only starting Ray there again brings it back")
                over += [each.hold.id for each in mine]
                targets.append(replace(target, already=tuple(already), cordoned_after=bool(rest)))
            if not over and foreign:
                who = "not yours" if not request.of else f"not {request.of}'s"
                raise WrongState(f"{'; '.join(foreign)}: {who} to take back", "Name whose hold you mean: --of USER")
            told = plan.worked_out("uncordon", targets, seen.situation, {}, notes, bool(over))
            return Worked(told, NodeRows(over=tuple(over)))

        return await self._asked.carried_out("uncordon", request, caller, seen, work)
