"""Whose process this is: its user and command, and the run, attempt and rank that it belongs to.

A process may vanish between any two lines here; then it is simply not there. What was read is kept for as long as the
same process (pid and start time) lives.
"""

from __future__ import annotations

import os
import pwd
import time
from typing import Mapping, NamedTuple

from probes.reading import Process

COMMAND_LENGTH = 200
"""Characters of a command line that are kept: enough to tell a script and its first arguments."""
ENVIRONMENT_BYTES = 131072


_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

RECHECK_PASSES = 10
"""A pid that is there in every pass is taken for the same process for at most so many passes without a look."""


class Owner(NamedTuple):
    """What is known of one process."""

    started: int
    """Clock ticks between the machine's start and the process's: with the pid it names a process for good."""
    user: str
    command: str
    run: str
    attempt: int
    rank: int | None


class Processes:
    """Looks processes up, each once."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: dict[int, Owner] = {}
        self._seen: set[int] = set()
        self._seen_before: set[int] = set()
        self._pass = 0
        self._users: dict[int, str] = {}
        self._unresolved: set[int] = set()

    def holding(self, device: int, memory_used_bytes: Mapping[int, int | None]) -> list[Process]:
        """The processes (pid to bytes) that hold this device, with their owners.

        One that is not in ``/proc`` has most likely just gone, and is left out; if it is listed again it lives where
        our ``/proc`` does not show it (another container), and is named by its pid alone.
        """
        held: list[Process] = []
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        for pid, used in memory_used_bytes.items():
            owner = self.owner(pid)
            if owner is not None:
                process = Process(device, pid, owner.user, owner.command, used, owner.run, owner.attempt, owner.rank)
                process.started = owner.started
                process.age_seconds = round(max(0.0, uptime - owner.started / _TICKS_PER_SECOND), 1)
                held.append(process)
            elif pid in self._unresolved:
                held.append(Process(device, pid, memory_used_bytes=used))
                self._seen.add(pid)
            else:
                self._unresolved.add(pid)
                self._seen.add(pid)
        return held

    def owner(self, pid: int) -> Owner | None:
        """Who runs this process; None if it has gone, or lives where this machine's ``/proc`` does not show it."""
        known = self._known.get(pid)
        if known is not None and pid in self._seen_before and (self._pass + pid) % RECHECK_PASSES:
            self._seen.add(pid)
            return known
        started = start_time(self._proc, pid)
        if started is None:
            self._known.pop(pid, None)
            return None
        self._seen.add(pid)
        if known is None or known.started != started:
            known = self._look_up(pid, started)
            if known is not None:
                self._known[pid] = known
        return known

    def forget_unseen(self) -> None:
        """End a pass: drop what was not asked for in it, since those processes hold no accelerator any more."""
        for pid in [pid for pid in self._known if pid not in self._seen]:
            del self._known[pid]
        self._unresolved &= self._seen
        self._seen_before, self._seen = self._seen, set()
        self._pass += 1

    def _look_up(self, pid: int, started: int) -> Owner | None:
        folder = os.path.join(self._proc, str(pid))
        try:
            user = self._user(os.stat(folder).st_uid)
        except OSError:
            return None
        marks = environment(self._proc, pid)
        return Owner(
            started,
            user,
            _command(_read(os.path.join(folder, "cmdline"), COMMAND_LENGTH * 4)),
            marks.get("RAYDECK_RUN", ""),
            whole(marks.get("RAYDECK_ATTEMPT")) or 0,
            whole(marks.get("RANK")),
        )

    def _user(self, uid: int) -> str:
        name = self._users.get(uid)
        if name is None:
            try:
                name = pwd.getpwuid(uid).pw_name
            except KeyError:
                name = str(uid)
            self._users[uid] = name
        return name


def start_time(proc: str, pid: int) -> int | None:
    """When this process started, in clock ticks since the machine did; None if it is not there."""
    fields = stat_fields(proc, pid)
    return None if fields is None else fields[1]


def stat_fields(proc: str, pid: int) -> tuple[int, int] | None:
    """The parent's pid and the start time in clock ticks; None if the process is not there, or has ended.

    One that ended and that nobody has collected (a zombie) is still listed, and holds nothing any more.
    """
    text = _read(os.path.join(proc, str(pid), "stat"), 4096)
    # The command's name stands in brackets and may itself hold brackets and spaces: count from the last one.
    fields = text[text.rfind(b")") + 2 :].split()
    try:
        return None if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]))
    except (IndexError, ValueError):
        return None


def environment(proc: str, pid: int) -> dict[str, str]:
    """The raydeck marks and the rank in a process's environment; empty where it may not be read."""
    marks: dict[str, str] = {}
    for entry in _read(os.path.join(proc, str(pid), "environ"), ENVIRONMENT_BYTES).split(b"\0"):
        if entry.startswith((b"RAYDECK_", b"RANK=")):
            name, _, value = entry.partition(b"=")
            marks[name.decode("ascii", "replace")] = value.decode("utf-8", "replace")
    return marks


def whole(text: str | None) -> int | None:
    """A mark's number; None where it is none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


def _command(raw: bytes) -> str:
    return raw.replace(b"\0", b" ").decode("utf-8", "replace").strip()[:COMMAND_LENGTH]


def _read(path: str, limit: int) -> bytes:
    """A small file of ``/proc``, or nothing if it is gone or not ours to read."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        chunks: list[bytes] = []
        while limit > 0:
            # The kernel gives long files in pages: only an empty read is the end.
            chunk = os.read(fd, limit)
            if not chunk:
                break
            chunks.append(chunk)
            limit -= len(chunk)
        return b"".join(chunks)
    except OSError:
        return b""
    finally:
        os.close(fd)
