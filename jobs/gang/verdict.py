"""Owns the judgement on a failed gang: which rank failed first, what it said last, what kind of failure it is. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jobs import failure
from jobs.errors import RaydeckError
from jobs.failure import Told
from jobs.model import Failure

MAX_LINE = 300
_BARRIER = re.compile(r"Ranks? (\d+(?:, ?\d+)*) failed to pass monitoredBarrier")


@dataclass(frozen=True, slots=True)
class Ended:
    """A rank that ended with something else than exit code 0."""

    rank: int
    node: str
    address: str
    exit_code: int
    """Negative for a signal."""
    ended_at: float
    """By the driver's clock, comparable among the ranks of a gang."""
    log: str = ""
    """The end of its output."""

    @property
    def error(self) -> str:
        """Its last error line."""
        return last_error(self.log)


@dataclass(frozen=True, slots=True)
class Lost:
    """A node of the gang, or its agent, that is there no more."""

    node: str
    sentence: str
    failure: Failure
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Blame:
    """Why an attempt failed."""

    reason: str
    failure: Failure
    evidence: str = ""
    signature: str = ""
    suspects: list[str] = field(default_factory=list[str])
    """Names of nodes."""
    rank: int | None = None
    """The first that failed."""
    survivors: list[int] = field(default_factory=list[int])
    """Processes of an earlier attempt that could not be ended."""
    unanswered: list[str] = field(default_factory=list[str])
    """Nodes where it is not known whether one lives."""


class Broken(RaydeckError):
    """The attempt cannot go on, and it is known why."""

    def __init__(self, blame: Blame) -> None:
        super().__init__(blame.reason)
        self.blame = blame


def broken(kind: Failure, reason: str, suspects: Iterable[str] = ()) -> Broken:
    """A failure whose sentence says it all."""
    return Broken(Blame(reason, kind, "", failure.signature(reason), sorted(suspects)))


def last_error(text: str) -> str:
    """The last line of a log that names an exception, or else the last that is not empty."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    return (failure.error_line(text) or (lines[-1] if lines else ""))[:MAX_LINE]


def first_line(error: BaseException) -> str:
    """What an exception says, in its first line; its name if it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:MAX_LINE] if lines else type(error).__name__


def of_error(error: Exception, reason: str) -> Blame:
    """The blame for an error of the attempt's own machinery."""
    if isinstance(error, Broken):
        return error.blame
    told = failure.classify(None, f"{type(error).__name__}: {first_line(error)}")
    return Blame(reason, told.failure, told.evidence, failure.signature(reason))


def of_process(
    what: str, node: str, address: str, code: int, log: str, notes: Sequence[str] = (), rank: int | None = None
) -> Blame:
    """The blame for a process that is no rank: torchrun itself where none of its ranks failed, a run's one command."""
    told = failure.classify(code, log, notes)
    error = last_error(log)
    end = how(code, error, for_memory=told.failure is Failure.OUT_OF_MEMORY)
    suspects = [node] if told.failure in (Failure.DRIVER, Failure.OUT_OF_MEMORY) else []
    signature = failure.signature(told.evidence or error or how(code, ""))
    return Blame(f"{what} on {node} ({address}) {end}", told.failure, told.evidence, signature, suspects, rank)


def of_loss(loss: Lost) -> Blame:
    """The blame for a node, or an agent, that is gone."""
    return Blame(loss.sentence, loss.failure, loss.evidence, failure.signature(loss.sentence), [loss.node])


def culprit(ended: Iterable[Ended]) -> Ended | None:
    """The rank that the others followed.

    When one rank dies the others die of it within a tenth of a second, and torchrun ends the rest. So those that only
    lost a peer, or were asked to end, come last; among the others the first in time is the one.
    """
    return min(ended, key=lambda end: (_followed(end), end.ended_at, end.rank), default=None)


def only_followed(ended: Iterable[Ended]) -> bool:
    """Whether all that is known so far are consequences: the cause is somewhere else."""
    return all(_followed(end) for end in ended)


def blame(
    lost: Sequence[Lost], ended: Sequence[Ended], where: Mapping[int, str], notes: Mapping[str, Sequence[str]]
) -> Blame | None:
    """Who and what failed; None when nothing did.

    ``where`` has each rank's node, ``notes`` what was seen on each node beside the ranks' own words.
    """
    # A lost node takes its ranks' peers along, so it is the cause whatever they say.
    for loss in sorted(lost, key=lambda loss: loss.failure is not Failure.NODE_LOST):
        return of_loss(loss)
    first = culprit(ended)
    if first is None:
        return None
    told = failure.classify(first.exit_code, first.log, notes.get(first.node, ()))
    for node, lines in notes.items():
        other = failure.on_node(lines)
        # Its peers only see that it is late or gone.
        if other is None or other.failure is not Failure.DRIVER or node == first.node:
            continue
        if told.failure is Failure.COMMUNICATION:
            reason = f"{node}: {other.evidence}; {sentence(first)}"
            return Blame(
                reason, other.failure, other.evidence, failure.signature(other.evidence), [node], rank=first.rank
            )
    said = first.error or how(first.exit_code, "")
    return Blame(
        reason=sentence(first, for_memory=told.failure is Failure.OUT_OF_MEMORY),
        failure=told.failure,
        evidence=told.evidence,
        signature=failure.signature(told.evidence or said),
        suspects=_suspects(told, first, ended, where),
        rank=first.rank,
    )


def _suspects(told: Told, first: Ended, ended: Sequence[Ended], where: Mapping[int, str]) -> list[str]:
    if told.failure in (Failure.DRIVER, Failure.OUT_OF_MEMORY):
        return [first.node]
    if told.failure is not Failure.COMMUNICATION:
        return []
    if named := _BARRIER.search(first.log):
        late = {where[int(rank)] for rank in named.group(1).split(",") if int(rank) in where}
        return sorted(late)
    if not _followed(first):
        return [first.node]
    # All say that somebody was late or gone: the node that said nothing, if the others agree.
    spoke = {end.node for end in ended if end.exit_code != -signal.SIGTERM}
    silent = set(where.values()) - spoke
    return sorted(silent) if len(silent) == 1 else []


def sentence(end: Ended, for_memory: bool = False) -> str:
    """``rank 1 on worker-2 (10.0.0.3) exited 1: ValueError: …``."""
    return f"rank {end.rank} on {end.node} ({end.address}) {how(end.exit_code, end.error, for_memory)}"


def how(exit_code: int, error: str, for_memory: bool = False) -> str:
    """``exited 1: ValueError: …``, for a process whose last error line is known (or empty)."""
    if exit_code >= 0:
        return f"exited {exit_code}{f': {error}' if error else ', without a word in its log'}"
    last = f"; its last line: {error}" if error else ", without a word in its log"
    if -exit_code == signal.SIGKILL:
        # The kernel's out-of-memory killer leaves no trace in the process' own output.
        return f"was killed by SIGKILL, {'' if for_memory else 'possibly '}for want of memory{last}"
    if -exit_code == signal.SIGBUS:
        return f"was ended by SIGBUS, as when /dev/shm is full or a mapped file was cut{last}"
    return f"was ended by {signal_name(-exit_code)}{last}"


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _followed(end: Ended) -> int:
    if end.exit_code == -signal.SIGTERM:
        return 2
    return 1 if failure.is_consequence(end.error) else 0
