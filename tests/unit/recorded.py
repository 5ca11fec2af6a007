"""Nodes, samples and runs to record, small enough to be looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobs.recording import BadRecording, Player, Segment, segments
from probes.reading import DeviceFacts, Disk, Driver, Facts, Host, Missing, Process, Sample

START = 1_780_000_000.0
GB = 1024**3


def sample(load: float | None = 97, *, gpus: int = 2, driver: str = "ok", lost: int | None = None,
           **more: Any) -> Sample:  # fmt: skip
    """One second of a node of so many accelerators."""
    columns: dict[str, list[Any]] = {
        "utilization_percent": [load] * gpus,
        "memory_used_bytes": [62 * GB] * gpus,
        "power_watts": [640.4] * gpus,
        "temperature_celsius": [64] * gpus,
        "throttle_reasons": [4] * gpus,
    }
    missing: dict[int, dict[str, Missing]] = {}
    if lost is not None:
        missing[lost] = {"*": Missing("error", "GPU is lost: it fell off the bus")}
        for values in columns.values():
            values[lost] = None
    reason = "nvmlDeviceGetMemoryInfo has not come back" if driver == "blocked" else ""
    return Sample(
        seq=1, wall=more.pop("wall", 0.0), driver=Driver(driver, reason, more.pop("blocked_for", 0.0)),
        index=list(range(gpus)), columns=columns, missing=missing,
        processes=[Process(0, 4000, "alice", "python lm.py", 62 * GB, "lm-k3f9qz", 1, 0, 7, more.pop("age", 60.0))],
        host=Host(41.2, 12.54, 180 * GB, 512 * GB, 1.2e6, 0.0, [Disk("/data", 10**12, 4 * 10**12)]), **more,
    )  # fmt: skip


def facts(name: str, gpus: int = 2) -> Facts:
    """What a node is."""
    devices = [DeviceFacts(index, f"SIM-{name}-{index}", "H100", 80 * GB, 700.0) for index in range(gpus)]
    return Facts(hostname=name, source="simulated", devices=devices)


def run(state: str = "running", step: int = 10, name: str = "lm-k3f9qz", **more: Any) -> dict[str, Any]:
    """A run as the controller tells it."""
    status = {"phase": "running", "ranks": [{"rank": 0, "node_id": "aa", "gpu": "0"}],
              "progress": {"step": step, "loss": 2.0, "wall": START + step}}  # fmt: skip
    attempts = [{"number": 1, "job_id": f"raydeck-{name}-a1", "state": state, "status": status}]
    return {"id": name, "workflow": "lm", "release": "lm-r-1", "state": state, "nodes": 1, "gpus": 1,
            "submitted_at": START - 60, "attempts": attempts, "reason": "", **more}  # fmt: skip


def parts(folder: Path) -> list[Segment]:
    """Every segment in a writer's folder."""
    found: list[Segment] = []
    for path in sorted(folder.iterdir()):
        try:
            found += segments(path.read_bytes())
        except BadRecording:
            continue
    return found


def played(part: Segment, until: float = START + 1e9) -> Player:
    """A segment up to a moment."""
    player = Player(part)
    player.forward(until)
    return player
