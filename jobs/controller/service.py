"""The controller's parts put together: start, recover, serve, stop in order. Each wait has a limit."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import itertools
import logging
import os
import platform
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from aiohttp import web

from jobs import catalogue, validations
from jobs.controller import door, prometheus
from jobs.controller.access import Access, Caller
from jobs.controller.admission import Admission
from jobs.controller.backup import Backups
from jobs.controller.engine import Engine
from jobs.controller.events import SHOWN_WAITING, Hub
from jobs.controller.files import RunFiles
from jobs.controller.health.service import Health
from jobs.controller.http import AiohttpTransport
from jobs.controller.journal import Journal, JournalThread
from jobs.controller.launch import Launcher
from jobs.controller.newrun import without_file
from jobs.controller.nodes.asked import Asked
from jobs.controller.nodes.cordons import Cordons
from jobs.controller.nodes.drains import Drains
from jobs.controller.nodes.look import Looker
from jobs.controller.nodes.retire import Retirements
from jobs.controller.nodes.state import Nodes
from jobs.controller.nodes.watch import NodeWatch
from jobs.controller.packages import Packages
from jobs.controller.prometheus import Endpoint, Exposition, Sources
from jobs.controller.rayside import RaySide
from jobs.controller.reconcile import Reconciler
from jobs.controller.recorder import Recorder
from jobs.controller.releases import Releases
from jobs.controller.requests import Requests
from jobs.controller.rollback import Rollbacks
from jobs.controller.runs import Runs
from jobs.controller.server import application
from jobs.errors import Refused
from jobs.load import load_cluster
from jobs.model import Progress, RunState
from jobs.queueview import QueueView
from jobs.spec import Cluster
from jobs.validationview import Report
from jobs.wire import CheckpointRow, ControllerStatus, Snapshot

log = logging.getLogger(__name__)

REQUESTS_SECONDS = 5.0
"""How long requests that were begun may take after the stop was asked for."""
WORK_ENDS_SECONDS = 5.0
QUEUE_SECONDS = 1.0
"""How often those who listen are told of the queues, at most."""
SNAPSHOT_ENDED = 200
"""So many of the runs that ended last are in a snapshot."""


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
        self._endpoint: Endpoint | None = None
        self._code_digest = code_digest
        self._started_at = time.time()
        cluster = self._cluster = cluster if cluster is not None else without_file(settings.store)
        self.hub = Hub()
        self.access = Access(cluster.roles)
        self.packages = Packages(settings.store)
        self.journal = JournalThread(settings.store / "journal.sqlite")
        self.runs = Runs(self.journal, self.hub)
        self.files = RunFiles()
        self._transport = AiohttpTransport(settings.dashboard)
        self.engine = Engine(self._transport)
        rules = cluster.scheduler
        self.nodes = Nodes(self.journal)
        self.admission = Admission(rules, self.runs, self.engine, self.files, self.journal, kept=self.nodes.kept)
        self.reconciler = Reconciler(self.runs, self.engine, self.files, self.packages, self.admission)
        self.backups = Backups(self.journal)
        self.launcher = Launcher(
            cluster, self.runs, self.journal, self.packages, self.engine, self.files, self.admission, self.access
        )
        self.requests = Requests(rules, self.runs, self.admission, self.files, self.access)
        self.releases = Releases(self.runs, self.journal, self.files)
        self.rollbacks = Rollbacks(
            cluster, self.runs, self.journal, self.files, self.packages, self.engine, self.access
        )

        self.rayside = RaySide(self.engine.gcs)
        look = Looker(self.nodes, self.runs, self.engine, self.rayside)
        self.watch = NodeWatch(self.nodes, self.runs, look, self.hub)
        asked = Asked(self.nodes, self.runs, self.admission, self.access, look)
        self.cordons, self.drains, self.retirements = Cordons(asked), Drains(asked), Retirements(asked)
        self.nodes_view = look.view
        self.recorder = Recorder(settings.store / "recorder")
        self.health = Health(
            cluster,
            self.journal,
            self.runs,
            self.files,
            self.nodes,
            self.engine,
            self.hub,
            self.access,
            self._page,
            look.learn,
            self.recorder,
        )
        self.said, self.alerts_view = self.health.said, self.health.view

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
            warnings=[words for words in (self.journal.trouble, self.backups.trouble) if words],
        )

    async def snapshot(self, caller: Caller) -> Snapshot:
        """What a listener begins with: a bounded part of the runs, and the queues."""
        queue = self.admission.page or await self.admission.view(0, SHOWN_WAITING)
        ended = [record.run for record in await self.journal(Journal.ended, SNAPSHOT_ENDED)]
        active = {record.id: record.run for record in self.runs.active()}
        holding = [run for run in active.values() if not run.state.waiting]
        waiting = [active[each.run] for each in queue.waiting if each.run in active]
        if len(waiting) < SHOWN_WAITING:
            # Those that came since the queue was last gone through.
            known = {run.id for run in waiting}
            fresh = (run for run in active.values() if run.state.waiting and run.id not in known)
            waiting += itertools.islice(fresh, SHOWN_WAITING - len(waiting))
        self.hub.show(waiting)
        # One that the journal has as ended may go on again by now.
        runs = {run.id: active.get(run.id, run) for run in (*ended, *waiting, *holding)}
        newest = sorted(runs.values(), key=lambda run: (-run.submitted_at, run.id))
        return Snapshot(
            status=self.status(caller), runs=newest, queue=queue, nodes=self.nodes_view(), alerts=self.alerts_view()
        )

    async def checkpoints(self, run: str) -> list[CheckpointRow]:
        """A run's checkpoints. Raises `NoSuch` or `Unreachable`."""
        directory = (await self.runs.find(run)).run.run_directory
        return await self.files.apart(f"{directory}#checkpoints", lambda: catalogue.rows(directory))

    async def validation(self, run: str) -> Report:
        """What a validation has found so far. Raises `NoSuch`, `Refused` or `Unreachable`."""
        found = (await self.runs.find(run)).run
        if found.workflow != validations.WORKFLOW:
            raise Refused(f"{run} is a run of {found.workflow}, and no validation")
        path = Path(validations.report_path(found.run_directory))

        def read() -> Report:
            try:
                text = path.read_text(encoding="utf-8")
            except FileNotFoundError:
                raise Refused(f"{run} has no report yet", f"It is {found.state.value}: {found.reason}") from None
            except (OSError, UnicodeDecodeError) as error:
                raise Refused(f"the report of {run} cannot be read: {error}") from error
            report = validations.read_report(text, str(path))
            if found.state.ended and not report.done:  # its driver was killed, and says nothing more
                report.end(f"its run {found.state.value} before it came to its end: {found.reason}")
            return report.model_copy(update={"user": found.user})

        return await self.files.apart(f"{found.run_directory}#validation", read)

    async def series(self, run: str, points: int) -> list[Progress]:
        """The course of a run."""
        record = await self.runs.find(run)
        return await self.files.series(record.run.run_directory, points)

    async def open_page(self) -> None:
        """The page for Prometheus, where the cluster file asks for one. Raises `Refused` where that is not possible."""
        wanted = self._cluster.alerting.prometheus
        if wanted is None:
            return
        sources = Sources(
            version=_version(),
            started_at=self._started_at,
            alerts=self.alerts_view,
            runs=self._counted,
            queue=self._page,
            notices=self.health.notifier.waiting,
        )
        self._endpoint = await prometheus.serve(wanted.listen, Exposition(sources))

    def _counted(self) -> dict[RunState, int]:
        return dict(Counter(record.run.state for record in self.runs.active()))

    async def work(self) -> None:
        """All that goes on beside the requests, until cancelled. Ends with the first part that goes wrong."""
        tasks = [
            asyncio.create_task(self.reconciler.run(), name="reconcile"),
            asyncio.create_task(self.watch.run(), name="nodes"),
            asyncio.create_task(self.health.run(), name="health"),
            asyncio.create_task(self.backups.run(), name="backups"),
            asyncio.create_task(self._tell_queue(), name="tell the queue"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _page(self) -> QueueView | None:
        """The queues, as the newest pass left them."""
        return self.admission.page

    async def _tell_queue(self) -> None:
        """Tell those who listen of the queues, at most once a second."""
        told: QueueView | None = None
        while True:
            await asyncio.sleep(QUEUE_SECONDS)
            page = self.admission.page
            if page is None or page is told or not len(self.hub):
                continue
            told = page
            active = {record.id: record.run for record in self.runs.active()}
            self.hub.publish_queue(page, {each.run: active[each.run] for each in page.waiting if each.run in active})

    async def close(self) -> None:
        """Let go of files and connections, the journal last, with a backup of what was written since the last one."""
        self.files.close()
        if self._endpoint is not None:
            await self._endpoint.close()
        await self.health.close()
        await self.recorder.close()
        await self.rayside.close()
        await self._transport.close()
        await self.backups.make_if_changed()
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
    work: asyncio.Task[None] | None = None
    try:
        count = await service.runs.recover()
        await service.nodes.recover()
        await service.health.recover()
        service.recorder.start()
        await service.open_page()
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
        work = asyncio.create_task(service.work(), name="work")
        waiting = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait((work, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if work.done():
            work.result()
        log.info("asked to stop")
    finally:
        door.remove_socket(settings.store)
        service.hub.close()
        await runner.cleanup()
        if work is not None:
            work.cancel()
            _, late = await asyncio.wait((work,), timeout=WORK_ENDS_SECONDS)
            if late:
                log.warning("what was being done did not end within %.0f s and was left", WORK_ENDS_SECONDS)
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
