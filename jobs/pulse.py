"""Owns what a rank says of itself to its node's agent: the step it is at, always, and where it stands when asked.

Standard library only, since every rank has it. All of it goes into the agent's folder on the node itself: shared
storage that hangs must not keep a rank from saying so. In a process that is no rank (a data loader's worker, a script
outside of raydeck) nothing here does anything.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER = "RAYDECK_PULSE"
"""Environment variable: the agent's folder."""
RANK_PID = "RAYDECK_RANK_PID"
"""Environment variable: the process that is the rank; its children inherit the rest."""
LOOK_EVERY_SECONDS = 0.5
MAX_FRAMES = 60
MAX_THREADS = 24
_MAX_TEXT = 200
_FORM = struct.Struct("<QqdddQ")
"""A count, the step, wall and monotonic clock in seconds, own seconds, and the count again: half a write shows."""
_OWN_STEPS = 16
"""Of so many steps the mean of a rank's own seconds is told."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """The last step that a rank told."""

    step: int
    wall: float
    """By the node's clock, seconds since 1970."""
    monotonic: float
    """By the node's clock that only goes forward: its difference to now is how long ago it was."""
    own_seconds: float | None = None
    """Of a step, those that it did not wait for other ranks, the mean of its last ones; None if it does not say."""


class _Rank:
    """This process, if it is a rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._count = 0
        self._own: deque[float] = deque(maxlen=_OWN_STEPS)
        self._file = os.open(folder / f"pulse-{rank}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        threading.Thread(target=self._listen, name="raydeck-look", daemon=True).start()

    def reached(self, step: int, own_seconds: float | None) -> None:
        self._count += 1
        if own_seconds is not None and own_seconds >= 0:
            self._own.append(own_seconds)
        own = sum(self._own) / len(self._own) if self._own else math.nan
        try:
            os.pwrite(self._file, _FORM.pack(self._count, step, time.time(), time.monotonic(), own, self._count), 0)
        except (OSError, struct.error):
            # A full disk, a step that is no step: a run does not end for what it says of itself.
            return

    def _listen(self) -> None:
        request, seen = self._folder / "look.json", 0
        while True:
            time.sleep(LOOK_EVERY_SECONDS)
            try:
                changed = request.stat().st_mtime_ns
                if changed != seen:
                    asked = json.loads(request.read_text(encoding="utf-8"))["id"]
                    seen = changed
                    self._answer(str(asked))
            except (OSError, ValueError, KeyError):
                # Nobody asks, or the agent is about to be gone.
                continue

    def _answer(self, asked: str) -> None:
        answer = {"id": asked, "threads": stacks(), **recorder()}
        partial = self._folder / f"own-{self._rank}.json.partial"
        partial.write_text(json.dumps(answer), encoding="utf-8")
        partial.rename(self._folder / f"own-{self._rank}.json")


_begun_in: int | None = None
_rank: _Rank | None = None


def begin() -> None:
    """Begin to listen, if this process is a rank. Costs nothing when it was called before."""
    global _begun_in, _rank
    if _begun_in == os.getpid():
        return
    _begun_in, _rank = os.getpid(), None
    folder, number = os.environ.get(FOLDER), os.environ.get("RANK", "")
    if not folder or not number.isdecimal() or os.environ.get(RANK_PID) != str(_begun_in):
        return
    try:
        _rank = _Rank(Path(folder), int(number))
    except (OSError, RuntimeError):
        # No room for a file or a thread: the run goes on without.
        return


def reached(step: int, own_seconds: float | None = None) -> None:
    """This rank is at this step, which took it so long without waiting for others. Some microseconds; never waits."""
    begin()
    if _rank is not None:
        _rank.reached(step, own_seconds)


def read(folder: Path, rank: int) -> Pulse | None:
    """What a rank told last; None if it told nothing, or is telling at this very moment."""
    try:
        data = (folder / f"pulse-{rank}").read_bytes()
    except OSError:
        return None
    if len(data) != _FORM.size:
        return None
    before, step, wall, monotonic, own, after = _FORM.unpack(data)
    told = Pulse(step, wall, monotonic, own if math.isfinite(own) else None)
    return told if before == after and before else None


def stacks() -> list[dict[str, Any]]:
    """Where this process's threads stand, the main one first: ``{"name", "main", "frames": [innermost first]}``."""
    own, main = threading.get_ident(), threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    order = sorted((ident for ident in frames if ident != own), key=lambda ident: (ident != main, ident))
    return [
        {"name": names.get(ident, "")[:_MAX_TEXT], "main": ident == main, "frames": _frames(frames[ident])}
        for ident in order[:MAX_THREADS]
    ]


