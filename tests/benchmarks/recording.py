"""What a flight recorder costs: bytes for each node and hour, and the share of a core; and how long going back takes.

Fleets whose busy accelerators tremble as real ones do (power by some 15 W, clocks in steps, memory that seldom moves),
with health lines, runs that report a step each second, a queue and a few alerts. Budget for 1,000 nodes with eight
accelerators: 60 MB an hour and 5 % of a core. The floor is the same lines as zlib alone makes them smaller.
"""

from __future__ import annotations

import random
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

from console.state.replay import Timeline
from jobs.recording import segments
from jobs.recordwriter import Writer
from probes.reading import (
    DeviceFacts,
    DeviceHealth,
    Disk,
    Driver,
    Facts,
    Health,
    Host,
    Mount,
    Process,
    Sample,
    encode,
)

START = 1_780_000_000.0
GPUS = 8
GB = 1024**3
HEALTH_EVERY = 10
BUDGET_BYTES = 60_000_000
BUDGET_CORE = 0.05


class _Fleet:
    """Nodes that go on working, each second of them made on demand."""

    def __init__(self, nodes: int) -> None:
        self._random = random.Random(11)
        self.names = [f"node-{number:04d}" for number in range(nodes)]
        self._power = {name: [640.0] * GPUS for name in self.names}
        self._heat = {name: [66] * GPUS for name in self.names}
        self._used = {name: [62 * GB] * GPUS for name in self.names}

    def facts(self, name: str) -> Facts:
        devices = [
            DeviceFacts(
                index=index, uuid=f"GPU-{self._random.getrandbits(128):032x}", name="NVIDIA H100 80GB HBM3",
                memory_total_bytes=80 * GB, power_limit_watts=700.0, ecc_corrected_count=0, ecc_uncorrected_count=0,
                pcie_generation=5, pcie_width=16, mig_mode="off",
            )
            for index in range(GPUS)
        ]  # fmt: skip
        return Facts(hostname=name, machine_id=f"{self._random.getrandbits(128):032x}", kernel="6.8.0-60-generic",
                     python="3.11.7", source="nvml", driver_version="570.133.20", library_version="12.570.133.20",
                     cuda_version="12.8", cpu_count=192, memory_total_bytes=2048 * GB, devices=devices)  # fmt: skip

    def sample(self, name: str, second: int) -> Sample:
        draw, power, heat, used = self._random, self._power[name], self._heat[name], self._used[name]
        for index in range(GPUS):
            power[index] = min(700.0, max(500.0, power[index] + draw.gauss(0, 15) + (640 - power[index]) / 4))
            if draw.random() < 0.1:
                heat[index] = min(72, max(58, heat[index] + draw.choice((-1, 1))))
            if draw.random() < 0.01:
                used[index] = 62 * GB + draw.randrange(2048) * 1024**2
        load = [draw.choice((97, 98, 99, 99, 100, 100, 100)) for _ in range(GPUS)]
        columns: dict[str, Any] = {
            "utilization_percent": load,
            "memory_utilization_percent": [45 + draw.randrange(8) for _ in range(GPUS)],
            "memory_used_bytes": list(used),
            "power_watts": [round(value, 1) for value in power],
            "temperature_celsius": list(heat),
            "sm_clock_mhz": [1980 - 15 * draw.choice((0, 0, 0, 1, 2, 3)) for _ in range(GPUS)],
            "memory_clock_mhz": [2619] * GPUS,
            "throttle_reasons": [4 if value > 690 else 0 for value in power],
        }
        host = Host(41 + draw.random() * 4, 88 + draw.random(), 700 * GB + draw.randrange(GB), 2048 * GB,
                    draw.random() * 9e8, draw.random() * 9e8,
                    [Disk("/mnt/output", int(4e13 + second * 3e8), int(1e14))])  # fmt: skip
        processes = [
            Process(index, 4000 + index, "alice", "python train.py --config base.yaml", used[index], "lm-k3f9qz", 1,
                    index, 880_000 + index, 3600.0 + second + draw.random() / 10)
            for index in range(GPUS)
        ]  # fmt: skip
        return Sample(seq=second, wall=START + second + 0.02, cost_ms=0.5, driver=Driver("ok"),
                      index=list(range(GPUS)), columns=columns, processes=processes, host=host)  # fmt: skip

    def health(self, name: str, second: int) -> Health:
        draw = self._random
        devices = [
            DeviceHealth(
                index=index, uuid=f"GPU-{name}-{index}", pci=f"0000:{index:02x}:00",
                figures={
                    "ecc_volatile_corrected_count": 0, "ecc_volatile_uncorrected_count": 0,
                    "remapped_corrected_count": 0, "remapped_uncorrected_count": 0, "remap_pending": 0,
                    "remap_failed": 0, "retired_pages_pending": 0, "recovery_action": 0, "slowdown_celsius": 90,
                    "memory_temperature_celsius": 70 + draw.randrange(6), "memory_slowdown_celsius": 105,
                    "pcie_generation": 5, "pcie_generation_max": 5, "pcie_width": 16, "pcie_width_max": 16,
                    "pcie_replay_count": 0, "nvlinks_active": 18, "nvlinks_total": 18, "nvlink_error_count": 0,
                    "fabric_healthy": 1, "persistence": 1,
                },
            )
            for index in range(GPUS)
        ]  # fmt: skip
        mounts = [Mount(path, "ext4", 10**13, 6 * 10**12 - second * 10**7, 10**9, 9 * 10**8)
                  for path in ("/", "/tmp", "/dev/shm", "/mnt/output")]  # fmt: skip
        return Health(wall=START + second, devices=devices, mounts=mounts, memory_pressure_percent=draw.random(),
                      io_pressure_percent=draw.random() * 3, memory_available_bytes=1300 * GB + draw.randrange(GB),
                      clock_synchronised=True, oom_kills=0)  # fmt: skip


