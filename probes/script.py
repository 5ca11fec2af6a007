"""What a simulated node acts out: the form of its script, a JSON file that is read again whenever it changes.

::

    {"node": "gpu-1", "gpus": 4, "memory_total_bytes": 85899345920, "power_limit_watts": 700,
     "owner": {"RAYDECK_DEMO": "x"},              marks that a process must carry besides
     "driver_version": "580.65.06", "library_version": "13.580.65",
     "clock_skew_seconds": -3.5,                  the node's clock goes wrong: samples, pongs and events say so
     "faults": {"2": {"kind": "ecc", "count": 2}, "3": [{"kind": "slow"}, {"kind": "xid", "code": 94}]},
     "events": [{"kind": "oom", "text": "Killed process 7 (python3)", "pid": 7, "process": "python3"}]}

Kinds of faults, with their further keys and defaults:

``lost``, ``hot``, ``hung``    off the bus; too hot and slowed down; the driver does not answer (the whole node's)
``ecc``                        ``count`` (1) uncorrectable errors since the driver was loaded
``remap_pending``, ``remap_failed``
``xid``                        ``code`` (79), and maybe ``pid``, ``text``: told once as an event
``throttle_power_brake``, ``throttle_thermal``     slowed down by its power supply, or by heat
``pcie_width``, ``pcie_generation``                ``width`` (8), ``generation`` (3)
``nvlink_down``                ``links`` (1) of 18 are down
``nvlink_errors``              ``per_second`` (10) more in the errors' counter
``memory_hot``                 ``celsius`` (98) of its memory
``leak``                       ``bytes`` (20 GiB) in use that no process holds
``spin``                       while held: full utilisation at 30 % of the power limit, as in a hung collective
``slow``                       while held: a third of the utilisation and low clocks
``idle_held``                  while held: the memory in use, and nothing done

Every fault may say ``recovery_action`` (NVML's number of what the driver advises). A new entry in ``faults`` or
``events`` that makes an event is told once; ``at`` is when it happened (seconds since 1970; now if it is not given).
To tell the same again, change the entry, by a key such as ``again``.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from probes.reading import Event

MIB = 1024 * 1024
DEFAULT_MEMORY_BYTES = 80 * 1024 * MIB
DEFAULT_POWER_WATTS = 700.0
MOST_GPUS = 64
MOST_EVENTS = 100
LOOK_BACK_SECONDS = 600.0
"""An event that says when it was, and was longer ago than this when the script is first read, is told no more."""

KINDS = (
    "lost",
    "hot",
    "hung",
    "ecc",
    "remap_pending",
    "remap_failed",
    "xid",
    "throttle_power_brake",
    "throttle_thermal",
    "pcie_width",
    "pcie_generation",
    "nvlink_down",
    "nvlink_errors",
    "memory_hot",
    "leak",
    "spin",
    "slow",
    "idle_held",
)


class Script:
    """What the file says: whose node this is, its devices and their faults."""

    def __init__(self, raw: Any) -> None:
        """From parsed JSON. Raises ``ValueError`` that names what is wrong."""
        if not isinstance(raw, dict):
            raise ValueError("it is not an object")
        self.node = str(raw.get("node", ""))
        self.gpus = int(raw.get("gpus", 0))
        self.memory_total_bytes = int(raw.get("memory_total_bytes", DEFAULT_MEMORY_BYTES))
        self.power_limit_watts = float(raw.get("power_limit_watts", DEFAULT_POWER_WATTS))
        self.owner = {str(name): str(value) for name, value in dict(raw.get("owner") or {}).items()}
        """Marks that a process must carry besides: another demo on this machine has nodes of the same names."""
        self.driver_version = str(raw.get("driver_version", "simulated"))
        self.library_version = str(raw.get("library_version", ""))
        self.clock_skew_seconds = float(raw.get("clock_skew_seconds", 0.0))
        self.faults: dict[int, dict[str, dict[str, Any]]] = {}
        """Device to kind to what the script says of this fault."""
        if not self.node or not 0 <= self.gpus <= MOST_GPUS:
            raise ValueError("node must be a name and gpus 0 to {}".format(MOST_GPUS))
        self._entries: list[tuple[str, Event]] = []
        for index, said in dict(raw.get("faults") or {}).items():
            self.faults[int(index)] = self._faults(int(index), said if isinstance(said, list) else [said])
        for entry in list(raw.get("events") or [])[:MOST_EVENTS]:
            if not isinstance(entry, dict) or not entry.get("kind"):
                raise ValueError("an event must be an object with a kind")
            self._entries.append((_key(entry), _event(entry)))

    def has(self, index: int, kind: str) -> bool:
        """This device has this fault."""
        return kind in self.faults.get(index, ())

    def amount(self, index: int, kind: str, key: str, default: float, without: float) -> float:
        """A fault's figure, or ``without`` where the device does not have the fault."""
        fault = self.faults.get(index, {}).get(kind)
        return without if fault is None else float(fault.get(key, default))

    def events(self, before: Script | None, now: float) -> list[Event]:
        """What is in this script and was not in the one before; ``now`` is the node's clock."""
        known = [key for key, _ in before._entries] if before is not None else []
        found: list[Event] = []
        for key, event in self._entries:
            if key in known:
                known.remove(key)
            elif not event.wall:
                event.wall = round(now, 3)
                found.append(event)
            elif before is not None or now - event.wall <= LOOK_BACK_SECONDS:
                found.append(event)
        return found

    def _faults(self, index: int, said: list[Any]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for fault in said:
            kind = fault.get("kind") if isinstance(fault, dict) else None
            if kind not in KINDS:
                raise ValueError("fault of GPU {}: kind must be one of {}".format(index, ", ".join(KINDS)))
            found[kind] = fault
            if kind == "xid":
                code = int(fault.get("code", 79))
                text = "Xid {} on GPU {} (SIMULATED)".format(code, index)
                entry = {"source": "nvml", "text": text, "code": code, "device": index, **fault}
                self._entries.append((_key(entry), _event(entry)))
        return found


def _key(entry: dict[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True, default=str)


def _event(entry: dict[str, Any]) -> Event:
    def whole(name: str) -> int | None:
        return None if entry.get(name) is None else int(entry[name])

    return Event(
        str(entry["kind"]),
        str(entry.get("text", ""))[:400],
        float(entry.get("at", 0.0)),
        str(entry.get("source", "kernel")),
        whole("device"),
        whole("code"),
        whole("pid"),
        str(entry.get("process", "")),
        str(entry.get("run", "")),
    )


class ScriptFile:
    """The file, read again when it has changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._version: tuple[int, int] | None = None
        self._script: Script | None = None

    def read(self) -> tuple[Script, bool]:
        """The script, and whether it is another one than last time.

        Raises ``OSError`` for a file that cannot be read and ``ValueError`` for one that was wrong from the start; one
        that is wrong later is taken to be caught in the middle of being written.
        """
        status = os.stat(self.path)
        version = (status.st_mtime_ns, status.st_size)
        if version == self._version and self._script is not None:
            return self._script, False
        try:
            with open(self.path, encoding="utf-8") as file:
                script = Script(json.load(file))
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            if self._script is not None:
                return self._script, False
            raise ValueError(str(error)) from error
        self._script, self._version = script, version
        return script, True


class SkewedClock:
    """A simulated node's clock: the machine's, and what the script adds to it."""

    LOOK_SECONDS = 0.2

    def __init__(self, path: str) -> None:
        self._file = ScriptFile(path)
        self._skew = 0.0
        self._look_at = 0.0

    def __call__(self) -> float:
        """Seconds since 1970."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + self.LOOK_SECONDS
            try:
                self._skew = self._file.read()[0].clock_skew_seconds
            except (OSError, ValueError):
                self._skew = 0.0  # the devices' reader says what is wrong with it
        return time.time() + self._skew
