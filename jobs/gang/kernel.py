"""Owns what the kernel tells of this node since an attempt began: its log as far as it may be read, its counters.

A process that the kernel ended for want of memory leaves no word of its own; an XID stands in the kernel's log only.
Who may not read that log (most users, on most machines) still has the counters.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_SHM = "/dev/shm"  # noqa: S108 - looked at, never written to
_MAX_LINES = 40
_MAX_BYTES = 4 << 20
_SHM_FULL_SHARE = 0.01
_TELLING = re.compile(
    r"NVRM|Xid|SXid|oom|Out of memory|Killed process|nfs: server|I/O error|blocked for more than"
    r"|mlx5_core.*(?:down|error)|segfault|Machine check|Remounting filesystem",
    re.IGNORECASE,
)


class Kernel:
    """This node's kernel, from the moment that this is made."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._log = self._open_log()
        self._before = self._counters()

    def notes(self) -> list[str]:
        """What it told since then, a line each: its own lines, and sentences on its counters."""
        found = self._lines()
        for name, (count, where) in self._counters().items():
            more = count - self._before.get(name, (count, where))[0]
            if more > 0:
                processes = f"{more} process{'' if more == 1 else 'es'}"
                found.append(
                    f"the kernel's out-of-memory killer ended {processes} {where} since the attempt began ({name})"
                )
        return [*found, *self._full()]

    def _open_log(self) -> int | None:
        try:
            descriptor = os.open(self._root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(descriptor, 0, os.SEEK_END)
        except OSError:
            return None
        return descriptor

    def _lines(self) -> list[str]:
        if self._log is None:
            return []
        found: list[str] = []
        taken = 0
        while taken < _MAX_BYTES:
            try:
                # One record a read; EPIPE tells that some were overwritten before we came.
                record = os.read(self._log, 8192)
            except BrokenPipeError:
                continue
            except OSError:
                break
            if not record:
                break
            taken += len(record)
            for line in record.decode("utf-8", errors="replace").splitlines():
                text = line.partition(";")[2] or line
                if _TELLING.search(text):
                    found.append(text)
        return found[-_MAX_LINES:]

    def _counters(self) -> dict[str, tuple[int, str]]:
        """How often the out-of-memory killer came, by where that is counted, and what it counts."""
        found: dict[str, tuple[int, str]] = {}
        own = [line.split(":", 2) for line in self._text("proc/self/cgroup").splitlines() if line.count(":") >= 2]
        for _, controllers, path in own:
            folder = "sys/fs/cgroup" if not controllers else "sys/fs/cgroup/memory"
            if controllers not in ("", "memory"):
                continue
            for file in (f"{folder}{path}/memory.events", f"{folder}{path}/memory.oom_control"):
                if (count := _oom_kills(self._text(file))) is not None:
                    found["oom_kill of its cgroup"] = (count, "of its cgroup")
        if (count := _oom_kills(self._text("proc/vmstat"))) is not None:
            found["oom_kill in /proc/vmstat"] = (count, "on this node")
        return found

    def _full(self) -> list[str]:
        try:
            state = os.statvfs(self._root / _SHM[1:])
        except OSError:
            return []
        if not state.f_blocks or state.f_bavail >= state.f_blocks * _SHM_FULL_SHARE:
            return []
        free, total = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
        return [f"{_SHM} is full: {free} of {total} bytes free"]

    def _text(self, path: str) -> str:
        try:
            return (self._root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


def _oom_kills(text: str) -> int | None:
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found.group(1)) if found else None
