"""The controller's parts put together: start, recover, serve, stop in order. Each wait has a limit."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import os
import platform
import signal
import socket
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from aiohttp import web

from jobs.controller import door
from jobs.controller.access import Access, Caller
from jobs.controller.engine import Engine
from jobs.controller.events import Hub
from jobs.controller.files import RunFiles
from jobs.controller.http import AiohttpTransport
from jobs.controller.journal import JournalThread
from jobs.controller.launch import Launcher
from jobs.controller.packages import Packages
from jobs.controller.reconcile import Reconciler
from jobs.controller.runs import Runs
from jobs.controller.server import application
from jobs.errors import Refused
from jobs.load import load_cluster
from jobs.model import Progress, Run
from jobs.spec import Cluster, Roles
from jobs.wire import ControllerStatus, LaunchRequest

log = logging.getLogger(__name__)

REQUESTS_SECONDS = 5.0
"""How long requests that were begun may take after the stop was asked for."""
TICK_ENDS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line said."""

    store: Path
    dashboard: str
    cluster_file: Path | None = None
    supervised_by: str = "none"


class Service:
    """All parts of one controller. What `jobs.controller.server` asks for."""

    def __init__(self, settings: Settings, cluster: Cluster | None, code_digest: str) -> None:
        """Opens the journal. Raises `JournalError`."""
        self._settings = settings
        self._code_digest = code_digest
        self._started_at = time.time()
        self.hub = Hub()
        self.access = Access(cluster.roles if cluster is not None else Roles())
        self.packages = Packages(settings.store)
        self.journal = JournalThread(settings.store / "journal.sqlite")
        self.runs = Runs(self.journal, self.hub)
        self.files = RunFiles()
        self._transport = AiohttpTransport(settings.dashboard)
        self.engine = Engine(self._transport)
        self.reconciler = Reconciler(self.runs, self.engine, self.files, self.packages)
        self._launcher = Launcher(
            settings.store, cluster, self.runs, self.journal, self.packages, self.engine, self.files
        )

    def status(self, caller: Caller) -> ControllerStatus:
        """Who serves this cluster, and who is asking."""
        return ControllerStatus(
            version=_version(),
            code_digest=self._code_digest,
            pid=os.getpid(),
            user=_own_name(),
            host=socket.gethostname(),
            python=f"{sys.executable} ({platform.python_version()})",
            started_at=self._started_at,
            dashboard=self._settings.dashboard,
            ray=self.engine.words(),
            ray_version=self.engine.version,
            metadata_store=str(self._settings.store),
            supervised_by=self._settings.supervised_by,
            you=caller.user,
            role=caller.role.word,
            runs_active=len(self.runs.active()),
        )

    def ray_words(self) -> str:
        """What is known of Ray, for a heartbeat."""
        return self.engine.words()

    async def launch(self, request: LaunchRequest, caller: Caller) -> tuple[Run, bool]:
        """Take a launch in."""
        return await self._launcher.launch(request, caller)

    async def series(self, run: str, points: int) -> list[Progress]:
        """The course of a run."""
        record = await self.runs.find(run)
        return await self.files.series(record.run.run_directory, points)

    async def close(self) -> None:
        """Let go of files and connections, the journal last."""
        self.files.close()
        await self._transport.close()
        await asyncio.to_thread(self.journal.close)


async def serve(settings: Settings, lock: door.StoreLock) -> None:
    """Run until SIGTERM or SIGINT. ``lock`` is held already. Raises `RaydeckError` if it cannot begin."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    digest = code_digest()
    service = Service(settings, _cluster(settings.cluster_file), digest)
    runner = web.AppRunner(
        application(service), handle_signals=False, access_log=None, shutdown_timeout=REQUESTS_SECONDS
    )
    ticks: asyncio.Task[None] | None = None
    try:
        count = await service.runs.recover()
        listener = door.open_socket(settings.store)
        await runner.setup()
        site = web.SockSite(runner, listener)
        await site.start()
        lock.tell(
            {
                "pid": os.getpid(),
                "socket": str(settings.store / door.SOCKET_NAME),
                "digest": digest,
                "supervised_by": settings.supervised_by,
            }
        )
        log.info("serves %s as process %d, %d runs taken up", settings.store, os.getpid(), count)
        ticks = asyncio.create_task(service.reconciler.run(), name="reconcile")
        waiting = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait((ticks, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if ticks.done():
            ticks.result()
        log.info("asked to stop")
    finally:
        door.remove_socket(settings.store)
        service.hub.close()
        await runner.cleanup()
        if ticks is not None:
            ticks.cancel()
            _, late = await asyncio.wait((ticks,), timeout=TICK_ENDS_SECONDS)
            if late:
                log.warning("a tick did not end within %.0f s and was left", TICK_ENDS_SECONDS)
        await service.close()
        log.info("stopped")


def _cluster(path: Path | None) -> Cluster | None:
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"the cluster file {path} cannot be read: {error}") from error
    return load_cluster(text, str(path))


def code_digest() -> str:
    """The digest that the archive is named by from which this code was started; ``source`` for a folder."""
    for part in Path(__file__).parents:
        if part.suffix == ".zip":
            return part.stem
    return "source"


def _version() -> str:
    try:
        return version("raydeck")
    except PackageNotFoundError:
        return "unknown"


def _own_name() -> str:
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()
    return f"uid {os.getuid()}"
