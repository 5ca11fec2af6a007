"""HTTP on the controller's Unix socket: routes, refusals, the event stream. It decides nothing itself."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar, cast

from aiohttp import web
from pydantic import BaseModel, ValidationError

from jobs.controller import events
from jobs.controller.access import Access, Caller, NotAllowed, Role, peer_uid
from jobs.controller.journal import Act, Journal, JournalError, JournalThread
from jobs.controller.packages import PACKAGE_LIMIT_BYTES, Packages
from jobs.controller.runs import NoSuch, Runs
from jobs.errors import Busy, RaydeckError, Refused, Unreachable, Usage
from jobs.load import FileMistakes
from jobs.model import Progress, Run
from jobs.wire import ControllerStatus, LaunchRequest, Mistake, Snapshot, StopRequest

log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)
Served = Callable[[web.Request], Awaitable[web.StreamResponse]]
Handler = Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]

BODY_LIMIT_BYTES = 4 * 1024 * 1024
LISTENER_SECONDS = 5.0
"""A listener that takes nothing for so long is dropped."""
SNAPSHOT_RUNS = 200


class Service(Protocol):
    """What the routes ask of the rest of the controller."""

    runs: Runs
    journal: JournalThread
    access: Access
    packages: Packages
    hub: events.Hub

    def status(self, caller: Caller) -> ControllerStatus: ...
    def ray_words(self) -> str: ...
    async def launch(self, request: LaunchRequest, caller: Caller) -> tuple[Run, bool]: ...
    async def series(self, run: str, points: int) -> list[Progress]: ...


def application(service: Service) -> web.Application:
    """The routes of `jobs.wire`."""
    routes = _Routes(service)
    app = web.Application(middlewares=[_no_such_route], client_max_size=BODY_LIMIT_BYTES)
    for method, path, handler in (
        ("GET", "/v1/status", routes.status),
        ("GET", "/v1/runs", routes.runs),
        ("GET", "/v1/runs/{run}", routes.run),
        ("GET", "/v1/runs/{run}/series", routes.series),
        ("GET", "/v1/releases", routes.releases),
        ("GET", "/v1/audit", routes.audit),
        ("GET", "/v1/events", routes.events),
        ("PUT", "/v1/packages/{digest}", routes.package),
        ("POST", "/v1/runs", routes.launch),
        ("POST", "/v1/runs/{run}/stop", routes.stop),
    ):
        app.router.add_route(method, path, routes.guarded(handler))
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

    def guarded(self, handler: Handler) -> Served:
        """The handler with who asks, and what goes wrong in it in the words and the status of `jobs.wire`."""

        async def serve(request: web.Request) -> web.StreamResponse:
            try:
                caller = await self._caller(request)
                self._of.access.require(caller, Role.VIEWER, "look")
            except RaydeckError as error:
                return _refusal(_status(error), error.sentence, error.hint)
            try:
                return await handler(request, caller)
            except RaydeckError as error:
                return await self._refused(request, caller, error)
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

    async def _refused(self, request: web.Request, caller: Caller, error: RaydeckError) -> web.Response:
        if request.method != "GET":
            act = Act(
                caller.user,
                request.path.rsplit("/", 1)[-1] if request.path.endswith("/stop") else _ACTIONS[request.method],
                request.match_info.get("run") or request.match_info.get("digest") or "",
                False,
                str(error),
            )
            try:
                await self._of.journal(Journal.audit, act, time.time())
            except JournalError as unwritten:
                log.error("a refusal could not be audited: %s", unwritten)
        mistakes = error.mistakes if isinstance(error, FileMistakes) else ()
        return _refusal(_status(error), error.sentence, error.hint, mistakes)

    async def status(self, request: web.Request, caller: Caller) -> web.Response:
        return _json(self._of.status(caller))

    async def runs(self, request: web.Request, caller: Caller) -> web.Response:
        runs = await self._of.runs.newest(_number(request, "limit", 200, 10_000))
        return _listing("runs", runs)

    async def run(self, request: web.Request, caller: Caller) -> web.Response:
        return _json((await self._of.runs.find(request.match_info["run"])).run)

    async def series(self, request: web.Request, caller: Caller) -> web.Response:
        points = await self._of.series(request.match_info["run"], _number(request, "points", 600, 10_000))
        return _listing("points", points)

    async def releases(self, request: web.Request, caller: Caller) -> web.Response:
        limit = _number(request, "limit", 200, 10_000)
        found = await self._of.journal(Journal.releases, request.query.get("workflow", ""), limit)
        return _listing("releases", found)

    async def audit(self, request: web.Request, caller: Caller) -> web.Response:
        entries = await self._of.journal(Journal.entries, _number(request, "limit", 200, 100_000))
        if request.query.get("verify") != "1":
            return _listing("entries", entries)
        broken = await self._of.journal(Journal.verify)
        return _listing("entries", entries, {"broken": broken})

    async def package(self, request: web.Request, caller: Caller) -> web.Response:
        self._of.access.require(caller, Role.SUBMITTER, "send code")
        if (request.content_length or 0) > PACKAGE_LIMIT_BYTES:
            raise Refused(f"the package is larger than {PACKAGE_LIMIT_BYTES // 1024 // 1024} MiB")
        digest = request.match_info["digest"]
        chunks = cast(AsyncIterator[bytes], request.content.iter_chunked(256 * 1024))
        new = await self._of.packages.receive(digest, chunks)
        return web.json_response({"digest": digest}, status=201 if new else 200)

    async def launch(self, request: web.Request, caller: Caller) -> web.Response:
        self._of.access.require(caller, Role.SUBMITTER, "launch")
        run, new = await self._of.launch(await _body(request, LaunchRequest), caller)
        return _json(run, 201 if new else 200)

    async def stop(self, request: web.Request, caller: Caller) -> web.Response:
        asked = await _body(request, StopRequest)
        return _json(await self._of.runs.stop(request.match_info["run"], asked, caller, self._of.access))

    async def events(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        listener = self._of.hub.join()
        if listener is None:
            raise Refused(f"{events.LISTENERS_AT_MOST} others listen already", "Close a console, and try again")
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        try:
            await response.prepare(request)
            runs = await self._of.runs.snapshot(SNAPSHOT_RUNS)
            snapshot = Snapshot(status=self._of.status(caller), runs=runs)
            await _send(response, snapshot.model_dump_json().encode() + b"\n")
            beat = time.monotonic()
            async for changed in listener.changes():
                body = events.lines(changed)
                if not changed or time.monotonic() - beat >= events.HEARTBEAT_SECONDS:
                    body += events.heartbeat(time.time(), self._of.ray_words())
                    beat = time.monotonic()
                await _send(response, body)
        except asyncio.TimeoutError:
            log.info("a listener (%s) did not take its events and was dropped", caller.user)
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._of.hub.leave(listener)
        return response


_ACTIONS = {"POST": "launch", "PUT": "package"}


async def _send(response: web.StreamResponse, body: bytes) -> None:
    await asyncio.wait_for(response.write(body), LISTENER_SECONDS)


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


def _json(message: BaseModel, status: int = 200) -> web.Response:
    return web.Response(text=message.model_dump_json(), status=status, content_type="application/json")


def _listing(key: str, messages: Sequence[BaseModel], more: Mapping[str, str] | None = None) -> web.Response:
    rows = ",".join(message.model_dump_json() for message in messages)
    rest = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in (more or {}).items())
    return web.Response(text=f'{{"{key}":[{rows}]{rest}}}', content_type="application/json")


def _number(request: web.Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
        raise Usage(f"{name} must be a number from 1 to {most}")
    return int(text)


async def _body(request: web.Request, model: type[M]) -> M:
    """The request's body. Raises `Usage`, naming the field."""
    try:
        return model.model_validate(json.loads(await request.read()))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise Usage(f"the request makes no sense: {where}: {first['msg']}") from error
    except ValueError as error:
        raise Usage("the request is not JSON") from error