def _run(number: int, second: int) -> dict[str, Any]:
    ranks = [{"rank": rank, "node_id": f"{number:056x}", "node_address": "10.0.0.1", "gpu": str(rank % 8),
              "pid": 4000 + rank, "exit_code": None} for rank in range(64)]  # fmt: skip
    progress = {"step": second * 3, "loss": 2.0 / (1 + second / 900), "throughput": 18_000.0 + second % 90,
                "throughput_unit": "tokens", "wall": START + second}  # fmt: skip
    status = {"phase": "running", "ranks": ranks, "progress": progress, "checkpoint_step": second // 60 * 100,
              "warnings": [], "wall": START + second}  # fmt: skip
    attempts = [{"number": 1, "job_id": f"raydeck-lm-{number:06d}-a1", "state": "running", "status": status}]
    return {"id": f"lm-{number:06d}", "workflow": "lm", "release": "lm-r-4f9c2a", "state": "running", "user": "alice",
            "nodes": 8, "gpus": 64, "submitted_at": START - 9000, "attempts": attempts}  # fmt: skip


def _queue(second: int) -> dict[str, Any]:
    waiting = [{"run": f"lm-w{number:05d}", "position": number + 1, "queue": "training", "user": "bob", "nodes": 8,
                "gpus": 64, "since": START - number * 60, "priority": "normal", "kind": "resources",
                "sentence": "needs 8 nodes with 8 free GPUs each: none has them",
                "estimated_start": START + 60 * number + second % 7} for number in range(200)]  # fmt: skip
    return {"at": START + second, "waiting": waiting, "waiting_total": 200, "pass_seconds": 0.01 + second % 5 / 1000}


def _case(nodes: int, seconds: int, period: int, folder: Path) -> dict[str, Any]:
    fleet, runs, spent, raw = _Fleet(nodes), max(1, nodes // 10), 0.0, 0
    writer = Writer(folder)
    for name in fleet.names:
        writer.take_facts(name, fleet.facts(name), START)
    kept = total = 0
    for second in range(seconds):
        at = START + second
        lines = [(name, fleet.sample(name, second), at + place * 0.9 / nodes)
                 for place, name in enumerate(fleet.names) if (second + place) % period == 0]  # fmt: skip
        told = [(name, fleet.health(name, second)) for place, name in enumerate(fleet.names)
                if (second + place) % HEALTH_EVERY == 0]  # fmt: skip
        changed, queue = [_run(number, second) for number in range(runs)], _queue(second)
        if second < 10:
            raw += len(zlib.compress("\n".join(encode(sample) for _, sample, _ in lines).encode(), 6))
        begun = time.process_time()
        for name, sample, moment in lines:
            kept += writer.take_sample(name, sample, moment)
        for name, health in told:
            writer.take_health(name, health, at + 0.9)
        writer.take_view("runs", changed, at + 0.9)
        writer.take_view("queue", queue, at + 0.9)
        writer.tick(at + 0.95)
        spent += time.process_time() - begun
        total += len(lines)
    writer.close()
    whole = [each for each in writer.index() if each.until - each.since >= 50]
    per_second = sum(each.bytes for each in whole) / max(1.0, sum(each.until - each.since for each in whole))
    found: dict[str, Any] = {
        "nodes": nodes, "sample_period_seconds": period, "recorded_seconds": seconds,
        "samples_kept_share": round(kept / total, 2),
        "bytes_an_hour": round(per_second * 3600),
        "bytes_a_node_hour": round(per_second * 3600 / nodes),
        "share_of_a_core": round(spent / seconds, 4),
        "zlib_lines_bytes_a_node_hour": round(raw / min(10, seconds) * 3600 / nodes),
    }  # fmt: skip
    parts = [part for path in sorted(folder.iterdir()) for part in segments(path.read_bytes())]
    timeline = Timeline()
    timeline.take(parts)
    begun = time.process_time()
    timeline.seek(START + seconds - 3)
    found["back_to_a_moment_cpu_ms"] = round((time.process_time() - begun) * 1000)
    begun = time.process_time()
    timeline.history(fleet.names[-1])
    found["history_of_a_node_cpu_ms"] = round((time.process_time() - begun) * 1000)
    return found


def run() -> dict[str, Any]:
    """Figures for three fleets, and whether the largest one keeps its budget."""
    cases: list[dict[str, Any]] = []
    for nodes, seconds, period in ((3, 300, 1), (100, 200, 1), (1000, 190, 2)):
        with tempfile.TemporaryDirectory() as folder:
            cases.append(_case(nodes, seconds, period, Path(folder)))
    large = cases[-1]
    return {
        "cases": cases,
        "budget_bytes_an_hour": BUDGET_BYTES,
        "budget_share_of_a_core": BUDGET_CORE,
        "kept": large["bytes_an_hour"] <= BUDGET_BYTES and large["share_of_a_core"] <= BUDGET_CORE,
    }


if __name__ == "__main__":
    import json

    print(json.dumps(run(), indent=2))
