"""What a probe that was started with ``--health`` tells beside its samples: gathers `Health` lines, and says when.

A whole look every `HEALTH_EVERY_SECONDS`; in between a line goes out at once when the kernel or the driver told of
something, or a mount began to hang: the same figures with what is new. Nothing in here waits.
"""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any, Callable, Mapping, Sequence

from probes.kernel_log import KernelLog
from probes.mounts import DEADLINE_SECONDS, OWN_PATHS, MountWatch
from probes.occurrences import Occurrences, devices_of_driver
from probes.reading import (
    DRIVER_BLOCKED,
    DRIVER_ERROR,
    ERROR,
    STALE,
    UNSUPPORTED,
    DeviceHealth,
    Driver,
    Health,
    Missing,
    Port,
    Sample,
    encode,
)
from probes.source import devices_text
from probes.stuck import StuckLooks
from probes.vitals import Vitals
from probes.worker import Worker

BETWEEN_SECONDS = 0.2
"""At least so long between two lines, however much happens."""

OLD_SECONDS = 15.0
"""What the ports said longer ago is told no more."""


class Watch:
    """One node's health. All moments are monotonic seconds. `begin` it every second, and ask it for a `line` often."""

    def __init__(
        self,
        every: float,
        disks: Sequence[MountWatch],
        deadline: float,
        environ: Mapping[str, str] = os.environ,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.attention = False
        """`line` may have something to say now."""
        self.wake_at = math.inf
        """When (monotonic) it may have, should nothing come before."""
        self.log = KernelLog(environ, wall)
        self.machine = MountWatch(
            [path for path in OWN_PATHS if all(path not in disk.paths for disk in disks)], machine=True
        )
        self._every = every
        self._deadline = deadline
        self._wall = wall
        self._simulated = bool(environ.get("RAYDECK_SIMULATED"))
        self._mounts = [*disks, self.machine]
        self._occurrences = Occurrences()
        self._stuck = StuckLooks()
        self._vitals = Vitals()
        self._devices = "[]"
        """The devices as the child told them last, and as they were told on."""
        self._devices_at: float | None = None
        self._addresses: dict[str, int] = {}
        """Address on the bus to device; empty until it is needed."""
        self._blind: dict[str, Missing] = {}
        self._began_at = 0.0
        self._due_at = 0.0
        self._round = True
        """A whole look is under way that has not been told."""
        self._latest: Health | None = None
        self._hanging: list[str] = []
        self._told_at = 0.0
        self._told_devices = False

    def begin(self, now: float) -> bool:
        """A second begins; true if the devices are to be asked for their health in it."""
        if not self._began_at:
            self.log.open(now)
        self.machine.begin(now)
        if self.log.beats:
            self.read_log(now)
        due = now >= self._due_at
        if due:
            # On a beat, and without drifting away from it.
            self._due_at = now + self._every - min(self._every, 0.5) / 2
            self._began_at, self._round = now, True
        if self._round or ((self._hanging or self._late(now)) and self._hanging_now(now) != self._hanging):
            self.attention = True
        return due

    def workers(self) -> list[Worker]:
        """The children whose reply pipes are to be polled, without those of the cluster file's paths."""
        return [self.machine.worker] if self.machine.worker.running else []

    def receive(self, worker: Worker, now: float) -> None:
        """Take what the machine's own child has said."""
        if worker is self.machine.worker:
            self.machine.receive(now)
            self.attention = self.attention or self._round

    def log_fileno(self, now: float) -> int:
        """What to poll of the kernel's log; -1 for nothing at the moment."""
        return self.log.fileno() if now >= self.log.read_at else -1

    def read_log(self, now: float) -> None:
        """Take what the kernel has logged."""
        if now >= self.log.read_at:
            self._occurrences.take_records(self.log.read(now))
            self._plan()
            self.wake_at = min(self.wake_at, self.log.read_at)

    def take_devices(self, devices: str, now: float) -> None:
        """The devices' health, as the child that reads the driver wrote it."""
        self._devices, self._devices_at, self._addresses, self._blind = devices, now, {}, {}
        self.attention = True

    def take(self, told: Health, now: float) -> None:
        """What else that child told: events, and after the devices what cannot be watched, if there is such."""
        self._occurrences.take_events(told.events, now, wait=self.log.blind is None)
        self._blind = told.blind or self._blind
        self._plan()

    def saw(self, sample: Sample, now: float) -> None:
        """Take note of who holds which device."""
        if sample.processes:
            self._occurrences.seen(sample.processes, now)

    def line(self, now: float, driver: Driver, asked: bool) -> str | None:
        """What is to be told now, if anything. ``asked``: the devices' answer to this look is still due."""
        self.attention = False
        if self._round:
            late = now >= self._began_at + self._deadline
            if not late and (asked or not all(mount.answered for mount in self._mounts)):
                return None
            self._round = False
            self._latest = self._look(now, driver)
            return self._tell(self._latest, now, driver)
        if self._latest is None:
            return None
        if now < self._told_at + BETWEEN_SECONDS:
            # Whatever there is to tell is looked for then: what came just now may be the devices' first answer.
            self.wake_at = self._told_at + BETWEEN_SECONDS
            return None
        fresh = self._devices_at is not None and not self._told_devices
        if fresh or self._occurrences.ready_at() <= now or self._hanging_now(now) != self._hanging:
            if fresh:
                self._put_blind(self._latest, driver)
            return self._tell(self._latest, now, driver)
        self._plan()
        return None

    def _plan(self) -> None:
        """When to look whether there is something to tell."""
        at = self._occurrences.ready_at()
        self.wake_at = math.inf if self._latest is None else max(at, self._told_at + BETWEEN_SECONDS)

    def stop(self) -> None:
        """End the children."""
        self.log.close()
        self._vitals.close()
        for worker in self.workers():
            worker.stop()

    def _tell(self, latest: Health, now: float, driver: Driver) -> str:
        self._told_at = now
        self._told_devices = self._devices_at is not None
        self._hanging = self._hanging_now(now)
        told = Health(**latest.__dict__)
        told.wall = self._wall()
        told.mounts = [mount.mount(path, now) for mount in self._mounts for path in mount.paths]
        if self._occurrences.ready_at() <= now:
            told.events = self._occurrences.take(self._places(), now)
        self._plan()
        # The first field but the time: what stands in for it is not found in anybody's text before.
        return encode(told).replace('"devices":[]', '"devices":' + self._devices_now(driver), 1)

    def _places(self) -> dict[str, int]:
        if not self._addresses:
            known: list[dict[str, Any]] = json.loads(self._devices)
            self._addresses = {device["pci"]: device["index"] for device in known if device["pci"]}
        return self._addresses or devices_of_driver()

    def _devices_now(self, driver: Driver) -> str:
        """The devices as they were told, or why nothing is known of them."""
        why = _why(driver)
        if why is None:
            return self._devices
        known: list[dict[str, Any]] = json.loads(self._devices)
        return devices_text([DeviceHealth(was["index"], was["uuid"], was["pci"], {}, {"*": why}) for was in known])

    def _look(self, now: float, driver: Driver) -> Health:
        health = Health()
        self._vitals.read(health)
        health.stuck = self._stuck.look(
            now,
            self._occurrences.holders(now),
            self._occurrences.run_of,
            runs_only=self._simulated,
            soon=bool(self._hanging_now(now)),
        )
        self._put_machine(health, now)
        self._put_blind(health, driver)
        return health

    def _put_machine(self, health: Health, now: float) -> None:
        found, waited = self.machine.machine, self.machine.waited(now)
        if waited >= OLD_SECONDS:
            reason = "{} has not answered for {:.0f} s".format(self.machine.worker.call(), waited)
            health.blind["ports"] = Missing(STALE, reason)
        elif found is None:
            health.blind["ports"] = Missing(STALE, "not read yet")
        else:
            health.ports = [Port(**port) for port in found["ports"]]
            health.clock_synchronised = found["clock_synchronised"]
            if found["blind"]:
                health.blind["ports"] = Missing(UNSUPPORTED, found["blind"])

    def _put_blind(self, health: Health, driver: Driver) -> None:
        """What cannot be watched."""
        health.blind.update(self._blind)
        why = _why(driver)
        if why is not None:
            health.blind.setdefault("nvml_events", why)
        if self.log.blind is not None:
            health.blind["kernel_log"] = self.log.blind
            events = health.blind.get("nvml_events")
            if events is not None:
                reason = "{}; driver's events: {}".format(self.log.blind.reason, events.reason)
                health.blind["xid"] = Missing(self.log.blind.kind, reason)

    def _late(self, now: float) -> bool:
        """Some mount has not answered for longer than it should."""
        for mount in self._mounts:
            asked_at = mount.worker.asked_at
            if asked_at is not None and now - asked_at >= DEADLINE_SECONDS:
                return True
        return False

    def _hanging_now(self, now: float) -> list[str]:
        return [path for mount in self._mounts for path in mount.paths if mount.hangs_seconds(path, now)]


def _why(driver: Driver) -> Missing | None:
    """Why nothing is known of the devices; None while the driver answers, and where there is none."""
    if driver.state == DRIVER_BLOCKED:
        return Missing(STALE, driver.reason)
    return Missing(ERROR, driver.reason) if driver.state == DRIVER_ERROR else None
