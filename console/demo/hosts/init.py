"""Process 1 of a host: makes its mounts, starts its sshd, and collects every process that nobody else waits for.

``python -m console.demo.hosts.init JSON``, inside of the host's namespaces. When it ends, the kernel ends all of the
host: there is nothing else to clean up.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Never returns while sshd lives."""
    told: dict[str, Any] = json.loads(sys.argv[1])
    socket.sethostname(told["name"])
    for source, target in told["binds"]:
        _mount("--bind", source, target)
    _mount("-t", "tmpfs", "-o", "size=2g", "none", "/dev/shm")  # noqa: S108 — the host's own
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    sshd = subprocess.Popen([told["sshd"], "-D", "-e", "-f", told["config"]], stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    while True:
        pid, status = os.wait()
        if pid == sshd.pid:
            sys.exit(os.waitstatus_to_exitcode(status))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    main()
