"""Owns finding and ending processes on this node: by the mark in their environment, and by whose children they are.

The mark leads to all that were started, in whatever session; but a program that renames itself may write over what the
kernel shows of its environment, so the tree is looked at too. Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_LOOK_EVERY_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Process:
    """A process, told apart from a later one with the same id by when it started."""

    pid: int
    started: int
    """In clock ticks since the machine's start."""


def marked(marks: Mapping[str, str], other_than: Mapping[str, str] | None = None) -> list[Process]:
    """Processes whose environment, as they started, holds all of ``marks``; never this one, never a zombie.

    With ``other_than`` only those that have these variables too, and none with the value that is given here.
    """
    wanted = {f"{name}={value}".encode() for name, value in marks.items()}
    unwanted = {f"{name}={value}".encode() for name, value in (other_than or {}).items()}
    names = [entry.partition(b"=")[0] + b"=" for entry in unwanted]
    cheap = next(iter(wanted))
    found: list[Process] = []
    for pid in _pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        # The cheap test first: most processes of a busy node are somebody else's.
        if cheap not in environment:
            continue
        entries = set(environment.split(b"\0"))
        if not wanted <= entries or unwanted & entries:
            continue
        if not all(any(entry.startswith(name) for entry in entries) for name in names):
            continue
        if (process := of(pid)) is not None:
            found.append(process)
    return found


def tree(root: int) -> list[Process]:
    """``root`` and all its descendants that are alive, without zombies."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        if (fields := _stat(pid)) is not None:
            children.setdefault(int(fields[1]), []).append(pid)
    found: list[Process] = []
    ahead = [root]
    while ahead:
        pid = ahead.pop()
        ahead.extend(children.get(pid, ()))
        if (process := of(pid)) is not None:
            found.append(process)
    return found


def of(pid: int) -> Process | None:
    """The process that has this id now; None if there is none, or only a zombie."""
    started = _started(pid)
    return None if started is None else Process(pid, started)


def alive(process: Process) -> bool:
    """Whether that very process still runs (a zombie does not)."""
    return _started(process.pid) == process.started


def send(process: Process, number: signal.Signals) -> None:
    """Signal that very process; one that is gone is no error."""
    if not alive(process):
        return
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return


def end(find: Callable[[], Iterable[Process]], polite_seconds: float, limit_seconds: float) -> list[int]:
    """End all that ``find`` gives until it gives none: SIGTERM once each, SIGKILL after ``polite_seconds``.

    Looks again until nothing is found, so what is started meanwhile is ended too, and forgets none that it has seen: a
    process is no longer found in a tree whose root has ended. Gives the ids of those that were still there after
    ``limit_seconds`` (a process in the kernel's uninterruptible sleep cannot be ended).
    """
    began = time.monotonic()
    seen: set[Process] = set()
    asked: set[Process] = set()
    while True:
        seen.update(find())
        left = [process for process in seen if alive(process)]
        if not left:
            break
        waited = time.monotonic() - began
        if waited > limit_seconds:
            break
        for process in left:
            if waited >= polite_seconds:
                send(process, signal.SIGKILL)
            elif process not in asked:
                asked.add(process)
                send(process, signal.SIGTERM)
        time.sleep(_LOOK_EVERY_SECONDS)
    return sorted(process.pid for process in left)


def _pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` after the name: state, parent, … (proc(5)); None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name may hold spaces and brackets; the last closing one ends it.
    return text[text.rindex(")") + 2 :].split()


def _started(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])
