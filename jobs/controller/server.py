"""HTTP on the controller's Unix socket: routes, refusals, the event stream. It decides nothing itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeVar, cast

from aiohttp import web
from pydantic import BaseModel

from jobs.controller import events
from jobs.controller.access import Access, Caller, NotAllowed, Role, peer_uid
from jobs.controller.admission import Admission
from jobs.controller.answers import Asking, Handler, Route, body, listing, number, told
from jobs.controller.engine import Engine
from jobs.controller.healthroutes import HealthRoutes, HealthService
from jobs.controller.journal import Act, Journal, JournalError
from jobs.controller.launch import Launcher
from jobs.controller.noderoutes import NodeRoutes, NodeService
from jobs.controller.packages import PACKAGE_LIMIT_BYTES, Packages
from jobs.controller.releases import Releases
from jobs.controller.requests import Requests, word_for
from jobs.controller.rollback import Rollbacks
from jobs.controller.runs import NoSuch, Runs
from jobs.errors import Busy, RaydeckError, Refused, Unreachable, Usage
from jobs.load import FileMistakes
from jobs.model import Progress
from jobs.validationview import Report
from jobs.wire import (
    ArrangeRequest,
    CheckpointRow,
    ControllerStatus,
    LaunchRequest,
    Mistake,
    RestartRequest,
    RollbackRequest,
    Snapshot,
    StopRequest,
    UndoRequest,
)
from jobs.within import within

log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)
Served = Callable[[web.Request], Awaitable[web.StreamResponse]]

BODY_LIMIT_BYTES = 4 * 1024 * 1024
LISTENER_SECONDS = 5.0
"""A listener that takes nothing for so long is dropped."""


class Service(NodeService, HealthService, Protocol):
    """What the routes ask of the rest of the controller."""

    runs: Runs
    access: Access
    packages: Packages
    hub: events.Hub
    launcher: Launcher
    requests: Requests
    admission: Admission
    releases: Releases
    rollbacks: Rollbacks
    engine: Engine

    def status(self, caller: Caller) -> ControllerStatus: ...
    async def snapshot(self, caller: Caller) -> Snapshot: ...
    async def checkpoints(self, run: str) -> list[CheckpointRow]: ...
    async def series(self, run: str, points: int) -> list[Progress]: ...
    async def validation(self, run: str) -> Report: ...


def application(service: Service) -> web.Application:
    """The routes of `jobs.wire`."""
    routes = _Routes(service)
    app = web.Application(middlewares=[_no_such_route], client_max_size=BODY_LIMIT_BYTES)
    for method, path, handler, action in (
        *routes.routes(),
        *NodeRoutes(service).routes(),
        *HealthRoutes(service).routes(),
    ):
        if method == "GET":
            app.router.add_get(path, routes.guarded(handler), allow_head=False)
        else:
            app.router.add_route(method, path, routes.guarded(handler, action))
    return app


@web.middleware
async def _no_such_route(request: web.Request, handler: Served) -> web.StreamResponse:
    """What aiohttp itself refuses (no such route, a body that is too large), in our words' form."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _refusal(error.status, f"{request.method} {request.path}: {error.reason}")


