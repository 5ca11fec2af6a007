"""What of a health line or a run is worth a record of its own, what merely drifts, and what a keyframe leaves out."""

from __future__ import annotations

from typing import Any

from jobs.lanes import parts_of
from probes.reading import Health

DRIFTING = frozenset({"memory_temperature_celsius", "pcie_replay_count", "ecc_volatile_corrected_count"})
_HOLDS_NOTHING = ("succeeded", "failed", "stopped", "queued", "preempted")
MOST_RUNS = 300
"""In a keyframe: those that hold something, then the ones that changed last."""
MEMORY_STEP_BYTES = 256 * 1024 * 1024


def health_body(health: Health) -> dict[str, Any]:
    """A health line as JSON, rounded so that what stands still is the same from line to line."""
    memory = health.memory_available_bytes
    return {
        "v": 1,
        "kind": "health",
        "wall": round(health.wall),
        "devices": [each.__dict__ for each in health.devices],
        "mounts": [
            {
                **each.__dict__,
                "free_bytes": parts_of(each.free_bytes, each.total_bytes),
                "inodes_free": parts_of(each.inodes_free, each.inodes_total),
            }
            for each in health.mounts
        ],
        "stuck": [each.__dict__ for each in health.stuck],
        "ports": [each.__dict__ for each in health.ports],
        "events": [each.__dict__ for each in health.events],
        "memory_pressure_percent": _rounded(health.memory_pressure_percent),
        "io_pressure_percent": _rounded(health.io_pressure_percent),
        "memory_available_bytes": None if memory is None else round(memory / MEMORY_STEP_BYTES) * MEMORY_STEP_BYTES,
        "clock_synchronised": health.clock_synchronised,
        "oom_kills": health.oom_kills,
        "blind": {name: list(why) for name, why in health.blind.items()},
    }


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def essence(body: dict[str, Any]) -> Any:
    """What of a health line is news: all that does not drift by itself."""
    return [
        [
            (each["index"], each["missing"], {k: v for k, v in each["figures"].items() if k not in DRIFTING})
            for each in body.get("devices", ())
        ],
        [(each["path"], each["read_only"], each["hangs_seconds"] > 0, each["reason"])
         for each in body.get("mounts", ())],
        sorted(each["pid"] for each in body.get("stuck", ())),
        body.get("ports"),
        bool(body.get("events")),
        body.get("clock_synchronised"),
        body.get("oom_kills"),
        body.get("blind"),
    ]  # fmt: skip


def run_essence(run: dict[str, Any]) -> Any:
    """What of a run is news: all but how far it has come."""
    attempts = run.get("attempts") or [{}]
    status = attempts[-1].get("status") or {}
    return (
        run.get("state"), run.get("reason"), run.get("held"), run.get("priority"), run.get("queue"), len(attempts),
        attempts[-1].get("state"), status.get("phase"), status.get("warnings"), status.get("checkpoint_step"),
    )  # fmt: skip


def kept_runs(runs: dict[str, tuple[dict[str, Any], float]]) -> dict[str, tuple[dict[str, Any], float]]:
    """Those that a keyframe tells again; they come, and stay, in the order of their newest change."""
    if len(runs) <= MOST_RUNS:
        return runs
    holding = [name for name, (run, _) in runs.items() if run.get("state") not in _HOLDS_NOTHING]
    others = [name for name, (run, _) in runs.items() if run.get("state") in _HOLDS_NOTHING]
    chosen = set([*holding[::-1], *others[::-1]][:MOST_RUNS])
    return {name: told for name, told in runs.items() if name in chosen}


def rank_count(run: dict[str, Any] | None) -> int:
    """How many ranks a run tells of, which is what makes it large."""
    attempts = (run or {}).get("attempts") or [{}]
    return len((attempts[-1].get("status") or {}).get("ranks") or ())
