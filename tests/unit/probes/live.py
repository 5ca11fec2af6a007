"""A probe as a process, and what it says; and nvidia-ml-py in a process of its own, with a clock that the test sets."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from hypothesis import settings

from probes.reading import Event, Facts, Health, Line, Sample, decode
from probes.source import DriverError

ROOT = Path(__file__).parents[3]
LIMIT_SECONDS = 10.0

few = settings(max_examples=40, deadline=None)
"""For property tests: enough to find what is wrong, and no word about how fast the machine is."""

_L = TypeVar("_L", bound=Line)


def clean_environ(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without marks that would change what a probe does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAYDECK_", "NVML_", "RANK"))}
    return {**kept, "PYTHONPATH": str(ROOT), **extra}


class LiveProbe:
    """``python -m probes stream`` (or what ``argv`` says), read line by line with a limit on every wait."""

    def __init__(
        self,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        argv: Sequence[str] | None = None,
        first: bytes = b"",
        cwd: Path = ROOT,
    ) -> None:
        command = argv if argv is not None else [sys.executable, "-m", "probes", "stream", *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environ(environ or {}),
            cwd=cwd,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin = self.process.stdin
        self.stdout = self.process.stdout
        self._rest = b""
        self.send(first)

    def __enter__(self) -> LiveProbe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()

    def send(self, data: bytes) -> None:
        self.stdin.write(data)
        self.stdin.flush()

    def line(self, limit: float = LIMIT_SECONDS) -> Line:
        """The next line."""
        until = time.monotonic() + limit
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.stdout], [], [], max(until - time.monotonic(), 0.0))
            assert ready, f"no line within {limit} s"
            chunk = os.read(self.stdout.fileno(), 65536)
            assert chunk, f"the probe ended: {self.process.communicate()[1].decode()}"
            self._rest += chunk
        text, _, self._rest = self._rest.partition(b"\n")
        return decode(text)

    def next(self, kind: type[_L], true: Callable[[_L], Any] = bool, limit: float = LIMIT_SECONDS) -> _L:
        """The next line of this kind for which something is true."""
        until = time.monotonic() + limit
        seen: Line | None = None
        while time.monotonic() < until:
            line = self.line(until - time.monotonic())
            if isinstance(line, kind):
                if true(line):
                    return line
                seen = line
        raise AssertionError(f"not within {limit} s; last seen: {seen}")

    def children(self) -> list[int]:
        """The pids of its children."""
        return children(self.process.pid)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    """No such process, or only its exit status is left."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(true: Callable[[], Any], limit: float = LIMIT_SECONDS) -> float:
    """Wait until it is true; gives the seconds that took."""
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < limit, f"not within {limit} s"
        time.sleep(0.002)
    return time.monotonic() - start


_SESSION = """
import json, sys
from probes.nvml import Nvml
from probes.reading import Health, encode
from probes.source import DriverError
now = 0.0
marks = []
nvml = Nvml(marks.append, clock=lambda: now)
for line in sys.stdin:
    what, now = json.loads(line)
    del marks[:]
    try:
        answer = nvml.events() if what == "events" else getattr(nvml, what)()
        answer = encode(Health(events=answer) if what == "events" else answer)
    except DriverError as error:
        answer = str(error)
    print(json.dumps([answer, [mark.rstrip(b"\\0").decode() for mark in marks], nvml.changed]), flush=True)
"""


class NvmlSession:
    """`probes.nvml` with the real nvidia-ml-py and the stand-in library."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SESSION],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_environ(environ),
            cwd=ROOT,
            text=True,
        )
        self.calls: list[str] = []
        """The calls that the last request made."""
        self.changed = False

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def facts(self, at: float = 0.0) -> Facts:
        line = self._ask("facts", at)
        assert isinstance(line, Facts)
        return line

    def sample(self, at: float = 0.0) -> Sample:
        line = self._ask("sample", at)
        assert isinstance(line, Sample)
        return line

    def health(self, at: float = 0.0) -> Health:
        line = self._ask("health", at)
        assert isinstance(line, Health)
        return line

    def events(self, at: float = 0.0) -> list[Event]:
        line = self._ask("events", at)
        assert isinstance(line, Health)
        return line.events

    def _ask(self, what: str, at: float) -> Line:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([what, at]) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT_SECONDS)
        assert ready, "no answer"
        answer, self.calls, self.changed = json.loads(self.process.stdout.readline())
        if not answer.startswith("{"):
            raise DriverError(answer)
        return decode(answer)
