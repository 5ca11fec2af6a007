"""What NVIDIA's driver tells through NVML when it happens: XIDs above all. Polled, never waited for."""

from __future__ import annotations

import contextlib
import ctypes
import time
from typing import Any, Callable, Sequence

import pynvml

from probes.nvml_query import Device, missing, missing_of
from probes.reading import ERROR, UNSUPPORTED, Event, Missing

FIRST_RETRY_SECONDS = 5.0
LONGEST_RETRY_SECONDS = 300.0
"""How long after the event set failed, at first and at most, a new one is made."""
MOST_EVENTS = 32
"""So many are taken in one go."""

# Newer than the oldest nvidia-ml-py that may be installed.
_EVENT_GPU_UNAVAILABLE = 0x4000
_EVENT_RECOVERY_ACTION = 0x8000
_EVENTS = (
    (pynvml.nvmlEventTypeXidCriticalError, "xid", None, "Xid {}"),
    (pynvml.nvmlEventTypeDoubleBitEccError, "xid", 48, "uncorrectable (double bit) ECC error"),
    (pynvml.nvmlEventTypeSingleBitEccErrorStorm, "xid", 92, "high rate of corrected (single bit) ECC errors"),
    (_EVENT_GPU_UNAVAILABLE, "gpu_lost", 79, "GPU is unavailable"),
    (_EVENT_RECOVERY_ACTION, "xid", 154, "the recovery action that the driver advises has changed"),
)
"""NVML's event, what it is to us, the XID that means the same, and words."""
_WANTED = sum(event for event, *_ in _EVENTS)


class EventSet:
    """The driver's events of all devices. `keep` it up to date, and `poll` it; neither waits."""

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float] = time.time) -> None:
        self.wanted = False
        self.blind: Missing | None = None
        """Why there are no events."""
        self._clock = clock
        self._wall = wall
        self._set: Any = None
        self._wait: Any = None
        self._data = pynvml.c_nvmlEventData_t()
        self._at_once = ctypes.c_uint(0)
        self._retry_at = 0.0
        self._pause = FIRST_RETRY_SECONDS

    def keep(self, devices: Sequence[Device], now: float) -> None:
        """Make a set if there is none: at first, after the library was opened anew, and some time after a failure."""
        if self._set is not None or now < self._retry_at:
            return
        trouble = Missing(UNSUPPORTED, "there is no GPU")
        registered = 0
        try:
            self._wait = pynvml._nvmlGetFunctionPointer("nvmlEventSetWait_v2")
            self._set = pynvml.nvmlEventSetCreate()
            for device in devices:
                if device.handle is None:
                    trouble = device.trouble
                    continue
                try:
                    mask = pynvml.nvmlDeviceGetSupportedEventTypes(device.handle) & _WANTED
                    if mask:
                        pynvml.nvmlDeviceRegisterEvents(device.handle, mask, self._set)
                    else:
                        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
                    registered += 1
                except pynvml.NVMLError as error:
                    trouble = missing(error)
        except pynvml.NVMLError as error:
            trouble = missing(error)
        if registered:
            self.blind = None
        else:
            self._failed(trouble, now)

    def poll(self, devices: Sequence[Device], now: float) -> list[Event]:
        """What happened since the last call."""
        events: list[Event] = []
        places: dict[int, int] = {}
        while self._set is not None and len(events) < MOST_EVENTS:
            # Each second, and nearly always nothing: without the exception that nvidia-ml-py makes of nothing.
            failed = self._wait(self._set, ctypes.byref(self._data), self._at_once)
            if failed == pynvml.NVML_ERROR_TIMEOUT:
                self._pause = FIRST_RETRY_SECONDS
                break
            if failed:
                # A GPU that is lost breaks the whole set.
                self._failed(missing_of(failed), now)
                break
            if not places:
                places = {_pointer(device.handle): device.index for device in devices if device.handle is not None}
            events.append(self._event(self._data, places))
        return events

    def drop(self) -> None:
        """Give the set back: it does not outlive the library."""
        if self._set is not None:
            # The driver may have gone away, and with it the set.
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._set)
            self._set = None

    def _event(self, data: Any, places: dict[int, int]) -> Event:
        kind, same_as, words = next(
            ((kind, same_as, words) for event, kind, same_as, words in _EVENTS if data.eventType & event),
            ("xid", None, "event {}"),
        )
        number = int(data.eventData) if same_as is None else same_as
        device = places.get(_pointer(data.device))
        text = "NVML: {}{}".format(words.format(number), "" if device is None else " on GPU {}".format(device))
        return Event(kind, text, round(self._wall(), 3), "nvml", device, number)

    def _failed(self, why: Missing, now: float) -> None:
        self.drop()
        self.blind = why if why.kind in (UNSUPPORTED, ERROR) else Missing(ERROR, why.reason)
        self._retry_at = now + self._pause
        self._pause = min(self._pause * 2, LONGEST_RETRY_SECONDS)


def _pointer(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
