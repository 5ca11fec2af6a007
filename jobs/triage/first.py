"""Owns the judgement which rank of a gang failed first: by time, never by how loud the others were. Pure.

When one rank ends the others lose it within a tenth of a second, or wait for it until their time-out. What they say
then tells of that. So ranks that only say that a peer went away, or that were asked to end, come last; among the others
the first in time is the one, and what anybody said after the first end counts for nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jobs import failure
from jobs.failure import Told
from jobs.model import Failure, Outcome
from jobs.triage import scan
from jobs.triage.evidence import LogLine, RankEvidence, texts
from jobs.triage.findings import Item
from jobs.triage.patterns import Pattern

AFTER_SECONDS = 2.0
"""What is said so long after the first end can still be the cause: clocks and buffers are not exact."""
TOGETHER_SECONDS = 1.0
"""Ends so close are told apart by their error lines where all have one."""

GANG_SECONDS = 5.0
"""Within so long a gang is ended as a whole after one of its ranks ended."""

END_LINES = 300
"""Of a log: an error that ended a process stands in its last lines."""

OWN, FOLLOWED, ASKED = 0, 1, 2

WAITED = frozenset({"K06", "K07", "K09"})
"""Patterns of those that waited until a time-out."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A rank that failed, and what it said."""

    rank: RankEvidence
    told: Told
    pattern: Pattern | None
    line: Item | None
    """The line that tells it; None where nothing does."""
    standing: int
    """``OWN``, ``FOLLOWED`` (it only lost a peer) or ``ASKED`` (it was told to end)."""

    @property
    def at(self) -> float | None:
        """When it ended, or said so."""
        return self.rank.ended_at if self.rank.ended_at is not None else self.line.wall if self.line else None

    @property
    def how(self) -> str:
        """``exited 1``, ``was killed by SIGKILL``, ``failed``."""
        code = self.rank.exit_code
        number = failure.signal_of(code)
        if code is None:
            return "failed"
        return f"exited {code}" if number is None else f"was ended by {signal_name(number)}"


@dataclass(frozen=True, slots=True)
class First:
    """The rank that failed first, and those after it."""

    ended: Ended
    others: list[Ended] = field(default_factory=list[Ended])
    by: str = ""
    """What tells that it was the first, in words."""

    @property
    def only_followed(self) -> bool:
        """It, too, only lost a peer: the cause is somewhere else."""
        return self.ended.standing != OWN


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def first_end(ranks: Sequence[RankEvidence]) -> float | None:
    """When the first rank ended in failure; None where nobody knows."""
    ends = sorted((rank.ended_at, rank.exit_code) for rank in ranks if rank.exit_code and rank.ended_at is not None)
    # Where its end is known from its last output only, one that hung and was killed for it seems to have ended long
    # before the others. Had it, they would have been ended within seconds.
    while len(ends) > 1 and failure.signal_of(ends[0][1]) == signal.SIGKILL and ends[1][0] - ends[0][0] > GANG_SECONDS:
        ends.pop(0)
    return ends[0][0] if ends else None


def find(ranks: Sequence[RankEvidence], outcome: Outcome | None = None, failed: bool = False) -> First | None:
    """The rank that failed first; None where none did.

    ``failed`` says that the attempt did fail, so that error lines count also where no exit code is known. ``outcome``
    is what the attempt's driver said at its end; it decides where times do not.
    """
    end = first_end(ranks)
    until = None if end is None else end + AFTER_SECONDS
    all_ended = [_ended(rank, until) for rank in ranks if rank.exit_code]
    if not all_ended and failed:
        all_ended = [each for each in (_ended(rank, None) for rank in ranks) if each.line is not None]
    if not all_ended:
        return None
    all_ended = _ended_late(all_ended)
    own = [each for each in all_ended if each.standing == OWN]
    if not own and (late := _silent_before(all_ended, ranks, until)):
        own = late
    best, by = _first_of(own or _least(all_ended), outcome)
    # Of those that were ended with the gang, before they had left by themselves, only their words are known.
    unknown = (_ended(rank, until) for rank in ranks if rank.exit_code is None) if failed and until is not None else ()
    cut_off = [each for each in unknown if each.standing == FOLLOWED and each.line is not None]
    others = sorted(
        (each for each in (*all_ended, *cut_off) if each.rank.rank != best.rank.rank),
        key=lambda each: (each.at is None, each.at or 0.0, each.rank.rank),
    )
    return First(best, others, by)


