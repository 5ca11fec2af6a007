"""What is looked at on every node before anything is loaded: what it has, runs on, reaches, may write, who is there.

Nothing here touches a GPU beyond asking its driver. Each path, port and disk is looked at in a thread, and one that
hangs is a finding. What has to be compared between nodes is told as facts (`jobs.validation.fleet` judges them).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from jobs.validation import paths, reach
from jobs.validation.measured import Measured, Teller
from probes.health.engine import Engine
from probes.health.group import Grouper
from probes.health.measures import NodeMeasures
from probes.health.rule import CRITICAL, WARNING
from probes.health.rules import RULES
from probes.reading import DRIVER_BLOCKED, DRIVER_ERROR, Facts, Health, Missing, Sample, decode

PROBE_SECONDS = 30.0
MEMORY_SHARE = 0.03
"""The kernel keeps some of what is built in for itself."""
ORPHANED_BYTES = 600 << 20
"""So much a driver may keep on a GPU that nobody uses (as in the rule of health ``gpu.orphaned``)."""
AS_IF_SECONDS, STEP_SECONDS = 300, 30
"""Health is judged as if it had been for so long as it is now."""


class Probe:
    """What the probe says of this node, asked once for all checks that need it."""

    def __init__(self, disks: list[str]) -> None:
        self.facts, self.sample, self.health = Facts(), Sample(), Health()
        command = [sys.executable, "-m", "probes", "once", "--health"]
        for path in disks:
            command += ["--disk", path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
        for line in done.stdout.splitlines():
            told = decode(line)
            if isinstance(told, Facts):
                self.facts = told
            elif isinstance(told, Sample):
                self.sample = told
            elif isinstance(told, Health):
                self.health = told
        if not self.facts.hostname:
            said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
            raise OSError(f"the probe did not start: {said[-1][:200]}")


def run(request: dict[str, Any], tell: Teller) -> None:
    """Every check that is asked for. ``request``: see `jobs.validation.driver.Ladder`."""
    probe: list[Probe | Exception] = []

    def probed() -> Probe:
        # One that does not answer is not waited for again by each check: the preflight has a minute in all.
        if not probe:
            try:
                probe.append(Probe([path["path"] for path in request["paths"]]))
            except subprocess.TimeoutExpired:
                probe.append(OSError(f"the probe did not answer within {PROBE_SECONDS:.0f} s"))
            except Exception as error:
                probe.append(error)
        if isinstance(probe[0], Exception):
            raise probe[0]
        return probe[0]

    checks: Mapping[str, Callable[[Measured], None]] = {
        "preflight.inventory": lambda measured: inventory(request, probed(), measured),
        "preflight.versions": lambda measured: versions(probed(), measured),
        "preflight.clock": clock,
        "preflight.health": lambda measured: health(request, probed(), measured),
        "preflight.names": lambda measured: reach.names(request, measured),
        "preflight.ports": lambda measured: reach.ports(request, measured),
        "preflight.mounts": lambda measured: paths.mounts(request, measured),
        "preflight.disk": lambda measured: paths.disk(request, measured),
        "preflight.limits": paths.limits,
        "preflight.foreign": lambda measured: foreign(request, probed(), measured),
    }
    for check in request["checks"]:
        if check in checks:
            with tell.check(check) as measured:
                checks[check](measured)


# --- what it has ------------------------------------------------------------------------------------------------------


def inventory(request: Mapping[str, Any], probe: Probe, measured: Measured) -> None:
    """How many GPUs the driver, torch, Ray and the cluster file know of; processors and memory, where it says them.

    What labels it has in Ray is not known here.
    """
    devices, expected = probe.facts.devices, request["expected"]
    torch_gpus = _torch_gpus()
    counts: dict[str, int | None] = {
        "the driver": len(devices) if probe.facts.source != "none" else None,
        "torch": torch_gpus,
        "Ray": int(request["ray_gpus"]) if request.get("ray_gpus") is not None else None,
        "the cluster file": expected.get("gpus"),
    }
    lost = [device.index for device in devices if "*" in device.missing]
    measured.facts.update(
        gpus=[
            {"name": device.name or "", "uuid": device.uuid or "", "memory_total_bytes": device.memory_total_bytes}
            for device in devices
        ],
        source=probe.facts.source,
        cpus=probe.facts.cpu_count,
        memory_bytes=probe.facts.memory_total_bytes,
        torch_gpus=torch_gpus or 0,
        counts={name: count for name, count in counts.items() if count is not None},
    )
    known = {name: count for name, count in counts.items() if count is not None}
    driver, wrong = probe.sample.driver, list[str]()
    if len(set(known.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in known.items())
        why = f" ({driver.reason})" if driver.state in (DRIVER_BLOCKED, DRIVER_ERROR) and driver.reason else ""
        wrong.append(f"the number of its GPUs is not agreed on: {told}{why}")
    elif torch_gpus and not devices:
        # A container may be given the GPUs without the library that tells of them: they work, unwatched.
        measured.warned = f"torch uses {torch_gpus} GPUs, and no driver here tells of any"
    elif any(known.values()) and not devices:
        wrong.append(f"it is said to have {max(known.values())} GPUs, and no driver here tells of any")
    elif lost:
        wrong.append(f"GPU {', '.join(map(str, lost))}: {devices[lost[0]].missing['*'].reason}")
    wrong += _host(expected, probe.facts)
    measured.wrong = "; ".join(wrong)


def _host(expected: Mapping[str, Any], facts: Facts) -> list[str]:
    """Where processors and memory are not what the cluster file says; nothing where it does not say."""
    wrong: list[str] = []
    cpus, memory = expected.get("cpus"), expected.get("memory_bytes")
    if cpus is not None and cpus != facts.cpu_count:
        wrong.append(f"it has {facts.cpu_count} processors, the cluster file says {cpus}")
    if memory is not None and abs(facts.memory_total_bytes - memory) > MEMORY_SHARE * memory:
        gib = facts.memory_total_bytes / (1 << 30)
        wrong.append(f"it has {gib:.0f} GiB of memory, the cluster file says {memory / (1 << 30):.0f}")
    return wrong


def _torch_gpus() -> int | None:
    """What torch counts; None without torch, or one that has no CUDA."""
    try:
        import torch
    except ImportError:
        return None
    return int(torch.cuda.device_count()) if torch.version.cuda else None


def versions(probe: Probe, measured: Measured) -> None:
    """What it runs on."""
    found = {
        "driver": probe.facts.driver_version,
        "cuda": probe.facts.cuda_version,
        "python": platform.python_version(),
        "kernel": probe.facts.kernel or platform.release(),
        "glibc": " ".join(platform.libc_ver()),
        "image": os.environ.get("RAYDECK_IMAGE", ""),
    }
    for name, package in (("ray", "ray"), ("torch", "torch")):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(package)
    for distribution in ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.setdefault("nccl", importlib.metadata.version(distribution))
    settings = sorted(
        f"{name}={value}" for name, value in os.environ.items() if name.startswith("NCCL_") and name != "NCCL_DEBUG"
    )
    found["nccl_env"] = hashlib.sha256("\n".join(settings).encode()).hexdigest()[:8] if settings else "none"
    measured.facts.update({name: value for name, value in found.items() if value})


def clock(measured: Measured) -> None:
    """How late it is here; what that says, the driver knows, which measures it in a round trip."""
    measured.facts["wall"] = time.time()


def health(request: Mapping[str, Any], probe: Probe, measured: Measured) -> None:
    """The rules of health, on what it shows now."""
    node = NodeMeasures()
    engine = Engine(RULES)
    node.take_facts(probe.facts, 0.0)
    for at in range(0, AS_IF_SECONDS + 1, STEP_SECONDS):
        node.take_sample(probe.sample, float(at))
        told = probe.health if at == 0 else replace(probe.health, events=[])
        node.take_health(told, float(at))
        engine.step(float(at), node.seen(float(at), node=str(request["node"])))
    groups = Grouper().groups(engine.firing())
    critical, warning = ([group.title for group in groups if group.level == level] for level in (CRITICAL, WARNING))
    measured.wrong = critical[0] if critical else ""
    measured.warned = warning[0] if warning and not critical else ""
    measured.evidence = [*critical, *warning]


def foreign(request: Mapping[str, Any], probe: Probe, measured: Measured) -> None:
    """Who holds memory on its GPUs. A process of a run that goes on is known; any other is not.

    ``allowed_pids`` of the request are let pass. Memory that no process holds is a warning: one may hide elsewhere.
    """
    runs: list[str] | None = request.get("runs")
    allowed: list[int] = request.get("allowed_pids") or []
    strangers = [
        process
        for process in probe.sample.processes
        if process.pid not in allowed and (not process.run or (runs is not None and process.run not in runs))
    ]
    measured.facts["runs"] = sorted({process.run for process in probe.sample.processes if process.run})
    if strangers:
        told = [
            f"GPU {process.device}: pid {process.pid}, {process.user or 'unknown user'}, {process.command[:60]}"
            f"{f', left over from {process.run}' if process.run else ''}"
            for process in strangers
        ]
        measured.wrong, measured.evidence = f"held by what is no run: {told[0]}", told
    if orphaned := _orphaned(probe.sample):
        told = [f"GPU {gpu}: {used >> 20} MiB in use, and no process to be seen" for gpu, used in orphaned.items()]
        measured.warned = "; ".join(told)


def _orphaned(sample: Sample) -> dict[int, int]:
    """GPUs with more memory in use than a driver keeps for itself, and nobody who holds it."""
    found: dict[int, int] = {}
    held = {process.device for process in sample.processes}
    for gpu in sample.index:
        used = sample.reading(gpu, "memory_used_bytes")
        if gpu in held or "processes" in sample.missing.get(gpu, {}) or isinstance(used, (Missing, str)):
            continue
        if used > ORPHANED_BYTES:
            found[gpu] = int(used)
    return found
