"""A real cluster of several hosts for tests: `console.demo.hosts` with accounts, a controller, and ways to ask it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import yaml

from console.demo.hosts.bed import Bed as Hosts
from console.demo.hosts.host import Host
from console.demo.hosts.net import why_not as no_hosts
from console.settings import Context
from console.sources.head import start_controller
from console.sources.http import HttpTransport
from console.sources.session import Session
from console.sources.ssh import Connections
from console.sources.ssh import Host as Reached
from jobs.client import ControllerClient
from jobs.model import Run
from jobs.nodeview import NodeRef, NodesView
from jobs.package import sample_folder
from tests.hosts import accounts
from tests.hosts.accounts import Account

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
PEOPLE = ("alice", "bob", "sam")
WORKERS = ("worker-1", "worker-2", "worker-3")
CLUSTER = """\
cluster:
  name: bed
  control_nodes: [{{host: head, metadata_store: "{folder}/store"}}]
  storage: {{output_path: "{folder}/output"}}
  roles:
    admins: [root]
    operators: [{alice}, {bob}]
    submitters: [{sam}]
"""


def why_not() -> str:
    """What is missing for a bed here; empty if nothing is."""
    missing = [name for name in ("ray", "torch") if find_spec(name) is None]
    return no_hosts() or accounts.why_not() or (f"not installed: {', '.join(missing)}" if missing else "")


@dataclass
class Bed:
    """Hosts with Ray and a controller on the head."""

    cluster: Hosts
    context: Context
    people: dict[str, Account]
    started_seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def folder(self) -> Path:
        """All hosts see it."""
        return self.cluster.folder

    @property
    def hosts(self) -> dict[str, Host]:
        """By name."""
        return self.cluster.hosts

    def name(self, person: str) -> str:
        """What an account is really called."""
        return self.people[person].name

    # --- asking -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def desk(self, person: str = "") -> AsyncGenerator[ControllerClient]:
        """The controller as root asks it, or over SSH as somebody with an account does."""
        socket = str(self.folder / "store" / "controller.sock")
        if not person:
            transport = HttpTransport.to_socket(socket)
            try:
                yield ControllerClient(transport)
            finally:
                await transport.close()
            return
        account = self.people[person]
        async with Connections() as connections:
            host = Reached(
                name=f"{person} on head",
                address=self.cluster.head.address,
                user=account.name,
                identity_files=(str(account.key),),
                known_hosts=str(self.folder / "known_hosts"),
                config=os.devnull,
            )
            transport = HttpTransport.to_socket(await connections.add(host).forward_unix(socket))
            try:
                yield ControllerClient(transport)
            finally:
                await transport.close()

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Session]:
        """A console's session on it, which reads all that a console reads."""
        session = Session(self.context)
        try:
            session.start()
            yield session
        finally:
            await session.close()

    def cli(self, *arguments: str, check: bool = True, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
        """``raydeck --context demo …`` as root on this machine."""
        argv = [sys.executable, "-m", "console", "--context", "demo", *arguments]
        done = subprocess.run(
            argv, cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=seconds, check=False
        )
        assert not check or done.returncode == 0, f"{arguments}: {done.stderr or done.stdout}"
        return done

    @property
    def environ(self) -> dict[str, str]:
        """For a console on it."""
        return {
            **os.environ,
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "RAYDECK_CONFIG_DIR": str(self.folder / "none"),
        }

    # --- the controller -----------------------------------------------------------------------------------------------

    async def start_controller(self) -> int:
        """Over SSH, as a person does; its process id, by this machine's count."""
        session = Session(self.context)
        try:
            await start_controller(session, restart=False)
        finally:
            await session.close()
        return self.controller_pid()

    def controller_pid(self) -> int:
        """Of the one that runs."""
        (pid,) = [pid for pid, line in self.cluster.head.pids("jobs.controller").items() if "rayside" not in line]
        return pid

    # --- runs ---------------------------------------------------------------------------------------------------------

    def workflow(self, name: str, sample: str = "lm", **changes: Any) -> Path:
        """A workflow file made from a sample; ``section__key`` goes into a section."""
        folder = self.folder / "w" / f"{name}-{uuid.uuid4().hex[:4]}"
        shutil.copytree(str(sample_folder()), folder, ignore=shutil.ignore_patterns("__pycache__"))
        body = yaml.safe_load((folder / f"{sample}.yaml").read_text())
        body["workflow"]["name"] = name
        for path, value in changes.items():
            at = body["workflow"]
            *sections, key = path.split("__")
            for section in sections:
                at = at.setdefault(section, {})
            at[key] = value
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(body))
        return file

    def launch(self, file: Path) -> str:
        """The run's id."""
        found = json.loads(self.cli("launch", str(file), "--yes", "--json").stdout)
        return str((found[0] if isinstance(found, list) else found)["id"])


