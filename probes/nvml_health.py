"""What health rules ask of NVML: error counters, memory repairs, links and limits.

Asked seldom. What a device does not support is remembered by its caller and costs nothing for ten minutes.
"""

from __future__ import annotations

import ctypes
import struct
from functools import lru_cache
from typing import Any, Callable, NoReturn, Sequence

import pynvml

from probes.nvml_query import Device, Lost, Query, code, missing_of
from probes.reading import UNSUPPORTED, DeviceHealth, Missing
from probes.source import LOST, bus_address

# Newer than the oldest nvidia-ml-py that may be installed.
_RECOVERY_ACTION = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", 230)


SELDOM_SECONDS = 30.0
"""Limits, and what is slow to ask for, are asked for this seldom."""

_FIELDS = (
    ("ecc_volatile_corrected_count", pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL),
    ("ecc_volatile_uncorrected_count", pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL),
    ("remapped_corrected_count", pynvml.NVML_FI_DEV_REMAPPED_COR),
    ("remapped_uncorrected_count", pynvml.NVML_FI_DEV_REMAPPED_UNC),
    ("remap_pending", pynvml.NVML_FI_DEV_REMAPPED_PENDING),
    ("remap_failed", pynvml.NVML_FI_DEV_REMAPPED_FAILURE),
    ("retired_pages_pending", pynvml.NVML_FI_DEV_RETIRED_PENDING),
    ("recovery_action", _RECOVERY_ACTION),
    ("memory_temperature_celsius", pynvml.NVML_FI_DEV_MEMORY_TEMP),
    ("pcie_replay_count", pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER),
)
"""What one call brings together."""
_FIELD_LAYOUT = struct.Struct("=24xIIQ")
"""Of ``nvmlFieldValue_t``: field, scope, two times (passed over); then the value's kind, the return code, the value."""
_LINK_STATE = pynvml.NVML_FI_DEV_NVLINK_GET_STATE
_UP = (1, 2)
"""NVLink states that count as there: active, and asleep to save power."""
_LINK_ERRORS = (
    # Each is the counters of one generation of links, and whether they are asked of every link.
    (
        True,
        (
            pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
            pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
            pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
        ),
    ),
    (
        True,
        (
            pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
            pynvml.NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
            pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
        ),
    ),
    (
        False,
        (
            pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
            pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
            pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
        ),
    ),
)
_NOT_HERE = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)
_NOT_SUPPORTED = missing_of(pynvml.NVML_ERROR_NOT_SUPPORTED)
_ZERO_IS_NONE = frozenset({"memory_temperature_celsius"})
Ask = Callable[[Device, Query, float], "tuple[Any, ...] | Missing"]


