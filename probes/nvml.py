"""The one door to NVML, through nvidia-ml-py. Every query gives a value, or says why there is none; never a made-up 0.

One bad GPU never hides the good ones, and a driver that cannot be used at all is one sentence (`DriverError`). A GPU
keeps its index for as long as the probe runs: one that falls off the bus stays in the list, with the reason.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, NoReturn

import pynvml

from probes.host import memory_total_bytes
from probes.nvml_events import EventSet
from probes.nvml_health import HealthQueries
from probes.nvml_query import GONE, Device, Lost, Query, code, missing
from probes.processes import Processes
from probes.reading import ERROR, UNSUPPORTED, DeviceFacts, Event, Facts, Health, Missing, Process, Sample
from probes.source import LOST, DriverError, Mark, Table, label

RETRY_UNSUPPORTED_SECONDS = 600.0
"""A driver may be updated while the probe runs: what was unsupported is asked again after this long."""
FIRST_REOPEN_SECONDS = 5.0
LONGEST_REOPEN_SECONDS = 300.0
"""How long the library is left alone, at first and at most, before it is shut down and opened again."""

_WHOLE_DRIVER = {
    pynvml.NVML_ERROR_UNINITIALIZED: "the NVIDIA driver was unloaded or reset while it was read",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver and library versions differ: reboot or reload the driver",
}
"""What speaks of the driver, whichever device was asked."""
_DRIVER_WORDS = {
    **_WHOLE_DRIVER,
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to use the NVIDIA driver",
    pynvml.NVML_ERROR_UNKNOWN: "the NVIDIA driver failed with an unknown error; in a container, restart the container",
}
_OPEN = label("nvmlInit")
_CLOSE = label("nvmlShutdown")
_WATCH = label("nvmlEventSetWait")
_NAME_PROCESSES = label("looking up GPU processes and their users")
_UNIFIED = {
    "memory_total_bytes": "unified memory: the machine's own",
    "memory_used_bytes": "unified memory: the sum of its processes",
}


def _thousandth(answer: int) -> tuple[float]:
    return (answer / 1000.0,)


def _memory(field: str) -> Callable[[Any], tuple[int]]:
    def take(answer: Any) -> tuple[int]:
        if answer.total == 0:  # some unified-memory drivers answer, with nothing in it
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return (getattr(answer, field),)

    return take


def _mig(answer: list[int]) -> tuple[str]:
    current, pending = answer
    return (("on" if pending else "off") + (" after reset" if pending != current else ""),)


# The first form counts what the driver keeps for itself as used: half a GB on a GPU that nobody holds.
_MEMORY_FORMS = (("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2), ("nvmlDeviceGetMemoryInfo",))
_ECC = "nvmlDeviceGetTotalEccErrors"


def _figures() -> list[Query]:
    return [
        Query(
            "utilization_percent memory_utilization_percent",
            ("nvmlDeviceGetUtilizationRates",),
            take=lambda answer: (answer.gpu, answer.memory),
        ),
        Query("memory_used_bytes", *_MEMORY_FORMS, take=_memory("used")),
        Query("power_watts", ("nvmlDeviceGetPowerUsage",), take=_thousandth),
        Query(
            "temperature_celsius",
            ("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
            ("nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU),
        ),
        Query("sm_clock_mhz", ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM)),
        Query("memory_clock_mhz", ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM)),
        Query(
            "throttle_reasons",
            ("nvmlDeviceGetCurrentClocksEventReasons",),
            ("nvmlDeviceGetCurrentClocksThrottleReasons",),
        ),
    ]


def _seldom() -> list[Query]:
    return [
        Query("uuid", ("nvmlDeviceGetUUID",)),
        Query("name", ("nvmlDeviceGetName",)),
        Query("mig_mode", ("nvmlDeviceGetMigMode",), take=_mig),
        Query("memory_total_bytes", *_MEMORY_FORMS, take=_memory("total")),
        Query("power_limit_watts", ("nvmlDeviceGetEnforcedPowerLimit",), take=_thousandth),
        Query("ecc_corrected_count", (_ECC, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC)),
        Query("ecc_uncorrected_count", (_ECC, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)),
        Query("pcie_generation", ("nvmlDeviceGetCurrPcieLinkGeneration",)),
        Query("pcie_width", ("nvmlDeviceGetCurrPcieLinkWidth",)),
    ]


def _holders() -> list[Query]:
    return [
        Query("compute", ("nvmlDeviceGetComputeRunningProcesses_v3",), ("nvmlDeviceGetComputeRunningProcesses_v2",)),
        Query("graphics", ("nvmlDeviceGetGraphicsRunningProcesses_v3",), ("nvmlDeviceGetGraphicsRunningProcesses_v2",)),
    ]


class Nvml:
    """All GPUs of this machine that NVIDIA's driver serves."""

    def __init__(self, mark: Mark, proc: str = "/proc", clock: Callable[[], float] = time.monotonic) -> None:
        self.changed = True
        self._mark = mark
        self._proc = proc
        self._clock = clock
        self._processes = Processes(proc)
        self._figures, self._seldom, self._holders = _figures(), _seldom(), _holders()
        self._health = HealthQueries()
        self._events = EventSet(clock)
        self._devices: list[Device] = []
        self._versions = ("", "", "")
        self._open = False
        self._trouble = ""
        self._reopen_at: float | None = None
        self._pause = FIRST_REOPEN_SECONDS

    def facts(self) -> Facts:
        """What seldom changes. Raises `DriverError`."""
        self._ready()
        now = self._clock()
        for device in self._devices:
            try:
                device.facts = self._device_facts(device, now)
            except Lost:
                known = device.facts
                device.facts = DeviceFacts(device.index, known.uuid, known.name, missing={"*": device.trouble})
        self.changed = False
        driver, library, cuda = self._versions
        devices = [device.facts for device in self._devices]
        return Facts(driver_version=driver, library_version=library, cuda_version=cuda, devices=devices)

    def sample(self) -> Sample:
        """The figures of this second. Raises `DriverError`."""
        self._ready()
        now = self._clock()
        table = Table([device.index for device in self._devices])
        lost = False
        for row, device in enumerate(self._devices):
            try:
                self._fill(table, row, device, now)
            except Lost:
                lost = True
                table.missing[device.index] = {"*": device.trouble}
                for column in table.columns.values():
                    column[row] = None
        self._processes.forget_unseen()
        if not lost:
            self._reopen_at, self._pause = None, FIRST_REOPEN_SECONDS
        elif self._reopen_at is None:
            self._reopen_later(now)
        return table.sample()

    def health(self) -> Health:
        """What health rules ask of the devices, and what cannot be watched. Raises `DriverError`."""
        self._ready()
        self._events.wanted = True
        now = self._clock()
        health = Health(devices=[self._health.of(device, self._ask, now) for device in self._devices])
        self._mark(_WATCH)
        self._events.keep(self._devices, now)
        if self._events.blind is not None:
            health.blind["nvml_events"] = self._events.blind
        return health

    def events(self) -> list[Event]:
        """What the driver told since the last call; nothing before `health` was called once."""
        if not self._open or not self._events.wanted:
            return []
        self._mark(_WATCH)
        now = self._clock()
        self._events.keep(self._devices, now)
        return self._events.poll(self._devices, now)

    def close(self) -> None:
        """Shut the library down."""
        if self._open:
            self._open = False
            self._mark(_CLOSE)
            self._events.drop()
            # Of no use to anybody now, and a driver that has gone away refuses it.
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _fill(self, table: Table, row: int, device: Device, now: float) -> None:
        for query in self._figures:
            answer = self._ask(device, query, now)
            if isinstance(answer, Missing):
                for name in query.names:
                    table.miss(device.index, name, answer)
            else:
                for at, name in enumerate(query.names):
                    table.columns[name][row] = answer[at]
        held = self._held(table, device, now)
        no_memory = table.missing.get(device.index, {}).get("memory_used_bytes")
        if no_memory is not None and no_memory.kind == UNSUPPORTED and "memory_total_bytes" in device.facts.notes:
            memory = [process.memory_used_bytes for process in held]
            known = [used for used in memory if used is not None]
            if len(known) == len(memory) and "processes" not in table.missing[device.index]:
                table.columns["memory_used_bytes"][row] = sum(known)
                del table.missing[device.index]["memory_used_bytes"]
            else:
                reason = "unified memory, and its processes' share cannot be read"
                table.miss(device.index, "memory_used_bytes", Missing(UNSUPPORTED, reason))

    def _held(self, table: Table, device: Device, now: float) -> list[Process]:
        """The processes on one device, put into the table."""
        holders: dict[int, int | None] = {}
        for query in self._holders:
            answer = self._ask(device, query, now)
            if not isinstance(answer, Missing):
                for holder in answer[0]:
                    if holders.get(holder.pid) is None:
                        holders[holder.pid] = holder.usedGpuMemory
            elif query is self._holders[0] or answer.kind == ERROR:
                table.miss(device.index, "processes", answer)
        if not holders:
            return []
        self._mark(_NAME_PROCESSES)
        held = self._processes.holding(device.index, holders)
        table.processes += held
        return held

    def _device_facts(self, device: Device, now: float) -> DeviceFacts:
        facts = DeviceFacts(device.index)
        for query in self._seldom:
            answer = self._ask(device, query, now)
            if isinstance(answer, Missing):
                facts.missing[query.names[0]] = answer
            else:
                setattr(facts, query.names[0], answer[0])
        no_memory = facts.missing.get("memory_total_bytes")
        total = memory_total_bytes(self._proc)
        if no_memory is not None and no_memory.kind == UNSUPPORTED and total is not None:
            facts.memory_total_bytes = total
            facts.notes = dict(_UNIFIED)
            del facts.missing["memory_total_bytes"]
        if facts.mig_mode != device.facts.mig_mode:
            device.begin_anew()
        return facts

    def _ask(self, device: Device, query: Query, now: float) -> tuple[Any, ...] | Missing:
        """The answer, or why there is none. Raises `Lost` for the device and `DriverError` for the driver."""
        if device.handle is None:
            raise Lost
        key = query.names[0]
        if key in device.unsupported and now < device.unsupported[key][0]:
            return device.unsupported[key][1]
        self._mark(device.label(query))
        try:
            return query.ask(device.handle)
        except UnicodeDecodeError:
            return Missing(ERROR, "the driver's answer is not text")
        except pynvml.NVMLError as error:
            if code(error) in _WHOLE_DRIVER:
                self._fail(error)
            why = missing(error)
        if why is LOST:
            device.trouble = LOST
            raise Lost
        if why.kind == UNSUPPORTED:
            if device.mig_on:
                why = Missing(UNSUPPORTED, why.reason + " while MIG is on")
            device.unsupported[key] = (now + RETRY_UNSUPPORTED_SECONDS, why)
        return why

    def _ready(self) -> None:
        """Open the library, or once more when its pause is over. Raises `DriverError`."""
        waiting = self._reopen_at is not None and self._clock() < self._reopen_at
        if self._open and (waiting or self._reopen_at is None):
            return
        if waiting:
            raise DriverError(self._trouble)
        self.close()
        self._mark(_OPEN)
        try:
            pynvml.nvmlInit()
            self._open = True
            cuda = pynvml.nvmlSystemGetCudaDriverVersion()
            self._versions = (
                pynvml.nvmlSystemGetDriverVersion(),
                pynvml.nvmlSystemGetNVMLVersion(),
                "{}.{}".format(cuda // 1000, cuda % 1000 // 10),
            )
            self._enumerate()
        except pynvml.NVMLError as error:
            self._fail(error)
        self._reopen_at = None
        self.changed = True

    def _fail(self, error: pynvml.NVMLError) -> NoReturn:
        """The driver as a whole does not answer: leave it alone for a while, and say so."""
        self.close()
        self._trouble = _DRIVER_WORDS.get(code(error)) or "NVML: {}".format(error)
        self._reopen_later(self._clock())
        raise DriverError(self._trouble) from error

    def _reopen_later(self, now: float) -> None:
        self._reopen_at = now + self._pause
        self._pause = min(self._pause * 2, LONGEST_REOPEN_SECONDS)

    def _enumerate(self) -> None:
        """Find the devices anew. Handles do not outlive a reset, and places in NVML's list shift when one is lost."""
        known = {device.facts.uuid or device.place: device for device in self._devices}
        taken = {device.index for device in self._devices}
        found: list[Device] = []
        mute: list[tuple[int, Missing]] = []
        for place in range(pynvml.nvmlDeviceGetCount()):
            self._mark(label("nvmlDeviceGetHandleByIndex for GPU {}".format(place)))
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(place)
                uuid: str = pynvml.nvmlDeviceGetUUID(handle)
            except pynvml.NVMLError as error:
                if code(error) in _WHOLE_DRIVER:
                    raise
                mute.append((place, missing(error)))
                continue
            device = known.pop(uuid, None) or known.pop(place, None) or self._new_device(place, taken)
            device.handle, device.place, device.facts.uuid = handle, place, uuid
            device.begin_anew()
            found.append(device)
        for place, trouble in mute:
            # It cannot say who it is: it is the one that was here and was found nowhere else, if any.
            key = next((key for key, device in known.items() if device.place == place), None)
            device = known.pop(key) if key is not None else self._new_device(place, taken)
            device.handle, device.trouble = None, trouble
            found.append(device)
        for device in known.values():
            device.handle, device.trouble = None, GONE
        self._devices = sorted([*found, *known.values()], key=lambda device: device.index)

    def _new_device(self, place: int, taken: set[int]) -> Device:
        index = place
        while index in taken:
            index += 1
        taken.add(index)
        return Device(index, place, self._figures + self._seldom + self._holders)
