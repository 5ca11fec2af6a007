"""What happened, in one order by the head's clock: moves of runs, alerts, requests, events, ends of ranks. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.alertview import Alert
from jobs.model import Move
from jobs.recordview import Mark
from jobs.triage.evidence import Evidence, NodeEvidence, Truth
from jobs.wire import AuditEntry

TOLD = ("node", "event", "note")
WELL = ("up", "alive", "ok", "none", "unknown", "connecting")
"""States that say nothing: since when they are so is since when this console looks."""


@dataclass(frozen=True, slots=True)
class Happened:
    """One thing, at one moment."""

    at: float
    """Wall seconds by the head's clock."""
    kind: str
    """``run``, ``rank``, ``alert``, ``audit``, ``event``, ``node`` or ``step``."""
    what: str
    """What it is about."""
    text: str

    def document(self) -> dict[str, Any]:
        """As a line of NDJSON has it."""
        return {"at": round(self.at, 3), "utc": utc(self.at), "kind": self.kind, "what": self.what, "text": self.text}


def utc(wall: float) -> str:
    """``2026-05-28T20:26:40.123Z``."""
    whole = int(wall // 1)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int((wall - whole) * 1000):03d}Z"


def timeline(
    evidence: Evidence,
    moves: Mapping[str, Sequence[Move]],
    alerts: Iterable[Alert],
    audit: Iterable[AuditEntry],
    marks: Iterable[Mark] = (),
) -> list[Happened]:
    """All that is dated, oldest first; things of one moment in a fixed order."""
    found = [
        *_moves(moves),
        *_alerts(alerts),
        *(
            Happened(each.at, "audit", each.target,
                     f"{each.user}: {each.action}, {'allowed' if each.allowed else 'refused'}"
                     + (f": {each.reason}" if each.reason else ""))
            for each in audit
        ),
        # Runs and alerts tell of themselves, with more words.
        *(Happened(mark.at, mark.kind, mark.target, mark.text) for mark in marks if mark.kind in TOLD),
        *(each for node in evidence.nodes.values() for each in _node(node)),
        *_ranks(evidence),
    ]  # fmt: skip
    return sorted(found, key=lambda each: (each.at, each.kind, each.what, each.text))


def _moves(moves: Mapping[str, Sequence[Move]]) -> Iterator[Happened]:
    for run, made in moves.items():
        for move in made:
            before = f"{move.before.value} to " if move.before is not None else ""
            attempt = f", attempt {move.attempt}" if move.attempt else ""
            cause = f": {move.cause}" if move.cause else ""
            who = f" ({move.actor})" if move.actor else ""
            yield Happened(move.at, "run", run, f"{before}{move.after.value}{attempt}{cause}{who}")


def _alerts(alerts: Iterable[Alert]) -> Iterator[Happened]:
    for alert in alerts:
        on = ", ".join(alert.entities[:8])
        yield Happened(alert.since, "alert", on, f"{alert.level}: {alert.title} ({alert.rule})")
        if alert.ended_at is not None:
            why = f" by {alert.cleared_by}: {alert.cleared_reason}" if alert.cleared_by else ""
            yield Happened(alert.ended_at, "alert", on, f"over{why}: {alert.title} ({alert.rule})")
        if alert.acknowledged is not None:
            yield Happened(alert.acknowledged.at, "alert", on,
                           f"{alert.acknowledged.user} has it: {alert.acknowledged.reason}")  # fmt: skip


def _node(node: NodeEvidence) -> Iterator[Happened]:
    truths: tuple[tuple[str, Truth], ...] = (("SSH", node.ssh), ("Ray", node.ray), ("driver", node.driver))
    for name, truth in truths:
        if truth.since is not None and truth.state not in WELL:
            yield Happened(truth.since, "node", node.name,
                           f"{name}: {truth.state}{f': {truth.reason}' if truth.reason else ''}")  # fmt: skip
    for event in node.events:
        if event.wall:
            yield Happened(event.wall, "event", node.name, f"{event.kind}: {event.text}")


def _ranks(evidence: Evidence) -> Iterator[Happened]:
    run = evidence.run.run.id if evidence.run is not None else ""
    for rank in evidence.ranks:
        if rank.ended_at is not None:
            where = f" on {rank.node}" if rank.node else ""
            yield Happened(rank.ended_at, "rank", f"{run} rank {rank.rank}", f"ended with {rank.exit_code}{where}")
    course = evidence.run.course if evidence.run is not None else []
    for point in (course[:1] + course[-1:]) if course else []:
        if point.wall:
            yield Happened(point.wall, "step", run, f"step {point.step}, loss {point.loss}")
