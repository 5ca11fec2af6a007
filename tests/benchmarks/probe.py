"""What the probe costs on a node, against nvitop reading the same fields from the same stand-in library, in one run.

Both run as processes of their own at the same beat, 8 GPUs with a process on each. nvitop is given the leanest way it
has (single getters, no snapshots), is not asked for throttle reasons, run marks or disks, and prints the same kind of
line. Budget: at most half of nvitop's processor time, and under 20 MB of memory of its own for each of our processes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from jobs.bundle import boot_argv, bundle
from tests import nvml

GPUS = 8
BEAT_SECONDS = 0.1
WARM_UP = 5
SAMPLES = 40
ROUNDS = 3

_NVITOP = """
import json, sys, time
import psutil
from nvitop import Device, host
devices = Device.all()
beat = time.monotonic()
seq = 0
while True:
    seq += 1
    line = {"seq": seq, "devices": [], "processes": []}
    for device in devices:
        rates = device.utilization_rates()
        clocks = device.clock_infos()
        line["devices"].append([rates.gpu, rates.memory, device.memory_used(), device.power_usage(),
                                device.temperature(), clocks.sm, clocks.memory])
        for process in device.processes().values():
            line["processes"].append([process.pid, process.username(), process.command(), process.gpu_memory()])
    memory, network = host.virtual_memory(), psutil.net_io_counters()
    line["host"] = [host.cpu_percent(), host.load_average()[0], memory.used, memory.total,
                    network.bytes_recv, network.bytes_sent]
    sys.stdout.write(json.dumps(line) + "\\n")
    sys.stdout.flush()
    beat += BEAT
    time.sleep(max(beat - time.monotonic(), 0.0))
"""


def run() -> dict[str, Any]:
    """Processor time for each sample (milliseconds), resident and proportional memory (MB), and the ratio to nvitop."""
    with tempfile.TemporaryDirectory() as name, _sleepers(GPUS) as pids:
        standin = nvml.StandIn(nvml.build(Path(name)), Path(name) / "control")
        standin.say(*(f"process {device} {pid} {8 << 30}" for device, pid in enumerate(pids)))
        environ = {**os.environ, **standin.environ}
        ours: list[dict[str, float]] = []
        theirs: list[dict[str, float]] = []
        for _ in range(ROUNDS):
            ours.append(_probe(environ))
            theirs.append(_nvitop(environ))
    figures: dict[str, Any] = {
        "gpus": GPUS,
        "beat_seconds": BEAT_SECONDS,
        "probe": _medians(ours),
        "nvitop": _medians(theirs),
    }
    figures["cpu_ratio"] = round(figures["probe"]["cpu_ms_per_sample"] / figures["nvitop"]["cpu_ms_per_sample"], 3)
    figures["cpu_ratio_budget"] = 0.5
    return figures


def _probe(environ: dict[str, str]) -> dict[str, float]:
    argv = [sys.executable, *boot_argv(["stream", "--interval", str(BEAT_SECONDS)])[1:]]
    started = time.perf_counter()
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        process.stdin.write(bundle())
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["source"] == "nvml"
        assert json.loads(process.stdout.readline())["driver"]["state"] == "ok"
        first_ms = (time.perf_counter() - started) * 1000.0
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        figures = _measure(process.stdout, [process.pid, *map(int, children)])
        asked = time.perf_counter()
        process.stdin.close()
        process.wait(timeout=5)
    return {**figures, "first_sample_ms": first_ms, "gone_ms": (time.perf_counter() - asked) * 1000.0}


def _nvitop(environ: dict[str, str]) -> dict[str, float]:
    program = _NVITOP.replace("BEAT", str(BEAT_SECONDS))
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
    )
    assert process.stdout is not None
    with process:
        first = json.loads(process.stdout.readline())
        first_ms = (time.perf_counter() - started) * 1000.0
        assert len(first["devices"]) == GPUS
        assert len(first["processes"]) == GPUS
        figures = _measure(process.stdout, [process.pid])
        process.terminate()
        process.wait(timeout=5)
    return {**figures, "first_sample_ms": first_ms}


def _measure(lines: IO[bytes], pids: list[int]) -> dict[str, float]:
    for _ in range(WARM_UP):
        lines.readline()
    before = sum(map(_cpu_ns, pids))
    for _ in range(SAMPLES):
        assert lines.readline(), "ended early"
    spent = sum(map(_cpu_ns, pids)) - before
    memory = [_memory_kb(pid) for pid in pids]
    return {
        "cpu_ms_per_sample": spent / SAMPLES / 1e6,
        "rss_mb_largest_process": max(resident for resident, _ in memory) / 1024.0,
        "pss_mb": sum(proportional for _, proportional in memory) / 1024.0,
        "processes": float(len(pids)),
    }


def _cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def _memory_kb(pid: int) -> tuple[int, int]:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(fields["Rss"].split()[0]), int(fields["Pss"].split()[0])


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(figures[name] for figures in rounds), 3) for name in rounds[0]}


@contextmanager
def _sleepers(count: int) -> Generator[list[int]]:
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
