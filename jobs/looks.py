"""Owns what is known of the ranks of a run that does not go on, and the files that a look at them is asked and told by.

What a rank's state is comes from the status that the driver writes each second; what its stacks and its collectives
are comes from a look, which somebody asks for by a file (`ask`) and which each node's agent takes.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobs import bounded
from jobs.errors import Refused, Unreachable
from jobs.model import GangStatus

LOOK_FILE = "look"
"""In the attempt's folder: the id of the look that is asked for."""
LOOKS_FOLDER = "looks"
LOOK_SECONDS = 15.0
"""After this long a look has come back, or says who did not answer."""
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_MAX_BYTES = 4 << 20
_MAX_FILES = 20_000

M = TypeVar("M", bound=BaseModel)


class _Value(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Frame(_Value):
    """One call on a stack."""

    function: str
    file: str = ""
    line: int = 0
    """0 where it is not known, as in native code."""
    native: bool = False


class Thread(_Value):
    """One thread of a rank, or of a process that it started."""

    name: str = ""
    main: bool = False
    """The rank's own main thread."""
    pid: int | None = None
    """Of a process that the rank started (a data loader's worker); None for the rank itself."""
    frames: list[Frame] = Field(default_factory=list)
    """Innermost first."""


class Collective(_Value):
    """How far a rank is in one of its process groups, as torch's flight recorder has it."""

    group: str
    about: str = ""
    members: list[int] = Field(default_factory=list)
    """Ranks, in the group's order; empty where that is not known."""
    backend: str = ""
    enqueued: int = 0
    """The number of the last collective that it called; they count from 1, alike on all members."""
    completed: int = 0
    operation: str = ""
    """``gloo:all_reduce``: the last one."""
    sizes: str = ""
    pending: bool = False
    """The last one is not completed."""
    peer: int | None = None
    """Whom a pending send or receive waits for."""
    waiting_seconds: float | None = None


class RankState(_Value):
    """What is known of one rank at one moment. Ages are in seconds at that moment; None is not known."""

    rank: int
    node: str = ""
    """Its name."""
    gpu: str = ""
    pid: int | None = None
    exit_code: int | None = None
    step: int | None = None
    step_seconds: float | None = None
    output_seconds: float | None = None
    """How long ago it printed something."""
    state: str = ""
    """The kernel's letter for its process: R, S, D, T, t, Z."""
    state_seconds: float | None = None
    wchan: str = ""
    cpu: float | None = None
    silent_seconds: float | None = None
    """For how long its node's agent has not answered; None if it does."""


class RankLook(RankState):
    """And what a look found."""

    missing: bool = False
    """Its process is not there."""
    threads: list[Thread] = Field(default_factory=list)
    stack_by: str = ""
    """Who told the stacks: ``py-spy`` or ``the rank itself``."""
    stack_problem: str = ""
    """Why there is none, or why it is not py-spy's."""
    native_problem: str = ""
    call: str = ""
    """The system call that its main thread is in, where it is one on a file: ``read /data/shard-3``."""
    stuck: list[str] = Field(default_factory=list)
    """Threads that the kernel does not let go of (state D), and in what."""
    collectives: list[Collective] = Field(default_factory=list)
    recorder_problem: str = ""


class NodeLook(_Value):
    """What a look found on a node beside its ranks."""

    node: str
    index: int = 0
    seconds: float | None = None
    """How long it took there."""
    problem: str = ""
    """Why there is nothing of it, or not all."""
    ras: str = ""
    """What NCCL's RAS says; empty where there is none."""


class Look(_Value):
    """One look at all ranks of an attempt, as far as it has come back."""

    id: str
    asked_at: float | None = None
    """When the driver took it up, by its clock; None as long as it has not."""
    done: bool = False
    """Nothing more comes."""
    expected: int = 0
    """How many ranks there are."""
    ranks: list[RankLook] = Field(default_factory=list)
    nodes: list[NodeLook] = Field(default_factory=list)


def states_of(status: GangStatus, names: Mapping[str, str]) -> list[RankState]:
    """The ranks as the status has them, with ages at the moment it was written. ``names``: Ray's node id to name."""

    def age(at: float | None) -> float | None:
        return None if at is None else max(0.0, status.wall - at)

    return [
        RankState(
            rank=rank.rank,
            node=names.get(rank.node_id) or rank.node_address or rank.node_id,
            gpu=rank.gpu,
            pid=rank.pid,
            exit_code=rank.exit_code,
            step=rank.step,
            step_seconds=age(rank.step_at),
            output_seconds=age(rank.output_at),
            state=rank.state,
            state_seconds=age(rank.state_at),
            wchan=rank.wchan,
            cpu=rank.cpu,
            silent_seconds=age(rank.silent_at),
        )
        for rank in status.ranks
    ]


def ask(attempt_directory: str | os.PathLike[str], look: str = "") -> str:
    """Ask for a look at all ranks of an attempt that runs; gives its id. Blocks on the storage.

    Raises Refused for an id that is none, and Unreachable when the file cannot be written.
    """
    look = look or secrets.token_hex(6)
    if not ID.fullmatch(look):
        raise Refused(f"{look[:40]!a} is no id of a look: letters, digits and dashes, at most 40")
    file = Path(attempt_directory) / LOOK_FILE
    partial = file.with_name(f"{LOOK_FILE}.{os.getpid()}.partial")
    try:
        partial.write_text(look, encoding="ascii")
        partial.rename(file)
    except OSError as error:
        raise Unreachable(f"{file} cannot be written: {error.strerror}") from error
    return look


def read_looks(attempt_directory: str | os.PathLike[str], look: str) -> Look:
    """What a look has brought so far. Blocks on the storage. Raises Refused for an id that is none.

    A file that cannot be read counts as one that is not there yet: it is written as a whole.
    """
    if not ID.fullmatch(look):
        raise Refused(f"{look[:40]!a} is no id of a look: letters, digits and dashes, at most 40")
    folder = Path(attempt_directory) / LOOKS_FOLDER / look
    found = _read(folder / "look.json", Look) or Look(id=look)
    try:
        names = sorted(entry.name for entry in os.scandir(folder))[:_MAX_FILES]
    except OSError:
        return found
    ranks = (_read(folder / name, RankLook) for name in names if re.fullmatch(r"rank-\d+\.json", name))
    nodes = (_read(folder / name, NodeLook) for name in names if re.fullmatch(r"node-\d+\.json", name))
    found.ranks = sorted((rank for rank in ranks if rank is not None), key=lambda rank: rank.rank)
    found.nodes = sorted((node for node in nodes if node is not None), key=lambda node: node.index)
    return found


def _read(path: Path, model: type[M]) -> M | None:
    try:
        return model.model_validate_json(bounded.read(path, _MAX_BYTES))
    except (OSError, ValidationError, ValueError):
        return None
