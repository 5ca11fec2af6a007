"""The demo as a process: ready in one line, reached by other commands, and nothing left however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from console.demo.processes import _marked

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

START_SECONDS = 120.0
END_SECONDS = 25.0


def until(what: str, condition: Callable[[], Any], limit: float) -> Any:
    """What a condition gives once it is true, within a limit."""
    deadline = time.monotonic() + limit
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {limit:.0f} s")
        select.select([], [], [], 0.05)


class Headless:
    """A demo without a screen, and what it said when it was ready."""

    def __init__(self, environ: dict[str, str], *options: str) -> None:
        self.environ = environ
        self.process = subprocess.Popen(
            [sys.executable, "-m", "console", "demo", "--headless", *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ,
            start_new_session=True,
        )  # fmt: skip
        self.ready: dict[str, Any] = {}

    def wait_ready(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], START_SECONDS)[0], "nothing was said"
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate(timeout=END_SECONDS)[1])
        self.ready = json.loads(line)
        return self.ready

    @property
    def keeper(self) -> int:
        return int(json.loads(Path(self.ready["context_file"]).read_text())["pid"])

    @property
    def mark(self) -> str:
        return str(json.loads(Path(self.ready["context_file"]).read_text())["demo"])

    def command(self, *arguments: str, check: bool = True, limit: float = 60.0) -> Any:
        argv = [sys.executable, "-m", "console", "--context", self.ready["context"], *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=limit, env=self.environ, check=False)
        assert not check or done.returncode == 0, done.stderr
        return json.loads(done.stdout) if "--json" in arguments else done


def nothing_left(mark: str, folder: str) -> bool:
    """No process with the demo's mark, no folder. Sockets lie in the folder."""
    return not _marked(mark) and not Path(folder).exists()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "RAYDECK_CONFIG_DIR": str(tmp_path / "none")}


@pytest.fixture
def demos(environ: dict[str, str]) -> Iterator[Callable[[], Headless]]:
    started: list[Headless] = []

    def start() -> Headless:
        started.append(Headless(environ))
        return started[-1]

    yield start
    for demo in started:
        if demo.process.poll() is None:
            demo.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            demo.process.communicate(timeout=END_SECONDS)


def test_two_demos_live_side_by_side_and_each_ends_alone(demos: Callable[[], Headless], tmp_path: Path) -> None:
    first = demos()
    ready = first.wait_ready()
    second = demos()
    second.wait_ready()
    assert {first.ready["context"], second.ready["context"]} == {"demo", "demo-2"}
    assert (ready["event"], ready["nodes"], ready["gpus"], ready["simulated"]) == ("ready", 3, 8, True)
    gpus = first.command("gpus", "--json")
    assert len(gpus) == 8
    assert all(gpu["simulated"] and gpu["name"].startswith("SIMULATED") for gpu in gpus)
    marks = first.mark, second.mark
    assert _marked(marks[0])

    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(END_SECONDS) == 0
    until("the first is gone", lambda: nothing_left(marks[0], first.ready["folder"]), 1.0)
    nodes = second.command("nodes", "--json")
    assert [(node["ssh"], node["ray"]) for node in nodes] == [("up", "alive")] * 3, "the other one did not notice"

    # Killed outright: nobody can clean up but the keeper, which hears its pipe close.
    second.process.kill()
    until("the second is gone", lambda: nothing_left(marks[1], second.ready["folder"]), END_SECONDS)
    assert not list(tmp_path.glob("raydeck-*/*")), "no context is left"


@pytest.mark.parametrize("how", ["hangup", "interrupt", "keeper killed"])
def test_nothing_is_left_while_a_run_is_on(demos: Callable[[], Headless], environ: dict[str, str], how: str) -> None:
    demo = demos()
    demo.wait_ready()
    mark, folder = demo.mark, demo.ready["folder"]
    if how == "keeper killed":
        os.kill(demo.keeper, signal.SIGKILL)
        assert demo.process.wait(END_SECONDS) == 1, "it says that the demo is gone"
        # What outlived its keeper is ended by the next demo.
        other = demos()
        other.wait_ready()
        until("the next demo has swept", lambda: nothing_left(mark, folder), END_SECONDS)
        return
    demo.command("launch", "lm-single", "--yes", "--json")
    until("a rank runs", lambda: any(b"RAYDECK_RUN=" in _environ(pid) for pid in _marked(mark)), 60.0)
    demo.process.send_signal(signal.SIGHUP if how == "hangup" else signal.SIGINT)
    assert demo.process.wait(END_SECONDS) == 0
    assert nothing_left(mark, folder)


def _environ(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


@pytest.mark.parametrize("how", ["closed terminal", "term", "q"])
def test_the_screen_ends_the_demo(environ: dict[str, str], how: str, tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        environ = {**environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        os.execvpe(sys.executable, [sys.executable, "-m", "console", "demo"], environ)
    painted = bytearray()

    def paints(text: bytes) -> bool:
        if select.select([terminal], [], [], 0.05)[0]:
            with contextlib.suppress(OSError):
                painted.extend(os.read(terminal, 65536))
        return text in painted

    closed = False
    try:
        until("the start screen", lambda: paints(b"Starting an embedded cluster"), 20.0)
        context = until("a keeper", lambda: next(iter(tmp_path.glob("raydeck-*/demo*.json")), None), 20.0)
        until("its mark", lambda: context.read_text(), 5.0)
        body = json.loads(context.read_text())
        until("the cluster begins", lambda: paints(b"running") and len(_marked(body["demo"])) > 5, 60.0)
        if how == "closed terminal":
            os.close(terminal)
            closed = True
        elif how == "term":
            os.kill(pid, signal.SIGTERM)
        else:
            os.write(terminal, b"q")

        def ended() -> bool:
            if not closed:
                paints(b"")
            return os.waitpid(pid, os.WNOHANG)[0] == pid

        until("the console ends", ended, END_SECONDS)
        pid = 0
        until("nothing is left", lambda: nothing_left(body["demo"], body["folder"]), END_SECONDS)
        if not closed:
            assert b"\x1b[?1049l" in painted, "the terminal is given back"
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if not closed:
            os.close(terminal)
