"""Devices that act out a script (`probes.script`), for machines without a GPU. Marked SIMULATED wherever they show.

They follow the truth: a GPU is busy while real processes on this machine say, by the marks in their environment, that
they hold it, and it is those processes that it lists. Everything else moves as a GPU's figures do, and in the same way
each time.
"""

from __future__ import annotations

import math
import os
import time
import zlib
from typing import Any, Callable

from probes.processes import Processes, environment, stat_fields, whole
from probes.reading import DRIVER_NONE, DeviceFacts, DeviceHealth, Driver, Event, Facts, Health, Number, Sample
from probes.script import MIB, Script, ScriptFile
from probes.source import LOST, DriverError, Mark, Table, label

HUNG_POLL_SECONDS = 0.05

THROTTLE_IDLE = 0x1
THROTTLE_POWER_CAP = 0x4
THROTTLE_POWER_BRAKE = 0x8 | 0x80
"""Hardware slowdown, asked for by the power supply."""
THROTTLE_THERMAL = 0x20 | 0x40
"""Software and hardware thermal slowdown."""

_AMBIENT_CELSIUS = 33.0
_HOT_CELSIUS = 93.0
_SLOWDOWN_CELSIUS = 87.0
_MEMORY_SLOWDOWN_CELSIUS = 95
_LINKS = 18
_LOADS = {"spin": (1.0, 0.24), "slow": (0.35, 0.35), "idle_held": (0.0, 0.02)}
"""What a held GPU does with a fault of this kind: share of its usual utilisation, and of its usual power."""


class Device:
    """One GPU's inertia. `step` is a pure function of what was stepped before."""

    def __init__(self, node: str, index: int, memory_total_bytes: int, power_limit_watts: float) -> None:
        self._seed = "{}/{}".format(node, index)
        self._memory_total = memory_total_bytes
        self._limit = power_limit_watts
        self._at: float | None = None
        self._held_seconds = 0.0
        self._idle_memory = (3 + index % 3) * MIB
        self.utilization_percent = 0
        self.memory_utilization_percent = 0
        self.memory_used_bytes = float(self._idle_memory)
        self.power_watts = power_limit_watts * 0.1
        self.temperature_celsius = _AMBIENT_CELSIUS + 2.0 + index % 4
        self.sm_clock_mhz = 345
        self.memory_clock_mhz = 1593
        self.throttle_reasons = THROTTLE_IDLE
        self._rest_celsius = self.temperature_celsius

    def step(self, now: float, holders: int, hot: bool = False, load: str = "") -> None:
        """Move on to this moment (monotonic seconds), held by so many processes since the last step.

        ``load``: ``spin``, ``slow`` or ``idle_held`` for what its holders do with it, or nothing for training.
        """
        elapsed = 0.0 if self._at is None else min(max(now - self._at, 0.0), 60.0)
        self._at = now
        self._held_seconds = self._held_seconds + elapsed if holders else 0.0
        held = self._held_seconds
        throttled = hot and self.temperature_celsius >= _SLOWDOWN_CELSIUS
        # The first seconds of a process go into loading; then the kernels run.
        work = (0.05 if held < 1.5 else min(1.0, (held - 1.5) / 2.0)) if holders else 0.0
        busy, drawn = _LOADS.get(load, (1.0, 1.0))
        if load == "spin" and work > 0.05:
            self.utilization_percent = 100
        else:
            self.utilization_percent = round(busy * work * (95.0 + 5.0 * self._noise("u", now, 7.0))) if holders else 0
        if not holders and self._noise("i", now, 3.0) > 0.9:
            self.utilization_percent = 1
        self.memory_utilization_percent = round(self.utilization_percent * (0.45 + 0.1 * self._noise("b", now, 9.0)))
        full = self._memory_total * (0.70 + 0.12 * self._noise("m", 0.0, 1.0))
        target = full if holders else float(self._idle_memory)
        # Memory is taken in a few seconds, and given back at once.
        self.memory_used_bytes = _towards(self.memory_used_bytes, target, elapsed, 3.0 if holders else 0.4)
        draw = drawn * work * (0.78 + 0.10 * self._noise("p", now, 5.0)) * (0.5 if throttled else 1.0)
        wanted = self._limit * min(0.10 + draw, 1.0)
        self.power_watts = _towards(self.power_watts, wanted, elapsed, 0.8)
        warm = self._rest_celsius + 38.0 * max(self.power_watts / self._limit - 0.1, 0.0)
        self.temperature_celsius = _towards(self.temperature_celsius, _HOT_CELSIUS if hot else warm, elapsed, 20.0)
        capped = self.power_watts > self._limit * 0.95
        if throttled:
            self.throttle_reasons = THROTTLE_THERMAL
            self.sm_clock_mhz = 1110 + 15 * int(self._noise("c", now, 4.0) * 6)
        elif holders:
            self.throttle_reasons = THROTTLE_POWER_CAP if capped else 0
            self.sm_clock_mhz = (1755 if capped else 1980) - 15 * int(self._noise("c", now, 4.0) * 3)
            if load == "slow":
                self.sm_clock_mhz = 885
        else:
            self.throttle_reasons = THROTTLE_IDLE
            self.sm_clock_mhz = 345
        self.memory_clock_mhz = 2619 if holders else 1593

    def _noise(self, what: str, now: float, period: float) -> float:
        """0 to 1, smooth over the period, and the same for the same moment."""
        place = now / period
        before = math.floor(place)
        low, high = (
            zlib.crc32("{}/{}/{}".format(self._seed, what, at).encode("utf-8")) / 4294967295.0
            for at in (before, before + 1)
        )
        return low + (high - low) * (place - before)


