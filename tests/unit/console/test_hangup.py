"""A console whose terminal goes away ends, whatever it is waiting for."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, time
from console import app
from console.settings import Settings
app.LEAVE_SECONDS = 1.0
app.run_app(Settings(), dict(os.environ), lambda: time.sleep(3600))
"""


@pytest.mark.parametrize("how", ["the terminal closes", "somebody ends it"])
def test_it_ends_though_what_it_waits_for_does_not(how: str) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{SCRIPT}"],
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env={**os.environ, "TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(slave)
    try:
        painted = b""
        while b"opening a cluster" not in painted:
            painted += os.read(master, 65_536)
        if how == "the terminal closes":
            os.close(master)
            assert process.wait(20) == 128 + signal.SIGHUP
        else:
            process.terminate()
            while True:  # a terminal goes on reading what is painted
                try:
                    if not os.read(master, 65_536):
                        break
                except OSError:
                    break
            assert process.wait(20) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        if how != "the terminal closes":
            os.close(master)
