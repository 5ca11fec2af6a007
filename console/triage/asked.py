"""What a triage asks a node for: `console.triage.remote` sent there over SSH, and its answers, each or its reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

from console.sources.session import Session
from jobs.errors import RaydeckError, Refused

PYTHON = ("python3", "-I", "-S", "-")
ANSWER_BYTES = 48 * 1024 * 1024
SLACK_SECONDS = 3.0
"""How much longer than its own limit what is sent there may take to say so."""
CONNECT_SECONDS = 3.0
"""How long a node that is still being connected to is waited for."""
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to be read."""

    name: str
    """Of `console.triage.remote.TASKS`."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of it: a value, or why there is none."""

    value: Any = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Answers:
    """All that a node said, in the order of the tasks."""

    wall: float
    """The node's own clock."""
    utc_offset_seconds: float
    login: str
    answers: list[Answer]


@lru_cache(maxsize=1)
def _source() -> str:
    return files("console.triage").joinpath("remote.py").read_text(encoding="utf-8")


class Nodes:
    """The nodes of a session, asked at most so many at once; a node that cannot be asked is one sentence."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._room = asyncio.Semaphore(AT_ONCE)

    async def ask(self, name: str, tasks: Sequence[Task], seconds: float) -> Answers:
        """Have these read on a node, each within so many seconds. Raises what `Connection.run_command` does."""
        async with self._room:
            return await self._ask(name, tasks, seconds)

    async def _ask(self, name: str, tasks: Sequence[Task], seconds: float) -> Answers:
        request = json.dumps(
            {"tasks": [[task.name, task.arguments] for task in tasks], "limit_seconds": seconds}, ensure_ascii=True
        )
        program = f"{_source()}\nmain({request!r})\n".encode()
        connection = self._session.connection(name)
        await connection.ready(CONNECT_SECONDS)
        done = await connection.run_command(PYTHON, program, timeout=seconds + SLACK_SECONDS, limit_bytes=ANSWER_BYTES)
        from console.triage.remote import MARK

        for line in reversed(done.stdout.decode("utf-8", "replace").splitlines()):
            if line.startswith(MARK):
                return await asyncio.to_thread(_answers, name, line.removeprefix(MARK), len(tasks))
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        if done.exit_status == 127:
            raise Refused(f"{name}: python3 is not found there")
        raise Refused(f"{name}: what was sent there exited {done.exit_status}{f': {said[-1][:200]}' if said else ''}")


def _answers(name: str, line: str, count: int) -> Answers:
    """A node may say anything: what is not as it should be is a refusal, not a crash."""
    try:
        raw = json.loads(line)
        answers = [Answer(each.get("value"), str(each.get("reason", ""))) for each in raw["answers"]]
        if len(answers) != count:
            raise ValueError("another number of answers")
        return Answers(float(raw["wall"]), float(raw["utc_offset_seconds"]), str(raw["login"]), answers)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Refused(f"what {name} answers cannot be read: {error}") from error


def sentence(error: BaseException) -> str:
    """Why something could not be asked for."""
    if isinstance(error, RaydeckError):
        return error.sentence
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return "there was no time left for it"
    return f"{type(error).__name__}: {error}"
