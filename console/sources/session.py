"""Everything that reads one cluster, in one object: SSH to every node, Ray's dashboard, the controller.

App and command line both use it. It fills a `FleetStore` and a `WorkStore`; it never changes anything by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from console.settings import Context, NodeEntry, SshOptions, thresholds_of
from console.sources.controller import ControllerWatcher
from console.sources.hostkeys import AskHostKey
from console.sources.http import HttpTransport
from console.sources.probes import NodeWatcher
from console.sources.ray import RayWatcher
from console.sources.ssh import Connection, Connections, Host
from console.state.fleet import FleetStore, Node
from console.state.work import WorkStore
from jobs.client import ControllerClient
from jobs.errors import RaydeckError, Refused
from jobs.rayapi import RayApi
from probes.reading import Facts, Health, Sample

SOCKET_NAME = "controller.sock"


def host_of(entry: NodeEntry, common: SshOptions) -> Host:
    """How a node of the context is reached: what it says itself, else what the context says for all."""
    own = entry.ssh
    files = own.identity_files or common.identity_files

    def path(value: Any) -> str | None:
        return None if value is None else str(value.expanduser())

    return Host(
        name=entry.name,
        address=entry.address,
        port=own.port or common.port,
        user=own.user or common.user,
        identity_files=tuple(str(file.expanduser()) for file in files),
        jump=own.jump or common.jump,
        known_hosts=path(own.known_hosts or common.known_hosts),
        config=path(own.config or common.config),
    )


class Session:
    """One cluster as this operator reaches it. `start` begins to read, `close` ends everything that it began."""

    def __init__(self, context: Context, *, ask: AskHostKey | None = None) -> None:
        self.context = context
        self.fleet = FleetStore()
        self.work = WorkStore()
        self.connections = Connections(ask=ask)
        self._hosts: dict[str, Connection] = {}
        self._watchers: list[NodeWatcher] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._transports: list[HttpTransport] = []
        self._store_path: str | None = None
        self._controller: ControllerClient | None = None
        self.ray_watcher: RayWatcher | None = None
        for entry in context.nodes:
            node = Node(name=entry.name, address=entry.address, role=entry.role, expected_gpus=entry.accelerators)
            self.fleet.add(node)

    def now(self) -> float:
        """The clock that ages are counted by: monotonic seconds of this machine."""
        return time.monotonic()

    def head_wall(self) -> float:
        """The head's clock, seconds since 1970: the times of runs are in it."""
        return time.time() + self.work.clock_offset_seconds

    # --- ways in ------------------------------------------------------------------------------------------------------

    def connection(self, name: str) -> Connection:
        """The connection to a node of the context; made when first asked for."""
        if name not in self._hosts:
            entry = next((entry for entry in self.context.nodes if entry.name == name), None)
            if entry is None:
                raise Refused(f"there is no node {name!r} in context {self.context.name}")
            self._hosts[name] = self.connections.add(host_of(entry, self.context.ssh))
        return self._hosts[name]

    @property
    def head(self) -> Connection:
        """The connection to the head."""
        if self.context.head is None:
            raise Refused(f"context {self.context.name} has no node")
        return self.connection(self.context.head.name)

    async def _dashboard_socket(self) -> str:
        host, _, port = self.context.dashboard.removeprefix("http://").rstrip("/").rpartition(":")
        if not port.isdigit():
            raise Refused(f"context {self.context.name}: dashboard {self.context.dashboard!r} has no port")
        return await self.head.forward_port_to_path(host or "127.0.0.1", int(port))

    async def ray_api(self) -> RayApi:
        """Ray's dashboard, straight or through the SSH tunnel to the head."""
        if self.context.dashboard_through_ssh:
            transport = HttpTransport.to_socket(await self._dashboard_socket())
            transport.where = (
                f"{self.context.dashboard} on {self.head.host.name}"  # not the tunnel's end, a temporary file
            )
        else:
            transport = HttpTransport.to_address(self.context.dashboard)
        self._transports.append(transport)
        return RayApi(transport)

    async def store_path(self) -> str:
        """The controller's folder on the head, absolute."""
        if self._store_path is None:
            named = self.context.metadata_store
            if named.startswith("~"):
                answer = await self.head.run_command(["/bin/sh", "-c", 'printf %s "$HOME"'], timeout=10)
                named = answer.stdout.decode("utf-8", "replace").strip() + named[1:]
            self._store_path = named.rstrip("/")
        return self._store_path

    async def controller(self) -> ControllerClient:
        """The controller, through its socket on the head."""
        path = f"{await self.store_path()}/{SOCKET_NAME}"
        local = await self.head.forward_unix(path)  # the same for the life of the connection, through reconnects
        if self._controller is None:
            transport = HttpTransport.to_socket(local)
            transport.where = f"{path} on {self.head.host.name}"
            self._transports.append(transport)
            self._controller = ControllerClient(transport)
        return self._controller

    # --- reading ------------------------------------------------------------------------------------------------------

    def _own(self, work: Any, name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    def start(self, *, probes: bool = True, ray: bool = True, controller: bool = True) -> None:
        """Begin to read. The command line asks only for what its answer needs."""
        if probes:
            for entry in self.context.nodes:
                watcher = NodeWatcher(self.connection(entry.name), self, disks=self.context.disks)
                self._watchers.append(watcher)
                watcher.start()
            self._own(self._judge(), "judge")
        if ray:
            self.ray_watcher = RayWatcher(self.ray_api, self.fleet, self.work)
            self._own(self.ray_watcher.run(), "ray")
        if controller:
            self._own(ControllerWatcher(self.controller, self.work).run(), "controller")

    async def _judge(self) -> None:
        """Judge by the rules of health what this console sees itself, for as long as it is open."""
        from console.state.judge import Judge  # brings all the rules: not before nodes are read

        try:
            changes = await asyncio.to_thread(thresholds_of, self.context)
        except RaydeckError:
            changes = None  # it could be read when the context was found, and is being written anew
        judge = Judge(changes)
        while True:
            for pause in judge.round(self.fleet, self.work, self.now(), self.head_wall()):
                await asyncio.sleep(pause)

    async def close(self) -> None:
        """End everything, in order: watchers, polls, transports, connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(watcher.close() for watcher in self._watchers))
        await asyncio.gather(*(transport.close() for transport in self._transports))
        await self.connections.close()

    async def until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Wait until something is known; false if it is not within the limit."""
        deadline = time.monotonic() + limit
        while not condition():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    # --- what the watchers tell ---------------------------------------------------------------------------------------

    def ssh_state(self, name: str, state: str, reason: str, since: float) -> None:
        """How SSH to a node stands."""
        self.fleet.ssh_state(name, state, reason, since)

    def facts(self, name: str, facts: Facts) -> None:
        """What seldom changes of a node."""
        self.fleet.take_facts(name, facts, time.monotonic())

    def sample(self, name: str, sample: Sample, received: float) -> None:
        """One second of a node."""
        self.fleet.take_sample(name, sample, received)

    def health(self, name: str, health: Health, received: float) -> None:
        """What health rules ask of a node, and what happened on it."""
        self.fleet.take_health(name, health, received)

    def clock(self, name: str, offset_seconds: float, round_trip_ms: float) -> None:
        """A node's clock against this machine's."""
        self.fleet.take_clock(name, offset_seconds, round_trip_ms)
        if self.context.head is not None and name == self.context.head.name:
            self.work.clock_offset_seconds = offset_seconds