class HealthQueries:
    """What is asked for the fields in ``DEVICE_HEALTH_FIELDS``."""

    def __init__(self) -> None:
        self._pci = Query("pci", ("nvmlDeviceGetPciInfo",), take=lambda info: (bus_address(info.busId),))
        self._often = [
            Query("pcie_generation", ("nvmlDeviceGetCurrPcieLinkGeneration",)),
            Query("pcie_width", ("nvmlDeviceGetCurrPcieLinkWidth",)),
        ]
        threshold = "nvmlDeviceGetTemperatureThreshold"
        self._seldom = [
            Query("pcie_generation_max", ("nvmlDeviceGetMaxPcieLinkGeneration",)),
            Query("pcie_width_max", ("nvmlDeviceGetMaxPcieLinkWidth",)),
            Query("slowdown_celsius", (threshold, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN), take=_celsius),
            Query("memory_slowdown_celsius", (threshold, pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX), take=_celsius),
            Query("persistence", ("nvmlDeviceGetPersistenceMode",)),
            Query("fabric_healthy", (_fabric,), call="nvmlDeviceGetGpuFabricInfoV"),
            Query("nvlink_error_count", (_link_errors,), call="nvmlDeviceGetFieldValues (NVLink errors)"),
        ]
        self._links = Query("nvlinks_active nvlinks_total", (_links,), take=tuple, call="nvmlDeviceGetNvLinkState")
        self._by_links: dict[int, Query] = {}
        self._count = Query("nvlinks_total", (_link_count,), call="nvmlDeviceGetFieldValues (NVLink count)")

    def of(self, device: Device, ask: Ask, now: float) -> DeviceHealth:
        """One device's figures. ``ask`` gives an answer or a reason; it raises `Lost`, or `DriverError`."""
        health = DeviceHealth(device.index, device.facts.uuid or "", device.pci)
        try:
            if not device.pci:
                answer = ask(device, self._pci, now)
                health.pci = device.pci = "" if isinstance(answer, Missing) else answer[0]
            if now >= device.seldom[0]:
                device.seldom = (now + SELDOM_SECONDS, {}, {})
                device.fields = self._fields(device, ask, now)
                _put(device, self._seldom, ask, now, device.seldom[1], device.seldom[2])
            health.figures.update(device.seldom[1])
            health.missing.update(device.seldom[2])
            _put(device, self._often, ask, now, health.figures, health.missing)
            self._take_fields(device, ask, now, health)
        except Lost:
            health.figures, health.missing = {}, {"*": device.trouble}
        return health

    def _fields(self, device: Device, ask: Ask, now: float) -> Query:
        count = ask(device, self._count, now)
        links = 0 if isinstance(count, Missing) else int(count[0])
        if links not in self._by_links:
            call = _FieldValues([*(field for _, field in _FIELDS), *((_LINK_STATE, link) for link in range(links))])
            self._by_links[links] = Query("fields", (call.read,), call="nvmlDeviceGetFieldValues")
        return self._by_links[links]

    def _take_fields(self, device: Device, ask: Ask, now: float, health: DeviceHealth) -> None:
        fields = device.fields
        answer = ask(device, fields, now) if fields is not None else _NOT_SUPPORTED
        if isinstance(answer, Missing):
            for name, _ in _FIELDS:
                health.missing[name] = answer
            health.missing["nvlinks_active"] = health.missing["nvlinks_total"] = answer
            return
        values: list[tuple[int, int, int]] = answer[0]
        for (name, _), (kind, failed, value) in zip(_FIELDS, values):  # noqa: B905  the links' states come behind
            if failed or (not value and name in _ZERO_IS_NONE):
                health.missing[name] = _reason(device, failed or pynvml.NVML_ERROR_NOT_SUPPORTED)
            else:
                health.figures[name] = _number(kind, value)
        states = values[len(_FIELDS) :]
        if states and not any(failed for _, failed, _ in states):
            health.figures["nvlinks_active"] = sum(value & 0xFFFFFFFF in _UP for _, _, value in states)
            health.figures["nvlinks_total"] = len(states)
        else:
            # An older driver tells them one by one; one without links says so for all of them.
            _put(device, [self._links], ask, now, health.figures, health.missing)


def _put(
    device: Device,
    queries: Sequence[Query],
    ask: Ask,
    now: float,
    figures: dict[str, Any],
    reasons: dict[str, Missing],
) -> None:
    for query in queries:
        answer = ask(device, query, now)
        if isinstance(answer, Missing):
            for name in query.names:
                reasons[name] = answer
        else:
            for at, name in enumerate(query.names):
                figures[name] = answer[at]


def _reason(device: Device, error: int) -> Missing:
    found = missing_of(error)
    if found is LOST:
        device.trouble = LOST
        raise Lost
    if found.kind == UNSUPPORTED and device.mig_on:
        return Missing(UNSUPPORTED, found.reason + " while MIG is on")
    return found


def _number(kind: int, value: int) -> int:
    """A field's value, of the eight bytes that it stands in."""
    if kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return value & 0xFFFFFFFF
    if kind == pynvml.NVML_VALUE_TYPE_DOUBLE:
        return int(struct.unpack("=d", struct.pack("=Q", value))[0])
    return value


