"""Keeps a probe on every node through Ray: ``python -m jobs.rayside --address HOST:PORT --watch``.

NDJSON. On standard input what is wanted, whole each time: ``{"nodes": {"NODE_ID": ["/data", …]}, "interval": 5.0}``,
with the paths whose file systems are looked at on each node. On standard output, after ``ready`` or ``failed``:

``{"node": ID, "lines": […]}``          what its probe said, in the probe's own language (`probes.reading`)
``{"node": ID, "clock": [S, MS]}``      how far its clock is ahead of this machine's, and the round trip behind that
``{"node": ID, "gone": "sentence"}``    its probe has ended; it is started again after a while
"""

from __future__ import annotations

import itertools
import json
import logging
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.bundle import boot_argv, bundle
from jobs.clock import Clock
from jobs.raymodel import one_line
from jobs.rayside.values import WATCH_PREFIX
from probes.reading import Pong, WireError, decode

log = logging.getLogger("jobs.rayside")

WAIT_SECONDS = 0.2
"""How long to wait for lines before what is wanted is looked at again."""
TAKE_SECONDS = 5.0
"""A watcher answers at the latest after this, with nothing if its probe said nothing."""
CLOCK_SECONDS = 30.0
FIRST_CLOCKS_SECONDS = 2.0
CLOCKS_AT_ONCE = 5
CLOCK_ANSWER_SECONDS = 0.5
PAUSES = (2.0, 5.0, 15.0, 60.0)
STABLE_SECONDS = 20.0
STARTS_AT_ONCE = 16
"""A watcher is a Python process on its node, and Ray starts a crowd of them slowly."""

Say = Callable[[Mapping[str, Any]], None]


@dataclass(slots=True)
class _Watched:
    """One node's watcher."""

    node_id: str
    argv: tuple[str, ...]
    actor: Any = None
    take: Any = None
    """The call that brings the next lines."""
    clock_at: float = 0.0
    started_at: float = 0.0
    clock: Clock = field(default_factory=Clock)
    failures: int = 0
    start_at: float = 0.0
    heard: bool = False


