"""A dashboard that answers as Ray's does, as far as the controller asks it, and fails when it is told to.

A real HTTP server on a port of its own. What it does is what was seen of Ray 2.60: an id that is taken is status 500
with a traceback, an unknown job is 404 in text, a stop is taken at once and happens later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


class RayStandIn:
    """Its jobs, and how it misbehaves."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.posted: list[str] = []
        """The ids that were posted and taken, in order."""
        self.stopped: list[str] = []
        self.packages: dict[str, int] = {}
        self.nodes: list[dict[str, Any]] = [stand_in_node("head", 0), stand_in_node("worker-1", 4)]
        self.held: dict[tuple[str, str], float] = {}
        """What others hold, by node id and resource."""
        self.rows: dict[str, list[dict[str, Any]]] = {"actors": [], "tasks": [], "placement_groups": []}
        """Further rows of the state API."""
        self.deaf: set[str] = set()
        """Ids of nodes whose raylet takes no connection, though Ray has them as alive."""
        self.address = ""
        self.session = "session_1"
        self.down = False
        """Every request is cut off."""
        self.loses_answers = 0
        """So many submissions are taken, and their answers get lost."""
        self.refuses = ""
        """Submissions are refused with these words."""
        self.holds: asyncio.Event | None = None
        """Submissions wait for this."""

    def finish(self, job: str, status: str, message: str = "") -> None:
        """The job has ended."""
        self.jobs[job].update(status=status, message=message)

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncGenerator[RayStandIn]:
        """Serve on a free port (or on this one)."""
        app = web.Application(middlewares=[self._trouble], client_max_size=200 * 2**20)
        app.router.add_get("/api/version", self._version)
        app.router.add_get("/api/v0/nodes", self._nodes)
        app.router.add_get("/api/v0/{what}", self._state)
        app.router.add_get("/nodes/{node}", self._node)
        app.router.add_get("/api/cluster_status", self._cluster_status)
        app.router.add_get("/api/jobs/", self._list)
        app.router.add_post("/api/jobs/", self._submit)
        app.router.add_get("/api/jobs/{job}", self._job)
        app.router.add_post("/api/jobs/{job}/stop", self._stop)
        app.router.add_get("/api/packages/gcs/{name}", self._has_package)
        app.router.add_put("/api/packages/gcs/{name}", self._put_package)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        host, bound = runner.addresses[0][:2]
        self.address = f"http://{host}:{bound}"
        try:
            yield self
        finally:
            await runner.cleanup()

    @web.middleware
    async def _trouble(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.down and request.transport is not None:
            request.transport.abort()
        return await handler(request)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "4", "ray_version": "2.60.0", "session_name": self.session})

    async def _nodes(self, request: web.Request) -> web.Response:
        return web.json_response({"result": True, "data": {"result": {"result": self.nodes}}})

    async def _state(self, request: web.Request) -> web.Response:
        wanted = dict(
            zip(request.query.getall("filter_keys", []), request.query.getall("filter_values", []), strict=True)
        )
        found = [
            row
            for row in self.rows[request.match_info["what"]]
            if all(row.get(name) == value for name, value in wanted.items())
        ]
        return web.json_response({"result": True, "data": {"result": {"result": found}}})

    async def _node(self, request: web.Request) -> web.Response:
        """Its raylet listens where this listens, or nowhere."""
        assert request.transport is not None
        host, port = request.transport.get_extra_info("sockname")[:2]
        raylet = {"nodeManagerAddress": host, "nodeManagerPort": 1 if request.match_info["node"] in self.deaf else port}
        return web.json_response({"result": True, "data": {"detail": {"raylet": raylet}}})

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(list(self.jobs.values()))

    async def _cluster_status(self, request: web.Request) -> web.Response:
        totals = {node["node_id"]: node["resources_total"] for node in self.nodes}
        usage = {
            node: {name: [self.held.get((node, name), 0.0), total[name]] for name in ("CPU", "GPU") if name in total}
            for node, total in totals.items()
        }
        report = {"clusterStatus": {"loadMetricsReport": {"usageByNode": usage}}}
        return web.json_response({"result": True, "data": report})

    async def _submit(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.holds is not None:
            await self.holds.wait()
        if self.refuses:
            return web.Response(text=self.refuses, status=400)
        job = body["submission_id"]
        if job in self.jobs:
            words = f"Traceback (most recent call last):\nValueError: Job with submission_id {job} already exists."
            return web.Response(text=words, status=500)
        self.posted.append(job)
        self.jobs[job] = {**body, "status": "PENDING", "message": "", "type": "SUBMISSION"}
        if self.loses_answers > 0 and request.transport is not None:
            self.loses_answers -= 1
            request.transport.abort()
        return web.json_response({"job_id": job, "submission_id": job})

    async def _job(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["job"])
        return web.json_response(job) if job else web.Response(text="Job does not exist", status=404)

    async def _stop(self, request: web.Request) -> web.Response:
        name = request.match_info["job"]
        job = self.jobs.get(name)
        if job is None:
            return web.Response(text="Job does not exist", status=404)
        self.stopped.append(name)
        return web.json_response({"stopped": job["status"] in ("PENDING", "RUNNING")})

    async def _has_package(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if request.match_info["name"] in self.packages else 404)

    async def _put_package(self, request: web.Request) -> web.Response:
        self.packages[request.match_info["name"]] = len(await request.read())
        return web.Response()


def stand_in_node(name: str, gpus: int, state: str = "ALIVE") -> dict[str, Any]:
    """A row of the state API's nodes."""
    return {
        "node_id": name.encode().hex(),
        "node_ip": "127.0.0.1",
        "node_name": name,
        "is_head_node": name == "head",
        "state": state,
        "resources_total": {"CPU": 8.0, "memory": 64e9, **({"GPU": float(gpus)} if gpus else {})},
        "labels": {"raydeck.io/node": name},
    }
