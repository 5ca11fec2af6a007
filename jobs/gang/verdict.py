"""Owns the judgement on a failed gang: which rank failed first, and what it said last. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?::.*)?)$")
_CONSEQUENCE = re.compile(
    r"connection (?:reset|closed|refused)(?: by peer)?|broken pipe|remote process exited|timed out waiting"
    r"|DistBackendError|DistNetworkError|DistStoreError|Socket closed|aborted by",
    re.IGNORECASE,
)
"""What a rank says when *another* one went away."""
MAX_LINE = 300


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
    error: str = ""
    """Its last error line."""


def last_error(text: str) -> str:
    """The last line of a log that names an exception, or else the last that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if found := _ERROR.match(line):
            return found.group(1)[:MAX_LINE]
    return lines[-1][:MAX_LINE] if lines else ""


def first_line(error: BaseException) -> str:
    """What an exception says, in its first line; its name if it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:MAX_LINE] if lines else type(error).__name__


def culprit(ended: Iterable[Ended]) -> Ended | None:
    """The rank that the others followed.

    When one rank dies the others die of it within a tenth of a second, and torchrun ends the rest. So those that only
    lost a peer, or were asked to end, come last; among the others the first in time is the one.
    """
    return min(ended, key=lambda end: (_followed(end), end.ended_at, end.rank), default=None)


def sentence(end: Ended) -> str:
    """``rank 1 on worker-2 (10.0.0.3) exited 1: ValueError: …``."""
    return f"rank {end.rank} on {end.node} ({end.address}) {how(end.exit_code, end.error)}"


def how(exit_code: int, error: str) -> str:
    """``exited 1: ValueError: …``, for a process whose last error line is known (or empty)."""
    if exit_code >= 0:
        return f"exited {exit_code}{f': {error}' if error else ', without a word in its log'}"
    last = f"; its last line: {error}" if error else ", without a word in its log"
    if -exit_code == signal.SIGKILL:
        # The kernel's out-of-memory killer leaves no trace in the process' own output.
        return f"was killed by SIGKILL, possibly for want of memory{last}"
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
    return 1 if _CONSEQUENCE.search(end.error) else 0
