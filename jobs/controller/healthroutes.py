"""The routes about health: alerts, looks at runs that do not go on, the flight recorder."""

from __future__ import annotations

from typing import Protocol

from aiohttp import web

from jobs.alertview import AcknowledgeRequest, AlertsView, ClearRequest, EndSilenceRequest, SilenceRequest, TestRequest
from jobs.controller import recordroutes
from jobs.controller.answers import Asking, Route, body, listing, number, told
from jobs.controller.health.said import Said
from jobs.controller.health.service import Health
from jobs.controller.journal import Journal, JournalThread
from jobs.controller.recorder import Recorder
from jobs.controller.runs import Runs


class HealthService(Protocol):
    """What they ask of the rest of the controller."""

    journal: JournalThread
    runs: Runs
    said: Said
    health: Health
    recorder: Recorder

    def alerts_view(self) -> AlertsView: ...


class HealthRoutes:
    """What fires, and what people say to it."""

    def __init__(self, service: HealthService) -> None:
        self._of = service

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            ("POST", "/v1/runs/{run}/look", self.ask_look, ""),
            ("GET", "/v1/runs/{run}/looks/{look}", self.look, ""),
            ("GET", "/v1/recording", self.recording, ""),
            ("GET", "/v1/recording/index", self.recording_index, ""),
            ("GET", "/v1/alerts", self.alerts, ""),
            ("GET", "/v1/alerts/history", self.history, ""),
            ("POST", "/v1/alerts/acknowledge", self.acknowledge, "acknowledge"),
            ("POST", "/v1/alerts/silence", self.silence, "silence"),
            ("POST", "/v1/silences/{silence}/end", self.end_silence, "end silence"),
            ("POST", "/v1/alerts/clear", self.clear, "clear alert"),
            ("POST", "/v1/alerts/test", self.test, "test alert"),
        ]

    async def ask_look(self, request: web.Request, asking: Asking) -> web.Response:
        record = await self._of.runs.find(request.match_info["run"])
        return web.json_response({"look": await self._of.health.hangs.ask(record.run)})

    async def look(self, request: web.Request, asking: Asking) -> web.Response:
        record = await self._of.runs.find(request.match_info["run"])
        return told(await self._of.health.hangs.read(record.run, request.match_info["look"]))

    async def recording(self, request: web.Request, asking: Asking) -> web.StreamResponse:
        return await recordroutes.recording(self._of.recorder, request)

    async def recording_index(self, request: web.Request, asking: Asking) -> web.Response:
        return await recordroutes.recording_index(self._of.recorder, request)

    async def alerts(self, request: web.Request, asking: Asking) -> web.Response:
        return told(self._of.alerts_view())

    async def history(self, request: web.Request, asking: Asking) -> web.Response:
        return listing("alerts", await self._of.journal(Journal.alerts, number(request, "limit", 200, 10_000)))

    async def acknowledge(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, AcknowledgeRequest)
        asking.target = ", ".join(asked.alerts[:8])
        return told(await self._of.said.acknowledge(asked, asking.caller))

    async def silence(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, SilenceRequest)
        asking.target, asking.dry_run = asked.matcher.words, asked.dry_run
        return told(await self._of.said.silence(asked, asking.caller))

    async def end_silence(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, EndSilenceRequest)
        return told(await self._of.said.end_silence(request.match_info["silence"], asked, asking.caller))

    async def clear(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, ClearRequest)
        asking.target = ", ".join(asked.alerts[:8])
        return told(await self._of.said.clear(asked, asking.caller))

    async def test(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, TestRequest)
        asking.target = asked.sink or "all ways out"
        return told(await self._of.said.test(asked, asking.caller))
