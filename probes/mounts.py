"""The file systems that matter on a node: how full, and whether they still answer. Asked in a child, with a deadline.

A network mount that hangs takes its caller with it, so each path of the cluster file has a child of its own. The
machine's own paths share one, which also asks what else may take long: ports, whose counters a network card's firmware
has to bring, and the state of the clock.
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any, Sequence

from probes.reading import Disk, Mount
from probes.source import Mark, label
from probes.worker import Worker

OWN_PATHS = ("/", "/tmp", "/dev/shm")  # noqa: S108  looked at, never written to
"""What every machine has, and a run needs room on."""
EVERY_SECONDS = 10.0
DEADLINE_SECONDS = 2.0

_MOUNTINFO_BYTES = 4 << 20


class MountWatch:
    """Some paths and, if asked for, the machine's ports and clock: one child that looks at them one after another."""

    def __init__(self, paths: Sequence[str], machine: bool = False) -> None:
        self.paths = tuple(paths)
        self.machine: dict[str, Any] | None = None
        """What `probes.ports` and `probes.vitals` found last, if this watch is of the machine as well."""
        self.worker = Worker("raydeck-machine" if machine else "raydeck-disk", partial(serve, self.paths, machine))
        self.answered = False
        """Everything has been looked at once."""
        self._looks = ["", *self.paths] if machine else list(self.paths)
        self._latest: dict[str, dict[str, Any]] = {
            path: {"path": path, "reason": "not read yet"} for path in self.paths
        }
        self._labels = {look: _label(look).rstrip(b"\0").decode("ascii") for look in self._looks}
        self._next = 0.0
        self._answers = 0

    def begin(self, now: float) -> None:
        """Ask, when it is time and no answer is due."""
        if now < self._next or self.worker.asked_at is not None:
            return
        if not self.worker.running:
            if now < self.worker.start_at:
                return
            self.worker.start(now)
        self._next = now + EVERY_SECONDS
        self._answers = 0
        self.worker.ask(b"d", now)

    def receive(self, now: float) -> None:
        """Take what has been answered."""
        for text in self.worker.receive(now):
            for answer in json.loads(text):
                look = self._looks[self._answers % len(self._looks)]
                if look:
                    self._latest[look] = answer
                else:
                    self.machine = answer
                self._answers += 1
            if self._answers >= len(self._looks):
                self.worker.asked_at = None
                self.answered = True
        if self.worker.ended:
            for path in self.paths:
                self._latest[path] = {"path": path, "reason": "the process that reads it " + self.worker.ended}

    def hangs_seconds(self, look: str, now: float) -> float:
        """For how long this path (empty: ports and clock) has not answered; 0 while it does, or another does not."""
        waited = self.waited(now)
        return waited if waited >= DEADLINE_SECONDS and self.worker.call() == self._labels[look] else 0.0

    def waited(self, now: float) -> float:
        """For how long an answer has been due."""
        return 0.0 if self.worker.asked_at is None else now - self.worker.asked_at

    def disk(self, path: str, now: float) -> Disk:
        """How full it was when it last answered, or for how long there has been no answer."""
        hangs = self.hangs_seconds(path, now)
        if hangs:
            return Disk(path, reason="not answering for {:.0f} s".format(hangs))
        latest = self._latest[path]
        return Disk(path, latest.get("used_bytes"), latest.get("total_bytes"), latest.get("reason", ""))

    def mount(self, path: str, now: float) -> Mount:
        """The same, as health rules see it."""
        latest = dict(self._latest[path])
        latest.pop("used_bytes", None)
        hangs = self.hangs_seconds(path, now)
        if not hangs:
            return Mount(**latest)
        reason = "not answering for {:.0f} s".format(hangs)
        return Mount(path, latest.get("kind", ""), hangs_seconds=round(hangs, 1), reason=reason)


