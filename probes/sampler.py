"""What a node says each second: the accelerators' figures, asked of a child with a deadline, and the machine's.

The cadence never depends on the driver: while one of its calls blocks, the last figures are repeated with their age,
and the call is named. Nothing in here waits; `probes.__main__` polls and calls.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial
from typing import Mapping, Sequence

from probes.host import HostReader, serve_disk
from probes.reading import (
    DRIVER_BLOCKED,
    DRIVER_ERROR,
    DRIVER_NONE,
    ERROR,
    FACTS_EVERY_SECONDS,
    Disk,
    Driver,
    Facts,
    Host,
    Line,
    Missing,
    Sample,
    decode,
    encode,
)
from probes.source import ASK_FACTS, ASK_SAMPLE, Mark, Table, serve
from probes.worker import Worker

DEADLINE_SECONDS = 3.0
"""A driver that has not answered for this long is said to block."""
FIRST_PATIENCE_SECONDS = 1.0
"""How long the first sample waits for a driver that is still starting, before it says so."""
DISK_EVERY_SECONDS = 10.0
DISK_DEADLINE_SECONDS = 2.0

_NO_DRIVER = "no accelerator driver on this machine"


class Sampler:
    """Gathers one node's lines. All moments are monotonic seconds."""

    def __init__(
        self,
        interval: float = 1.0,
        disks: Sequence[str] = (),
        deadline: float = DEADLINE_SECONDS,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.patience = FIRST_PATIENCE_SECONDS
        """How long after `begin` a sample waits for the devices of its own second."""
        self._later_patience = interval / 2.0
        self._deadline = deadline
        self._host_reader = HostReader()
        self._disks = [_DiskWatch(path) for path in disks]
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

    def workers(self) -> list[Worker]:
        """The children whose reply pipes are to be polled."""
        return [worker for worker in [self._devices, *(disk.worker for disk in self._disks)] if worker.running]

    def begin(self, now: float) -> None:
        """Ask everything for the second that begins now."""
        self._tick = now
        devices = self._devices
        if not devices.running and now >= devices.start_at:
            devices.start(now)
            self._ask_facts_at = now
        if devices.running and devices.asked_at is None:
            due = now >= self._ask_facts_at
            devices.ask(ASK_FACTS if due else ASK_SAMPLE, now)
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
        if worker is not self._devices:
            return
        for text in worker.receive(now):
            line = decode(text)
            if isinstance(line, Facts):
                self._device_facts = line
            elif isinstance(line, Sample):
                worker.asked_at = None
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

    def stop(self) -> None:
        """End the children."""
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

    def _sample(self, now: float) -> Sample:
        figures, asked_at = self._figures, self._devices.asked_at
        fresh = figures is not None and self._figures_at >= self._tick
        sample = Sample(self._seq, time.time(), host=self._host)
        driver = self._driver
        # A driver of which nothing is known yet is not given the whole deadline before that is said.
        limit = self._deadline if figures is not None else min(self._deadline, FIRST_PATIENCE_SECONDS)
        waited = now - asked_at if asked_at is not None else 0.0
        if asked_at is not None and waited >= limit:
            reason = "{} has not answered for {:.0f} s".format(self._devices.call(), waited)
            sample.driver = Driver(DRIVER_BLOCKED, reason, round(waited, 1))
        else:
            since = 0.0 if driver.state not in (DRIVER_ERROR, DRIVER_BLOCKED) else round(now - self._driver_since, 1)
            sample.driver = Driver(driver.state, driver.reason, since)
        if figures is not None:
            sample.cost_ms = figures.cost_ms if fresh else 0.0
            # Never rounded to 0, which says that they are of this second.
            sample.devices_age_seconds = 0.0 if fresh else max(round(now - self._figures_at, 2), 0.01)
            sample.index, sample.columns = figures.index, figures.columns
            sample.missing, sample.processes = figures.missing, figures.processes
        sample.host.disks = [disk.reading(now) for disk in self._disks]
        return sample

    def _facts(self) -> Facts:
        facts, devices = self._host_facts or Facts(), self._device_facts
        facts.source = devices.source
        facts.driver_version, facts.library_version = devices.driver_version, devices.library_version
        facts.cuda_version, facts.devices = devices.cuda_version, devices.devices
        return facts


class _DiskWatch:
    """One path of the cluster file, and how full it was when it last answered."""

    def __init__(self, path: str) -> None:
        self.worker = Worker("raydeck-disk", partial(serve_disk, path))
        self._path = path
        self._latest = Disk(path, reason="not read yet")
        self._next = 0.0

    def begin(self, now: float) -> None:
        """Ask, when it is time and no answer is due."""
        if now < self._next or self.worker.asked_at is not None:
            return
        if not self.worker.running:
            if now < self.worker.start_at:
                return
            self.worker.start(now)
        self._next = now + DISK_EVERY_SECONDS
        self.worker.ask(b"d", now)

    def receive(self, now: float) -> None:
        """Take the answer."""
        for text in self.worker.receive(now):
            self.worker.asked_at = None
            self._latest = Disk(**json.loads(text))
        if self.worker.ended:
            self._latest = Disk(self._path, reason="the process that reads it " + self.worker.ended)

    def reading(self, now: float) -> Disk:
        """The newest answer, or for how long there has been none."""
        asked_at = self.worker.asked_at
        if asked_at is not None and now - asked_at >= DISK_DEADLINE_SECONDS:
            return Disk(self._path, reason="not answering for {:.0f} s".format(now - asked_at))
        return self._latest


def _serve_devices(environ: Mapping[str, str], requests: int, replies: int, mark: Mark) -> None:
    serve(requests, replies, mark, environ)
