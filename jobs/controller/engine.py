"""Ray, as the controller sees it: does it answer, since when not, which nodes has it, and the jobs of our attempts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from jobs.controller.judge import JobSeen
from jobs.controller.nodes.identity import name_of
from jobs.controller.schedule.types import Room
from jobs.controller.submission import Submission, marks
from jobs.errors import Refused, Unreachable
from jobs.model import job_id
from jobs.package import package_name
from jobs.rayapi import RayApi, Unauthorised
from jobs.raymodel import Raylet, RayNode, Usage
from jobs.transport import Transport

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How often Ray is asked whether it is there, while it is."""
LOOK_AT_MOST_SECONDS = 10.0
"""And at the longest while it is not."""
ROOMS_SECONDS = 2.0
"""How often Ray is asked for its nodes while somebody waits; it renews what it knows of their use every 5 s."""


class Engine:
    """One cluster's Ray."""

    def __init__(self, transport: Transport, clock: Callable[[], float] = time.monotonic) -> None:
        self.api = RayApi(transport)
        self._clock = clock
        self._began = clock()
        self._silent_since: float | None = self._began
        self._why = "it was not asked yet"
        self._next_look = float("-inf")
        self._pause = LOOK_SECONDS
        self._rooms: tuple[float, tuple[Room, ...] | None, Usage] = (float("-inf"), None, {})
        self.nodes: tuple[RayNode, ...] = ()
        """All nodes that Ray remembers, dead ones too, as it last told them."""
        self._brought: set[str] = set()
        self._raylets: dict[str, Raylet] = {}
        self.version = ""
        """Ray's version; empty as long as it has not said."""
        self.session = ""
        """What tells this head from the one before; empty as long as it has not said."""

    @property
    def answers(self) -> bool:
        """It did when it was last asked."""
        return self._silent_since is None

    @property
    def silent_seconds(self) -> float:
        """For how long it has not answered; 0 if it does."""
        return 0.0 if self._silent_since is None else max(1e-3, self._clock() - self._silent_since)

    def words(self) -> str:
        """``ok``, or since when and why not."""
        return "ok" if self.answers else f"no answer for {self.silent_seconds:.0f} s: {self._why}"

    async def look(self, at_once: bool = False) -> None:
        """Ask whether it is there, and which head it is, if that is due or wanted ``at_once``."""
        if self._clock() < self._next_look and not at_once:
            return
        try:
            version = await self.api.version()
        except (Unreachable, Refused) as error:
            if self.answers:
                self._silent_since = self._clock()
                log.warning("Ray does not answer: %s", error)
            self._why = str(error)
            self._pause = min(LOOK_AT_MOST_SECONDS, self._pause * 1.5)
        else:
            if not self.answers:
                log.info("Ray %s answers", version.ray_version)
            self._silent_since = None
            self._pause = LOOK_SECONDS
            self.version = version.ray_version
            if version.session != self.session:
                # Another head: what was uploaded to the last one is gone.
                self.session = version.session
                self._brought.clear()
                self._raylets.clear()
        self._next_look = self._clock() + self._pause

    async def job(self, run: str, attempt: int, missed: int) -> JobSeen | None:
        """What Ray says about an attempt's job; None if it does not answer. ``missed``: looks in a row without it."""
        if not self.answers:
            return None
        try:
            job = await self.api.job(job_id(run, attempt))
        except (Unreachable, Unauthorised) as error:
            log.info("run %s: its job could not be looked at: %s", run, error)
            return None
        if job is None:
            return JobSeen(found=False, looks_missed=missed + 1)
        ours = all(job.metadata.get(name) == value for name, value in marks(run, attempt).items())
        return JobSeen(True, ours, job.status, job.message)

    async def bring(self, digest: str, file: Path) -> None:
        """Have the code in Ray's store. Raises `Unreachable` or `Refused`."""
        if digest in self._brought:
            return
        name = package_name(digest)
        if not await self.api.package_exists(name):
            try:
                content = await asyncio.to_thread(file.read_bytes)
            except OSError as error:
                raise Refused(f"its code {file} cannot be read: {error.strerror}") from error
            await self.api.upload_package(name, content)
        self._brought.add(digest)

    async def submit(self, job: Submission) -> None:
        """Have the job in Ray, once. Raises `Unreachable` or `Refused`."""
        runtime_env = {"working_dir": f"gcs://{package_name(job.package)}", "env_vars": job.environment}
        await self.api.submit(job.job_id, job.entrypoint, runtime_env=runtime_env, metadata=job.metadata)

    async def stop(self, job: str) -> None:
        """Ask for a job's end; it comes later. Raises `Unreachable` or `Refused`."""
        await self.api.stop(job)

    async def raylet(self, node_id: str) -> Raylet | None:
        """Where a node's raylet listens; None if Ray does not say yet. Raises `Unreachable` or `Refused`."""
        known = self._raylets.get(node_id) or await self.api.raylet(node_id)
        if known is not None:
            self._raylets[node_id] = known
        return known

    async def gcs(self) -> str:
        """Where the head's GCS listens, ``host:port``, as the head's own files say: a machine may have several Rays.

        Raises `Unreachable` or `Refused`.
        """
        await self.rooms()
        head = next((node for node in self.nodes if node.is_head and node.alive), None)
        raylet = await self.raylet(head.node_id) if head is not None and self.answers else None
        if head is None or raylet is None:
            raise Unreachable("Ray does not say where its head is")
        file = Path(raylet.session_dir) / f"gcs_server_port_{head.node_id}"
        try:
            port = int(await asyncio.to_thread(file.read_text))
        except (OSError, ValueError) as error:
            raise Unreachable(f"where Ray's head listens is not known: {file}: {error}") from error
        return f"{raylet.address}:{port}"

    async def rooms(self, at_once: bool = False) -> tuple[tuple[Room, ...] | None, Usage]:
        """The nodes that are alive, and what is held on each by anybody; None if Ray does not tell.

        ``at_once`` asks Ray anew, for somebody who has to know how it is at this moment.
        """
        at, rooms, usage = self._rooms
        if self._clock() - at < ROOMS_SECONDS and rooms is not None and not at_once:
            return rooms, usage
        if not self.answers:
            return None, {}
        try:
            nodes = await self.api.nodes()
            usage = await self.api.node_usage()
        except (Unreachable, Refused) as error:
            log.info("the nodes are not known: %s", error)
            self._rooms = (self._clock(), None, {})
            return None, {}
        self.nodes = tuple(nodes)
        alive = [
            Room(node.node_id, name_of(node), node.resources_total, {}, node.labels, address=node.node_ip)
            for node in nodes
            if node.alive
        ]
        rooms = tuple(sorted(alive, key=lambda room: room.name))
        self._rooms = (self._clock(), rooms, usage)
        return rooms, usage