async def until(what: str, ask: Callable[[], Awaitable[T | None]], seconds: float = 60.0) -> T:
    """What ``ask`` gives once it gives something. Fails with ``what`` after the limit."""
    deadline = time.monotonic() + seconds
    while not (found := await ask()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.1)
    return found


async def run_until(desk: ControllerClient, run: str, so: Callable[[Run], bool], seconds: float = 60.0) -> Run:
    """The run, once it is so. Fails with the run as it is."""
    deadline = time.monotonic() + seconds
    while not so(found := await desk.run(run)):
        assert time.monotonic() < deadline, f"{run} after {seconds:g} s: {found.state.value}: {found.reason}"
        await asyncio.sleep(0.1)
    return found


async def view_until(desk: ControllerClient, so: Callable[[NodesView], bool], seconds: float = 60.0) -> NodesView:
    """The held nodes and the drains, once it is so."""
    deadline = time.monotonic() + seconds
    while not so(view := await desk.nodes()):
        assert time.monotonic() < deadline, view.model_dump_json(indent=1)
        await asyncio.sleep(0.1)
    return view


def refs(*names: str) -> list[NodeRef]:
    """Nodes by name."""
    return [NodeRef(name=name) for name in names]


def new() -> str:
    """The id of a request."""
    return uuid.uuid4().hex


@contextmanager
def hosts(names: Sequence[str], kind: type[Hosts] = Hosts, **more: Any) -> Generator[Hosts]:
    """Hosts without Ray."""
    folder = Path(tempfile.mkdtemp(prefix="rd-", dir="/tmp"))
    made = kind(folder, names, marks={"RAYDECK_DEMO": uuid.uuid4().hex[:8]}, **more)
    try:
        made.up()
        yield made
    finally:
        made.down()
        shutil.rmtree(folder)


@contextmanager
def bed(
    workers: Sequence[str] = WORKERS, cluster_text: Callable[[Path], str] | None = None, **more: Any
) -> Generator[Bed]:
    """Hosts with Ray, accounts and a controller. Everything of it is gone afterwards.

    ``cluster_text`` makes another cluster file; the accounts have no roles in it.
    """
    with ExitStack() as stack:
        began = time.monotonic()
        made = stack.enter_context(hosts(["head", *workers], **more))
        took = {"hosts": time.monotonic() - began}
        homes = made.folder / "home"
        homes.mkdir(mode=0o755)
        people, _ = stack.enter_context(accounts.accounts(homes, PEOPLE, {}))
        began = time.monotonic()
        made.start_ray()
        took["ray"] = time.monotonic() - began
        cluster = made.folder / "cluster.yaml"
        names = {person: account.name for person, account in people.items()}
        cluster.write_text(cluster_text(made.folder) if cluster_text else CLUSTER.format(folder=made.folder, **names))
        context = replace(made.context("demo"), cluster_file=cluster)
        found = Bed(made, context, people, took)
        run = made.folder / "run" / f"raydeck-{os.getuid()}"
        run.mkdir(parents=True, mode=0o700)
        told = {"pid": os.getpid(), "demo": "bed", "folder": str(made.folder), "context": context.to_json()}
        (run / "demo.json").write_text(json.dumps(told))
        asyncio.run(found.start_controller())
        yield found
