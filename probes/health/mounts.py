"""The figures of one file system of one node that health rules look at."""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, Tuple

from probes.health.figures import written
from probes.health.rule import Entity, Measure, Seen
from probes.reading import ERROR, UNSUPPORTED, Missing, Mount

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a place to look at, not to write to
ALWAYS_WRITABLE = ("/", "/tmp", SHARED_MEMORY)  # noqa: S108
MUCH_BYTES = 10**12
FILL_SECONDS = 1800.0
FILL_EVERY_SECONDS = 60.0
LONGEST_SECONDS = 1e9

_NOT_DISK = Missing(UNSUPPORTED, "it is memory, not a disk")
_NO_INODES = Missing(UNSUPPORTED, "it has no fixed number of inodes")
_TOO_SHORT = Missing(ERROR, "not watched for long enough")


class MountFigures:
    """One path of one node."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._was_writable = False
        self._free: Deque[Tuple[float, int]] = deque()
        """What was left, about once a minute, over half an hour."""
        self._measures: Dict[str, Measure] = {}
        self._details: Dict[str, str] = {}

    def take(self, mount: Mount, at: float, must_be_writable: bool) -> None:
        """How it stands."""
        measures: Dict[str, Measure] = {"mount_hangs_seconds": mount.hangs_seconds}
        details: Dict[str, str] = {}
        self._measures, self._details = measures, details
        total, free = mount.total_bytes, mount.free_bytes
        hangs = mount.hangs_seconds > 0
        if total is None or free is None:
            why = Missing(ERROR, mount.reason or "no figure")
            for name in ("mount_read_only", "mount_free_percent", "mount_space_counts", "mount_full_in_seconds"):
                measures[name] = why
            measures["mount_inodes_percent"] = measures["mount_shm_percent"] = why
            measures["mount_unreadable"] = why if hangs or not mount.reason else 1
            details["mount_unreadable"] = mount.reason
            return
        measures["mount_unreadable"] = 0
        self._was_writable = self._was_writable or not mount.read_only
        # Data is often mounted so that it can only be read: only a change, or a place that must be written, counts.
        wanted = self._was_writable or must_be_writable or self.path in ALWAYS_WRITABLE
        measures["mount_read_only"] = int(mount.read_only and wanted)
        left = 100.0 * free / total if total else _TOO_SHORT
        memory = self.path == SHARED_MEMORY  # it has rules of its own
        measures["mount_shm_percent"] = left if self.path == SHARED_MEMORY else Missing(UNSUPPORTED, "not /dev/shm")
        measures["mount_free_percent"] = _NOT_DISK if memory or mount.read_only else left
        measures["mount_space_counts"] = int(free < MUCH_BYTES)
        details["mount_free_percent"] = details["mount_full_in_seconds"] = "{} of {} left".format(
            written_bytes(free), written_bytes(total)
        )
        measures["mount_full_in_seconds"] = _NOT_DISK if memory or mount.read_only else self._full_in(free, at)
        inodes, inodes_free = mount.inodes_total, mount.inodes_free
        measures["mount_inodes_percent"] = (
            _NO_INODES if not inodes or inodes_free is None else 100.0 * inodes_free / inodes
        )

    def seen(self, node: str, stale: "Missing | None") -> Seen:
        """All of it."""
        measures = self._measures if stale is None else dict.fromkeys(self._measures, stale)
        return Seen(Entity("mount", "{}:{}".format(node, self.path), node), dict(measures), dict(self._details))

    def _full_in(self, free: int, at: float) -> Measure:
        """Seconds until it is full, by the slower of how it filled over half an hour and over its later half.

        A checkpoint fills a disk fast for minutes; only what goes on for half an hour says where it leads.
        """
        marks = self._free
        if not marks or at - marks[-1][0] >= FILL_EVERY_SECONDS:
            marks.append((at, free))
        while at - marks[0][0] > FILL_SECONDS + FILL_EVERY_SECONDS:
            marks.popleft()
        if at - marks[0][0] < FILL_SECONDS - FILL_EVERY_SECONDS:
            return _TOO_SHORT
        half = min(marks, key=lambda mark: abs(at - mark[0] - FILL_SECONDS / 2))
        rate = min((then_free - free) / max(at - then, 1.0) for then, then_free in (marks[0], half))
        return LONGEST_SECONDS if rate <= 0 else min(free / rate, LONGEST_SECONDS)


def written_bytes(value: int) -> str:
    """As a person writes it."""
    return written("gpu_orphaned_bytes", value)
