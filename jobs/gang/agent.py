"""Owns one node of a gang: starts torchrun there, says how its ranks fare, asks them to leave, ends them.

The driver makes one of these on each bundle of the placement group, as a Ray actor. Its methods are quick (but `end`,
which is bounded), and run one at a time on the worker's main thread.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ray

from jobs.gang import asked, environment, facts, guard, processes
from jobs.gang.environment import PACKAGE
from jobs.gang.kernel import Kernel
from jobs.gang.progress import end_of
from jobs.gang.vitals import Vitals, Watch
from jobs.model import Launch

POLITE_SECONDS = 2.0
LIMIT_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node's agent knows before anything is started."""

    gpus: list[str]
    """Indices on the node, as Ray gave them to this bundle."""
    pid: int
    free_port: int
    """Free at this moment, for rank 0 to be met at."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """How one rank fares."""

    rank: int
    pid: int | None = None
    gpu: str = ""
    exit_code: int | None = None
    """Negative for a signal; None while it runs."""
    ended_seconds_ago: float | None = None
    vitals: Vitals = field(default_factory=Vitals)
    vitals_seconds_ago: float = 0.0
    """Since it was looked at."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """How a node's part of the gang fares."""

    ranks: list[RankReport] = field(default_factory=list)
    torchrun_exit_code: int | None = None
    torchrun_log: str = ""
    """The end of torchrun's own output, once it has ended in failure."""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """What the node runs on, as far as that is known by now (see `jobs.gang.facts`)."""


class Agent:
    """One node of a gang."""

    def __init__(self, launch_json: str, index: int, node: str, address: str) -> None:
        self._launch = Launch.model_validate_json(launch_json)
        self._index = index
        self._marks = environment.marks(self._launch, node)
        self._node = node
        self._address = address
        accelerators = ray.get_runtime_context().get_accelerator_ids()
        self._gpus = [str(gpu) for gpu in accelerators.get("GPU", [])]
        self._folder = Path(tempfile.mkdtemp(prefix="raydeck-gang-"))
        self._python = os.environ.get("RAYDECK_PYTHON") or sys.executable
        self._torchrun: subprocess.Popen[bytes] | None = None
        self._log = Path(self._launch.attempt_directory) / f"torchrun-{index}.log"
        self._kernel = Kernel()
        self._watch = Watch(self._folder)
        self._asked = asked.Asked(self._folder, node, index)
        self._ras = ""
        self._facts = facts.of_node(ray.__version__)
        self._guard = guard.start(str(self._folder), self._marks)

    def facts(self) -> Facts:
        """Who this is, and a port for the gang to meet at."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        return Facts(self._gpus, os.getpid(), port)

    def start(self, master_address: str, master_port: int) -> None:
        """Start torchrun and with it this node's ranks. Raises Refused when the environment cannot be made."""
        launch = self._launch
        workload = environment.workload()
        attempt_directory = Path(launch.attempt_directory)
        attempt_directory.mkdir(parents=True, exist_ok=True)
        gang = {
            "gpus": self._gpus,
            "attempt_directory": str(attempt_directory),
            "workload": str(workload),
            "package": str(PACKAGE),
            "agent": os.getpid(),
        }
        (self._folder / "gang.json").write_text(json.dumps(gang), encoding="utf-8")
        variables = environment.of_gang(launch, self._node, self._address, os.environ)
        if self._gpus:
            variables.setdefault("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", str(self._folder / "flight-"))
        self._ras = asked.ras_address(variables, self._gpus)
        command = [
            self._python, "-m", "jobs.gang.torchrun",
            str(self._folder), str(os.getpid()), str(self._index * launch.processes_per_node),
            str(launch.processes_per_node),
            "--nnodes", str(launch.nodes), "--node-rank", str(self._index),
            "--nproc-per-node", str(launch.processes_per_node),
            "--master-addr", master_address, "--master-port", str(master_port), "--local-addr", self._address,
            "--rdzv-id", f"{launch.run}-{launch.attempt}", "--max-restarts", "0", "--no-python",
            self._python, "-I", "-S", str(PACKAGE / "jobs" / "gang" / "rank.py"), str(self._folder), *launch.script,
        ]  # fmt: skip
        with self._log.open("ab") as log:
            self._torchrun = subprocess.Popen(
                command,
                cwd=PACKAGE,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def report(self) -> NodeReport:
        """How the ranks of this node fare now."""
        # The exit code first: what torchrun noted before it ended is then on disk.
        code = self._torchrun.poll() if self._torchrun else None
        first = self._index * self._launch.processes_per_node
        ranks = [self._rank(rank) for rank in range(first, first + self._launch.processes_per_node)]
        return NodeReport(ranks, code, end_of(self._log) if code else "", self._environment())

    def look(self, look: str) -> None:
        """Begin a look at the ranks of this node, in a child; `looked` gives what it found."""
        ranks: list[dict[str, Any]] = []
        for report in self.report().ranks:
            vitals = asdict(report.vitals)
            del vitals["step_wall"], vitals["own_seconds"], vitals["output_bytes"]
            for age in ("step_seconds", "output_seconds", "state_seconds"):
                if vitals[age] is not None:
                    vitals[age] += report.vitals_seconds_ago
            who = {"rank": report.rank, "pid": report.pid, "gpu": report.gpu, "exit_code": report.exit_code}
            ranks.append({**vitals, **who, "node": self._node})
        self._asked.start(look, ranks, self._ras)

    def looked(self, look: str) -> str | None:
        """What a look found, as JSON (see `jobs.gang.gather`); None as long as it goes on."""
        return self._asked.result(look)

    def notes(self) -> list[str]:
        """What the kernel of this node told since the agent began."""
        return self._kernel.notes()

    def ask_to_leave(self) -> None:
        """Send SIGTERM to the ranks themselves, not to torchrun, which would end them 30 s later come what may."""
        for rank in self.report().ranks:
            if rank.pid is not None and rank.exit_code is None:
                process = processes.of(rank.pid)
                if process is not None:
                    processes.send(process, signal.SIGTERM)

    def end(self) -> list[int]:
        """End all of this attempt on this node, and give the ids of what could not be ended: empty is the promise."""

        def find() -> list[processes.Process]:
            running = self._torchrun is not None and self._torchrun.poll() is None
            tree = processes.tree(self._torchrun.pid) if self._torchrun and running else []
            return [*processes.marked(self._marks), *tree]

        return processes.end(find, POLITE_SECONDS, LIMIT_SECONDS)

    def _rank(self, rank: int) -> RankReport:
        started = _read(self._folder / f"rank-{rank}.json")
        ended = _read(self._folder / f"exit-{rank}.json")
        who = started or ended
        looked_at, vitals = self._watch.of(rank, started["pid"] if started and not ended else None)
        return RankReport(
            rank=rank,
            pid=who["pid"] if who else None,
            gpu=started["gpu"] if started else "",
            exit_code=ended["exit_code"] if ended else None,
            ended_seconds_ago=time.monotonic() - ended["monotonic"] if ended else None,
            vitals=vitals,
            vitals_seconds_ago=time.monotonic() - looked_at,
        )

    def _environment(self) -> dict[str, str]:
        return {**self._facts, **(_read(self._folder / "environment.json") or {})}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
