"""What every source of accelerator figures has in common, the choice of one, and the loop that serves it in a child.

The child speaks the probe's own language (`probes.reading`) to its parent: for each request byte some lines, of which
the last is a ``sample``. It never writes to a terminal, a file or the SSH channel.
"""

from __future__ import annotations

import json
import os
import time
from typing import Callable, Mapping, Protocol, Sequence

from probes.reading import (
    DRIVER_ERROR,
    DRIVER_OK,
    ERROR,
    SAMPLE_COLUMNS,
    DeviceHealth,
    Driver,
    Event,
    Facts,
    Health,
    Missing,
    Number,
    Process,
    Sample,
    encode,
)

ASK_SAMPLE = b"s"
"""The request byte for the figures of this second."""
ASK_FACTS = b"f"
"""The request byte for what seldom changes, and the figures of this second."""
ASK_HEALTH = b"h"
"""The request byte for what health rules ask for, and the figures of this second."""
ASK_ALL = b"a"
"""The request byte for all three."""
DEVICES = "devices "
"""Begins a line that brings the devices' health as JSON, as it stands in the line for the reader: the parent passes it
on as it is, since to take it apart and put it together again costs more than all the rest."""

SYSFS = "/sys"
PROC = "/proc"

LOST = Missing(ERROR, "GPU is lost: it fell off the bus")
"""What is known of a GPU that answers nothing any more."""

LABEL_BYTES = 96

Mark = Callable[[bytes], None]
"""Notes the call that is about to be made (made by `label`), so that one which does not come back can be named."""


def label(text: str) -> bytes:
    """A name for `Mark`, padded once here so that noting it each time is one copy of fixed size."""
    return text.encode("ascii", "replace")[:LABEL_BYTES].ljust(LABEL_BYTES, b"\0")


def bus_address(text: str) -> str:
    """An address on the PCI bus in one form, ``0000:1b:00``: lower case, four digits of domain, no function.

    Takes the forms of the driver's log (``1B:00``, ``0000:1b:00.0``) and of NVML (``00000000:1B:00.0``); empty for
    what is none.
    """
    parts = text.strip().partition(".")[0].split(":")
    if len(parts) == 2:
        parts.insert(0, "0")
    try:
        domain, bus, device = (int(part, 16) for part in parts)
    except ValueError:
        return ""
    if not (0 <= domain <= 0xFFFFFFFF and 0 <= bus <= 0xFF and 0 <= device <= 0xFF):
        return ""
    return "{:04x}:{:02x}:{:02x}".format(domain, bus, device)


class DriverError(Exception):
    """The driver as a whole cannot be used; the text says why, for a person."""


class Source(Protocol):
    """One way to read the accelerators of this machine."""

    changed: bool
    """What seldom changes has changed since `facts` was last called."""

    def facts(self) -> Facts:
        """The devices and the driver's versions; the machine's own fields stay empty. Raises `DriverError`."""
        ...

    def sample(self) -> Sample:
        """The devices' figures and processes; the machine's own fields stay empty. Raises `DriverError`."""
        ...

    def health(self) -> Health:
        """What health rules ask of the devices, and what cannot be watched. From then on `events` tells something.

        Raises `DriverError`.
        """
        ...

    def events(self) -> list[Event]:
        """What the driver told since the last call, once. Never waits."""
        ...

    def close(self) -> None:
        """Give back what the driver holds for this process."""
        ...


class Table:
    """A sample in the making: one row a device, every figure unknown until it is put."""

    def __init__(self, indices: list[int]) -> None:
        self.index = indices
        self.columns: dict[str, list[Number | None]] = {name: [None] * len(indices) for name in SAMPLE_COLUMNS}
        self.missing: dict[int, dict[str, Missing]] = {}
        self.processes: list[Process] = []

    def miss(self, device: int, column: str, reason: Missing) -> None:
        """Say why this device has no figure in this column; ``*`` means in none."""
        self.missing.setdefault(device, {})[column] = reason

    def sample(self) -> Sample:
        """What was gathered, from a driver that answers."""
        return Sample(
            driver=Driver(DRIVER_OK),
            index=self.index,
            columns=self.columns,
            missing=self.missing,
            processes=self.processes,
        )


def choose(environ: Mapping[str, str], mark: Mark, proc: str = PROC, sysfs: str = SYSFS) -> tuple[str, Source | None]:
    """The name of the source that serves this machine, and the source; ``none`` and nothing where there is none.

    Each is imported only when it is the one: compiling all of them would cost a bare node more than a sample does.
    """
    script = environ.get("RAYDECK_SIMULATED", "")
    if script:
        from probes.simulated import Simulated

        return "simulated", Simulated(script, mark, proc)
    amd = _has_amd(sysfs)
    # NVIDIA's library is found on many machines without its driver, in images above all: it must not hide real cards.
    if library_loads() and (not amd or os.path.exists(os.path.join(proc, "driver", "nvidia", "version"))):
        from probes.nvml import Nvml

        return "nvml", Nvml(mark, proc)
    if amd:
        from probes.amd import Amd

        return "amd", Amd(mark, sysfs)
    return "none", None


def library_loads() -> bool:
    """Is NVIDIA's management library on this machine? Cheaper than importing nvidia-ml-py to be told that it is not."""
    import ctypes

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _has_amd(sysfs: str) -> bool:
    try:
        bound = os.listdir(os.path.join(sysfs, "bus", "pci", "drivers", "amdgpu"))
    except OSError:
        return False
    return any(":" in name for name in bound)


def serve(requests: int, replies: int, mark: Mark, environ: Mapping[str, str]) -> None:
    """Answer request bytes until the parent closes its end. Returns then, or when no source serves this machine."""
    mark(label("looking for a driver"))
    name, source = choose(environ, mark)
    # Said before the driver is opened: should that block, the parent knows at least whose driver it is.
    _write(replies, encode(Facts(source=name)))
    if source is None:
        return
    failing_since: float | None = None
    before = time.process_time()
    while True:
        request = os.read(requests, 1)
        if not request:
            source.close()
            return
        lines: list[str] = []
        try:
            if request in (ASK_FACTS, ASK_ALL) or source.changed:
                facts = source.facts()
                facts.source = name
                lines.append(encode(facts))
            health = source.health() if request in (ASK_HEALTH, ASK_ALL) else None
            events = source.events()
            if health is not None:
                lines.append(DEVICES + devices_text(health.devices))
                health.devices = []
            if events or (health is not None and health.blind):
                health = health or Health()
                health.events = events
                lines.append(encode(health))
            sample = source.sample()
            failing_since = None
        except DriverError as error:
            now = time.monotonic()
            failing_since = now if failing_since is None else failing_since
            sample = Sample(driver=Driver(DRIVER_ERROR, str(error), now - failing_since))
        spent = time.process_time()
        sample.cost_ms, before = (spent - before) * 1000.0, spent
        lines.append(encode(sample))
        _write(replies, "\n".join(lines))


def devices_text(devices: Sequence[DeviceHealth]) -> str:
    """The devices' health as it stands in a line."""
    return json.dumps([device.__dict__ for device in devices], separators=(",", ":"))


def _write(fd: int, text: str) -> None:
    data = text.encode("ascii") + b"\n"
    while data:
        data = data[os.write(fd, data) :]