class Watching:
    """Watchers on all nodes that are wanted."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._wanted: dict[str, tuple[str, ...]] = {}
        self._watched: dict[str, _Watched] = {}
        self._blob = ray.put(bundle())
        self._numbers = itertools.count(1)

    def run(self, lines: queue.SimpleQueue[str | None]) -> None:
        """Until the input ends."""
        while True:
            try:
                line = lines.get(timeout=0.0 if self._busy() else WAIT_SECONDS)
                if line is None:
                    return
                wanted = json.loads(line)
                self._want(wanted["nodes"], float(wanted["interval"]))
            except queue.Empty:
                pass
            now = time.monotonic()
            self._start(now)
            self._listen()

    def _busy(self) -> bool:
        return any(each.actor is not None for each in self._watched.values())

    def _want(self, nodes: Mapping[str, list[str]], interval: float) -> None:
        for node_id in [node_id for node_id in self._watched if node_id not in nodes]:
            _end(self._watched.pop(node_id))
        for node_id, paths in nodes.items():
            options = [word for path in paths for word in ("--disk", path)]
            argv = tuple(boot_argv(["stream", "--health", "--interval", f"{interval:g}", *options])[1:])
            there = self._watched.get(node_id)
            if there is None or there.argv != argv:
                if there is not None:
                    _end(there)
                self._watched[node_id] = _Watched(node_id, argv)

    def _start(self, now: float) -> None:
        starting = sum(1 for each in self._watched.values() if each.actor is not None and not each.heard)
        for each in self._watched.values():
            if each.actor is not None or now < each.start_at or starting >= STARTS_AT_ONCE:
                continue
            starting += 1
            there = NodeAffinitySchedulingStrategy(each.node_id, soft=False)
            made: Any = ray.remote(_watcher())
            each.actor = made.options(
                num_cpus=0,
                max_concurrency=4,
                max_restarts=0,
                name=f"{WATCH_PREFIX}{each.node_id}-{next(self._numbers)}",
                scheduling_strategy=there,
            ).remote(each.argv, self._blob)
            each.take = each.actor.take.remote(TAKE_SECONDS)
            each.clock_at, each.started_at, each.heard = now, now, False

    def _listen(self) -> None:
        """Take what came, and ask for more."""
        waiting = {each.take: each for each in self._watched.values() if each.take is not None}
        if not waiting:
            return
        # All of them, though hardly ever all have something: one look at a thousand costs as much as one at one.
        done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=WAIT_SECONDS)
        now = time.monotonic()
        for reference in done:
            self._take(waiting[reference], now)
        due = [
            each for each in self._watched.values() if each.heard and each.actor is not None and now >= each.clock_at
        ]
        for each in due[:CLOCKS_AT_ONCE]:
            self._ask_clock(each)

    def _take(self, each: _Watched, now: float) -> None:
        try:
            lines, ended = ray.get(each.take)
        except RayError as error:
            self._gone(each, now, f"its watcher in Ray has gone: {one_line(str(error))}")
            return
        if lines:
            each.heard = True
            each.failures = 0 if now - each.started_at > STABLE_SECONDS else each.failures
            self._say({"node": each.node_id, "lines": lines})
        if ended:
            self._gone(each, now, f"its probe has ended: {ended}")
        else:
            each.take = each.actor.take.remote(TAKE_SECONDS)

    def _ask_clock(self, each: _Watched) -> None:
        """Waited for here: what else is done in between would count as its way."""
        asked_at, asked_wall = time.monotonic(), time.time()
        try:
            line: str = ray.get(each.actor.clock.remote(), timeout=CLOCK_ANSWER_SECONDS)
            pong = decode(line) if line else None
        except (RayError, WireError):
            pong = None  # its lines tell if it has gone
        now = time.monotonic()
        took = now - asked_at
        if isinstance(pong, Pong):
            offset, best = each.clock.take(took, asked_wall, pong.wall)
            self._say({"node": each.node_id, "clock": [round(offset, 4), round(best * 1000, 2)]})
        each.clock_at = now + (CLOCK_SECONDS if each.clock.settled else FIRST_CLOCKS_SECONDS)

    def _gone(self, each: _Watched, now: float, why: str) -> None:
        _end(each)
        each.start_at = now + PAUSES[min(each.failures, len(PAUSES) - 1)]
        each.failures += 1
        each.clock.forget()
        self._say({"node": each.node_id, "gone": why})


def _end(each: _Watched) -> None:
    if each.actor is not None:
        ray.kill(each.actor)
    each.actor = each.take = None


def _watcher() -> type:
    """What runs on a node. Made here, inside, since only so Ray sends the code itself: no node has this file."""

    class Watcher:
        """A probe of its own, and what it said since it was asked last."""

        MOST_LINES = 500

        def __init__(self, argv: tuple[str, ...], blob: bytes) -> None:
            import collections
            import subprocess
            import sys
            import threading

            self.lines: Any = collections.deque(maxlen=self.MOST_LINES)
            self.pong: Any = collections.deque(maxlen=1)
            self.news = threading.Condition()
            self.ended = ""
            # It ends with this process: the other end of its input is closed then.
            self.probe = subprocess.Popen(
                [sys.executable, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            threading.Thread(target=self._read, daemon=True).start()
            assert self.probe.stdin is not None
            self.probe.stdin.write(blob)
            self.probe.stdin.flush()

        def _read(self) -> None:
            assert self.probe.stdout is not None
            assert self.probe.stderr is not None
            for raw in self.probe.stdout:
                line = raw.decode("ascii", "replace").strip()
                with self.news:
                    (self.pong if '"kind":"pong"' in line else self.lines).append(line)
                    self.news.notify_all()
            said = self.probe.stderr.read(2000).decode("utf-8", "replace").strip().splitlines()
            code = self.probe.wait()
            with self.news:
                self.ended = f"exit code {code}" + (f": {said[-1]}" if said else "")
                self.news.notify_all()

        def take(self, seconds: float) -> tuple[list[str], str]:
            """What came since the last call; waits for something, at most so long."""
            with self.news:
                self.news.wait_for(lambda: self.lines or self.ended, timeout=seconds)
                lines = list(self.lines)
                self.lines.clear()
                return lines, self.ended if not lines else ""

        def clock(self) -> str:
            """The probe's answer to a ping; empty if none comes."""
            assert self.probe.stdin is not None
            with self.news:
                self.pong.clear()
                self.probe.stdin.write(b"ping 1\n")
                self.probe.stdin.flush()
                self.news.wait_for(lambda: self.pong or self.ended, timeout=2.0)
                return self.pong[0] if self.pong else ""

    return Watcher
