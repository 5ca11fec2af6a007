"""What all requests about nodes go through: who may, what is there, worked out, written, in force.

A dry run goes the same way up to the writing.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from jobs.controller.access import Access, Caller, Role
from jobs.controller.admission import Admission
from jobs.controller.audit import Act
from jobs.controller.journal import Journal
from jobs.controller.nodes.identity import resolve
from jobs.controller.nodes.look import Looker
from jobs.controller.nodes.places import on_nodes
from jobs.controller.nodes.plan import Actions, Target
from jobs.controller.nodes.rows import NodeRows
from jobs.controller.nodes.state import Nodes
from jobs.controller.record import Record
from jobs.controller.runs import Runs, request_digest
from jobs.controller.schedule.types import Situation
from jobs.nodeview import NodePlan, NodeRef, NodesPlan
from jobs.wire import CordonRequest, DrainRequest, NodesReply, RetireRequest, UncordonRequest

NAMED_AT_MOST = 8

Request = CordonRequest | UncordonRequest | DrainRequest | RetireRequest


@dataclass(slots=True)
class Worked:
    """A request worked out: what it does, and what is written if it is carried out."""

    plan: NodesPlan
    rows: NodeRows = field(default_factory=NodeRows)
    drain: str = ""


@dataclass(slots=True)
class Seen:
    """What a request is about, as it was when it came."""

    targets: list[Target]
    situation: Situation
    records: dict[str, Record]
    """The runs that hold something anywhere."""


class Asked:
    """Requests about nodes, one after the other."""

    def __init__(
        self,
        nodes: Nodes,
        runs: Runs,
        admission: Admission,
        access: Access,
        look: Looker,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.nodes = nodes
        self.runs = runs
        self.admission = admission
        self.access = access
        self.look = look
        self.wall = wall

    def allow(self, caller: Caller, verb: str, refs: Sequence[NodeRef]) -> None:
        """Raises `NotAllowed` for one who is no operator."""
        self.access.require(caller, Role.OPERATOR, f"{verb} {listed([ref.name for ref in refs])}")

    async def seen(self, refs: Sequence[NodeRef], reaching: bool = False) -> Seen:
        """The nodes that are meant and what is there now; with ``reaching`` also whether they answer."""
        await self.look.engine.rooms(at_once=True)
        situation = await self.admission.situation()
        self.look.learn()
        nodes = self.nodes
        chosen = resolve(refs, nodes.known, nodes.table.refs(), situation.rooms is not None)
        there = [known.node_id for known in chosen if known.alive]
        await self.look.look_at(there)
        silent = await self.look.reach(there) if reaching else set[str]()
        records = {record.id: record for record in self.runs.active() if not record.run.state.waiting}
        on = on_nodes(chosen, records.values())
        targets = [
            Target(
                known=known,
                runs=on[known.name],
                others=nodes.others.get(known.node_id, ()),
                holds=tuple(nodes.holds(known)),
                at_once=(known.node_id in silent) if known.alive else situation.rooms is not None,
            )
            for known in chosen
        ]
        return Seen(targets, situation, records)

    async def carried_out(
        self, verb: Actions, request: Request, caller: Caller, seen: Seen, work: Callable[[], Worked]
    ) -> NodesReply:
        """Work it out, and unless it is a dry run have it written and in force. A repeat changes nothing."""
        names = [target.known.name for target in seen.targets]
        digest = request_digest(verb, request.model_dump_json())
        async with self.nodes.lock:
            known = None if request.dry_run else await self.runs.repeated(request.request_id, digest)
            if known is not None:
                return NodesReply(plan=_past(verb, names), view=self.look.view(), drain=known.answer)
            # The holds may have changed while Ray was asked.
            seen.targets = [replace(each, holds=tuple(self.nodes.holds(each.known))) for each in seen.targets]
            worked = await asyncio.to_thread(work)
            if not request.dry_run:
                # Also one that changes nothing is in the audit, and has its answer.
                of = f"of {request.of}" if isinstance(request, UncordonRequest) and request.of else ""
                reason = "; ".join(part for part in (of, request.reason) if part)
                act = Act(caller.user, verb, listed(names), True, reason)
                await self.accept(worked.rows, act, request.request_id, digest, worked.drain)
            return NodesReply(plan=worked.plan, view=self.look.view(), drain=worked.drain)

    async def accept(self, rows: NodeRows, act: Act, request: str, digest: str, answer: str = "") -> None:
        """Have it on disk, then in force at once. Under the nodes' lock."""
        async with self.runs.lock:
            await self.nodes.journal(
                Journal.accept, [], act, self.wall(), request=request, digest=digest, answer=answer, nodes=rows
            )
            self.nodes.take(rows)
        self.runs.changed.set()


def made_id(kind: str, *parts: str) -> str:
    """A name that a repeat of the same request makes again."""
    return f"{kind}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:8]}"


def listed(names: Sequence[str]) -> str:
    """The first of them, and how many more."""
    more = f" and {len(names) - NAMED_AT_MOST} more" if len(names) > NAMED_AT_MOST else ""
    return ", ".join(names[:NAMED_AT_MOST]) + more


def _past(verb: Actions, names: Sequence[str]) -> NodesPlan:
    already = ["this very request was carried out before"]
    return NodesPlan(action=verb, nodes=[NodePlan(name=name, already=already) for name in names], changes=False)
