"""The log that a piece of evidence stands in, and the lines around it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobs.triage.evidence import Evidence, LogLine
from jobs.triage.findings import Finding, Item

AROUND = 40

_PLACE = re.compile(r"(?P<file>[^:]+?)(?::(?P<number>\d{1,12}))?(?: on (?P<node>.+))?")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Some lines of a log, and which of them is meant."""

    title: str
    lines: Sequence[LogLine]
    at: int
    """The index in ``lines`` of the one that is meant."""


def logs(evidence: Evidence) -> Iterator[tuple[str, str, Sequence[LogLine]]]:
    """Every log that was read: its name, its node (empty where it is not known), its lines."""
    for rank in evidence.ranks:
        if rank.log:
            yield rank.log_path.rpartition("/")[2] or f"rank-{rank.rank}.log", rank.node, rank.log
    if evidence.run is not None and evidence.run.driver_log:
        yield evidence.run.driver_log_path.rpartition("/")[2] or "driver log", "", evidence.run.driver_log
    for node in evidence.nodes.values():
        if node.kernel:
            yield "kernel log", node.name, node.kernel
        if node.raylet:
            yield "raylet log", node.name, node.raylet


def excerpt(evidence: Evidence, finding: Finding) -> Excerpt | None:
    """The lines around the first of a finding's evidence that stands in a log; None where none does."""
    for item in finding.evidence:
        found = _of_item(evidence, item)
        if found is not None:
            return found
    return None


def _of_item(evidence: Evidence, item: Item) -> Excerpt | None:
    place = _PLACE.fullmatch(item.place)
    if place is None:
        return None
    for file, node, lines in logs(evidence):
        if file != place["file"] or (place["node"] and node and node != place["node"]):
            continue
        at = _index(lines, int(place["number"]) if place["number"] else None, item)
        if at is not None:
            begin = max(0, at - AROUND)
            where = f"{file}{f' on {node}' if node else ''}"
            return Excerpt(where, lines[begin : at + AROUND + 1], at - begin)
    return None


def _index(lines: Sequence[LogLine], number: int | None, item: Item) -> int | None:
    if number is not None and lines and lines[0].number is not None:
        at = number - lines[0].number
        return at if 0 <= at < len(lines) else None
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].wall == item.wall and _same(lines[at].text, item.text):
            return at
    return None


def _same(line: str, shown: str) -> bool:
    """Whether a line is the one that was cut and cleaned to be shown."""
    flat = "".join(sign if sign.isprintable() else " " for sign in line).strip()
    return flat.startswith(shown.rstrip("…"))
