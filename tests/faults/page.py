"""The matrix as a page that is kept: a row for each fault, each the newest that was found."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.fault import Result

HEAD = """\
# The fault matrix

What `python -m tests.faults --write` found, row by row: real hosts in network namespaces, real Ray, GPUs simulated or
behind NVIDIA's library with a stand-in in C. The time that a rule wants to see its condition hold is in the seconds.

| fault | seconds to the alert | alert | cause and culprit named | false alarms | what triage said |
| --- | ---: | --- | --- | ---: | --- |
"""
_ROW = re.compile(r"\| (?P<fault>.+?) \| (?P<seconds>[\d.]+|-) \| (?P<alert>\S+) \| (?P<named>yes|\*\*no\*\*) \| (?P<alarms>\d+) \| (?P<said>.*) \|$")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One fault, as it went."""

    fault: str
    seconds: float | None
    alert: str
    named: bool
    alarms: int
    said: str

    @classmethod
    def of(cls, result: Result) -> Row:
        """What is kept of a result."""
        seconds = None if result.detected_seconds is None else round(result.detected_seconds, 1)
        said = (result.headline or result.trouble).replace("|", "/").replace("\n", " ")
        return cls(result.fault, seconds, result.alert or "-", result.named, len(result.false_alarms), said)

    def __str__(self) -> str:
        seconds = "-" if self.seconds is None else f"{self.seconds:.1f}"
        named = "yes" if self.named else "**no**"
        return f"| {self.fault} | {seconds} | {self.alert} | {named} | {self.alarms} | {self.said} |"


def total(rows: Sequence[Row]) -> str:
    """All of it in one line."""
    seen = [row.seconds for row in rows if row.seconds is not None]
    named = sum(row.named for row in rows)
    median = f"{statistics.median(seen):.1f} s" if seen else "-"
    return (
        f"faults {len(rows)}, named {named}, wrong {len(rows) - named}, "
        f"false alarms {sum(row.alarms for row in rows)}, median detection {median}"
    )


def read(path: Path) -> dict[str, Row]:
    """What was kept, by fault; empty where there is no such page."""
    if not path.exists():
        return {}
    found = [match for line in path.read_text(encoding="utf-8").splitlines() if (match := _ROW.match(line))]
    return {
        row["fault"]: Row(
            row["fault"],
            None if row["seconds"] == "-" else float(row["seconds"]),
            row["alert"],
            row["named"] == "yes",
            int(row["alarms"]),
            row["said"],
        )
        for row in found
    }


def write(path: Path, rows: Mapping[str, Row], order: Iterable[str]) -> None:
    """Keep these, in this order; of faults that are no more nothing is kept."""
    kept = [rows[fault] for fault in order if fault in rows]
    text = HEAD + "".join(f"{row}\n" for row in kept) + f"\n    {total(kept)}\n"
    path.write_text(text, encoding="utf-8")
