"""Owns looks at the ranks of an attempt, in its driver: hears that one is asked for, has the agents take it, writes it.

All of it in a thread of its own, so that neither the ranks, nor a stop, nor a save waits for it. What the agents found
comes through Ray and is written here: a node whose storage hangs can still tell.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from pydantic import BaseModel, ValidationError
from ray.exceptions import RayError

from jobs import bounded
from jobs.gang.echo import say
from jobs.gang.members import Member
from jobs.looks import ID, LOOK_FILE, LOOKS_FOLDER, Look, NodeLook, RankLook, RankState
from jobs.model import Launch

LIMIT_SECONDS = 13.0
"""A little more than the agents give themselves."""
CLOSE_SECONDS = 2.0
_LOOK_EVERY_SECONDS = 0.5
_ASK_EVERY_SECONDS = 0.25
_KEPT = 10


class Looking:
    """Whoever starts it closes it. ``states`` gives what is known of the ranks without a look."""

    def __init__(self, launch: Launch, members: list[Member], states: Callable[[], list[RankState]]) -> None:
        self._folder = Path(launch.attempt_directory)
        self._members = members
        self._first = {member.index: member.index * launch.processes_per_node for member in members}
        self._per_node = launch.processes_per_node
        self._states = states
        self._last = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """Listen no longer. Bounded: storage that hangs keeps the thread, not us."""
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_SECONDS):
            asked = self._asked()
            if asked and asked != self._last:
                self._last = asked
                try:
                    self._take(asked)
                except (OSError, ValueError, RayError) as error:
                    say(f"the look {asked} could not be taken: {type(error).__name__}: {error}")

    def _asked(self) -> str:
        try:
            text = bounded.read(self._folder / LOOK_FILE, 100).decode("ascii").strip()
        except (OSError, ValueError):
            return ""
        return text if ID.fullmatch(text) else ""

    def _take(self, look: str) -> None:
        folder = self._folder / LOOKS_FOLDER / look
        folder.mkdir(parents=True, exist_ok=True)
        told = Look(id=look, asked_at=time.time(), expected=len(self._members) * self._per_node)
        _write(folder / "look.json", told)
        waiting = {member.index: member for member in self._members if not member.lost}
        for member in waiting.values():
            member.handle.look.remote(look)
        deadline = time.monotonic() + LIMIT_SECONDS
        pending: dict[Any, Member] = {}
        while waiting and time.monotonic() < deadline and not self._closing.is_set():
            asked = {member.index for member in pending.values()}
            for member in waiting.values():
                if member.index not in asked:
                    pending[member.handle.looked.remote(look)] = member
            ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_ASK_EVERY_SECONDS)
            for reference in ready:
                member = pending.pop(reference)
                try:
                    found = ray.get(reference)
                except RayError:
                    # The driver's own loop finds out what became of it.
                    del waiting[member.index]
                    continue
                if found is not None:
                    del waiting[member.index]
                    self._keep(folder, member, json.loads(found))
            self._closing.wait(_ASK_EVERY_SECONDS)
        for member in self._members:
            if not (folder / f"node-{member.index}.json").exists():
                self._keep(folder, member, {})
        _write(folder / "look.json", told.model_copy(update={"done": True}))
        self._prune()

    def _keep(self, folder: Path, member: Member, found: dict[str, Any]) -> None:
        """Write what one agent found; of one that found nothing, what is known of its ranks without it."""
        try:
            node = NodeLook(**found["node"])
            ranks = [RankLook(**rank) for rank in found["ranks"]]
        except (KeyError, TypeError, ValidationError):
            problem = f"{member.node} is lost" if member.lost else "its agent did not bring a look in time"
            node = NodeLook(node=member.node, index=member.index, problem=problem)
            first = self._first[member.index]
            known = [state for state in self._states() if first <= state.rank < first + self._per_node]
            ranks = [RankLook(**state.model_dump(), stack_problem=problem) for state in known]
        for rank in ranks:
            _write(folder / f"rank-{rank.rank}.json", rank)
        _write(folder / f"node-{node.index}.json", node)

    def _prune(self) -> None:
        """Keep the newest looks of the attempt."""
        looks = sorted((self._folder / LOOKS_FOLDER).iterdir(), key=lambda path: path.stat().st_mtime)
        for old in looks[:-_KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def _write(path: Path, value: BaseModel) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(value.model_dump_json(), encoding="utf-8")
    partial.rename(path)
