"""The controller's routes about nodes, as typed calls."""

from __future__ import annotations

from urllib.parse import quote

from jobs.calls import STORAGE_SECONDS, Calls, Lenient
from jobs.nodeview import Drain, NodesView
from jobs.wire import (
    CordonRequest,
    DecideRequest,
    DrainRequest,
    NodesReply,
    Permit,
    PermitDone,
    PermitRequest,
    RetireRequest,
    UncordonRequest,
)


class _Drains(Lenient):
    drains: list[Drain]


class NodeCalls(Calls):
    """Cordon, drain, retire and what belongs to them."""

    async def nodes(self) -> NodesView:
        """The nodes that are held, the drains, and what an operator should know of them."""
        return self._as(NodesView, await self._answer("GET", "/v1/nodes"))

    async def drains(self, limit: int = 50) -> list[Drain]:
        """The newest drains, newest first, also those that ended."""
        return self._as(_Drains, await self._answer("GET", "/v1/drains", params={"limit": str(limit)})).drains

    async def cordon(self, request: CordonRequest) -> NodesReply:
        """Keeps new work off nodes; a dry run tells what that would do."""
        return self._as(NodesReply, await self._ask("/v1/nodes/cordon", request, STORAGE_SECONDS))

    async def uncordon(self, request: UncordonRequest) -> NodesReply:
        """Takes holds back; a dry run tells what that would do."""
        return self._as(NodesReply, await self._ask("/v1/nodes/uncordon", request, STORAGE_SECONDS))

    async def drain(self, request: DrainRequest) -> NodesReply:
        """Cordons nodes and moves the work off them, in the background; a dry run tells what that would do."""
        return self._as(NodesReply, await self._ask("/v1/nodes/drain", request, STORAGE_SECONDS))

    async def decide(self, drain: str, request: DecideRequest) -> Drain:
        """Stops a drain, or chooses what follows its deadline."""
        return self._as(Drain, await self._ask(f"/v1/drains/{quote(drain, safe='')}/decide", request))

    async def retire(self, request: RetireRequest) -> NodesReply:
        """Takes drained nodes out of Ray; a dry run tells what that would do."""
        return self._as(NodesReply, await self._ask("/v1/nodes/retire", request, STORAGE_SECONDS))

    async def permit(self, request: PermitRequest) -> Permit:
        """Asks whether something may be done to a node over SSH; that is in the audit before it is done."""
        return self._as(Permit, await self._ask("/v1/nodes/permit", request))

    async def permit_done(self, permit: str, done: PermitDone) -> Permit:
        """Tells what came of it."""
        return self._as(Permit, await self._ask(f"/v1/permits/{quote(permit, safe='')}/done", done))
