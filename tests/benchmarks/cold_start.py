"""How long it takes to the first paint, in a real terminal, against a bare Textual app in the same run.

Budget: within 1.2 times the bare app. Times are from starting the process to the first bytes that paint its marker.
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

ROUNDS = 5
LIMIT_SECONDS = 20.0
BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("MARKER")
Bare().run()
"""
CONTEXT = "nodes: [{name: head, address: 127.0.0.1, role: head, ssh: {port: 1}}]\nssh: {config: /dev/null}\n"


def first_paint(argv: list[str], marker: bytes, environ: dict[str, str]) -> float:
    """Seconds from start until the marker is painted; the process is ended then."""
    started = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(argv[0], argv, environ)
    seen = b""
    try:
        while marker not in seen:
            if time.monotonic() - started > LIMIT_SECONDS:
                raise TimeoutError(f"{argv}: no {marker!r} within {LIMIT_SECONDS:.0f} s; it painted {seen[-400:]!r}")
            if select.select([terminal], [], [], 0.05)[0]:
                seen += os.read(terminal, 65536)
        return time.monotonic() - started
    finally:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 5
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if select.select([terminal], [], [], 0.02)[0]:
                with contextlib.suppress(OSError):
                    os.read(terminal, 65536)
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        os.close(terminal)


def import_report() -> dict[str, float]:
    """Milliseconds that the import of each part takes in a fresh process."""
    found: dict[str, float] = {}
    for name in ("console.cli.main", "textual.app", "console.app", "console.sources.sshwire", "httpx"):
        code = f"import time; t = time.perf_counter(); import {name}; print((time.perf_counter() - t) * 1000)"
        took = [
            float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
            for _ in range(3)
        ]
        found[name] = round(statistics.median(took), 1)
    return found


def run() -> dict[str, Any]:
    """Medians in milliseconds, and the ratio."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/lab.yaml", "w", encoding="utf-8") as file:
            file.write(CONTEXT)
        environ = {
            **os.environ,
            "RAYDECK_CONFIG_DIR": folder,
            "TERM": "xterm-256color",
            "LINES": "40",
            "COLUMNS": "120",
        }
        ours = [sys.executable, "-m", "console", "-c", f"{folder}/lab.yaml"]
        bare = [sys.executable, "-c", BARE]
        # In turns, so that whatever else the machine does hits both.
        pairs = [(first_paint(bare, b"MARKER", environ), first_paint(ours, b"opening", environ)) for _ in range(ROUNDS)]
    bare_ms = statistics.median(pair[0] for pair in pairs) * 1000
    ours_ms = statistics.median(pair[1] for pair in pairs) * 1000
    return {
        "bare_textual_first_paint_ms": round(bare_ms),
        "raydeck_first_paint_ms": round(ours_ms),
        "ratio": round(ours_ms / bare_ms, 2),
        "budget_ratio": 1.2,
        "imports_ms": import_report(),
    }


if __name__ == "__main__":
    import json

    print(json.dumps(run(), indent=2))
