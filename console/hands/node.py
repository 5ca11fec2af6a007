"""One node under the hands: `console.hands.remote` sent there over SSH, and what it says as typed values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from console.render.redact import redact
from console.settings import NodeEntry
from console.sources.ssh import Connection
from console.sources.sshtypes import Completed
from jobs.errors import Refused, Unreachable

PYTHON = ("python3", "-I", "-S", "-")
"""The program comes on standard input: no name from anywhere is part of a shell's line."""
LOOK_SECONDS = 20.0
SLACK_SECONDS = 10.0
"""How much longer than its own limit a command on a node may take to say so."""
ANSWER_BYTES = 4 * 1024 * 1024
TAIL_LINES = 4
NAME_LABEL = "raydeck.io/node"

_Answer = TypeVar("_Answer", bound=BaseModel)


class _Said(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Raylet(_Said):
    """A raylet that the node's kernel shows."""

    pid: int
    here: bool | None
    """Whether it is in the network that SSH reaches; None where that may not be read."""
    node_id: str = ""
    node_ip_address: str = ""
    session_name: str = ""
    labels: str = ""
    """JSON."""

    @property
    def name(self) -> str:
        """Its label ``raydeck.io/node``; empty without one."""
        try:
            found: Any = json.loads(self.labels or "{}")
        except (ValueError, RecursionError):
            return ""
        label: Any = found.get(NAME_LABEL) if isinstance(found, dict) else None  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        return label if isinstance(label, str) else ""


class Marked(_Said):
    """A process that belongs to a run of raydeck's."""

    pid: int
    run: str
    attempt: int


class Look(_Said):
    """What there is on a node."""

    login: str = ""
    """Who the console is there."""
    raylets: list[Raylet] = Field(default_factory=list[Raylet])
    marked: list[Marked] = Field(default_factory=list[Marked])


class Ran(_Said):
    """A command that was run there."""

    code: int
    """Below 0: the signal that ended it."""
    late: bool
    """It was ended, for it had taken too long."""
    tail: str
    seconds: float

    @property
    def last_words(self) -> str:
        """The last lines that it printed, in one; nothing that looks like a secret."""
        lines = [line.strip() for line in self.tail.splitlines() if line.strip()]
        return redact(" / ".join(lines[-TAIL_LINES:]))[-600:]


@lru_cache(maxsize=1)
def _source() -> str:
    return files("console.hands").joinpath("remote.py").read_text(encoding="utf-8")


async def ask(connection: Connection, kind: type[_Answer], verb: str, seconds: float, **asked: Any) -> _Answer:
    """Have the program do one thing on the node.

    Raises `Unreachable` without a connection, after ``seconds``, or for an answer that is not the program's; `Refused`
    where it could not run.
    """
    from console.hands.remote import MARK

    request = json.dumps({"verb": verb, **asked}, ensure_ascii=True)
    program = f"{_source()}\nmain({request!r})\n".encode()
    done = await connection.run_command(PYTHON, program, timeout=seconds, limit_bytes=ANSWER_BYTES)
    name = connection.host.name
    for line in reversed(done.stdout.decode("utf-8", "replace").splitlines()):
        if line.startswith(MARK):
            try:
                return TypeAdapter(kind).validate_json(line.removeprefix(MARK))
            except ValidationError:
                raise Unreachable(f"what {name} answers cannot be read") from None
    raise Refused(f"{name}: {_why(done)}")


def _why(done: Completed) -> str:
    """Why the program gave no answer."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    last = f": {lines[-1][:200]}" if lines else ""
    if done.exit_status == 127:
        return "python3 is not found there"
    if "SyntaxError" in done.stderr:
        return "python3 there is too old, 3.8 or later is needed"
    if done.exit_status is None:
        return f"what was sent there was ended by signal {done.signal}{last}"
    return f"what was sent there exited {done.exit_status}{last}"


async def look(connection: Connection) -> Look:
    """Ray and raydeck's processes on a node. Errors as `ask`."""
    return await ask(connection, Look, "look", LOOK_SECONDS)


async def run(connection: Connection, command: str, seconds: float) -> Ran:
    """Run a command in the operator's login shell there; it is ended when the time is up. Errors as `ask`."""
    return await ask(connection, Ran, "run", seconds + SLACK_SECONDS, command=command, limit_seconds=seconds)


def raylets_of(found: Look, entry: NodeEntry, address: str) -> Sequence[Raylet]:
    """The raylets that are this node's: several nodes may be on one machine.

    Args:
        found: What its kernel shows.
        entry: The node.
        address: The one that Ray knows it by; empty if it is not known.
    """
    return [
        raylet
        for raylet in found.raylets
        if (raylet.name == entry.name if raylet.name else raylet.here is not False or raylet.node_ip_address == address)
    ]
