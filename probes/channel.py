"""The probe's only way to the world: lines in from stdin, lines out to stdout. Its end is the probe's end.

Nothing in here blocks, so that the end of one side is seen while the other is stuck, and a reader that stalls gets the
newest sample when it reads again instead of everything that it missed.
"""

from __future__ import annotations

import os
import select
from typing import Iterable

from probes.reading import Line, encode

LONGEST_LINE = 4096
"""Bytes of a line from the other side; a longer one is none of ours, and is dropped."""
CHUNK = 4096
"""What a pipe that polls as writable takes at once without blocking (PIPE_BUF)."""


class ChannelClosed(Exception):
    """The other side has gone."""


class Channel:
    """Two file descriptors, which may be the two ends of one socket."""

    def __init__(self, inbox: int = 0, outbox: int = 1) -> None:
        self.inbox = inbox
        self.outbox = outbox
        self._received = b""
        self._waiting = b""

    @property
    def backlog(self) -> int:
        """Bytes that are not yet written."""
        return len(self._waiting)

    def watch(self, poll: select.poll) -> None:
        """Register what to poll for. Hanging up is always reported."""
        poll.register(self.inbox, select.POLLIN)
        poll.register(self.outbox, select.POLLOUT if self._waiting else 0)

    def events(self, ready: Iterable[tuple[int, int]]) -> list[str]:
        """The complete lines that came in; writes what can be written. Raises `ChannelClosed`."""
        lines: list[str] = []
        for fd, events in ready:
            if fd == self.inbox and events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                lines = self._read()
            elif fd == self.outbox:
                if events & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                    raise ChannelClosed
                self._write()
        return lines

    def send(self, *lines: Line | str) -> None:
        """Queue lines (or the text of some), and write what can be written at once. Raises `ChannelClosed`."""
        for line in lines:
            text = line if isinstance(line, str) else encode(line)
            self._waiting += text.encode("ascii") + b"\n"
        poll = select.poll()
        poll.register(self.outbox, select.POLLOUT)
        while self._waiting and poll.poll(0):
            self._write()

    def _read(self) -> list[str]:
        chunk = os.read(self.inbox, LONGEST_LINE)
        if not chunk:
            raise ChannelClosed
        *lines, self._received = (self._received + chunk).split(b"\n")
        if len(self._received) > LONGEST_LINE:
            self._received = b""
        return [line.decode("utf-8", "replace") for line in lines]

    def _write(self) -> None:
        try:
            written = os.write(self.outbox, self._waiting[:CHUNK])
        except OSError as error:
            raise ChannelClosed from error
        self._waiting = self._waiting[written:]
