"""The routes about nodes."""

from __future__ import annotations

from typing import Protocol

from aiohttp import web

from jobs.controller.answers import Asking, Route, body, listing, number, told
from jobs.controller.journal import Journal, JournalThread
from jobs.controller.nodes.cordons import Cordons
from jobs.controller.nodes.drains import Drains
from jobs.controller.nodes.retire import Retirements
from jobs.nodeview import NodesView
from jobs.wire import (
    CordonRequest,
    DecideRequest,
    DrainRequest,
    PermitDone,
    PermitRequest,
    RetireRequest,
    UncordonRequest,
)


class NodeService(Protocol):
    """What they ask of the rest of the controller."""

    journal: JournalThread
    cordons: Cordons
    drains: Drains
    retirements: Retirements

    def nodes_view(self) -> NodesView: ...


class NodeRoutes:
    """Cordon, drain, retire and what belongs to them."""

    def __init__(self, service: NodeService) -> None:
        self._of = service

    def routes(self) -> list[Route]:
        """Method, path, handler, and what the audit calls a refusal (empty for what only looks)."""
        return [
            ("GET", "/v1/nodes", self.nodes, ""),
            ("GET", "/v1/drains", self.drains, ""),
            ("POST", "/v1/nodes/cordon", self.cordon, "cordon"),
            ("POST", "/v1/nodes/uncordon", self.uncordon, "uncordon"),
            ("POST", "/v1/nodes/drain", self.drain, "drain"),
            ("POST", "/v1/drains/{drain}/decide", self.decide, "drain"),
            ("POST", "/v1/nodes/retire", self.retire, "retire"),
            ("POST", "/v1/nodes/permit", self.permit, "permit"),
            ("POST", "/v1/permits/{permit}/done", self.permit_done, "permit done"),
        ]

    async def nodes(self, request: web.Request, asking: Asking) -> web.Response:
        return told(self._of.nodes_view())

    async def drains(self, request: web.Request, asking: Asking) -> web.Response:
        return listing("drains", await self._of.journal(Journal.drains, number(request, "limit", 50, 1000)))

    async def cordon(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, CordonRequest)
        asking.about(asked.nodes, asked.dry_run)
        return told(await self._of.cordons.cordon(asked, asking.caller))

    async def uncordon(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, UncordonRequest)
        asking.about(asked.nodes, asked.dry_run)
        return told(await self._of.cordons.uncordon(asked, asking.caller))

    async def drain(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, DrainRequest)
        asking.about(asked.nodes, asked.dry_run)
        return told(await self._of.drains.drain(asked, asking.caller))

    async def decide(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, DecideRequest)
        asking.action = f"drain {asked.decision.replace('_', ' ')}"
        return told(await self._of.drains.decide(request.match_info["drain"], asked, asking.caller))

    async def retire(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, RetireRequest)
        asking.about(asked.nodes, asked.dry_run)
        return told(await self._of.retirements.retire(asked, asking.caller))

    async def permit(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, PermitRequest)
        asking.about([asked.node], False)
        asking.action = asked.action
        return told(await self._of.retirements.permit(asked, asking.caller))

    async def permit_done(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, PermitDone)
        return told(await self._of.retirements.done(request.match_info["permit"], asked, asking.caller))
