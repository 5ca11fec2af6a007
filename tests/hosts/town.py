"""A head that several people share: a controller, an sshd, and a desk for each of them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from console.sources.http import HttpTransport
from console.sources.ssh import Connections
from jobs.client import ControllerClient
from jobs.errors import Unreachable
from jobs.model import Run
from jobs.wire import LaunchRequest
from tests.hosts.accounts import Account
from tests.ssh.servers import Sshd, free_port, keygen
from tests.unit.jobs.ray_stand_in import RayStandIn

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = """\
workflow:
  name: lm
  resources: {nodes: 1, accelerators_per_node: 1}
"""
ANSWER_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Town:
    """The desks of the people, by what the test calls them, and their real names."""

    desks: dict[str, ControllerClient]
    accounts: dict[str, Account]
    ray: RayStandIn

    def name(self, person: str) -> str:
        """What the account is really called."""
        return self.accounts[person].name

    async def launch(self, person: str, hold: bool = False) -> Run:
        """A run of this person's."""
        return (await self.desks[person].launch(launch_request(hold)))[0]


def launch_request(hold: bool = False) -> LaunchRequest:
    """A launch with an id of its own, of the samples that ship with raydeck."""
    return LaunchRequest(request_id=uuid.uuid4().hex, workflow_text=WORKFLOW, hold=hold)


@asynccontextmanager
async def town(folder: Path, people: dict[str, Account], roles: str) -> AsyncGenerator[Town]:
    """``roles`` are the lines below ``cluster.roles``. Everything ends with this."""
    async with AsyncExitStack() as stack:
        ray = await stack.enter_async_context(RayStandIn().serving())
        store = folder / "s"
        cluster = folder / "cluster.yaml"
        cluster.write_text(
            f"cluster:\n  name: shared\n  control_nodes: [{{host: localhost}}]\n"
            f"  storage: {{output_path: {folder}/output}}\n  roles:\n{roles}"
        )
        process = _started(store, ray.address, cluster)
        stack.callback(_end, process)
        own = folder / "sshd"
        own.mkdir()
        server = Sshd(own, own / "nobody", free_port(), keygen(own / "host_key"), [
            "AuthorizedKeysFile .ssh/authorized_keys",
            f"AllowUsers {' '.join(account.name for account in people.values())}",
        ])  # fmt: skip
        stack.callback(server.stop)
        server.start()
        server.trust()
        connections = await stack.enter_async_context(Connections())
        desks: dict[str, ControllerClient] = {}
        for person, account in people.items():
            host = server.host(person, user=account.name, identity_files=(str(account.key),))
            path = await connections.add(host).forward_unix(str(store / "controller.sock"))
            transport = HttpTransport.to_socket(path)
            stack.push_async_callback(transport.close)
            desks[person] = ControllerClient(transport)
        await _until_it_answers(desks[next(iter(people))], process)
        yield Town(desks, people, ray)


def _started(store: Path, dashboard: str, cluster: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "jobs.controller", "--store", str(store), "--dashboard", dashboard]
    return subprocess.Popen(
        [*command, "--cluster", str(cluster)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """A controller that does not leave in order is a failure of the test."""
    process.terminate()
    try:
        said, _ = process.communicate(timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert (process.returncode, said) == (0, b"")


async def _until_it_answers(desk: ControllerClient, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            await desk.status()
            return
        except Unreachable:
            assert process.poll() is None, "the controller ended"
            assert time.monotonic() < deadline, "the controller does not answer"
            await asyncio.sleep(0.05)
