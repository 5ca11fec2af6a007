"""A cluster in which no time passes: two workers with simulated accelerators, one run, one foreign job, and trouble."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from textual.screen import Screen

from console.app import RaydeckApp
from console.screens.fleet import FleetScreen
from console.settings import Context, NodeEntry, Settings
from console.sources.session import Session
from console.sources.ssh import Connection
from jobs.client import ControllerClient
from jobs.errors import Unreachable
from jobs.model import Attempt, Failure, GangStatus, Held, Outcome, Progress, Rank, Run, RunState
from jobs.nodeview import NodesView
from jobs.raymodel import RayJob, RayNode
from jobs.wire import ControllerStatus
from probes.reading import ERROR, UNSUPPORTED, DeviceFacts, Disk, Driver, Facts, Host, Missing, Process, Sample
from tests.screens.answers import GB, WALL, FrozenClient, queue_view

NOW = 10_000.0
RAY_IDS = {"head": "aa" * 14, **{f"worker-{number}": f"{number + 10:x}" * 28 for number in range(1, 7)}}


class FrozenSession(Session):
    """A session that reads nothing, whose clock stands, and whose controller says the same thing every time."""

    client: FrozenClient

    def now(self) -> float:
        return NOW

    def head_wall(self) -> float:
        return WALL

    async def controller(self) -> ControllerClient:
        return self.client

    def connection(self, name: str) -> Connection:
        raise Unreachable(f"no SSH connection to {name}: nothing is reached in a frozen cluster")


Frozen = TypeVar("Frozen", bound=FrozenSession)


def _facts(name: str, gpus: int) -> Facts:
    devices = [
        DeviceFacts(
            index=index,
            uuid=f"SIM-{name}-{index}",
            name="SIMULATED H100 80GB",
            memory_total_bytes=80 * GB,
            power_limit_watts=700.0,
            ecc_corrected_count=index,
            ecc_uncorrected_count=1 if index == 3 else 0,
            pcie_generation=5,
            pcie_width=16,
            mig_mode=None,
            missing={"mig_mode": Missing(UNSUPPORTED, "NVML: Not Supported")},
        )
        for index in range(gpus)
    ]
    return Facts(hostname=name, kernel="6.1", python="3.11.7", source="simulated" if gpus else "none", devices=devices)


def _sample(gpus: int, busy: int, second: int, lost: bool = False) -> Sample:
    load = [97 + (second % 3) if index < busy else 0 for index in range(gpus)]
    missing = {3: {"*": Missing(ERROR, "GPU is lost: it fell off the bus")}} if lost else {}
    columns: dict[str, Any] = {
        "utilization_percent": load,
        "memory_utilization_percent": [value // 2 for value in load],
        "memory_used_bytes": [62 * GB if index < busy else 4 * 1024**2 for index in range(gpus)],
        "power_watts": [640.0 + 20 * math.sin(second / 20) if index < busy else 70.0 for index in range(gpus)],
        "temperature_celsius": [87 if index < min(busy, 1) else 64 if index < busy else 35 for index in range(gpus)],
        "sm_clock_mhz": [1980 if index < busy else 345 for index in range(gpus)],
        "memory_clock_mhz": [2619] * gpus,
        "throttle_reasons": [4 if index < busy else 1 for index in range(gpus)],
    }
    if lost:
        columns = {name: [*values[:3], None] for name, values in columns.items()}
    disk = Disk("/mnt/output", int(4.1e12 if gpus else 9.7e12), int(1e13))
    return Sample(
        seq=second,
        driver=Driver("ok" if gpus else "none"),
        index=list(range(gpus)),
        columns=columns,
        missing=missing,
        processes=[
            Process(index, 4000 + index, "alice", "python lm.py --steps 2000", 62 * GB, "lm-k3f9qz", 1, index)
            for index in range(busy)
        ],
        host=Host(41.0, 12.5, 180 * GB, 512 * GB, 1.2e6, 3.4e6, [disk]),
    )


def _run(identity: str, state: RunState, **more: Any) -> Run:
    ranks = [
        Rank(rank=rank, node_id=RAY_IDS[f"worker-{1 + rank // 2}"], node_address=f"10.0.0.{2 + rank // 2}",
             gpu=str(rank % 2), pid=4000 + rank, exit_code=more.get("exit_code"))
        for rank in range(4)
    ]  # fmt: skip
    status = GangStatus(
        phase="running",
        ranks=ranks,
        progress=Progress(step=1250, loss=1.6231, throughput=18_250.0, throughput_unit="tokens", wall=WALL - 1),
        checkpoint_step=1200,
    )
    attempt = Attempt(number=1, job_id=f"raydeck-{identity}-a1", state=state, status=status, started_at=WALL - 610,
                      nodes=["worker-1", "worker-2"])  # fmt: skip
    if state is RunState.FAILED:
        evidence = "ValueError: loss is not a number"
        outcome = Outcome(verdict="failed", failure=Failure.APPLICATION, evidence=evidence, last_step=1250,
                          first_failing_rank=1, exit_codes={0: -15, 1: 1, 2: -15, 3: -15})  # fmt: skip
        attempt = attempt.model_copy(
            update={
                "failure": Failure.APPLICATION,
                "outcome": outcome,
                "reason": more["reason"],
                "ended_at": WALL - 300,
            }
        )
    return Run(
        id=identity,
        failure=attempt.failure,
        workflow=identity.rpartition("-")[0],
        release="lm-r-4f9c2a",
        state=state,
        reason=more.get("reason", ""),
        user="alice",
        nodes=2,
        gpus=4,
        run_directory=f"/mnt/output/lm/{identity}",
        submitted_at=WALL - more.get("ago", 620),
        started_at=WALL - more.get("ago", 620) + 4,
        ended_at=WALL - 300 if state.ended else None,
        attempts=[attempt],
    )


def _waiting() -> list[Run]:
    """Two of those that wait, as runs: one that had to try again and one that is held."""
    first, *_, last = queue_view().waiting
    out: list[Run] = []
    for told in (first, last):
        out.append(
            Run(id=told.run, workflow="lm", release="lm-r-4f9c2a", state=RunState.QUEUED, queue=told.queue,
                priority=told.priority, user=told.user, nodes=told.nodes, gpus=told.gpus, submitted_at=told.since,
                max_retry=3)
        )  # fmt: skip
    lost = Attempt(number=1, job_id=f"raydeck-{first.run}-a1", state=RunState.FAILED, failure=Failure.NODE_LOST,
                   reason="worker-2 is lost: Ray says that it is dead", started_at=WALL - 3000, ended_at=WALL - 2500,
                   nodes=["worker-1", "worker-2"],
                   outcome=Outcome(verdict="failed", evidence="The node died: health check failed", last_step=410,
                                   suspects=["worker-2"], failure=Failure.NODE_LOST,
                                   exit_codes={0: 1, 1: None}))  # fmt: skip
    out[0] = out[0].model_copy(
        update={"attempts": [lost], "retries": 1, "suspects": {"worker-2": 2}, "failure": Failure.NODE_LOST}
    )
    held = Held(user="bob", at=WALL - 1200, reason="wait for the new data set")
    out[1] = out[1].model_copy(update={"held": held})
    return out


def session(trouble: bool = False) -> FrozenSession:
    """The cluster; with ``trouble`` a lost GPU, a silent node, a node that is dead to Ray, a clock that is off."""
    return session_of(FrozenSession, trouble)


def session_of(kind: type[Frozen], trouble: bool = False, workers: int = 2) -> Frozen:
    """The same cluster, read by a session of another kind, or with more workers."""
    names = list(RAY_IDS)[: workers + 1]
    nodes = [
        NodeEntry(name=name, address=f"10.0.0.{number + 1}", role="head" if name == "head" else "worker")
        for number, name in enumerate(names)
    ]
    made = kind(Context(name="lab", nodes=nodes, simulated=True))
    fleet, work = made.fleet, made.work
    for name in names:
        gpus = 0 if name == "head" else 4
        fleet.ssh_state(name, "up", "", NOW - 700)
        fleet.take_facts(name, _facts(name, gpus), NOW - 650)
        for second in range(600):
            lost = trouble and name == "worker-1"
            fleet.take_sample(name, _sample(gpus, min(gpus, 2), second, lost), NOW - 600 + second + 0.6)
        fleet.take_clock(name, 4.2 if trouble and name == "head" else 0.003, 12.0)
    fleet.take_ray_nodes(
        [
            RayNode(
                node_id=RAY_IDS[name],
                node_ip=f"10.0.0.{number + 1}",
                is_head=name == "head",
                state="DEAD" if trouble and name == "worker-2" else "ALIVE",
                state_message="Unexpected termination: health check failed due to missing too many heartbeats",
                resources_total={"CPU": 64.0, "GPU": 0.0 if name == "head" else 4.0},
                labels={"raydeck.io/node": name},
            )
            for number, name in enumerate(names)
        ],
        NOW - 1,
    )
    fleet.take_ray_usage({RAY_IDS[name]: {"GPU": (0.0 if name == "head" else 2.0, 4.0)} for name in names})
    fleet.ray_answers("ok", "", NOW - 1)
    if trouble:
        fleet.nodes["worker-1"].sampled_at = NOW - 4.4
        fleet.ssh_state("worker-1", "silent", "nothing heard for 3 s", NOW - 1.5)
    status = ControllerStatus(
        version="0.1.0", code_digest="0" * 64, pid=812, user="ray", host="head", python="/usr/bin/python3",
        started_at=WALL - 9000, dashboard="http://127.0.0.1:8265", ray="ok", metadata_store="/data/meta",
        supervised_by="systemd", you="alice", role="operator",
    )  # fmt: skip
    runs = [_run("lm-k3f9qz", RunState.RUNNING)]
    if trouble:
        reason = "rank 1 on worker-2 (10.0.0.3) exited 1: ValueError: loss is not a number"
        runs.append(_run("failing-a2b3c4", RunState.FAILED, reason=reason, ago=900, exit_code=1))
    runs += _waiting()
    work.snapshot(status, runs, NOW - 0.4, queue_view(), NodesView())
    made.client = FrozenClient(dict(work.runs))
    work.controller_state("ok", "", NOW - 60)
    job = RayJob(submission_id="raysubmit_Xy12", status="RUNNING", entrypoint="python tune.py", started_at=WALL - 4000)
    work.take_ray_jobs([job])
    return made


class FrozenApp(RaydeckApp):
    """The real app on the frozen cluster."""

    def __init__(self, made: Session, *, first: Callable[[], Screen[Any]] = FleetScreen, **settings: Any) -> None:
        super().__init__(Settings(theme="raydeck-dark", **settings), {"TERM": "xterm-256color"}, lambda: made.context)
        self.context = made.context
        self.session = made
        self._first = first

    def first_screen(self) -> Screen[Any]:
        return self._first()


def swept() -> FrozenSession:
    """The cluster with a sweep of six points: over, running and waiting ones."""
    made = session()
    states = [RunState.SUCCEEDED, RunState.FAILED, RunState.RUNNING, RunState.RUNNING, RunState.QUEUED, RunState.QUEUED]
    for number, state in enumerate(states):
        rate, width = (0.1, 0.01, 0.001)[number // 2], (64, 128)[number % 2]
        run = _run(f"grid-p{number}x{9 - number}k{number}", state, reason="loss is not a number" if number == 1 else "")
        point = Progress(step=900 - 100 * number, loss=math.nan if number == 1 else 2.0 - 0.3 * (number % 4),
                         throughput=9_000.0, throughput_unit="tokens")  # fmt: skip
        status = GangStatus(phase="running", progress=point)
        attempts = [Attempt(number=1, job_id=f"raydeck-{run.id}-a1", status=status)] if number < 4 else []
        run = run.model_copy(
            update={"sweep": "grid-7f3a", "parameters": {"learning_rate": rate, "parameters.width": width},
                    "attempts": attempts, "started_at": WALL - 500 if number < 4 else None}
        )  # fmt: skip
        made.client.known[run.id] = run
        made.work.run_changed(run, NOW)
    return made
