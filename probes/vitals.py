"""What the kernel tells of the machine's want: pressure, memory, processes ended for want of it, and its clock."""

from __future__ import annotations

import os
import re
import sys

from probes.host import parse_meminfo
from probes.reading import UNSUPPORTED, Health, Missing

VMSTAT_EVERY = 3
"""In so many readings this one is read once: the kernel adds it up over all processors."""
_NO_PRESSURE = Missing(UNSUPPORTED, "this kernel tells no pressure (PSI)")
_STA_UNSYNC = 0x40
_TIME_ERROR = 5


class Vitals:
    """Reads them; the files stay open, which halves the cost of reading them."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._files: dict[str, int] = {}
        self._oom_kills: int | None = None
        self._readings = 0

    def read(self, health: Health) -> None:
        """Put them into the line."""
        health.memory_pressure_percent = parse_pressure(self._read("pressure/memory", 256))
        health.io_pressure_percent = parse_pressure(self._read("pressure/io", 256))
        if health.memory_pressure_percent is None and health.io_pressure_percent is None:
            health.blind["pressure"] = _NO_PRESSURE
        health.memory_available_bytes = parse_meminfo(self._read("meminfo", 512)).get("MemAvailable")
        if self._readings % VMSTAT_EVERY == 0:
            self._oom_kills = parse_oom_kills(self._read("vmstat", 1 << 16))
        health.oom_kills = self._oom_kills
        self._readings += 1

    def close(self) -> None:
        """Close what is kept open."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def _read(self, name: str, size: int) -> bytes:
        try:
            fd = self._files.get(name)
            if fd is None:
                fd = self._files[name] = os.open(os.path.join(self._proc, name), os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(fd, size, 0)
        except OSError:
            return b""


def parse_pressure(text: bytes) -> float | None:
    """``/proc/pressure/*``: the share of the last 10 s in which something waited, in percent."""
    found = re.match(rb"some avg10=(\d{1,3}\.\d+)", text)
    return float(found[1]) if found else None


def parse_oom_kills(vmstat: bytes) -> int | None:
    """``/proc/vmstat``: how many processes the kernel ended for want of memory."""
    at = vmstat.find(b"oom_kill ")
    number = vmstat[at + 9 :].split(b"\n", 1)[0] if at >= 0 else b""
    return int(number) if number.isdigit() and len(number) < 19 else None


class KernelClock:
    """What the kernel says of its own clock."""

    def __init__(self) -> None:
        import ctypes

        # struct timex: modes, offset, freq, maxerror, esterror (all longs but the first, which is padded), status
        self._status = 5 * ctypes.sizeof(ctypes.c_long)
        self._buffer = ctypes.create_string_buffer(512)
        self._adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)

    def synchronised(self) -> bool | None:
        """Whether it is held by NTP; None where the kernel does not say."""
        if self._adjtimex is None:
            return None
        self._buffer[0:4] = b"\0\0\0\0"  # asked only, nothing set
        state = self._adjtimex(self._buffer)
        if state < 0:
            return None
        status = int.from_bytes(self._buffer[self._status : self._status + 4], sys.byteorder)
        return state != _TIME_ERROR and not status & _STA_UNSYNC
