"""Evidence for tests: a healthy cluster of two nodes with two GPUs each and a run on it, to be broken in one place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.model import Attempt, Failure, GangStatus, Outcome, Progress, Run, RunState
from jobs.triage.evidence import (
    Evidence,
    LogLine,
    NodeEvidence,
    RankEvidence,
    RunEvidence,
    Target,
    Truth,
    lines,
)
from probes.reading import (
    DeviceFacts,
    DeviceHealth,
    Driver,
    Event,
    Facts,
    Health,
    Host,
    Missing,
    Mount,
    Port,
    Process,
    Sample,
)

NOW = 1_800_000_000.0
FAILED_AT = NOW - 60.0
GIB = 1 << 30
RECORDED = Path(__file__).parent.parent / "data" / "triage" / "recorded"

RESET = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.1]:4711: "
    "Connection reset by peer"
)
WATCHDOG = (
    "[rank0]:[E1113 03:31:00.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=413, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds"
)


def device_health(index: int, **figures: float | None) -> DeviceHealth:
    """A GPU that is well, but for what is given."""
    well: dict[str, float | None] = {
        "ecc_volatile_uncorrected_count": 0, "remap_pending": 0, "remap_failed": 0, "recovery_action": 0,
        "slowdown_celsius": 92, "pcie_generation": 5, "pcie_generation_max": 5, "pcie_width": 16,
        "pcie_width_max": 16, "nvlinks_active": 18, "nvlinks_total": 18, "fabric_healthy": 1,
    }  # fmt: skip
    return DeviceHealth(index, f"GPU-{index}", f"0000:{0x1B + index:02x}:00", {**well, **figures})


def node(name: str, gpus: int = 2, **changes: Any) -> NodeEvidence:
    """A machine that is well."""
    sample = Sample(
        seq=1,
        wall=NOW,
        driver=Driver("ok"),
        index=list(range(gpus)),
        columns={
            "utilization_percent": [97] * gpus,
            "memory_used_bytes": [60 * GIB] * gpus,
            "power_watts": [640.0] * gpus,
            "temperature_celsius": [61] * gpus,
            "sm_clock_mhz": [1900] * gpus,
            "throttle_reasons": [0] * gpus,
        },
        processes=[Process(gpu, 1000 + gpu, "alice", "python train.py", 60 * GIB, "run-1") for gpu in range(gpus)],
        host=Host(cpu_percent=40.0, memory_used_bytes=200 * GIB, memory_total_bytes=1000 * GIB),
    )
    facts = Facts(
        hostname=name, kernel="6.8", driver_version="570.1", cuda_version="12.8",
        devices=[
            DeviceFacts(gpu, f"GPU-{name}-{gpu}", "H200", 141 * GIB, power_limit_watts=700.0) for gpu in range(gpus)
        ],
    )  # fmt: skip
    health = Health(
        wall=NOW,
        devices=[device_health(gpu) for gpu in range(gpus)],
        mounts=[
            Mount("/data", "nfs4", 1000 * GIB, 500 * GIB, 1000, 900),
            Mount("/output", "nfs4", 1000 * GIB, 500 * GIB, 1000, 900),
            Mount("/dev/shm", "tmpfs", 64 * GIB, 60 * GIB, 1000, 900),
        ],
        ports=[Port("mlx5_0/1", True, 0, 0, 400.0)],
        memory_available_bytes=800 * GIB,
        io_pressure_percent=0.5,
        clock_synchronised=True,
    )
    made = NodeEvidence(
        name, f"10.0.0.{name[-1]}", ssh=Truth("up", since=NOW - 9000), ray=Truth("alive", since=NOW - 9000),
        driver=Truth("ok", since=NOW - 9000), facts=facts, sample=sample, health=health, clock_offset_seconds=0.003,
        expected_gpus=gpus, ray_gpus_total=float(gpus), versions={"torch": "2.13", "nccl": "2.27", "ray": "2.60"},
    )  # fmt: skip
    return replace(made, **changes)


def nodes(*names: str) -> dict[str, NodeEvidence]:
    """Machines that are well."""
    return {name: node(name) for name in names or ("gpu-1", "gpu-2")}


def rank(number: int, text: str = "", **changes: Any) -> RankEvidence:
    """A rank of a gang of two nodes with two GPUs each, which runs and is at step 413."""
    made = RankEvidence(
        number, f"gpu-{1 + number // 2}", number % 2, f"GPU-gpu-{1 + number // 2}-{number % 2}", 1000 + number % 2,
        last_step=413, last_output_at=NOW - 1.0, log=lines(text),
        log_path=f"/output/w/run-1/attempt-1/rank-{number}.log",
        log_bytes=4096,
    )  # fmt: skip
    return replace(made, **changes)


def ranks(count: int = 4) -> list[RankEvidence]:
    """All of them."""
    return [rank(number) for number in range(count)]


def traceback(error: str) -> str:
    """How Python ends."""
    return (
        f'step 413 loss 2.1\nTraceback (most recent call last):\n  File "train.py", line 7, in <module>\n'
        f"    step()\n{error}\n"
    )


def gang(first: int, text: str, code: int = 1, count: int = 4, others: str = "") -> list[RankEvidence]:
    """A gang in which one rank failed, and the others a moment later, with louder words."""
    noise = others or traceback(RESET)
    made: list[RankEvidence] = []
    for number in range(count):
        mine = number == first
        made.append(
            rank(
                number, text if mine else noise, exit_code=code if mine else 1,
                ended_at=FAILED_AT + (0.0 if mine else 0.1 + number / 100),
            )
        )  # fmt: skip
    return made


def run(state: RunState = RunState.RUNNING, failure: Failure | None = None, **changes: Any) -> Run:
    """A run with one attempt on two nodes."""
    begun = not state.waiting
    failed = state is RunState.FAILED
    outcome = Outcome(verdict="failed", reason="it failed", failure=failure, wall=FAILED_AT) if failed else None
    attempt = Attempt(
        number=1, job_id="raydeck-run-1-a1", state=state, started_at=NOW - 3600, outcome=outcome, failure=failure,
        ended_at=FAILED_AT if failed else None, nodes=["gpu-1", "gpu-2"], status=GangStatus(phase="running"),
    )  # fmt: skip
    made = Run(
        id="run-1", workflow="w", release="w-r-1", state=state, user="alice", nodes=2, gpus=4,
        run_directory="/output/w/run-1", submitted_at=NOW - 4000, started_at=NOW - 3600,
        attempts=[attempt] if begun else [],
    )  # fmt: skip
    return made.model_copy(update=changes)


def course(seconds_ago: float = 1.0, points: int = 40, throughput: float = 1000.0) -> list[Progress]:
    """A step a second, the last one so long ago."""
    last = NOW - seconds_ago
    return [
        Progress(
            step=413 - at, loss=2.0, throughput=throughput, throughput_unit="tokens", wall=last - at,
        )
        for at in reversed(range(points))
    ]  # fmt: skip


CONFIG: dict[str, Any] = {
    "seed": 7,
    "resources": {"nodes": 2, "accelerators_per_node": 2},
    "training": {"processes_per_node": 2},
    "storage": {"data_root": "/data/corpus", "output_root": "/output"},
    "observability": {"log_level": "info"},
}


def evidence(state: RunState = RunState.RUNNING, **changes: Any) -> Evidence:
    """A run that goes on, on a cluster that is well."""
    own = run(state)
    made = Evidence(
        NOW, Target("run", "run-1"), nodes(), RunEvidence(own, config=CONFIG, course=course()),
        ranks() if not state.waiting else [],
    )  # fmt: skip
    return replace(made, **changes)


def failed(gang_of: list[RankEvidence], kind: Failure | None = None, **changes: Any) -> Evidence:
    """A run that failed with these ranks."""
    own = RunEvidence(run(RunState.FAILED, kind), config=CONFIG, course=course(NOW - FAILED_AT + 1.0))
    return evidence(RunState.FAILED, run=own, ranks=gang_of, **changes)


def hung(gang_of: list[RankEvidence], seconds: float = 300.0, **changes: Any) -> Evidence:
    """A run that has reported nothing for a while; its GPUs spin far below their power."""
    made = evidence(ranks=gang_of, **changes)
    assert made.run is not None
    made.run.course = course(seconds)
    for each in made.nodes.values():
        if each.sample is not None:
            each.sample.columns["power_watts"] = [180.0] * len(each.sample.index)
            each.sample.columns["utilization_percent"] = [100] * len(each.sample.index)
    return made


def slow(gang_of: list[RankEvidence] | None = None, **changes: Any) -> Evidence:
    """A run that goes on at half its usual speed."""
    made = evidence(ranks=gang_of or ranks(), **changes)
    assert made.run is not None
    made.run.course = course(throughput=500.0)
    made.run.baseline_throughput = 1000.0
    return made


def fleet(**changes: Any) -> Evidence:
    """All nodes, no run in particular."""
    return replace(Evidence(NOW, Target(), nodes()), **changes)


def column(of: NodeEvidence, name: str, values: list[float | int | None]) -> None:
    """Set one column of a node's sample."""
    assert of.sample is not None
    of.sample.columns[name] = list(values)