def serve(paths: Sequence[str], machine: bool, requests: int, replies: int, mark: Mark) -> None:
    """In a child: for each request byte what there is to say of the machine, if asked for, and of each path, in order.

    Answers are JSON lists; at first one for each look, so that one that hangs hides no other, then one for all.
    """
    kinds = Kinds()
    looks: Any = None
    first = True
    while os.read(requests, 1):
        answers: list[Any] = []
        if machine:
            if looks is None:
                from probes.ports import Ports
                from probes.vitals import KernelClock

                looks = Ports(), KernelClock()
            mark(_label(""))
            ports = [port.__dict__ for port in looks[0].read()]
            answers.append({"ports": ports, "blind": looks[0].blind, "clock_synchronised": looks[1].synchronised()})
        for path in paths:
            if first and answers:
                _answer(replies, answers)
                answers = []
            mark(_label(path))
            answers.append(look_at(path, kinds))
        _answer(replies, answers)
        first = False


def _label(look: str) -> bytes:
    return label("statvfs of " + look if look else "the network ports' files")


def _answer(replies: int, answers: Sequence[Any]) -> None:
    data = json.dumps(answers).encode("ascii") + b"\n"
    while data:
        data = data[os.write(replies, data) :]


class Kinds:
    """What kind of file system a device number stands for; the table is read again only for a number it lacks."""

    def __init__(self, mountinfo: str = "/proc/self/mountinfo") -> None:
        self._mountinfo = mountinfo
        self._by_device: dict[str, str] = {}
        self._by_point: list[tuple[str, str]] = []

    def of(self, path: str, device: int) -> str:
        """``ext4``, ``nfs4`` …; empty if it cannot be known."""
        number = "{}:{}".format(os.major(device), os.minor(device))
        if number not in self._by_device:
            self._read()
        known = self._by_device.get(number)
        if known is None:
            # btrfs gives its subvolumes numbers that stand in no table: go by the path.
            known = next((kind for point, kind in self._by_point if _is_below(path, point)), "")
            self._by_device[number] = known
        return known

    def _read(self) -> None:
        try:
            with open(self._mountinfo, encoding="utf-8", errors="replace") as file:
                text = file.read(_MOUNTINFO_BYTES)
        except OSError:
            return
        self._by_device, self._by_point = parse_mountinfo(text)


def parse_mountinfo(text: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """``/proc/self/mountinfo``: device number to kind, and (mount point, kind) with the longest points first."""
    by_device: dict[str, str] = {}
    by_point: list[tuple[str, str]] = []
    for line in text.splitlines():
        fields, dash, rest = line.partition(" - ")
        before, after = fields.split(), rest.split()
        if dash and len(before) >= 5 and after:
            by_device[before[2]] = after[0]
            by_point.append((before[4], after[0]))
    by_point.sort(key=lambda entry: -len(entry[0]))
    return by_device, by_point


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def look_at(path: str, kinds: Kinds) -> dict[str, Any]:
    """The fields of `Mount`, and ``used_bytes``; may block for as long as the file system's server does."""
    try:
        figures = os.statvfs(path)
        kind = kinds.of(path, os.stat(path).st_dev)
    except FileNotFoundError:
        return {"path": path, "reason": "no such path on this node"}
    except PermissionError:
        return {"path": path, "reason": "permission denied"}
    except OSError as error:
        return {"path": path, "reason": (error.strerror or str(error)).lower()}
    total = figures.f_blocks * figures.f_frsize
    if total == 0:
        return {"path": path, "kind": kind, "reason": "the file system tells no size"}
    found: dict[str, Any] = {
        "path": path,
        "kind": kind,
        "total_bytes": total,
        "used_bytes": total - figures.f_bfree * figures.f_frsize,
        "free_bytes": figures.f_bavail * figures.f_frsize,
        "read_only": bool(figures.f_flag & os.ST_RDONLY),
    }
    # btrfs and some network file systems make inodes as they need them, and count none.
    if figures.f_files:
        found["inodes_total"], found["inodes_free"] = figures.f_files, figures.f_favail
    return found