def _towards(value: float, target: float, elapsed: float, inertia: float) -> float:
    return target + (value - target) * math.exp(-elapsed / inertia)


class Holders:
    """Finds the processes that say they hold a GPU of this node.

    A pid that has been there in every scan is taken for the same process; those that hold something are checked by
    their start time as well. An environment is read when a pid is new and again at 1, 2, 4 … scans, since a process
    starts with its parent's and gets its own by exec.
    """

    LAST_LOOK = 64

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._age: dict[int, int] = {}
        self._marked: dict[int, dict[str, str]] = {}

    def scan(self, node: str, owner: dict[str, str]) -> dict[int, list[int]]:
        """GPU index to pids, in order, of those processes that also carry the owner's marks."""
        present = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        for pid in [pid for pid in self._age if pid not in present]:
            del self._age[pid]
            self._marked.pop(pid, None)
        for pid in present:
            age = self._age.get(pid, 0)
            if age <= self.LAST_LOOK:
                self._age[pid] = age + 1
                if age & (age - 1) == 0:
                    self._look(pid)
        holders: dict[int, list[int]] = {}
        for pid, marks in sorted(self._marked.items()):
            foreign = any(marks.get(name) != value for name, value in owner.items())
            if foreign or marks.get("RAYDECK_NODE") != node or not self._is_outermost(pid, marks):
                continue
            for text in marks["RAYDECK_GPU"].split(","):
                index = whole(text)
                if index is not None:
                    holders.setdefault(index, []).append(pid)
        return holders

    def _look(self, pid: int) -> None:
        marks = environment(self._proc, pid)
        if all(marks.get(name) for name in ("RAYDECK_RUN", "RAYDECK_NODE", "RAYDECK_GPU", "RANK")):
            self._marked[pid] = marks
        else:
            self._marked.pop(pid, None)

    def _is_outermost(self, pid: int, marks: dict[str, str]) -> bool:
        """A rank's own children (data loaders) inherit its marks, and hold no GPU."""
        fields = stat_fields(self._proc, pid)
        if fields is None:
            return False
        parent = self._marked.get(fields[0])
        return parent is None or (parent["RANK"], parent["RAYDECK_RUN"]) != (marks["RANK"], marks["RAYDECK_RUN"])


