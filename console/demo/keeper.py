"""The demo's keeper: a process of its own that starts everything, and ends it when its standard input closes.

So it does not matter how the console ends: Ctrl-C, SIGTERM, SIGHUP, SIGKILL, a closed terminal all close that pipe.
It says what it does as NDJSON on standard output: ``step`` (name, state, seconds, detail), then ``ready`` or
``failed``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from console.demo import processes
from console.settings import Context, NodeEntry, SshOptions, demo_contexts, runtime_folder
from jobs.errors import RaydeckError
from jobs.within import within

WORKERS = 2
GPUS = 4
START_LIMIT_SECONDS = 180.0
END_LIMIT_SECONDS = 6.0
GPU_MEMORY_BYTES = 80 * 1024**3
GPU_POWER_WATTS = 700


CLUSTER_FILE = """\
# The demo's cluster file: two queues, of which one gives way.
cluster:
  name: demo
  control_nodes:
    - {{host: head, metadata_store: "{store}"}}
  storage:
    output_path: "{store}/output"
    dataset_path: "{store}/data"
  scheduler:
    default_queue: training
    queues:
      - {{name: training, max_accelerators: 8}}
      - {{name: research, max_accelerators: 4, priority: low}}
"""


class StartFailed(RaydeckError):
    """Something of the demo did not start."""


def say(event: str, **fields: Any) -> None:
    """One line to the console; a console that is gone does not matter, its end is noticed elsewhere."""
    with contextlib.suppress(BrokenPipeError, ValueError):
        sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
        sys.stdout.flush()


@contextlib.contextmanager
def step(name: str) -> Any:
    """Tells that a step runs, then how long it took or why it failed."""
    started = time.monotonic()
    say("step", name=name, state="start", seconds=0.0, detail="")
    detail: list[str] = []
    try:
        yield detail.append
    except asyncio.CancelledError:
        raise
    except Exception as error:
        say("step", name=name, state="failed", seconds=time.monotonic() - started, detail=str(error))
        raise
    say("step", name=name, state="done", seconds=time.monotonic() - started, detail=" ".join(detail))


def sweep_dead_demos() -> None:
    """End what a demo left whose keeper was killed outright."""
    living = demo_contexts()
    for path in runtime_folder().glob("demo*.json"):
        if path.stem in living:
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, RaydeckError):
            body = json.loads(path.read_text("utf-8"))
            if "hosts" in body:
                from console.demo.hosts.net import take_down

                take_down(body["hosts"])
            processes.end_all(body["demo"])
            shutil.rmtree(body["folder"], ignore_errors=True)
        path.unlink(missing_ok=True)


class Keeper:
    """One demo, from its folder to its end."""

    workers = WORKERS

    def __init__(self, demo: str, folder: Path) -> None:
        self.demo = demo
        self.folder = folder
        self.name = ""
        self.nodes = ["head", *(f"worker-{number + 1}" for number in range(self.workers))]
        self.context_path: Path | None = None
        self._children: list[asyncio.subprocess.Process] = []

    async def _spawn(self, *arguments: str, stderr: Path) -> asyncio.subprocess.Process:
        with stderr.open("ab") as errors:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                limit=1024 * 1024,
            )
        self._children.append(child)
        return child

    async def _keys(self) -> None:
        import asyncssh

        keys = self.folder / "keys"
        keys.mkdir(mode=0o700)
        client = asyncssh.generate_private_key("ssh-ed25519", comment=f"raydeck {self.demo}")
        client.write_private_key(str(keys / "client"))
        client.write_public_key(str(keys / "client.pub"))
        for name in self.nodes:
            key = asyncssh.generate_private_key("ssh-ed25519", comment=name)
            key.write_private_key(str(keys / f"{name}.host"))
            key.write_public_key(str(keys / f"{name}.host.pub"))

    async def _host(self, name: str) -> int:
        gpus = 0 if name == "head" else GPUS
        home = self.folder / "home" / name
        home.mkdir(parents=True)
        simulated = self._script(name)
        script = {
            "node": name,
            "owner": {processes.MARK: self.demo},
            "gpus": gpus,
            "memory_total_bytes": GPU_MEMORY_BYTES,
            "power_limit_watts": GPU_POWER_WATTS,
        }
        simulated.write_text(json.dumps(script))
        keys = self.folder / "keys"
        child = await self._spawn(
            "-m",
            "console.demo.host",
            f"--home={home}",
            f"--host-key={keys / f'{name}.host'}",
            f"--client-key={keys / 'client.pub'}",
            f"--simulated={simulated}",
            stderr=self.folder / f"ssh-{name}.log",
        )
        assert child.stdout is not None
        line = await child.stdout.readline()
        if not line:
            raise StartFailed(f"the SSH host {name} did not start", _tail(self.folder / f"ssh-{name}.log"))
        return int(json.loads(line)["port"])

    def _script(self, name: str) -> Path:
        """What the GPUs of this node act out."""
        return self.folder / f"simulated-{name}.json"

    async def _ssh_hosts(self) -> dict[str, int]:
        with step(f"{len(self.nodes)} SSH hosts") as tell:
            await self._keys()
            ports = dict(zip(self.nodes, await asyncio.gather(*(self._host(name) for name in self.nodes)), strict=True))
            with (self.folder / "known_hosts").open("w") as known:
                for name, port in ports.items():
                    public = (self.folder / "keys" / f"{name}.host.pub").read_text().split()
                    known.write(f"[127.0.0.1]:{port} {public[0]} {public[1]}\n")
            tell(f"on 127.0.0.1, ports {', '.join(str(port) for port in ports.values())}")
        return ports

    async def _ray(self) -> dict[str, Any]:
        log = self.folder / "ray.log"
        nodes = [
            {
                "name": name,
                "gpus": 0 if name == "head" else GPUS,
                "environment": {"RAYDECK_SIMULATED": str(self._script(name))},
            }
            for name in self.nodes
        ]
        (self.folder / "r").mkdir()
        child = await self._spawn(
            "-m", "jobs.local", "--temp-dir", str(self.folder / "r"), "--nodes-json", json.dumps(nodes), stderr=log
        )
        assert child.stdout is not None
        while line := await child.stdout.readline():
            body = json.loads(line)
            if body["event"] == "ready":
                return body
            if body["event"] == "failed":
                raise StartFailed(f"Ray did not start: {body.get('sentence', 'no reason given')}")
            say(**body)
        raise StartFailed("Ray did not start", _tail(log))

    async def _controller(self, context: Context) -> None:
        from console.sources.head import start_controller
        from console.sources.session import Session

        cluster = self.folder / "cluster.yaml"
        cluster.write_text(CLUSTER_FILE.format(store=context.metadata_store))
        with step("controller") as tell:
            session = Session(replace(context, cluster_file=cluster))
            try:
                started = await start_controller(session, restart=False)
            finally:
                await session.close()
            tell(f"pid {started['pid']}")
        # The paths that the cluster file names are looked at on every node.
        for name in ("data", "output"):
            (Path(context.metadata_store) / name).mkdir(exist_ok=True)

    def _context(self, name: str, ports: dict[str, int], ray: dict[str, Any]) -> Context:
        ssh = SshOptions(
            user=os.environ.get("USER") or "demo",
            identity_files=[self.folder / "keys" / "client"],
            known_hosts=self.folder / "known_hosts",
            config=Path(os.devnull),
        )
        return Context(
            name=name,
            nodes=[
                NodeEntry(
                    name=node,
                    address="127.0.0.1",
                    role="head" if node == "head" else "worker",
                    accelerators=0 if node == "head" else GPUS,
                    ssh=replace(ssh, port=port),
                )
                for node, port in ports.items()
            ],
            dashboard=f"http://{ray['dashboard']}",
            metadata_store=str(self.folder / "store"),
            python=sys.executable,
            disks=[str(self.folder)],
            simulated=True,
        )

    def claim(self) -> dict[str, Any]:
        """What it says of itself while it starts, so that whatever it leaves is found."""
        return {"pid": os.getpid(), "demo": self.demo, "folder": str(self.folder)}

    async def machines(self) -> Context:
        """The SSH hosts and the Ray cluster; how both are reached."""
        ports, ray = await asyncio.gather(self._ssh_hosts(), self._ray())
        (self.folder / "cluster.json").write_text(json.dumps(ray))
        return self._context(self.name, ports, ray)

    def _claim_name(self) -> str:
        folder = runtime_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise StartFailed(f"{folder} belongs to somebody else")
        folder.chmod(0o700)
        for number in range(1, 100):
            name = "demo" if number == 1 else f"demo-{number}"
            path = folder / f"{name}.json"
            with contextlib.suppress(FileExistsError):
                with path.open("x") as file:
                    json.dump(self.claim(), file)
                self.context_path = path
                return name
        raise StartFailed("a hundred demos run already")

    async def start(self) -> None:
        """Start everything; tell of each step; end with ``ready``."""
        began = time.monotonic()
        sweep_dead_demos()
        self.name = self._claim_name()
        context = await self.machines()
        assert self.context_path is not None
        await self._controller(context)
        body = {**self.claim(), "context": context.to_json()}
        fresh = self.context_path.with_suffix(".new")
        fresh.write_text(json.dumps(body))
        fresh.replace(self.context_path)
        say(
            "ready",
            context=self.name,
            nodes=len(self.nodes),
            gpus=self.workers * GPUS,
            simulated=True,
            dashboard=context.dashboard,
            folder=str(self.folder),
            context_file=str(self.context_path),
            seconds=round(time.monotonic() - began, 1),
        )

    async def end(self) -> None:
        """End everything, in order: the children asked, then whatever else is left of this demo, then the files."""
        for child in self._children:
            if child.stdin is not None:
                child.stdin.close()
        waiting = [asyncio.ensure_future(child.wait()) for child in self._children]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=END_LIMIT_SECONDS)
            for task in late:
                task.cancel()
        left = processes.end_all(self.demo)
        if left:
            sys.stderr.write(f"raydeck demo: these processes would not end: {sorted(left)}\n")
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.context_path is not None:
            self.context_path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            runtime_folder().rmdir()


def _tail(log: Path, lines: int = 3) -> str:
    with contextlib.suppress(OSError):
        return " / ".join(log.read_text("utf-8", "replace").strip().splitlines()[-lines:])
    return ""


async def _closed(stop: asyncio.Event) -> None:
    """Until standard input ends, or a signal comes."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    loop.add_reader(sys.stdin.fileno(), readable)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