def _frames(innermost: FrameType) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for frame, line in traceback.walk_stack(innermost):
        code = frame.f_code
        found.append({"function": code.co_name[:_MAX_TEXT], "file": code.co_filename[-_MAX_TEXT:], "line": line or 0})
        if len(found) == MAX_FRAMES:
            break
    return found


def recorder() -> dict[str, Any]:
    """What torch's flight recorder knows: ``{"collectives": […], "recorder_problem": …}``; see `jobs.hang.Collective`.

    torch's own words for it are private, and differ by version: whatever is not as expected is said, not raised.
    """
    torch = sys.modules.get("torch")
    distributed: Any = sys.modules.get("torch.distributed")
    if torch is None or distributed is None:
        return {"collectives": [], "recorder_problem": "torch.distributed is not loaded"}
    try:
        if not distributed.is_initialized():
            return {"collectives": [], "recorder_problem": "the process group is not there yet"}
        groups = _groups(distributed)
        entries: list[dict[str, Any]] = []
        problem = "this torch has no flight recorder"
        own: Any = sys.modules["torch._C._distributed_c10d"]
        for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
            if (dump := getattr(own, name, None)) is not None:
                entries += json.loads(dump() or b"{}").get("entries") or []
                problem = ""
        for entry in entries:
            _take(groups, entry)
    except Exception as error:  # private ground
        return {"collectives": [], "recorder_problem": f"{type(error).__name__}: {error}"[:_MAX_TEXT]}
    if not problem and not entries:
        problem = "the flight recorder is empty (TORCH_FR_BUFFER_SIZE)"
    now = time.time()
    for group in groups.values():
        created = group.pop("created_ns")
        group["waiting_seconds"] = max(0.0, now - created / 1e9) if created and group["pending"] else None
    return {"collectives": list(groups.values()), "recorder_problem": problem}


def _groups(distributed: Any) -> dict[str, dict[str, Any]]:
    world = distributed.distributed_c10d._world
    found: dict[str, dict[str, Any]] = {}
    for group, members in list(world.pg_group_ranks.items()):
        name = str(world.pg_names[group])
        in_order = [rank for rank, _ in sorted(members.items(), key=lambda pair: pair[1])]
        found[name] = _group(name, str(getattr(group, "group_desc", "") or ""), in_order)
        found[name]["backend"] = str(world.pg_map[group][0])[:_MAX_TEXT]
    return found


def _group(name: str, about: str, members: list[int]) -> dict[str, Any]:
    return {
        "group": name,
        "about": "" if about == "undefined" else about[:_MAX_TEXT],
        "members": members,
        "backend": "",
        "enqueued": 0,
        "completed": 0,
        "operation": "",
        "sizes": "",
        "pending": False,
        "peer": None,
        "created_ns": 0,
    }


def _take(groups: dict[str, dict[str, Any]], entry: dict[str, Any]) -> None:
    """One entry of the recorder: what a group of this rank was asked to do. A later one goes before."""
    name, about = (str(part) for part in entry["process_group"])
    group = groups.setdefault(name, _group(name, about, []))
    done = bool(entry.get("retired")) or entry.get("state") == "completed"
    point = bool(entry.get("is_p2p"))
    if not point:
        number = int(entry["collective_seq_id"])
        group["enqueued"] = max(group["enqueued"], number)
        group["completed"] = max(group["completed"], number if done else 0)
    created = int(entry.get("time_created_ns") or 0)
    if created < group["created_ns"]:
        return
    operation = str(entry.get("profiling_name") or "")
    group["created_ns"], group["pending"] = created, not done
    group["operation"] = operation[:_MAX_TEXT]
    group["sizes"] = json.dumps(entry.get("input_sizes"))[:_MAX_TEXT]
    group["peer"] = _peer(operation, group["members"]) if point and not done else None


def _peer(operation: str, members: list[int]) -> int | None:
    """The rank at the other end of ``nccl:send 0->1`` or ``nccl:recv 0<-1``; those are numbers in the group."""
    for arrow in ("->", "<-"):
        _, found, number = operation.rpartition(arrow)
        if found and number.isdecimal() and int(number) < len(members):
            return members[int(number)]
    return None