class Simulated:
    """The devices of one script file, which is read again whenever it changes."""

    def __init__(self, path: str, mark: Mark, proc: str = "/proc", clock: Callable[[], float] = time.monotonic) -> None:
        self.changed = True
        self._file = ScriptFile(path)
        self._mark = mark
        self._clock = clock
        self._processes = Processes(proc)
        self._holders = Holders(proc)
        self._script: Script | None = None
        self._devices: list[Device] = []
        self._events: list[Event] | None = None
        """What is to be told; None before somebody has asked for health."""
        self._errors: dict[int, tuple[float, float]] = {}
        """Device to (link errors so far, when they were counted)."""

    def facts(self) -> Facts:
        """What seldom changes. Raises `DriverError` for a script that cannot be read."""
        script = self._read()
        self.changed = False
        return Facts(
            driver_version=script.driver_version,
            library_version=script.library_version,
            devices=[
                DeviceFacts(index, missing={"*": LOST}, **_identity(script, index))
                if script.has(index, "lost")
                else DeviceFacts(
                    index,
                    memory_total_bytes=script.memory_total_bytes,
                    power_limit_watts=script.power_limit_watts,
                    ecc_corrected_count=0,
                    ecc_uncorrected_count=int(script.amount(index, "ecc", "count", 1, 0)),
                    pcie_generation=int(script.amount(index, "pcie_generation", "generation", 3, 5)),
                    pcie_width=int(script.amount(index, "pcie_width", "width", 8, 16)),
                    mig_mode="off",
                    **_identity(script, index),
                )
                for index in range(script.gpus)
            ],
        )

    def sample(self) -> Sample:
        """The figures of this second. Blocks while the script says that a GPU is hung."""
        script = self._read()
        while True:
            hung = [index for index in script.faults if script.has(index, "hung")]
            if not hung:
                break
            self._mark(label("the simulated driver's call on GPU {}".format(hung[0])))
            time.sleep(HUNG_POLL_SECONDS)
            script = self._read()
        now = self._clock()
        held = self._holders.scan(script.node, script.owner)
        table = Table(list(range(script.gpus)))
        for index, device in enumerate(self._devices):
            pids = held.get(index, [])
            load = next((load for load in _LOADS if script.has(index, load)), "")
            device.step(now, len(pids), hot=script.has(index, "hot"), load=load)
            if script.has(index, "lost"):
                table.miss(index, "*", LOST)
                continue
            used = int(device.memory_used_bytes)
            for name, value in self._figures(script, index, device).items():
                table.columns[name][index] = value
            if pids:
                table.processes += self._processes.holding(index, {pid: used // len(pids) for pid in pids})
        self._processes.forget_unseen()
        sample = table.sample()
        if not script.gpus:
            sample.driver = Driver(DRIVER_NONE, "this simulated node has no accelerator")
        return sample

    def health(self) -> Health:
        """What health rules ask of the devices. Raises `DriverError`."""
        script = self._read()
        if self._events is None:
            self._events = script.events(None, time.time() + script.clock_skew_seconds)
        return Health(devices=[self._device_health(script, index) for index in range(script.gpus)])

    def events(self) -> list[Event]:
        """What the script told since the last call; nothing before `health` was called once."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Nothing is held."""

    def _figures(self, script: Script, index: int, device: Device) -> dict[str, Number]:
        throttled, clock = device.throttle_reasons, device.sm_clock_mhz
        if script.has(index, "throttle_power_brake"):
            throttled, clock = THROTTLE_POWER_BRAKE, min(clock, 990)
        if script.has(index, "throttle_thermal"):
            throttled, clock = throttled & ~THROTTLE_IDLE | THROTTLE_THERMAL, min(clock, 1110)
        used = device.memory_used_bytes + script.amount(index, "leak", "bytes", 20 << 30, 0)
        return {
            "utilization_percent": device.utilization_percent,
            "memory_utilization_percent": device.memory_utilization_percent,
            "memory_used_bytes": min(int(used), script.memory_total_bytes),
            "power_watts": round(device.power_watts, 1),
            "temperature_celsius": round(device.temperature_celsius),
            "sm_clock_mhz": clock,
            "memory_clock_mhz": device.memory_clock_mhz,
            "throttle_reasons": throttled,
        }

    def _device_health(self, script: Script, index: int) -> DeviceHealth:
        health = DeviceHealth(index, _identity(script, index)["uuid"], bus_address_of(index))
        if script.has(index, "lost"):
            health.missing["*"] = LOST
            return health
        celsius = round(self._devices[index].temperature_celsius)
        actions = [int(fault.get("recovery_action", 0)) for fault in script.faults.get(index, {}).values()]
        health.figures = {
            "ecc_volatile_corrected_count": 0,
            "ecc_volatile_uncorrected_count": int(script.amount(index, "ecc", "count", 1, 0)),
            "remapped_corrected_count": 0,
            "remapped_uncorrected_count": int(script.has(index, "remap_pending")),
            "remap_pending": int(script.has(index, "remap_pending")),
            "remap_failed": int(script.has(index, "remap_failed")),
            "retired_pages_pending": 0,
            "recovery_action": max(actions, default=0),
            "slowdown_celsius": round(_SLOWDOWN_CELSIUS),
            "memory_temperature_celsius": int(script.amount(index, "memory_hot", "celsius", 98, celsius + 8)),
            "memory_slowdown_celsius": _MEMORY_SLOWDOWN_CELSIUS,
            "pcie_generation": int(script.amount(index, "pcie_generation", "generation", 3, 5)),
            "pcie_generation_max": 5,
            "pcie_width": int(script.amount(index, "pcie_width", "width", 8, 16)),
            "pcie_width_max": 16,
            "pcie_replay_count": 0,
            "nvlinks_active": _LINKS - int(script.amount(index, "nvlink_down", "links", 1, 0)),
            "nvlinks_total": _LINKS,
            "nvlink_error_count": self._link_errors(script, index),
            "fabric_healthy": 1,
            "persistence": 1,
        }
        return health

    def _link_errors(self, script: Script, index: int) -> int:
        now = self._clock()
        count, at = self._errors.get(index, (0.0, now))
        count += script.amount(index, "nvlink_errors", "per_second", 10, 0) * (now - at)
        self._errors[index] = count, now
        return int(count)

    def _read(self) -> Script:
        try:
            script, other = self._file.read()
        except OSError as error:
            raise DriverError(
                "the simulation script {} cannot be read: {}".format(self._file.path, error.strerror)
            ) from error
        except ValueError as error:
            raise DriverError("the simulation script {} is wrong: {}".format(self._file.path, error)) from error
        if not other:
            return script
        before, self._script = self._script, script
        if before is None or (before.node, before.gpus) != (script.node, script.gpus):
            self._devices = [
                Device(script.node, index, script.memory_total_bytes, script.power_limit_watts)
                for index in range(script.gpus)
            ]
        if self._events is not None:
            self._events += script.events(before, time.time() + script.clock_skew_seconds)
        self.changed = True
        return script


def bus_address_of(index: int) -> str:
    """Where a simulated GPU is on the bus: ``0000:10:00`` is the first."""
    return "0000:{:02x}:00".format(0x10 + index)


def _identity(script: Script, index: int) -> dict[str, Any]:
    number = zlib.crc32("{}/{}".format(script.node, index).encode("utf-8"))
    gigabytes = round(script.memory_total_bytes / (1024 * MIB))
    return {
        "uuid": "SIM-{:08x}-{}-{}".format(number, script.node, index),
        "name": "SIMULATED H100 {}GB".format(gigabytes),
    }
