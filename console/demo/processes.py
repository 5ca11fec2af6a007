"""Finds and ends the processes of a demo, wherever they have fled to. Only those: by descent and by mark."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "RAYDECK_DEMO"
PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 3.0
LIMIT_SECONDS = 8.0


def become_reaper() -> None:
    """Orphans of this process's descendants become its children, so that none can flee. Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _parents() -> dict[int, int]:
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The command stands in brackets and may itself hold brackets and spaces: read from the last one.
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def _descendants(of: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = list(children.get(of, []))
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += children.get(pid, [])
    return found


def _marked(demo: str) -> set[int]:
    wanted = f"{MARK}={demo}".encode()
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
    return found


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def of_demo(demo: str) -> set[int]:
    """The living processes of a demo, this one and its ancestors aside."""
    return {pid for pid in _descendants(os.getpid()) | _marked(demo) if pid != os.getpid() and not _zombie(pid)}


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_all(demo: str) -> set[int]:
    """End every process of a demo: asked first, killed after a while. Returns those that would not go."""
    started = time.monotonic()
    asked = False
    while True:
        _reap()
        left = of_demo(demo)
        elapsed = time.monotonic() - started
        if not left or elapsed > LIMIT_SECONDS:
            return left
        if elapsed > GRACE_SECONDS:
            _signal(left, signal.SIGKILL)
        elif not asked:
            # A stopped process does not hear SIGTERM.
            _signal(left, signal.SIGCONT)
            _signal(left, signal.SIGTERM)
            asked = True
        time.sleep(0.05)
