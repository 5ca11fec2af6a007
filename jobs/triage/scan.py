"""Finds the known lines in logs, with the place and the time of each. Pure; any text is fine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from jobs.triage.evidence import LogLine, NodeEvidence, RankEvidence
from jobs.triage.findings import Item
from jobs.triage.patterns import PATTERNS, Pattern

MAX_LINE = 600
"""Of a line, in characters: what is searched."""
MAX_LINES = 2000
"""Of one log: the newest so many."""
SHOWN = 300


@dataclass(frozen=True, slots=True)
class Hit:
    """One line that a pattern knows."""

    pattern: Pattern
    item: Item
    node: str = ""
    rank: int | None = None
    groups: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def wall(self) -> float | None:
        """When it was said."""
        return self.item.wall


_WORDS = tuple((word, at) for at, pattern in enumerate(PATTERNS) for word in pattern.words)


def matches(text: str) -> Iterator[tuple[Pattern, re.Match[str]]]:
    """The patterns that a line fits, in the order of the table."""
    line = text[:MAX_LINE]
    lower = line.lower()
    for at in sorted({at for word, at in _WORDS if word in lower}):
        found = PATTERNS[at].regex.search(line)
        if found:
            yield PATTERNS[at], found


def known(text: str) -> list[Pattern]:
    """The same without where they fit."""
    return [pattern for pattern, _ in matches(text)]


def best(text: str) -> Pattern | None:
    """The pattern that says most about a line: one that is a cause before one that is a consequence, then by weight."""
    found = known(text)
    return min(found, key=lambda pattern: (pattern.secondary, pattern.weight)) if found else None


def hits(log: Sequence[LogLine], file: str, node: str = "", rank: int | None = None) -> list[Hit]:
    """All known lines of a log, oldest first. ``file`` is what its lines are named after."""
    found: list[Hit] = []
    for line in log[-MAX_LINES:]:
        for pattern, match in matches(line.text):
            groups = {name: value for name, value in match.groupdict().items() if value}
            found.append(Hit(pattern, item(line, file, node), node, rank, groups))
    return found


def item(line: LogLine, file: str, node: str = "") -> Item:
    """A line as evidence."""
    number = "" if line.number is None else f":{line.number}"
    return Item(f"{file}{number}" + (f" on {node}" if node else ""), line.wall, shown(line.text))


def shown(text: str) -> str:
    """A text as it may be shown: one line, no control characters, not endless."""
    flat = "".join(sign if sign.isprintable() else " " for sign in text[: 2 * SHOWN]).strip()
    return flat if len(flat) <= SHOWN else f"{flat[: SHOWN - 1]}…"


def as_sentence(text: str) -> str:
    """A text of the cluster's as a sentence of ours: as `shown`, with a full stop."""
    flat = shown(text)
    return flat if not flat or flat.endswith((".", "…")) else f"{flat}."


def rank_file(rank: RankEvidence) -> str:
    """The name of a rank's log, as evidence calls it."""
    return rank.log_path.rpartition("/")[2] or f"rank-{rank.rank}.log"


def of_rank(rank: RankEvidence, until: float | None = None) -> list[Hit]:
    """The known lines of a rank's log, up to a moment; lines without a time count as before it."""
    return hits(before(rank.log, until), rank_file(rank), rank.node, rank.rank)


def of_kernel(node: NodeEvidence) -> list[Hit]:
    """The known lines of a node's kernel log."""
    return hits(node.kernel, "kernel log", node.name)


def before(log: Sequence[LogLine], until: float | None) -> list[LogLine]:
    """The lines that were said up to a moment; those without a time are kept."""
    return [line for line in log if until is None or line.wall is None or line.wall <= until]


def primary(found: Iterable[Hit]) -> list[Hit]:
    """Those that can be a cause."""
    return [hit for hit in found if not hit.pattern.secondary]
