"""A stand-in for a whole Ray cluster, in a process of its own, that notes whatever must never happen.

``python -m tests.crash.standin ORIGIN FACTOR SEED`` serves Ray's dashboard on a free port of 127.0.0.1 and writes its
address as one line; it ends with its standard input. Below ``/control`` the test reads the record, restarts the head,
lets requests fail, and has the controller killed in the middle of a request.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from jobs import fence
from jobs.errors import Refused
from jobs.model import Failure, Outcome
from tests.crash.clock import FastClock, hasten
from tests.crash.gang import Gang, course
from tests.crash.trouble import Trouble
from tests.unit.jobs.ray_stand_in import stand_in_node

WORKERS = {"worker-1": 4, "worker-2": 4, "worker-3": 4, "worker-4": 4}
FOREIGN = ("worker-4", 1)
"""One accelerator there is held by work that raydeck did not start."""
STRANGER = "somebody else"
USAGE_SECONDS = 5.0
"""Ray renews its report on what is held so seldom."""
PLACE_SECONDS = 0.1


@dataclass(slots=True)
class Job:
    """A submitted job, as Ray shows it, and what carries it."""

    body: dict[str, Any]
    gang: Gang
    task: asyncio.Task[None]
    status: str = "PENDING"
    message: str = ""
    stop_asked: bool = False
    began: float = field(default_factory=time.time)
    ended: float = 0.0

    @property
    def over(self) -> bool:
        return self.status in ("SUCCEEDED", "FAILED", "STOPPED")

    def shown(self) -> dict[str, Any]:
        times = {"start_time": int(self.began * 1000), "end_time": int(self.ended * 1000)}
        return {**self.body, **times, "status": self.status, "message": self.message, "type": "SUBMISSION"}


class StandIn:
    """The cluster: its nodes, its jobs, and the record of what they did."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._chance = random.Random(f"{seed} cluster")
        self._jobs: dict[str, Job] = {}
        self._orphans: list[Job] = []
        """Jobs that the head forgot while their gangs lived on."""
        self._packages: set[str] = set()
        self._session = 1
        self._trouble = Trouble(seed)
        self._usage: tuple[float, dict[str, Any]] = (float("-inf"), {})
        rows = [stand_in_node("head", 0), *(stand_in_node(name, gpus) for name, gpus in WORKERS.items())]
        self._nodes = {str(row["node_id"]): row for row in rows}
        self._names = {str(row["node_name"]): node for node, row in self._nodes.items()}
        self._held: dict[tuple[str, int], str] = {
            (self._names[FOREIGN[0]], index): STRANGER for index in range(FOREIGN[1])
        }
        """Accelerators that are in use, and the job that uses them."""
        self.record: list[dict[str, Any]] = []
        self.violations: list[str] = []
        self._started: dict[tuple[str, int], int] = {}

    def application(self) -> web.Application:
        """Ray's routes, as far as they are asked for, and the test's own."""

        @web.middleware
        async def trouble(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._trouble(request, handler)

        app = web.Application(middlewares=[trouble], client_max_size=200 * 2**20)
        for method, path, handler, name in (
            ("GET", "/api/version", self._version, "version"),
            ("GET", "/api/v0/nodes", self._list_nodes, "nodes"),
            ("GET", "/nodes/{node}", self._node, "node"),
            ("GET", "/api/v0/actors", self._nothing, "actors"),
            ("GET", "/api/v0/tasks", self._nothing, "tasks"),
            ("GET", "/api/v0/placement_groups", self._nothing, "groups"),
            ("GET", "/api/cluster_status", self._cluster_status, "usage"),
            ("GET", "/api/jobs/", self._list, "list"),
            ("POST", "/api/jobs/", self._submit, "submit"),
            ("GET", "/api/jobs/{job}", self._job, "job"),
            ("POST", "/api/jobs/{job}/stop", self._stop, "stop"),
            ("DELETE", "/api/jobs/{job}", self._delete, "delete"),
            ("GET", "/api/packages/gcs/{name}", self._has_package, "has-package"),
            ("PUT", "/api/packages/gcs/{name}", self._put_package, "package"),
            ("GET", "/control/record", self._read_record, None),
            ("POST", "/control/trap", self._trouble.set_trap, None),
            ("POST", "/control/mischief", self._trouble.set_mischief, None),
            ("POST", "/control/head", self._restart_head, None),
        ):
            app.router.add_route(method, path, handler, name=name)
        return app

    # --- what must never happen ---------------------------------------------------------------------------------------

    def _note(self, what: str, gang: Gang, **more: Any) -> None:
        self.record.append({"at": time.time(), "what": what, "run": gang.run, "attempt": gang.attempt, **more})

    def _violated(self, sentence: str) -> None:
        self.violations.append(sentence)
        self.record.append({"at": time.time(), "what": "violation", "sentence": sentence})

    def _alive(self) -> list[Job]:
        return [job for job in [*self._jobs.values(), *self._orphans] if not job.over]

    def _check_start(self, gang: Gang) -> None:
        """Called when a gang is about to start its processes."""
        key = (gang.run, gang.attempt)
        self._started[key] = self._started.get(key, 0) + 1
        if self._started[key] > 1:
            self._violated(f"attempt {gang.attempt} of {gang.run} was started {self._started[key]} times")
        later = max((attempt for run, attempt in self._started if run == gang.run), default=0)
        if later > gang.attempt:
            self._violated(f"attempt {gang.attempt} of {gang.run} was started after attempt {later}")
        for job in self._alive():
            if job.gang is not gang and job.gang.run == gang.run and job.gang.nodes:
                self._violated(
                    f"attempt {gang.attempt} of {gang.run} was started while attempt {job.gang.attempt} was alive"
                )

    # --- gangs --------------------------------------------------------------------------------------------------------

    async def _carry(self, name: str, gang: Gang) -> None:
        """One gang from its job's start to its end."""
        job = self._jobs[name]
        try:
            await asyncio.sleep(self._chance.uniform(0.0, 0.3))
            job.status = "RUNNING"
            outcome = await self._attempt(gang)
            how = "died" if outcome is None else outcome.verdict
            self._give_back(gang)
            if outcome is not None:
                await gang.linger()
        except asyncio.CancelledError:
            how = "killed"
        except Refused as error:
            # An older attempt that lingered on was fenced off; for any other it would be a mistake.
            how = "fenced"
            if not any(job.task is asyncio.current_task() for job in self._orphans):
                self._violated(f"attempt {gang.attempt} of {gang.run} was refused: {error}")
        except Exception as error:
            self._violated(f"the gang of {name} broke: {type(error).__name__}: {error}")
            how = "died"
        self._give_back(gang)
        self._note("ended", gang, how=how)
        gang.nodes = []
        job.ended = time.time()
        job.message = {"failed": "exit code 1", "died": "the driver was killed"}.get(how, "")
        if job.stop_asked or how == "killed":
            job.status = "STOPPED"
        else:
            job.status = "SUCCEEDED" if how in ("succeeded", "stopped") else "FAILED"

    def _give_back(self, gang: Gang) -> None:
        for gpu in gang.gpus:
            self._held.pop(gpu, None)
        gang.gpus = []

    async def _attempt(self, gang: Gang) -> Outcome | None:
        """Its driver's work: the outcome that it has written, or None if it died without one."""
        fence.raise_fence(gang.run_directory, gang.attempt)
        self._sweep(gang)
        gang.tell("placing")
        limit = float(gang.launch["start_timeout_seconds"])
        try:
            placed = await asyncio.wait_for(self._place(gang), limit)
        except asyncio.TimeoutError:
            return gang.end("failed", f"no place for it within {limit:g} s", Failure.START_TIMEOUT)
        if not placed:
            return gang.end("stopped", "stopped on request before its ranks were started")
        self._check_start(gang)
        self._note("started", gang, gpus=gang.gpus, nodes=gang.nodes)
        return await gang.work()

    async def _place(self, gang: Gang) -> bool:
        """Wait for room, as a placement group does; False if it was asked to leave before there was any."""
        wanted = [str(node) for node in gang.launch["node_ids"]]
        told = False
        while not gang.asked and not gang.at_once:
            free = self._free()
            each = int(gang.launch["gpus_per_node"])
            if wanted:
                able = [node for node in wanted if len(free[node]) >= each]
            else:
                able = [node for node, gpus in free.items() if len(gpus) >= each and gpus][: gang.launch["nodes"]]
            if len(able) == gang.launch["nodes"] and (not wanted or len(able) == len(wanted)):
                gang.nodes = able
                gang.gpus = [(node, index) for node in able for index in free[node][:each]]
                self._held.update((gpu, gang.job) for gpu in gang.gpus)
                return True
            if wanted and not told and self._crowded(wanted, each):
                told = True
                self._violated(f"attempt {gang.attempt} of {gang.run} was sent to nodes without room: {self._busy()}")
            await asyncio.sleep(PLACE_SECONDS)
        return False

    def _free(self) -> dict[str, list[int]]:
        return {
            self._names[name]: [index for index in range(gpus) if (self._names[name], index) not in self._held]
            for name, gpus in WORKERS.items()
        }

    def _crowded(self, nodes: list[str], each: int) -> bool:
        """Room is missing for what others of ours hold. What strangers hold is known late, by Ray itself too."""
        ours = [node for (node, _), holder in self._held.items() if holder != STRANGER]
        return any(ours.count(node) + each > self._nodes[node]["resources_total"]["GPU"] for node in nodes)

    def _busy(self) -> str:
        return ", ".join(f"{self._nodes[node]['node_name']}/{gpu} by {job}" for (node, gpu), job in self._held.items())

    def _sweep(self, gang: Gang) -> None:
        """A driver first ends what earlier attempts left; those of whom Ray has the job are not its to end."""
        for job in list(self._orphans):
            if job.gang.run == gang.run and not job.over:
                self._note("swept", job.gang)
                self._orphans.remove(job)
                job.gang.nodes = []
                job.task.cancel()

    # --- Ray's routes -------------------------------------------------------------------------------------------------

    async def _version(self, request: web.Request) -> web.Response:
        session = f"session_{self._session}"
        return web.json_response({"version": "4", "ray_version": "2.60.0", "session_name": session})

    async def _list_nodes(self, request: web.Request) -> web.Response:
        rows = list(self._nodes.values())
        return web.json_response({"result": True, "data": {"result": {"total": len(rows), "result": rows}}})

    async def _node(self, request: web.Request) -> web.Response:
        """Its raylet listens where this listens: it answers."""
        assert request.transport is not None
        host, port = request.transport.get_extra_info("sockname")[:2]
        raylet = {"nodeManagerAddress": host, "nodeManagerPort": port}
        return web.json_response({"result": True, "data": {"detail": {"raylet": raylet}}})

    async def _nothing(self, request: web.Request) -> web.Response:
        """Nobody else has work here that has a name."""
        return web.json_response({"result": True, "data": {"result": {"total": 0, "result": []}}})

    async def _cluster_status(self, request: web.Request) -> web.Response:
        at, usage = self._usage
        if time.monotonic() - at >= USAGE_SECONDS:
            held = [node for node, _ in self._held]
            usage = {
                node: {"GPU": [float(held.count(node)), row["resources_total"].get("GPU", 0.0)], "CPU": [0.0, 8.0]}
                for node, row in self._nodes.items()
            }
            self._usage = (time.monotonic(), usage)
        report = {"clusterStatus": {"loadMetricsReport": {"usageByNode": usage}}}
        return web.json_response({"result": True, "data": report})

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response([job.shown() for job in self._jobs.values()])

    async def _submit(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = body["submission_id"]
        if name in self._jobs:
            words = f"Traceback (most recent call last):\nValueError: Job with submission_id {name} already exists."
            return web.Response(text=words, status=500)
        package = body["runtime_env"]["working_dir"].removeprefix("gcs://")
        if package not in self._packages:
            self._violated(f"{name} was submitted without its code in Ray's store")
        launch = json.loads(body["runtime_env"]["env_vars"]["RAYDECK_LAUNCH"])
        gang = Gang(name, launch, course(self._seed, launch["run"], launch["attempt"], launch["script"]))
        self._note("taken", gang)
        self._jobs[name] = Job(body, gang, asyncio.create_task(asyncio.sleep(0)))
        self._jobs[name].task = asyncio.create_task(self._carry(name, gang))
        return web.json_response({"job_id": name, "submission_id": name})

    async def _job(self, request: web.Request) -> web.Response:
        job = self._jobs.get(request.match_info["job"])
        return web.json_response(job.shown()) if job else web.Response(text="Job does not exist", status=404)

    async def _stop(self, request: web.Request) -> web.Response:
        job = self._jobs.get(request.match_info["job"])
        if job is None:
            return web.Response(text="Job does not exist", status=404)
        if job.over:
            return web.json_response({"stopped": False})
        if not job.stop_asked:
            # Ray asks once, and kills when the time that the job names is over.
            wait = float(job.body["runtime_env"]["env_vars"].get("RAY_JOB_STOP_WAIT_TIME_S", 3))
            asyncio.get_running_loop().call_later(min(wait, 10.0), job.task.cancel)
        job.stop_asked = True
        job.gang.stops += 1 if not job.gang.stops else 0
        return web.json_response({"stopped": True})

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["job"]
        job = self._jobs.get(name)
        if job is None:
            return web.Response(text="Job does not exist", status=404)
        if not job.over:
            return web.Response(text="Job is in a non-terminal state", status=500)
        del self._jobs[name]
        return web.json_response({"deleted": True})

    async def _has_package(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if request.match_info["name"] in self._packages else 404)

    async def _put_package(self, request: web.Request) -> web.Response:
        await request.read()
        self._packages.add(request.match_info["name"])
        return web.Response()

    # --- the test's routes --------------------------------------------------------------------------------------------

    async def _read_record(self, request: web.Request) -> web.Response:
        body = {
            "record": self.record,
            "violations": self.violations,
            "alive": [job.body["submission_id"] for job in self._alive()],
        }
        return web.json_response(body)

    async def _restart_head(self, request: web.Request) -> web.Response:
        """Forget all jobs and all code. ``linger``: their gangs live on until a sweep finds them, or for a while."""
        asked = await request.json()
        self._session += 1
        self._packages.clear()
        for job in self._jobs.values():
            if job.over:
                continue
            if asked["linger"]:
                self._orphans.append(job)
                asyncio.get_running_loop().call_later(self._chance.uniform(0.0, 20.0), job.task.cancel)
            else:
                job.task.cancel()
        self._jobs.clear()
        self._trouble.down = True
        asyncio.get_running_loop().call_later(asked["down_seconds"], self._up)
        return web.json_response({})

    def _up(self) -> None:
        self._trouble.down = False


async def _serve(seed: int) -> None:
    cluster = StandIn(seed)
    runner = web.AppRunner(cluster.application(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    hasten(FastClock(float(sys.argv[1]), float(sys.argv[2])))
    asyncio.run(_serve(int(sys.argv[3])))