def _ended_late(ended: Sequence[Ended]) -> list[Ended]:
    """A rank that ended without a word after others had waited for it in vain was ended for being late.

    Had it died by itself, the others would have lost their connections, or been ended with it, instead of waiting until
    the time-out.
    """
    waited = [
        each.rank.ended_at
        for each in ended
        if each.pattern is not None and each.pattern.id in WAITED and each.rank.ended_at is not None
    ]
    if not waited:
        return list(ended)
    begin, end = min(waited) - GANG_SECONDS, min(waited)
    return [
        replace(each, standing=ASKED)
        if each.line is None and each.rank.ended_at is not None and not begin <= each.rank.ended_at < end
        else each
        for each in ended
    ]


def _least(ended: Sequence[Ended]) -> list[Ended]:
    standing = min(each.standing for each in ended)
    return [each for each in ended if each.standing == standing]


def _silent_before(ended: Sequence[Ended], ranks: Sequence[RankEvidence], until: float | None) -> list[Ended]:
    """Ranks that had not complained when the others gave up, and said later what had kept them."""
    if until is None:
        return []
    quiet = {each.rank.rank for each in ended if each.line is None or each.standing == ASKED}
    later = [_ended(rank, None) for rank in ranks if rank.rank in quiet]
    return [each for each in later if each.standing == OWN and each.line is not None]


def _first_of(ended: Sequence[Ended], outcome: Outcome | None) -> tuple[Ended, str]:
    if len(ended) == 1:
        return ended[0], "the only one with an error of its own" if ended[0].standing == OWN else ""
    dated = [each for each in ended if each.at is not None]
    if not dated:
        told = outcome.first_failing_rank if outcome else None
        for each in ended:
            if each.rank.rank == told:
                return each, "as its driver said"
        return min(ended, key=lambda each: each.rank.rank), ""
    first = min(dated, key=lambda each: (each.at or 0.0, each.rank.rank))
    together = [each for each in dated if (each.at or 0.0) - (first.at or 0.0) <= TOGETHER_SECONDS]
    said = [each for each in together if each.line is not None and each.line.wall is not None]
    if len(together) > 1 and len(said) == len(together):
        return min(said, key=lambda each: (each.line.wall or 0.0 if each.line else 0.0, each.at or 0.0)), (
            "its error line is the earliest"
        )
    return first, "it ended first"


def _ended(rank: RankEvidence, until: float | None) -> Ended:
    log = scan.before(rank.log, until)[-END_LINES:]
    told = failure.classify(rank.exit_code, texts(log))
    pattern = scan.best(told.evidence) if told.evidence else None
    line = _where(log, told.evidence, rank)
    if failure.signal_of(rank.exit_code) == signal.SIGTERM and (pattern is None or pattern.secondary):
        standing = ASKED
    elif pattern is not None:
        standing = FOLLOWED if pattern.secondary else OWN
    else:
        standing = FOLLOWED if told.failure is Failure.COMMUNICATION else OWN
    return Ended(rank, told, pattern, line, standing)


def _where(log: Sequence[LogLine], evidence: str, rank: RankEvidence) -> Item | None:
    """The line that the judgement was told from, and where it stands."""
    if not evidence:
        return None
    for line in reversed(log):
        if evidence in line.text:
            return scan.item(line, scan.rank_file(rank), rank.node)
    return Item(scan.rank_file(rank), None, scan.shown(evidence))