class _FieldValues:
    """Some field values in one call, with what is asked for laid out once."""

    def __init__(self, fields: Sequence[Any]) -> None:
        """``fields`` are numbers, or (number, link)."""
        self._values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        self._count = ctypes.c_int(len(fields))
        for value, field in zip(self._values, fields):  # noqa: B905  Python 3.8 has no strict
            value.fieldId, value.scopeId = field if isinstance(field, tuple) else (field, 0)

    def read(self, handle: Any) -> list[tuple[int, int, int]]:
        """(kind, return code, value) of each. Raises ``NVMLError`` where the call as a whole fails."""
        # nvidia-ml-py's own wrapper lays them out anew each time, which costs ten times what the call does.
        failed = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")(
            handle, self._count, ctypes.byref(self._values)
        )
        if failed:
            _fail(failed)
        return list(_FIELD_LAYOUT.iter_unpack(bytes(self._values)))


_LAYOUTS: dict[tuple[Any, ...], _FieldValues] = {}
"""What was asked for, to how it is laid out: the same few for as long as the probe runs."""


def _fail(error: int) -> NoReturn:
    raise pynvml.NVMLError(error)


def _celsius(answer: int) -> tuple[int]:
    # Some drivers give 0 for a limit that they do not have.
    return (answer,) if answer > 0 else _fail(pynvml.NVML_ERROR_NOT_SUPPORTED)


def _field_numbers(handle: Any, fields: tuple[Any, ...]) -> list[int]:
    """Field values as numbers. Raises ``NVMLError`` of the first that has none."""
    found: list[int] = []
    asked = _LAYOUTS.get(fields)
    if asked is None:
        asked = _LAYOUTS[fields] = _FieldValues(fields)
    for kind, failed, value in asked.read(handle):
        if failed:
            _fail(failed)
        found.append(_number(kind, value))
    return found


@lru_cache(maxsize=None)
def _each_link(counters: tuple[int, ...], links: int) -> tuple[tuple[int, int], ...]:
    return tuple((field, link) for field in counters for link in range(links))


def _link_count(handle: Any) -> int:
    count = _field_numbers(handle, (pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT,))[0]
    return count if 0 < count <= pynvml.NVML_NVLINK_MAX_LINKS else _fail(pynvml.NVML_ERROR_NOT_SUPPORTED)


def _links(handle: Any) -> tuple[int, int]:
    """(how many links are up, how many there are)."""
    count = _link_count(handle)
    return sum(pynvml.nvmlDeviceGetNvLinkState(handle, link) in _UP for link in range(count)), count


def _link_errors(handle: Any) -> int:
    """The sum of all links' error counters, of the first set that this device has."""
    count = _link_count(handle)
    for each, counters in _LINK_ERRORS:
        try:
            return sum(_field_numbers(handle, _each_link(counters, count if each else 1)))
        except pynvml.NVMLError as error:
            # Only a set that is not there makes way for another: a sum over others would look like new errors.
            if code(error) not in _NOT_HERE:
                raise
    _fail(pynvml.NVML_ERROR_NOT_SUPPORTED)


def _fabric(handle: Any) -> int:
    """1 if this GPU has joined the NVSwitch fabric and the fabric is well, else 0."""
    for make in (pynvml.c_nvmlGpuFabricInfo_v3_t, pynvml.c_nvmlGpuFabricInfo_v2_t):
        info = make()
        try:
            pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        except pynvml.NVMLError as error:
            if code(error) != pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
                raise
            continue
        if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
            _fail(pynvml.NVML_ERROR_NOT_SUPPORTED)
        summary = getattr(info, "healthSummary", 0)
        if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status != pynvml.NVML_SUCCESS:
            return 0
        return int(summary == _HEALTHY if summary else not _degraded(int(info.healthMask)))
    _fail(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)


_HEALTHY = 1
_DEGRADED_SHIFTS = (0, 2, 4, 6)
"""Where the mask has degraded bandwidth, route recovery, route unhealthy, access time-out; 1 of two bits means yes."""


def _degraded(mask: int) -> bool:
    return any((mask >> shift) & 3 == 1 for shift in _DEGRADED_SHIFTS)