class _Routes:
    def __init__(self, service: Service) -> None:
        self._of = service

    def routes(self) -> list[Route]:
        """Those that are about neither nodes nor alerts."""
        return [
            ("GET", "/v1/status", self.status, ""),
            ("GET", "/v1/runs", self.runs, ""),
            ("GET", "/v1/runs/{run}", self.run, ""),
            ("GET", "/v1/runs/{run}/series", self.series, ""),
            ("GET", "/v1/runs/{run}/moves", self.moves, ""),
            ("GET", "/v1/runs/{run}/explain", self.explain, ""),
            ("GET", "/v1/runs/{run}/checkpoints", self.checkpoints, ""),
            ("GET", "/v1/runs/{run}/validation", self.validation, ""),
            ("GET", "/v1/queue", self.queue, ""),
            ("GET", "/v1/releases", self.releases, ""),
            ("GET", "/v1/rollbacks", self.rollbacks, ""),
            ("GET", "/v1/audit", self.audit, ""),
            ("GET", "/v1/events", self.events, ""),
            ("PUT", "/v1/packages/{digest}", self.package, "package"),
            ("POST", "/v1/runs", self.launch, "launch"),
            ("POST", "/v1/runs/{run}/stop", self.stop, "stop"),
            ("POST", "/v1/runs/{run}/restart", self.restart, "restart"),
            ("POST", "/v1/runs/{run}/arrange", self.arrange, "arrange"),
            ("POST", "/v1/workflows/{workflow}/rollback", self.rollback, "rollback"),
            ("POST", "/v1/rollbacks/{rollback}/undo", self.undo, "undo"),
        ]

    def guarded(self, handler: Handler, action: str = "") -> Served:
        """The handler with who asks, and what goes wrong in it in the words and the status of `jobs.wire`.

        ``action``: what the audit calls it if it is refused; empty for what only looks.
        """

        async def serve(request: web.Request) -> web.StreamResponse:
            asking: Asking | None = None
            try:
                asking = Asking(await self._caller(request), action)
                self._of.access.require(asking.caller, Role.VIEWER, "look")
                return await handler(request, asking)
            except RaydeckError as error:
                return await self._refused(request, asking, error)
            except (asyncio.CancelledError, ConnectionResetError, web.HTTPException):
                raise
            except Exception:
                # The boundary of a request: one that goes wrong must not take the controller with it.
                log.exception("%s %s went wrong", request.method, request.path)
                return _refusal(500, "the controller made a mistake; controller.log in its store says which")

        return serve

    async def _caller(self, request: web.Request) -> Caller:
        connection = request.get_extra_info("socket")
        if connection is None:
            raise Usage("the connection was closed before the request was read")
        return await self._of.access.caller(peer_uid(connection))

    async def _refused(self, request: web.Request, asking: Asking | None, error: RaydeckError) -> web.Response:
        """The refusal, once it is in the audit. What only looks is not, nor is a dry run that was free to ask."""
        if asking is not None and asking.action and (isinstance(error, NotAllowed) or not asking.dry_run):
            target = asking.target or next(iter(request.match_info.values()), "")
            act = Act(asking.caller.user, asking.action, target, False, str(error))
            try:
                await self._of.journal(Journal.audit, act, time.time())
            except JournalError as unwritten:
                log.error("a refusal could not be audited: %s", unwritten)
        mistakes = error.mistakes if isinstance(error, FileMistakes) else ()
        return _refusal(_status(error), error.sentence, error.hint, mistakes)

    async def status(self, request: web.Request, asking: Asking) -> web.Response:
        return told(self._of.status(asking.caller))

    async def runs(self, request: web.Request, asking: Asking) -> web.Response:
        limit = number(request, "limit", 200, 10_000)
        return listing("runs", await self._of.runs.newest(limit, request.query.get("sweep", "")))

    async def run(self, request: web.Request, asking: Asking) -> web.Response:
        return told((await self._of.runs.find(request.match_info["run"])).run)

    async def series(self, request: web.Request, asking: Asking) -> web.Response:
        points = await self._of.series(request.match_info["run"], number(request, "points", 600, 10_000))
        return listing("points", points)

    async def moves(self, request: web.Request, asking: Asking) -> web.Response:
        record = await self._of.runs.find(request.match_info["run"])
        return listing("moves", await self._of.journal(Journal.moves, record.id))

    async def explain(self, request: web.Request, asking: Asking) -> web.Response:
        return told(await self._of.admission.explain(request.match_info["run"]))

    async def checkpoints(self, request: web.Request, asking: Asking) -> web.Response:
        return listing("checkpoints", await self._of.checkpoints(request.match_info["run"]))

    async def validation(self, request: web.Request, asking: Asking) -> web.Response:
        return told(await self._of.validation(request.match_info["run"]))

    async def queue(self, request: web.Request, asking: Asking) -> web.Response:
        offset = number(request, "offset", 0, 10**9, least=0)
        return told(await self._of.admission.view(offset, number(request, "limit", events.SHOWN_WAITING, 10_000)))

    async def releases(self, request: web.Request, asking: Asking) -> web.Response:
        limit = number(request, "limit", 200, 10_000)
        return listing("releases", await self._of.releases.rows(request.query.get("workflow", ""), limit))

    async def rollbacks(self, request: web.Request, asking: Asking) -> web.Response:
        limit = number(request, "limit", 200, 10_000)
        found = await self._of.journal(Journal.rollbacks, request.query.get("workflow", ""), limit)
        return listing("rollbacks", found)

    async def audit(self, request: web.Request, asking: Asking) -> web.Response:
        entries = await self._of.journal(Journal.entries, number(request, "limit", 200, 100_000))
        if request.query.get("verify") != "1":
            return listing("entries", entries)
        broken = await self._of.journal(Journal.verify)
        return listing("entries", entries, {"broken": broken})

    async def package(self, request: web.Request, asking: Asking) -> web.Response:
        self._of.access.require(asking.caller, Role.SUBMITTER, "send code")
        if (request.content_length or 0) > PACKAGE_LIMIT_BYTES:
            raise Refused(f"the package is larger than {PACKAGE_LIMIT_BYTES // 1024 // 1024} MiB")
        digest = request.match_info["digest"]
        chunks = cast(AsyncIterator[bytes], request.content.iter_chunked(256 * 1024))
        new = await self._of.packages.receive(digest, chunks)
        if new:
            await self._of.journal(Journal.audit, Act(asking.caller.user, "package", digest, True), time.time())
        return web.json_response({"digest": digest}, status=201 if new else 200)

    async def launch(self, request: web.Request, asking: Asking) -> web.Response:
        self._of.access.require(asking.caller, Role.SUBMITTER, "launch")
        asked = await body(request, LaunchRequest)
        asking.dry_run = asked.dry_run
        runs, new = await self._of.launcher.launch(asked, asking.caller)
        return listing("runs", runs, status=201 if new else 200)

    async def stop(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, StopRequest)
        asking.action = "stop now" if asked.now else "stop"
        return told(await self._of.runs.stop(request.match_info["run"], asked, asking.caller, self._of.access))

    async def restart(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, RestartRequest)
        asking.dry_run = asked.dry_run
        return told(await self._of.requests.restart(request.match_info["run"], asked, asking.caller))

    async def arrange(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, ArrangeRequest)
        asking.action = word_for(asked)
        return told(await self._of.requests.arrange(request.match_info["run"], asked, asking.caller))

    async def rollback(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, RollbackRequest)
        asking.dry_run = asked.dry_run
        return told(await self._of.rollbacks.roll_back(request.match_info["workflow"], asked, asking.caller))

    async def undo(self, request: web.Request, asking: Asking) -> web.Response:
        asked = await body(request, UndoRequest)
        asking.dry_run = asked.dry_run
        return told(await self._of.rollbacks.undo(request.match_info["rollback"], asked, asking.caller))

    async def events(self, request: web.Request, asking: Asking) -> web.StreamResponse:
        listener = self._of.hub.join()
        if listener is None:
            raise Refused(f"{events.LISTENERS_AT_MOST} others listen already", "Close a console, and try again")
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        try:
            await response.prepare(request)
            snapshot = await self._of.snapshot(asking.caller)
            await _send(response, snapshot.model_dump_json().encode() + b"\n")
            beat = time.monotonic()
            async for changed in listener.changes():
                body = changed.lines()
                if not body or time.monotonic() - beat >= events.HEARTBEAT_SECONDS:
                    body += events.heartbeat(time.time(), self._of.engine.words())
                    beat = time.monotonic()
                await _send(response, body)
        except asyncio.TimeoutError:
            log.info("a listener (%s) did not take its events and was dropped", asking.caller.user)
            if request.transport is not None:
                request.transport.abort()
        except ConnectionResetError:
            log.debug("a listener (%s) has left", asking.caller.user)
        finally:
            self._of.hub.leave(listener)
        return response


async def _send(response: web.StreamResponse, body: bytes) -> None:
    await within(response.write(body), LISTENER_SECONDS)


def _status(error: RaydeckError) -> int:
    if isinstance(error, Usage | FileMistakes):
        return 400
    if isinstance(error, NotAllowed):
        return 403
    if isinstance(error, NoSuch):
        return 404
    if isinstance(error, Busy):
        return 423
    return 503 if isinstance(error, Unreachable | JournalError) else 409


def _refusal(status: int, sentence: str, hint: str = "", mistakes: Sequence[Mistake] = ()) -> web.Response:
    body = {"sentence": sentence, "hint": hint, "mistakes": [mistake.model_dump() for mistake in mistakes]}
    return web.json_response({"error": body}, status=status)
