"""Follows the kernel's log: ``/dev/kmsg`` without waiting, or ``journalctl`` where that may not be read.

What stood in the log before is taken as well, as far as it is of the last `LOOK_BACK_SECONDS`, with its true time.
``RAYDECK_KMSG`` names a file or FIFO that stands in the log's place, with records of the same form, one a line::

    LEVEL,NUMBER,MICROSECONDS,-;TEXT

where MICROSECONDS is of the clock that begins with the machine (CLOCK_MONOTONIC), as in the kernel's own.
"""

from __future__ import annotations

import os
import re
import stat
import time
from typing import Callable, Mapping, NamedTuple

from probes.reading import ERROR, UNSUPPORTED, Missing
from probes.source import Mark, label
from probes.worker import Worker

KMSG = "/dev/kmsg"
LOOK_BACK_SECONDS = 600.0
RECORDS_AT_ONCE = 256
"""So many are taken in one go: a flood of lines must not keep the samples waiting."""
PAUSE_SECONDS = 0.1
"""Between two goes: a kernel that logs without end would otherwise keep a processor busy here."""
TRUST_SECONDS = 3.0
"""A ``journalctl`` that has complained of nothing for so long shows the kernel's lines, once there are any."""

_RECORD_BYTES = 16384
"""More than the kernel's longest record: it refuses a buffer that is too small."""
_HEAD = re.compile(r"\d+,\d+,(\d{1,18}),[^;]*;(.*)", re.DOTALL)
_SHORT_UNIX = re.compile(r"(\d{1,12}\.\d{1,9}) \S+ kernel: (.*)")
_NOT_ALLOWED = re.compile(r"not seeing messages|insufficient permissions|No journal files|Failed to", re.IGNORECASE)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Record(NamedTuple):
    """One line of the kernel's log."""

    wall: float
    """When, by the node's own clock, seconds since 1970."""
    text: str


class KernelLog:
    """The log of this machine's kernel. `open` it; then poll `fileno` from `read_at` on, or just `read` every beat."""

    def __init__(self, environ: Mapping[str, str] = os.environ, wall: Callable[[], float] = time.time) -> None:
        self.blind: Missing | None = None
        """Why it cannot be followed."""
        self.read_at = 0.0
        """Before this moment (monotonic) nothing is read."""
        self._wall = wall
        self._given = environ.get("RAYDECK_KMSG", "")
        self._simulated = bool(environ.get("RAYDECK_SIMULATED"))
        self._fd = -1
        self._is_file = False
        self._rest = b""
        self._since = 0.0
        self._journal: Worker | None = None
        self._trust_at = 0.0
        self._complaint = ""

    def open(self, now: float) -> None:
        """Begin to follow it, from `LOOK_BACK_SECONDS` ago."""
        self._since = time.clock_gettime(time.CLOCK_MONOTONIC) - LOOK_BACK_SECONDS
        if self._simulated and not self._given:
            self.blind = Missing(UNSUPPORTED, "a simulated node has no kernel of its own")
            return
        path = self._given or KMSG
        try:
            kind = os.stat(path).st_mode
            # A FIFO that is open for writing too never tells that its last writer has gone.
            mode = os.O_RDWR if stat.S_ISFIFO(kind) else os.O_RDONLY
            self._fd = os.open(path, mode | os.O_NONBLOCK | os.O_CLOEXEC)
            self._is_file = stat.S_ISREG(kind)
            if not self._is_file and not stat.S_ISFIFO(kind):
                os.read(self._fd, _RECORD_BYTES)  # some containers let it be opened, and nothing be read
                os.lseek(self._fd, 0, os.SEEK_SET)
        except BlockingIOError:
            return
        except OSError as error:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            why = (error.strerror or str(error)).lower()
            self.blind = Missing(UNSUPPORTED if isinstance(error, FileNotFoundError) else ERROR, path + ": " + why)
            self._journal = Worker("raydeck-journal", _follow)
            self._journal.start(now)
            self._trust_at = now + TRUST_SECONDS

    @property
    def beats(self) -> bool:
        """It must be read every second, since polling tells nothing of it, or not all."""
        return self._is_file or self._journal is not None

    @property
    def worker(self) -> Worker | None:
        """The child that reads the journal, if one does."""
        return self._journal if self._journal is not None and self._journal.running else None

    def fileno(self) -> int:
        """What to poll; -1 for what tells nothing by polling (a plain file)."""
        if self.worker is not None:
            return self.worker.fileno()
        return -1 if self._is_file else self._fd

    def read(self, now: float) -> list[Record]:
        """What is new, at most `RECORDS_AT_ONCE` records. Never waits."""
        self.read_at = now + PAUSE_SECONDS
        if self._journal is not None:
            return self._from_journal(self._journal, now)
        if self._fd < 0:
            return []
        lines: list[bytes] = []
        # One read of the device gives one record, one read of a file many.
        while len(lines) < RECORDS_AT_ONCE:
            try:
                chunk = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten before they were read; the next is there
            except OSError as error:
                self.blind = Missing(ERROR, "the kernel's log can be read no more: {}".format(error.strerror))
                self.close()
                break
            if not chunk:
                break
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            self._rest = self._rest[-_RECORD_BYTES:]
            lines += whole
        return [record for record in map(self._record, lines) if record is not None]

    def close(self) -> None:
        """Follow it no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self.worker is not None:
            self.worker.stop()

    def _record(self, line: bytes) -> Record | None:
        # Lines that begin with a space belong to the record before: the device's name, which its text has too.
        found = _HEAD.match(line.decode("utf-8", "replace")) if line[:1].isdigit() else None
        if found is None:
            return None
        at = int(found[1]) / 1e6
        if at < self._since:
            return None
        return Record(self._wall() - (time.clock_gettime(time.CLOCK_MONOTONIC) - at), _clean(found[2]))

    def _from_journal(self, worker: Worker, now: float) -> list[Record]:
        if not worker.running:
            if now >= worker.start_at:
                worker.start(now)
                self._trust_at = now + TRUST_SECONDS
            return []
        records: list[Record] = []
        for line in worker.receive(now):
            text = line.decode("utf-8", "replace")
            found = _SHORT_UNIX.match(text)
            if found is not None:
                self.blind = None
                records.append(Record(float(found[1]), _clean(found[2])))
            elif not self._complaint and not text.startswith("--"):
                self._complaint = _clean(text)[:160]
        if self.blind is not None:
            if not worker.running or _NOT_ALLOWED.search(self._complaint):
                self._no_journal(self._complaint or worker.ended or "it ended at once")
            elif now >= self._trust_at:
                self.blind = None
        return records

    def _no_journal(self, why: str) -> None:
        """The second way leads nowhere either."""
        if self.blind is not None:
            self.blind = Missing(self.blind.kind, "{}; journalctl: {}".format(self.blind.reason, why))
        if self.worker is not None:
            self.worker.stop()
        self._journal = None


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text).strip()


def _follow(requests: int, replies: int, mark: Mark) -> None:
    """In a child: become ``journalctl``. It asks nobody for anything: there is no terminal."""
    mark(label("journalctl"))
    os.dup2(replies, 1)
    os.dup2(replies, 2)
    since = "--since=-{:.0f}s".format(LOOK_BACK_SECONDS)
    os.execvp("journalctl", ["journalctl", "-kf", "-o", "short-unix", "--no-tail", "--no-pager", since])  # noqa: S606
