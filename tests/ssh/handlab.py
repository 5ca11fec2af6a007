"""One node behind a real sshd, for tests of what is done on it; Ray and the controller say what the test wants."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web

from console.hands import node, permits, rejoin
from console.hands.sweep import GpuProcess
from console.settings import Context, NodeEntry, SshOptions
from console.sources.session import Session
from jobs.client import ControllerClient
from jobs.nodeview import Hold, NodesPlan, NodesView, NodeView
from jobs.wire import NodesReply, Permit
from tests.unit.console.desk import Answers, status
from tests.unit.jobs.ray_stand_in import RayStandIn

from .servers import Sshd

SLEEPER = "import sys, time; sys.stdout.write('up'); sys.stdout.flush(); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
RAYLET = "import ctypes, sys; ctypes.CDLL(None).prctl(15, sys.argv[1].encode()); " + SLEEPER
"""A process with a name that is given, which stands for a raylet."""

PARENT = (
    "import os, subprocess, sys; e = {k: v for k, v in os.environ.items() if 'HANDS_' not in k}; "
    "c = subprocess.Popen([sys.executable, '-c', 'print(1, flush=True); import time; time.sleep(600)'], env=e, "
    "stdout=subprocess.PIPE); c.stdout.read(1); "
    "open(sys.argv[1], 'w').write(str(c.pid)); " + SLEEPER
)
"""A process with a child that has lost its marks."""

MARK = f"HANDS_{secrets.token_hex(4)}_"
"""What a mark begins with here."""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program that says when it is up; all have ended with the test."""
    made: list[subprocess.Popen[bytes]] = []

    def starting(program: str, *arguments: str, run: str = "", attempt: int = 1) -> subprocess.Popen[bytes]:
        marks = {f"{MARK}RUN": run, f"{MARK}ATTEMPT": str(attempt)} if run else {}
        child = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, env={**os.environ, **marks}
        )
        made.append(child)
        assert child.stdout is not None
        assert child.stdout.read(2) == b"up"
        return child

    yield starting
    for child in made:
        child.kill()
        child.wait(5)
        assert child.stdout is not None
        child.stdout.close()


def seen(child: subprocess.Popen[bytes], **other: object) -> GpuProcess:
    """A process as the probe tells of it."""
    return seen_pid(child.pid, **other)


def seen_pid(pid: int, **other: object) -> GpuProcess:
    """The same, by its pid."""
    proc = Path(f"/proc/{pid}")
    fields = proc.joinpath("stat").read_text().rpartition(")")[2].split()
    command = proc.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode().strip()[:200]
    values: dict[str, object] = {
        "pid": pid, "started": int(fields[19]), "user": "root", "command": command, "age_seconds": 1.0,
        "gpus": (0,), "memory_used_bytes": 1 << 30,
    }  # fmt: skip
    return GpuProcess(**{**values, **other})  # type: ignore[arg-type]


class Ray(RayStandIn):
    """A dashboard that lists a node once a file is there: what starts Ray writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = []
        self.comes: tuple[Path, dict[str, object]] | None = None

    async def _nodes(self, request: web.Request) -> web.Response:
        if self.comes is not None and self.comes[0].exists():
            self.nodes.append(self.comes[1])
            self.comes = None
        return await super()._nodes(request)


class Lab:
    """One node behind an sshd, Ray's dashboard and a controller that say what the test wants."""

    def __init__(self, session: Session, ray: Ray, entry: NodeEntry, process_name: str) -> None:
        self.session, self.ray, self.entry = session, ray, entry
        self.answers = Answers()
        self.client = ControllerClient(self.answers)
        self.told: list[str] = []
        self.process_name = process_name
        self.answers.given |= {
            ("POST", "/v1/nodes/permit"): Permit(id="p1", node=entry.name, action="", user="alice", at=0.0),
            ("POST", "/v1/permits/p1/done"): Permit(id="p1", node=entry.name, action="", user="alice", at=0.0),
            ("GET", "/v1/status"): status("alice"),
            ("GET", "/v1/nodes"): NodesView(),
        }

    def holds(self, *holds: Hold, **more: object) -> None:
        """What the controller says of the node; taking a hold back takes it off."""
        there = list(holds)

        def view() -> NodesView:
            values: dict[str, object] = {"state": "cordoned", "holds": there, **more}
            return NodesView(nodes=[NodeView(name=self.entry.name, **values)] if there else [])  # type: ignore[arg-type]

        def uncordon(asked: dict[str, object]) -> NodesReply:
            there[:] = [hold for hold in there if hold.user != (asked["of"] or "alice")]
            return NodesReply(plan=NodesPlan(action="uncordon", nodes=[]), view=view())

        self.answers.given[("GET", "/v1/nodes")] = lambda _: view()
        self.answers.given[("POST", "/v1/nodes/uncordon")] = uncordon

    def asked(self, path: str) -> list[dict[str, object]]:
        """The bodies of the requests to a route."""
        return [body for _, there, body in self.answers.asked if there == path]

    @property
    def outcomes(self) -> list[tuple[bool, str]]:
        return [(bool(body["ok"]), str(body["outcome"])) for body in self.asked("/v1/permits/p1/done")]

    def raylet(self, start: Start, node_id: str, *flags: str) -> subprocess.Popen[bytes]:
        labels = f'--labels={{"raydeck.io/node": "{self.entry.name}"}}'
        return start(RAYLET, self.process_name, f"--node_id={node_id}", labels, *flags)

    def started_by(self, tmp_path: Path, node_id: str) -> str:
        """A command that leaves a stand-in for a raylet running, and its pid in a file."""
        script = tmp_path / "raylet.py"
        script.write_text(RAYLET)
        labels = f'{{"raydeck.io/node": "{self.entry.name}"}}'
        run = f"{sys.executable} {script} {self.process_name} --node_id={node_id} '--labels={labels}'"
        return f"echo starting; {run} >/dev/null 2>&1 & echo $! > {tmp_path}/started; echo started"


def kill_noted(note: Path) -> None:
    """End what a command left running, by the pid in a file."""
    if note.exists():
        with suppress(ProcessLookupError):
            os.kill(int(note.read_text()), signal.SIGKILL)


def running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.fixture
async def lab(sshd: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Lab]:
    unique = f"rl-{secrets.token_hex(4)}"  # no raylet, and no run, of anything else on this machine
    source = node._source()  # pyright: ignore[reportPrivateUsage]
    patched = source.replace('RAYLET = "raylet"', f'RAYLET = "{unique}"').replace("RAYDECK_", MARK)
    assert patched.count(unique) == 1
    assert patched.count(MARK) >= 4
    monkeypatch.setattr(node, "_source", lambda: patched)
    monkeypatch.setattr(rejoin, "APPEAR_SECONDS", 0.0)
    monkeypatch.setattr(rejoin, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(permits, "TELL_PAUSES", (0.05,))
    reach = SshOptions(
        port=sshd.port, identity_files=[sshd.user_key], known_hosts=sshd.known_hosts, config=sshd.folder / "no-config"
    )
    # Never Ray's own command: it ends the Ray of everything on this machine.
    entry = NodeEntry(name=f"node-{unique}", address="127.0.0.1", accelerators=4, ray_stop="exit 99", ssh=reach)
    ray = Ray()
    async with ray.serving():
        context = Context(name="lab", nodes=[entry], dashboard=ray.address, dashboard_through_ssh=False)
        session = Session(context)
        yield Lab(session, ray, entry, unique)
        await session.close()
    kill_noted(tmp_path / "started")
