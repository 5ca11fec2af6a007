"""Where faults are made: a cluster of real hosts on which everything can be broken and mended again."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from console.demo.hosts.bed import Bed as Hosts
from jobs.client import ControllerClient
from probes.health.rules import RULES as ALL_RULES
from probes.ports import TABLES_EVERY
from tests.hosts.bed import Bed, bed
from tests.nvml import StandIn, build

WORK = Path(__file__).parent / "work"
STALL = Path(__file__).parent / "stall.py"
NVML_HOST = "worker-3"
"""Its GPUs are read through NVIDIA's own library, for which the stand-in in C is put; the others' are simulated."""
TRAINS = ("worker-1", "worker-2")
"""Where runs go: what the stand-in shows does not follow from what runs do."""
GPUS = 4
IDLE = (
    f"devices {GPUS}",
    f"value nvmlDeviceGetMemoryInfo * {80 << 30} 0",
    f"value nvmlDeviceGetMemoryInfo_v2 * {80 << 30} 0",
    "value nvmlDeviceGetUtilizationRates * 0 0",
    "value nvmlDeviceGetPowerUsage * 70000",
)
"""What the stand-in shows while nothing is broken: left to itself its GPUs are busy, and nobody would hold them."""
RULES: dict[str, dict[str, object]] = {rule.id: {"clear": "1s"} for rule in ALL_RULES if not rule.latch}
"""Alerts wait half a minute to two before they end; here the next fault would have to wait for that."""
RULES["run.slow"]["for"] = "30s"  # instead of five minutes
START_SECONDS = 60.0
STAYS_SECONDS = 20.0
"""A raylet that was cut off may hear only now that Ray has given it up, and ends."""
KERNEL_FACILITY = 4
HEALTH_SECONDS = 10.0
"""How often a probe tells what only health rules ask for."""
CLUSTER = """\
cluster:
  name: faults
  control_nodes: [{{host: head, metadata_store: "{folder}/store"}}]
  worker_nodes:
    - {{host: worker-1, accelerators: 4}}
    - {{host: worker-2, accelerators: 4}}
    - {{host: worker-3, accelerators: 4}}
  storage: {{output_path: "{folder}/output", dataset_path: "{folder}/data"}}
  observability: {{health_check_interval_seconds: 1}}
  alerting:
    rules: {rules}
