"""A whole controller inside the test's own event loop, on a real socket, with a dashboard beside it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from console.sources.http import HttpTransport
from jobs import package
from jobs.client import ControllerClient
from jobs.controller import door
from jobs.controller.record import Record
from jobs.controller.server import application
from jobs.controller.service import Service, Settings
from jobs.load import load_cluster
from jobs.model import Outcome, Run
from jobs.wire import LaunchRequest, StopRequest
from tests.unit.jobs.ray_stand_in import RayStandIn

WORKFLOW = """\
workflow:
  name: lm
  resources: {nodes: 1, accelerators_per_node: 1}
"""


@dataclass(frozen=True, slots=True)
class Harness:
    """What a test needs of it."""

    ray: RayStandIn
    service: Service
    client: ControllerClient
    store: Path
    code: str
    """The digest of a package that is in the store."""

    def request(self, text: str = WORKFLOW, request_id: str = "", **changes: object) -> LaunchRequest:
        """A launch of the workflow ``lm``, with the code that is there."""
        return LaunchRequest(
            request_id=request_id or uuid.uuid4().hex, workflow_text=text, package=self.code
        ).model_copy(update=changes)

    async def launch(self, request: LaunchRequest | None = None, client: ControllerClient | None = None) -> Run:
        """The one run that a request makes; of ``lm``, if none is given."""
        (run,) = await (client or self.client).launch(request or self.request())
        return run

    async def put(self, run: str, **changes: object) -> Run:
        """The run with these fields, as if that had come about."""

        def how(record: Record) -> Record:
            return record.model_copy(update={"run": record.run.model_copy(update=changes)})

        record = await self.service.runs.change(run, how)
        assert record is not None
        return record.run

    async def until(self, run: str, what: Callable[[Run], bool], seconds: float = 10.0) -> Run:
        """The run, once it is so. Fails with the run as it is after the limit."""
        deadline = time.monotonic() + seconds
        while True:
            found = await self.client.run(run)
            if what(found):
                return found
            assert time.monotonic() < deadline, f"still {found.state.value}: {found.reason}"
            await asyncio.sleep(0.02)

    def attempt(self, run: Run, number: int = 1) -> Path:
        """The directory of one of the run's attempts, as its driver would make it."""
        folder = Path(run.run_directory) / f"attempt-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def driver_says(self, run: Run, phase: str, number: int = 1) -> None:
        """The attempt's driver writes its status."""
        folder = self.attempt(run, number)
        (folder / "incoming").write_text(f'{{"phase": "{phase}", "wall": {time.time()}}}')
        (folder / "incoming").replace(folder / "status.json")

    def driver_ends(
        self, run: Run, verdict: str, reason: str = "", status: str = "SUCCEEDED", number: int = 1, **told: object
    ) -> None:
        """The attempt's driver writes its outcome and leaves."""
        outcome = Outcome.model_validate({"verdict": verdict, "reason": reason, **told})
        folder = self.attempt(run, number)
        (folder / "incoming").write_text(outcome.model_dump_json())
        (folder / "incoming").replace(folder / "outcome.json")
        self.ray.finish(f"raydeck-{run.id}-a{number}", status)


def stop_request(now: bool = False, reason: str = "") -> StopRequest:
    """A stop with an id of its own."""
    return StopRequest(request_id=uuid.uuid4().hex, reason=reason, now=now)


@asynccontextmanager
async def controller(ray: RayStandIn, store: Path, cluster: str = "", ticks: bool = True) -> AsyncGenerator[Harness]:
    """Recover, serve, and (if wanted) tick; closed in order."""
    settings = Settings(store=store, dashboard=ray.address)
    service = Service(settings, load_cluster(cluster, "cluster.yaml") if cluster else None, "source")
    await service.runs.recover()
    await service.nodes.recover()
    await service.health.recover()
    runner = web.AppRunner(application(service), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.SockSite(runner, door.open_socket(store)).start()
    code = store / "their-code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text("print('training')\n")
    built = package.build(code)
    service.packages.store(built.digest, built.content)
    transport = HttpTransport.to_socket(str(store / door.SOCKET_NAME))
    task = asyncio.create_task(service.work()) if ticks else None
    try:
        yield Harness(ray, service, ControllerClient(transport), store, built.digest)
    finally:
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        service.hub.close()
        await transport.close()
        await runner.cleanup()
        await service.close()


@asynccontextmanager
async def short_folder() -> AsyncGenerator[Path]:
    """A folder whose name is short enough for a socket in it."""
    folder = Path(tempfile.mkdtemp(prefix="rd-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