async def _main(hosts: bool) -> int:
    kind = Keeper
    if hosts:
        from console.demo.hosts.keeper import HostsKeeper

        kind = HostsKeeper
    processes.become_reaper()
    demo = secrets.token_hex(4)
    os.environ[processes.MARK] = demo
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        os.environ.pop(name, None)
    # Short: Ray's sockets lie below it, and a socket's path may have 107 bytes.
    keeper = kind(demo, Path(tempfile.mkdtemp(prefix="rd-", dir="/tmp")))
    closed = asyncio.ensure_future(_closed(asyncio.Event()))
    starting = asyncio.ensure_future(within(keeper.start(), START_LIMIT_SECONDS))
    code = 0
    try:
        await asyncio.wait({closed, starting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and starting.exception() is not None:
            error = starting.exception()
            late = isinstance(error, asyncio.TimeoutError)
            say("failed", reason=f"not ready after {START_LIMIT_SECONDS:.0f} s" if late else str(error))
            code = 1
        else:
            await closed
    finally:
        starting.cancel()
        closed.cancel()
        await asyncio.gather(starting, closed, return_exceptions=True)
        await keeper.end()
    return code


def main() -> None:
    """The keeper's process."""
    parser = argparse.ArgumentParser(description="starts and ends a demo")
    parser.add_argument("--hosts", action="store_true", help="on several hosts, made of namespaces")
    sys.exit(asyncio.run(_main(parser.parse_args().hosts)))


if __name__ == "__main__":
    main()