def xid(number: int, gpu: int = 1, at: float = FAILED_AT - 5.0, words: str = "") -> Event:
    """A kernel line of the driver."""
    text = f"NVRM: Xid (PCI:0000:{0x1B + gpu:02x}:00): {number}, pid=1001, name=python, {words}"
    return Event("xid", text, at, "kernel", gpu, number)


def lost_device(of: NodeEvidence, gpu: int) -> None:
    """A GPU whose figures are all gone."""
    assert of.sample is not None
    of.sample.missing = {gpu: {"*": Missing("error", "GPU is lost")}}


def recorded(case: str) -> list[RankEvidence]:
    """A gang of real processes that failed; see ``tests/data/triage/record.py``."""
    ends: dict[str, dict[str, float]] = json.loads((RECORDED / case / "ends.json").read_text(encoding="utf-8"))
    made: list[RankEvidence] = []
    for number in range(len(ends)):
        text = (RECORDED / case / f"rank-{number}.log").read_text(encoding="utf-8")
        end = ends[str(number)]
        made.append(
            rank(
                number, text, exit_code=int(end["exit_code"]), ended_at=FAILED_AT + end["seconds"],
                last_step=None,
            )
        )  # fmt: skip
    return made


def said(text: str, at: float) -> LogLine:
    """A line with a time."""
    return LogLine(text, at)
