"""Owns what a training script says to raydeck and asks of it: its figures, its settings, whether it should leave.

Standard library only, since it is imported by every rank of every run. Outside of raydeck (no ``RAYDECK_RUN_DIR``) the
same script runs: figures then go nowhere, the settings are empty.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, SupportsFloat

from jobs import fence, pulse

_LOOK_AT_FENCE_SECONDS = 1.0

_stop = threading.Event()
_listening = False
_looked_at: tuple[float, str] | None = None
"""When the fence was looked at last (monotonic), and of which run directory."""


def report(
    *,
    step: int,
    loss: SupportsFloat | None = None,
    own_seconds: SupportsFloat | None = None,
    every_rank: bool = False,
    **figures: SupportsFloat,
) -> None:
    """Append one line to the run's ``metrics.jsonl``; only rank 0 writes, unless ``every_rank``.

    ``figures`` are numbers by name. One that ends in ``_per_second`` (``tokens_per_second``, ``samples_per_second``) is
    the throughput, summed over the whole gang by the script. NaN and infinity are kept, as text, so that they are seen.

    Call it on every rank: those that write nothing still tell their node which step they are at, which costs some
    microseconds and, when the run hangs, says who is behind. ``own_seconds``: how long this rank took for the step
    without waiting for the others (up to its first collective, say): by that the rank that slows all of them is told.

    Raises `jobs.errors.Refused` when a newer attempt of the run has begun, so that this one ends (noticed within 1 s).
    """
    pulse.reached(int(step), None if own_seconds is None else float(own_seconds))
    directory = os.environ.get("RAYDECK_RUN_DIR")
    rank = int(os.environ.get("RANK", "0"))
    if not directory or (rank != 0 and not every_rank):
        return
    attempt = int(os.environ.get("RAYDECK_ATTEMPT", "1"))
    _look_at_fence(directory, attempt)
    line: dict[str, Any] = {"step": int(step)}
    if loss is not None:
        line["loss"] = _number(loss)
    line.update((name, _number(value)) for name, value in figures.items())
    line["wall"] = round(time.time(), 3)
    line["attempt"] = attempt
    if every_rank:
        line["rank"] = rank
    _append(Path(directory) / "metrics.jsonl", line)


def stopping() -> bool:
    """Whether somebody asked the run to save and leave. The first call installs the SIGTERM handler: call it early.

    All ranks are asked, but not at the same step: let them agree (an ``all_reduce`` with MAX over this flag) before the
    first of them leaves. Call it first from the main thread.
    """
    global _listening
    pulse.begin()
    if not _listening:
        signal.signal(signal.SIGTERM, _on_sigterm)
        _listening = True
    return _stop.is_set()


def config() -> dict[str, Any]:
    """The workflow's resolved ``training`` section; empty outside of raydeck."""
    pulse.begin()
    settings: Any = json.loads(os.environ.get("RAYDECK_CONFIG") or "{}")
    if not isinstance(settings, dict):
        raise ValueError("RAYDECK_CONFIG does not hold a mapping")
    return settings


def _look_at_fence(directory: str, attempt: int) -> None:
    global _looked_at
    now = time.monotonic()
    if _looked_at is None or _looked_at[1] != directory or now - _looked_at[0] >= _LOOK_AT_FENCE_SECONDS:
        fence.check(directory, attempt)
        _looked_at = (now, directory)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    _stop.set()


def _number(value: SupportsFloat) -> float | int | str:
    if isinstance(value, int):
        return value
    number = float(value)
    # JSON has neither NaN nor infinity; as words they survive every reader.
    return number if math.isfinite(number) else str(number)


def _append(path: Path, line: Mapping[str, Any]) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        size = os.fstat(descriptor).st_size
        # A rank that was killed while it wrote leaves half a line; ours must not be glued to it.
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            text = b"\n" + text
        os.write(descriptor, text)
    finally:
        os.close(descriptor)
