"""What a node says each second: the accelerators' figures, asked of a child with a deadline, and the machine's.

The cadence never depends on the driver: while one of its calls blocks, the last figures are repeated with their age,
and the call is named. Nothing in here waits; `probes.__main__` polls and calls.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Mapping, Sequence

from probes.clock import wall_clock
from probes.host import HostReader
from probes.mounts import MountWatch
from probes.reading import (
    DRIVER_BLOCKED,
    DRIVER_ERROR,
    DRIVER_NONE,
    ERROR,
    FACTS_EVERY_SECONDS,
    Driver,
    Facts,
    Health,
    Host,
    Line,
    Missing,
    Sample,
    decode,
    encode,
)
from probes.source import ASK_ALL, ASK_FACTS, ASK_HEALTH, ASK_SAMPLE, DEVICES, Mark, Table, serve
from probes.worker import Worker

if TYPE_CHECKING:
    from probes.watch import Watch

DEADLINE_SECONDS = 3.0
"""A driver that has not answered for this long is said to block."""
FIRST_PATIENCE_SECONDS = 1.0
"""How long the first sample waits for a driver that is still starting, before it says so."""

_DEVICES = DEVICES.encode("ascii")
_NO_DRIVER = "no accelerator driver on this machine"


class Sampler:
    """Gathers one node's lines. All moments are monotonic seconds."""

    def __init__(
        self,
        interval: float = 1.0,
        disks: Sequence[str] = (),
        deadline: float = DEADLINE_SECONDS,
        environ: Mapping[str, str] = os.environ,
        health_every: float | None = None,
    ) -> None:
        """``health_every``: seconds between two whole looks at the node's health; None for a probe without."""
        self.wall = wall_clock(environ)
        """The node's own clock, seconds since 1970."""
        self.patience = FIRST_PATIENCE_SECONDS
        """How long after `begin` a sample waits for the devices of its own second."""
        self._later_patience = interval / 2.0
        self._deadline = deadline
        self._host_reader = HostReader()
        self._disks = [MountWatch([path]) for path in disks]
        self._devices = Worker("raydeck-driver", partial(_serve_devices, environ))
        self._host = Host()
        self._seq = 0
        self._tick = 0.0
        self._spent = 0.0
        self._driver = Driver()
        self._driver_since = 0.0
        self._figures: Sample | None = None
        self._figures_at = 0.0
        self._device_facts = Facts()
        self._host_facts: Facts | None = None
        self._ask_facts_at = 0.0
        self._facts_at = 0.0
        self._facts_said = ""
        self._health_asked = False
        self.watch: Watch | None = None
        """What tells of the node's health, if this probe was asked to."""
        if health_every is not None:
            # A probe without health does not pay for compiling it.
            from probes.watch import Watch

            self.watch = Watch(health_every, self._disks, deadline, environ, self.wall)

    def workers(self) -> list[Worker]:
        """The children whose reply pipes are to be polled."""
        workers = [worker for worker in [self._devices, *(disk.worker for disk in self._disks)] if worker.running]
        return workers if self.watch is None else workers + self.watch.workers()

    def begin(self, now: float) -> None:
        """Ask everything for the second that begins now."""
        self._tick = now
        devices = self._devices
        if not devices.running and now >= devices.start_at:
            devices.start(now)
            self._ask_facts_at = now
        health = self.watch is not None and self.watch.begin(now)
        if devices.running and devices.asked_at is None:
            due = now >= self._ask_facts_at
            self._health_asked = health
            devices.ask((ASK_ALL if due else ASK_HEALTH) if health else ASK_FACTS if due else ASK_SAMPLE, now)
            if due:
                self._ask_facts_at = now + FACTS_EVERY_SECONDS
        for disk in self._disks:
            disk.begin(now)
        if self._host_facts is None:
            self._host_facts = self._host_reader.facts()
        self._host = self._host_reader.read(now)

    def receive(self, worker: Worker, now: float) -> None:
        """Take what a child has said."""
        for disk in self._disks:
            if disk.worker is worker:
                disk.receive(now)
        if self.watch is not None:
            self.watch.receive(worker, now)
        if worker is not self._devices:
            return
        for text in worker.receive(now):
            if text.startswith(_DEVICES):
                if self.watch is not None:
                    self.watch.take_devices(text[len(_DEVICES) :].decode("ascii"), now)
                continue
            line = decode(text)
            if isinstance(line, Facts):
                self._device_facts = line
            elif isinstance(line, Health) and self.watch is not None:
                self.watch.take(line, now)
            elif isinstance(line, Sample):
                worker.asked_at = None
                self._health_asked = False
                self._take(line, now)
        if not worker.running:
            self._mourn(now)

    def ready(self) -> bool:
        """Nothing more is to be waited for: the devices of this second are in, or are overdue already."""
        return self._devices.asked_at is None or self._devices.asked_at < self._tick

    def lines(self, now: float) -> list[Line]:
        """What is to be said of this second: a sample, and before it the facts when they are due or have changed."""
        self._seq += 1
        self.patience = self._later_patience
        sample = self._sample(now)
        facts = self._facts()
        said = encode(facts)
        lines: list[Line] = [sample]
        if said != self._facts_said or now >= self._facts_at + FACTS_EVERY_SECONDS:
            self._facts_said, self._facts_at = said, now
            lines.insert(0, facts)
        spent = time.process_time()
        sample.cost_ms = round(sample.cost_ms + (spent - self._spent) * 1000.0, 3)
        self._spent = spent
        return lines

    def health(self, now: float) -> str | None:
        """A line of the node's health, if one is to be said now; asked after `lines`, and often."""
        watch = self.watch
        if watch is None or not (watch.attention or now >= watch.wake_at):
            return None
        driver, asked_at = self._state(now), self._devices.asked_at
        asked = self._health_asked and asked_at is not None and driver.state != DRIVER_BLOCKED
        return watch.line(now, driver, asked)

    def stop(self) -> None:
        """End the children."""
        if self.watch is not None:
            self.watch.stop()
        for worker in self.workers():
            worker.stop()
        self._host_reader.close()

    def _take(self, sample: Sample, now: float) -> None:
        driver = sample.driver
        if driver.state == DRIVER_ERROR and self._figures is not None and not sample.index:
            # The devices are still there, only nothing is known of them.
            table = Table(self._figures.index)
            for index in table.index:
                table.miss(index, "*", Missing(ERROR, driver.reason))
            sample, cost = table.sample(), sample.cost_ms
            sample.cost_ms = cost
        self._figures, self._figures_at = sample, now
        if self.watch is not None:
            self.watch.saw(sample, now)
        self._driver, self._driver_since = driver, now - driver.seconds

    def _mourn(self, now: float) -> None:
        """The child has ended: quietly where there is no driver, or with a reason."""
        worker = self._devices
        if not worker.ended:
            self._driver, self._driver_since, self._figures = Driver(DRIVER_NONE, _NO_DRIVER), now, None
            return
        if self._driver.state != DRIVER_ERROR:
            self._driver_since = now
        reason = "the process that reads the driver {}; starting it again in {:.0f} s".format(
            worker.ended, worker.start_at - now
        )
        self._driver = Driver(DRIVER_ERROR, reason)

    def _state(self, now: float) -> Driver:
        """How the driver stands at this moment."""
        driver, asked_at = self._driver, self._devices.asked_at
        # A driver of which nothing is known yet is not given the whole deadline before that is said.
        limit = self._deadline if self._figures is not None else min(self._deadline, FIRST_PATIENCE_SECONDS)
        waited = now - asked_at if asked_at is not None else 0.0
        if asked_at is not None and waited >= limit:
            reason = "{} has not answered for {:.0f} s".format(self._devices.call(), waited)
            return Driver(DRIVER_BLOCKED, reason, round(waited, 1))
        since = 0.0 if driver.state not in (DRIVER_ERROR, DRIVER_BLOCKED) else round(now - self._driver_since, 1)
        return Driver(driver.state, driver.reason, since)

    def _sample(self, now: float) -> Sample:
        figures = self._figures
        fresh = figures is not None and self._figures_at >= self._tick
        sample = Sample(self._seq, self.wall(), host=self._host)
        sample.driver = self._state(now)
        if figures is not None:
            sample.cost_ms = figures.cost_ms if fresh else 0.0
            # Never rounded to 0, which says that they are of this second.
            sample.devices_age_seconds = 0.0 if fresh else max(round(now - self._figures_at, 2), 0.01)
            sample.index, sample.columns = figures.index, figures.columns
            sample.missing, sample.processes = figures.missing, figures.processes
        sample.host.disks = [disk.disk(path, now) for disk in self._disks for path in disk.paths]
        return sample

    def _facts(self) -> Facts:
        facts, devices = self._host_facts or Facts(), self._device_facts
        facts.source = devices.source
        facts.driver_version, facts.library_version = devices.driver_version, devices.library_version
        facts.cuda_version, facts.devices = devices.cuda_version, devices.devices
        return facts


def _serve_devices(environ: Mapping[str, str], requests: int, replies: int, mark: Mark) -> None:
    serve(requests, replies, mark, environ)
