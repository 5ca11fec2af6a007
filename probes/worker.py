"""A child process that is asked for something which may never answer: a driver, a mount.

The parent never waits for it: it asks, polls the reply pipe with everything else, and knows for how long the answer is
due. A child that blocks is left alone, since killing it in the middle of a driver's call helps nobody and the call's
return is how recovery shows. One that died is started again after a growing pause. A child never outlives its parent.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import select
import signal
import time
from functools import partial
from typing import Callable

from probes.source import LABEL_BYTES, Mark, label

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
LEAVE_SECONDS = 0.015
"""How long a child may take to leave by itself, and again after SIGTERM, before the next step is taken."""

Serve = Callable[[int, int, Mark], None]
"""What the child does: (file descriptor of requests, of replies, `Mark`). It returns when requests end."""

_PR_SET_PDEATHSIG = 1


class Worker:
    """One child and the pipes to it."""

    def __init__(self, title: str, serve: Serve) -> None:
        self.title = title
        """The process's name in ``ps -e``, at most 15 characters."""
        self.asked_at: float | None = None
        """Since when (monotonic) an answer is due; None when nothing is asked."""
        self.ended = ""
        """How the last child ended, in words; empty while one runs and after a quiet end."""
        self.start_at = 0.0
        """Before this moment (monotonic) no new child is started."""
        self._serve = serve
        self._shared = mmap.mmap(-1, LABEL_BYTES)
        # As a call into C: it is made before every call into the driver.
        self._mark: Mark = partial(self._shared.__setitem__, slice(None))
        self._pid = 0
        self._requests = -1
        self._replies = -1
        self._buffer = b""
        self._pause = FIRST_PAUSE_SECONDS
        self._started_at = 0.0

    @property
    def running(self) -> bool:
        """There is a child."""
        return self._pid != 0

    def fileno(self) -> int:
        """The reply pipe, for polling; -1 while no child runs."""
        return self._replies

    def call(self) -> str:
        """The call that the child was making when it last said so."""
        return self._shared[:].rstrip(b"\0").decode("ascii", "replace")

    def start(self, now: float) -> None:
        """Fork the child. Nothing else of the parent survives in it: not its terminal, channel or other pipes."""
        child_requests, self._requests = os.pipe()
        self._replies, child_replies = os.pipe()
        self._shared[:] = b"\0" * LABEL_BYTES
        self._buffer = b""
        self.ended = ""
        self._started_at = now
        # The child's collector then leaves the inherited objects alone, and their pages stay shared.
        gc.freeze()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_child(parent, child_requests, child_replies)
        gc.unfreeze()
        os.close(child_requests)
        os.close(child_replies)
        os.set_blocking(self._replies, False)
        self._pid = pid

    def ask(self, request: bytes, now: float) -> None:
        """Send one request byte. Call it only while none is due. A child that has gone shows at the next `receive`."""
        self.asked_at = now
        with contextlib.suppress(BrokenPipeError):
            os.write(self._requests, request)

    def receive(self, now: float) -> list[bytes]:
        """The complete lines that have arrived. At the child's end, sets `ended` and `start_at` and reaps it."""
        chunks = [self._buffer]
        over = False
        while True:
            try:
                chunk = os.read(self._replies, 65536)
            except BlockingIOError:
                break
            if not chunk:
                over = True
                break
            chunks.append(chunk)
        *lines, self._buffer = b"".join(chunks).split(b"\n")
        if over:
            self._reap(now)
        return lines

    def stop(self) -> None:
        """End the child: ask it to leave, then SIGTERM, then SIGKILL, and do not wait for one the kernel holds."""
        if not self._pid:
            return
        os.close(self._requests)
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            if number:
                os.kill(self._pid, number)
            if self._leaves(LEAVE_SECONDS):
                break
        os.close(self._replies)
        self._pid, self._requests, self._replies, self.asked_at = 0, -1, -1, None

    def _leaves(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        while True:
            left = until - time.monotonic()
            gone, _ = os.waitpid(self._pid, os.WNOHANG)
            if gone or left <= 0:
                return bool(gone)
            # Its end of the pipe closes just before it can be reaped; a reply nobody wants may come first.
            if poll.poll(left * 1000.0):
                with contextlib.suppress(BlockingIOError):
                    if os.read(self._replies, 65536):
                        continue
            time.sleep(0.0005)

    def _reap(self, now: float) -> None:
        _, status = os.waitpid(self._pid, 0)
        os.close(self._requests)
        os.close(self._replies)
        self._pid, self._requests, self._replies, self.asked_at = 0, -1, -1, None
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            self.ended = "was ended by {}".format(signal.Signals(number).name)
        elif status:
            self.ended = "failed: {}".format(self.call())
        else:
            self.start_at = now + LONGEST_PAUSE_SECONDS
            return
        if now - self._started_at > LONGEST_PAUSE_SECONDS:
            self._pause = FIRST_PAUSE_SECONDS
        self.start_at = now + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)

    def _be_child(self, parent: int, requests: int, replies: int) -> None:
        """In the child: serve, and leave without running anything of the parent's."""
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.set_wakeup_fd(-1)
            # A pipe end that is kept here would hide its closing from the other side, and sshd holds a channel open
            # for as long as anybody holds its output.
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
                if fd not in (0, 1, 2, requests, replies):
                    with contextlib.suppress(OSError):
                        os.close(fd)
            _die_with(parent, self.title)
            self._serve(requests, replies, self._mark)
            code = 0
        except BaseException as error:
            # The only other way to tell is a traceback, and there is no stderr.
            self._mark(label("{}: {}".format(type(error).__name__, error)))
        finally:
            os._exit(code)


def _die_with(parent: int, title: str) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(0)
    name_process(title)


def name_process(title: str) -> None:
    """Show this process under a name that says what it is, instead of ``python3``."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(title)
