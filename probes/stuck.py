"""Processes that wait inside the kernel and cannot be ended (state D), once they were seen so in two looks.

Read is only what the kernel gives without the process's own memory: its command line and environment may hang with it.
Those that were stuck are looked at every time, those that hold an accelerator every half minute. All others are gone
through as often as it costs next to nothing: on a machine with thousands of processes less often than on one with few.
"""

from __future__ import annotations

import os
import pwd
import time
from typing import Callable, Collection, NamedTuple

from probes.files import content, text
from probes.reading import Stuck

HOLDERS_SECONDS = 30.0
SHORTEST_SECONDS = 60.0
LONGEST_SECONDS = 300.0
COST_SHARE = 2e-5
"""Of a processor's time, for going through all processes: 1 ms every 50 s."""
KERNEL_KEPT_SECONDS = 3600.0
MOST_STUCK = 64
KERNEL_THREADS = 2
"""The process that is the parent of all the kernel's own."""

RunOf = Callable[[int], str]
"""The run of a process that is known to work for one; empty for any other."""


class _State(NamedTuple):
    name: str
    state: str
    parent: int
    started: int


class StuckLooks:
    """Looks for them; `look` whenever health is told."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._since: dict[tuple[int, int], float] = {}
        """(pid, start) to when it was first seen stuck, and has been since."""
        self._kernel: set[str] = set()
        self._all_at = 0.0
        self._holders_at = 0.0
        self._kernel_until = 0.0

    def look(
        self, now: float, holders: Collection[int], run_of: RunOf, runs_only: bool = False, soon: bool = False
    ) -> list[Stuck]:
        """Those that were stuck in the look before as well.

        ``runs_only`` leaves out what works for no run. ``soon``: something hangs on this machine, so all processes are
        gone through now.
        """
        pids = {str(pid) for pid, _ in self._since}
        if now >= self._holders_at:
            self._holders_at = now + HOLDERS_SECONDS
            pids.update(str(pid) for pid in holders)
        if now >= self._all_at or soon:
            began = time.process_time()
            pids.update(self._user_processes(now))
            since = self._stuck_of(pids, now)
            cost = time.process_time() - began
            self._all_at = now + min(max(cost / COST_SHARE, SHORTEST_SECONDS), LONGEST_SECONDS)
        else:
            since = self._stuck_of(pids, now)
        found: list[Stuck] = []
        for (pid, _), (at, state) in since.items():
            if at < now and len(found) < MOST_STUCK:
                run = run_of(pid) or run_of(state.parent)
                if run or not runs_only:
                    found.append(self._stuck(pid, state, now - at, run))
        self._since = {key: at for key, (at, _) in since.items()}
        return found

    def _stuck_of(self, pids: Collection[str], now: float) -> dict[tuple[int, int], tuple[float, _State]]:
        found: dict[tuple[int, int], tuple[float, _State]] = {}
        for pid in pids:
            stat = content(os.path.join(self._proc, pid, "stat"))
            at = stat.rfind(b")")
            if stat[at + 2 : at + 3] == b"D":
                state = _state(stat)
                if state is not None and state.parent != KERNEL_THREADS:
                    key = int(pid), state.started
                    found[key] = self._since.get(key, now), state
            elif stat[at + 4 : at + 6] == b"2 ":
                self._kernel.add(pid)
        return found

    def _user_processes(self, now: float) -> list[str]:
        """All pids without those of the kernel's own threads, as far as they are known."""
        if now >= self._kernel_until:
            # A number may be given to somebody else.
            self._kernel.clear()
            self._kernel_until = now + KERNEL_KEPT_SECONDS
        return [name for name in os.listdir(self._proc) if name.isdigit() and name not in self._kernel]

    def _stuck(self, pid: int, state: _State, seconds: float, run: str) -> Stuck:
        where = text(os.path.join(self._proc, str(pid), "wchan"))
        return Stuck(pid, state.name, self._user(pid), "" if where == "0" else where, round(seconds, 1), run)

    def _user(self, pid: int) -> str:
        try:
            uid = os.stat(os.path.join(self._proc, str(pid))).st_uid
        except OSError:
            return ""
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return str(uid)


def _state(stat: bytes) -> _State | None:
    # The name stands in brackets and may itself hold brackets and spaces: count from the last one.
    name, _, rest = stat.decode("utf-8", "replace").partition("(")[2].rpartition(")")
    fields = rest.split()
    try:
        return _State(name, fields[0], int(fields[1]), int(fields[19]))
    except (IndexError, ValueError):
        return None
