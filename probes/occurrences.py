"""What the kernel and the driver told, on its way into a `Health` line: whose it is, and each thing once.

The driver's event set and the kernel's log tell of the same XID; the log's line says more (the process), so an event of
the driver waits a moment for it. The same thing again within `SAME_SECONDS` is the same thing.
"""

from __future__ import annotations

import math
import os
import re
from typing import Mapping, Sequence

from probes.files import content
from probes.kernel_lines import parse
from probes.kernel_log import Record
from probes.reading import Event, Process
from probes.source import bus_address

SAME_SECONDS = 5.0
WAIT_FOR_KERNEL_SECONDS = 0.5
TOLD_KEPT = 8
"""So many times of one thing are kept, to know it again."""
REMEMBER_SECONDS = 600.0
"""For so long a process that held an accelerator is known after it has gone."""
NOTE_SECONDS = 5.0
"""For so long those that are there are not looked at again, while they are the same."""
HELD_SECONDS = 30.0
"""For so long a device counts as its last holder's."""
MOST_EVENTS = 100
"""More than this are not kept while nobody reads; the oldest tell most."""
MOST_ANCESTORS = 3

_DIGITS = re.compile(r"\d+")


class Occurrences:
    """Events that are not told yet, and what is needed to name whose they are."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._found: list[tuple[Event, str]] = []
        self._held: list[tuple[float, Event]] = []
        self._told: dict[tuple[object, ...], tuple[float, ...]] = {}
        """What was told, and at which times by the node's clock."""
        self._runs: dict[int, tuple[str, str, float]] = {}
        """Pid to (run, command, when last seen) of processes that hold an accelerator, or held one not long ago."""
        self._holders: dict[int, tuple[str, float]] = {}
        """Device to (run, when last seen); an empty run where several runs hold it."""
        self._pids: list[int] = []
        self._note_at = 0.0
        self._forget_at = 0.0

    def seen(self, processes: Sequence[Process], now: float) -> None:
        """Take note of who holds what."""
        pids = [process.pid for process in processes]
        if pids == self._pids and now < self._note_at:
            return
        self._pids, self._note_at = pids, now + NOTE_SECONDS
        runs: dict[int, str] = {}
        for process in processes:
            self._runs[process.pid] = process.run, process.command, now
            runs[process.device] = process.run if runs.get(process.device, process.run) == process.run else ""
        for device, run in runs.items():
            self._holders[device] = run, now
        if now >= self._forget_at:
            self._forget_at = now + REMEMBER_SECONDS / 10
            for pid in [pid for pid, known in self._runs.items() if now - known[2] > REMEMBER_SECONDS]:
                del self._runs[pid]

    def run_of(self, pid: int) -> str:
        """The run of a process that holds an accelerator, or of one that it was started by; empty if it is none."""
        for _ in range(MOST_ANCESTORS):
            known = self._runs.get(pid)
            if known is not None:
                return known[0]
            parent = _parent(self._proc, pid)
            if parent <= 1:
                break
            pid = parent
        return ""

    def holders(self, now: float) -> list[int]:
        """The processes that hold an accelerator."""
        return [pid for pid, known in self._runs.items() if now - known[2] <= HELD_SECONDS]

    def take_records(self, records: Sequence[Record]) -> None:
        """Lines of the kernel's log."""
        for record in records:
            parsed = parse(record.text)
            if parsed is not None and len(self._found) < MOST_EVENTS:
                parsed[0].wall = round(record.wall, 3)
                self._found.append(parsed)

    def take_events(self, events: Sequence[Event], now: float, wait: bool) -> None:
        """Events of the driver. ``wait``: the kernel's log is followed too, and may have more to say of them."""
        for event in events:
            if len(self._held) < MOST_EVENTS:
                self._held.append((now + (WAIT_FOR_KERNEL_SECONDS if wait else 0.0), event))

    def ready_at(self) -> float:
        """When (monotonic) there is something to tell; infinity if there is nothing."""
        return 0.0 if self._found else min((at for at, _ in self._held), default=math.inf)

    def take(self, devices: Mapping[str, int], now: float) -> list[Event]:
        """What is to be told now, each with its device (by address on the bus) and run, the oldest first."""
        events: list[Event] = []
        for event, address in self._found:
            event.device = devices.get(address) if address else None
            if self._is_new(event, address):
                events.append(event)
        self._found.clear()
        waiting: list[tuple[float, Event]] = []
        for at, event in self._held:
            if at > now:
                waiting.append((at, event))
            elif self._is_new(event, ""):
                events.append(event)
        self._held = waiting
        for event in events:
            self._name(event, now)
        return sorted(events, key=lambda event: event.wall)

    def _is_new(self, event: Event, address: str) -> bool:
        if event.code is not None and event.kind != "sxid":
            place: object = address if event.device is None else event.device
            key: tuple[object, ...] = ("xid", place, event.code)
        else:
            key = (event.kind, event.pid, _DIGITS.sub("#", event.text))
        # One that waited for the kernel's line may be older than what was told meanwhile: more than the last is known.
        told = self._told.get(key, ())
        if any(abs(event.wall - at) < SAME_SECONDS for at in told):
            return False
        if len(self._told) >= 10 * MOST_EVENTS:
            for old in sorted(self._told, key=lambda key: self._told[key][-1])[: 5 * MOST_EVENTS]:
                del self._told[old]
        self._told[key] = (*told[1 - TOLD_KEPT :], event.wall)
        return True

    def _name(self, event: Event, now: float) -> None:
        if event.pid is not None:
            known = self._runs.get(event.pid)
            event.run = event.run or self.run_of(event.pid)
            if known is not None and not event.process:
                event.process = known[1]
        elif event.device is not None and not event.run:
            run, at = self._holders.get(event.device, ("", 0.0))
            event.run = run if now - at <= HELD_SECONDS else ""


def devices_of_driver(proc: str = "/proc") -> dict[str, int]:
    """Address on the bus to index, for when NVML does not answer: it counts the driver's list by address."""
    try:
        names = os.listdir(os.path.join(proc, "driver", "nvidia", "gpus"))
    except OSError:
        return {}
    return {address: index for index, address in enumerate(sorted(filter(None, map(bus_address, names))))}


def _parent(proc: str, pid: int) -> int:
    stat = content(os.path.join(proc, str(pid), "stat"))
    try:
        return int(stat[stat.rfind(b")") + 2 :].split()[1])
    except (IndexError, ValueError):
        return 0