"""


class FaultHosts(Hosts):
    """Hosts of which one has the stand-in for NVML, and all have disks that fill and a file system that hangs."""

    standin: StandIn

    def environment(self, name: str) -> dict[str, str]:
        """Of everything that runs on a host."""
        found = super().environment(name)
        if name == NVML_HOST:
            del found["RAYDECK_SIMULATED"]
            found |= self.standin.environ
        return found

    def up(self) -> None:
        """All hosts, with their sshd."""
        self.standin = StandIn(build(self.folder / "nvml"), self.folder / "nvml" / "rules")
        self.standin.say(*IDLE)
        super().up()


@dataclass
class Lab:
    """The cluster, and ways to break it."""

    bed: Bed
    cleared: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    """Rule and entities of what the fault before this one had told: some of it may come up once more, and end."""

    @property
    def hosts(self) -> FaultHosts:
        """The machines."""
        found = self.bed.cluster
        assert isinstance(found, FaultHosts)
        return found

    def wait_step(self, run: str, step: int, seconds: float = START_SECONDS) -> None:
        """Until a run has made this step, or is over."""

        def there() -> bool:
            told = json.loads(self.bed.cli("runs", "--json").stdout)
            found = next((each for each in told if each["id"] == run), None)
            if found is not None and found["state"] in ("failed", "stopped", "succeeded"):
                return True
            return found is not None and (found["step"] or 0) >= step

        _until(f"{run} comes to step {step}", there, seconds)

    def wait_port_known(self) -> None:
        """Until probes have seen a port that is new: they read the tables of addresses once in so many looks."""
        time.sleep((TABLES_EVERY + 2) * HEALTH_SECONDS)

    def back(self, node: str) -> None:
        """Bring a node back into Ray, as an operator does; again if Ray declares it dead late."""
        alive_since: float | None = None

        def stays() -> bool:
            nonlocal alive_since
            told = json.loads(self.bed.cli("nodes", "--json").stdout)
            if next(each["ray"] for each in told if each["name"] == node) != "alive":
                alive_since = None
                self.bed.cli("rejoin", node, "--yes", "--reason", "the fault was mended", seconds=180.0)
                return False
            alive_since = alive_since or time.monotonic()
            return time.monotonic() - alive_since >= STAYS_SECONDS

        _until(f"{node} is in Ray again, and stays", stays, 240.0)

    def keep_runs_away(self) -> None:
        """From the node whose GPUs know nothing of them."""
        self.bed.cli("cordon", NVML_HOST, "--yes", "--reason", "its GPUs are a stand-in")

    async def calm(self, desk: ControllerClient) -> None:
        """Until every node is watched and nothing fires."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            view = await desk.alerts()
            firing = [alert for alert in view.alerts if alert.state == "firing" and alert.level != "info"]
            if not firing and not view.unwatched and view.watched_nodes == len(self.bed.hosts):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"the cluster does not come to rest: {view.model_dump_json(indent=1)}")
            await asyncio.sleep(0.2)

    # --- accelerators -------------------------------------------------------------------------------------------------

    @contextmanager
    def simulated(self, node: str, **changes: object) -> Generator[None]:
        """Have a node's simulated accelerators act otherwise."""
        path = self.hosts.script(node)
        before = path.read_text()
        body: dict[str, Any] = json.loads(before)
        _replace(path, json.dumps({**body, **changes}))
        try:
            yield
        finally:
            _replace(path, before)

    def gpu_fault(self, node: str, index: int, kind: str, **more: object) -> Any:
        """One accelerator of a node with a fault of this kind."""
        return self.simulated(node, faults={str(index): {"kind": kind, **more}})

    @contextmanager
    def nvml(self, *rules: str) -> Generator[None]:
        """Have the stand-in for NVML say something else."""
        standin = self.hosts.standin
        standin.say(*rules, *IDLE)
        try:
            yield
        finally:
            standin.say(*IDLE)

    @contextmanager
    def load(self, node: str, indexes: str = "0,1,2,3", run: str = "held-by-hand") -> Generator[None]:
        """A process that holds a node's accelerators, as a rank does, so that they are under load."""
        marks = {"RAYDECK_RUN": run, "RAYDECK_NODE": node, "RAYDECK_GPU": indexes, "RANK": "0", **self.hosts.marks}
        words = [f"{name}={value}" for name, value in marks.items()]
        self.bed.hosts[node].inside("env", *words, "sh", "-c", "setsid sleep 3600 >/dev/null 2>&1 &")
        try:
            yield
        finally:
            self.bed.hosts[node].kill("sleep 3600")

    # --- kernel -------------------------------------------------------------------------------------------------------

    @contextmanager
    def kernel_says(self, node: str, *lines: str) -> Generator[None]:
        """New lines in a host's kernel log."""
        stamp = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
        with self.hosts.kernel_log(node).open("a") as log:
            for number, line in enumerate(lines):
                log.write(f"{KERNEL_FACILITY},{int(time.time() * 10) % 10**9 + number},{stamp + number},-;{line}\n")
        yield

    # --- storage ------------------------------------------------------------------------------------------------------

    def folder(self, node: str, name: str) -> Path:
        """An empty folder that this node has for itself, by the same path everywhere."""
        path = self.bed.folder / "m" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    @contextmanager
    def mounted(self, node: str, path: Path, *options: str) -> Generator[Path]:
        """A small file system of a node's own at a folder that is watched."""
        host = self.bed.hosts[node]
        host.inside("mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(path))
        try:
            yield path
        finally:
            host.inside("umount", "-l", str(path))

    @contextmanager
    def hanging(self, node: str, path: Path) -> Generator[None]:
        """A folder of a node that answers nothing."""
        host = self.bed.hosts[node]
        host.inside("sh", "-c", f"setsid {sys.executable} {STALL} {path} >/dev/null 2>&1 &")
        _until("the file system hangs", lambda: "fuse" in host.inside("sh", "-c", f"grep {path} /proc/mounts || true"))
        try:
            yield
        finally:
            for pid in host.pids(str(STALL)):
                os.kill(pid, signal.SIGTERM)
            _until("it is let go of", lambda: str(path) not in host.inside("cat", "/proc/mounts"))

    # --- runs ---------------------------------------------------------------------------------------------------------

    def workflow(self, mode: str, **changes: Any) -> Path:
        """A workflow that goes wrong in this way. ``section__key`` changes a section of the file."""
        folder = self.bed.folder / "w" / f"trouble-{uuid.uuid4().hex[:6]}"
        shutil.copytree(WORK, folder, ignore=shutil.ignore_patterns("__pycache__"))
        body: dict[str, Any] = yaml.safe_load((folder / "trouble.yaml").read_text())
        workflow: dict[str, Any] = body["workflow"]
        workflow["name"] = "-".join(mode.split()) or "healthy"
        workflow["training"]["parameters"]["mode"] = mode
        for path, value in changes.items():
            *sections, key = path.split("__")
            at = workflow
            for section in sections:
                at = at.setdefault(section, {})
            at[key] = value
        file = folder / "trouble.yaml"
        file.write_text(yaml.safe_dump(body))
        return file

    @contextmanager
    def running(self, mode: str = "", **changes: Any) -> Generator[str]:
        """A run, from its launch on; it is ended afterwards."""
        run = self.bed.launch(self.workflow(mode, **changes))
        try:
            yield run
        finally:
            self.bed.cli("stop", run, "--now", "--yes", "--reason", "the fault was seen", check=False)

    def nodes_of(self, run: str) -> list[str]:
        """Where a run runs."""
        told = json.loads(self.bed.cli("runs", "--json").stdout)
        ranks = next(each["ranks"] for each in told if each["id"] == run)
        addresses = {rank["node_address"] for rank in ranks}
        return sorted(name for name, host in self.bed.hosts.items() if host.link.address in addresses)

    def ranks(self, run: str, rank: int) -> list[int]:
        """The process of one rank, by this machine's ids."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _marks(entry) == (run, str(rank)):
                found.append(int(entry.name))
        return found


def _marks(entry: Path) -> tuple[str, str]:
    try:
        environ = dict(
            part.split("=", 1)
            for part in (entry / "environ").read_bytes().decode("utf-8", "replace").split("\0")
            if "=" in part
        )
    except OSError:
        return "", ""
    return environ.get("RAYDECK_RUN", ""), environ.get("RANK", "") if environ.get("LOCAL_RANK") else ""


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def _until(what: str, so: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


@contextmanager
def lab() -> Generator[Lab]:
    """A head and three workers with four GPUs each, a controller, and data that all of them see."""
    with ExitStack() as stack:
        made = stack.enter_context(bed(kind=FaultHosts, cluster_text=_cluster))
        yield Lab(made)


def _cluster(folder: Path) -> str:
    for name in ("data", "output", "m"):
        (folder / name).mkdir(exist_ok=True)
    os.mkfifo(folder / "pipe")
    return CLUSTER.format(folder=folder, rules=json.dumps(RULES))
