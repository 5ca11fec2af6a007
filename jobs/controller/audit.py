"""The audit's rows: append-only, each carrying the hash of the one before, so that a change afterwards is found."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jobs.wire import AuditEntry

GENESIS = "0" * 64
"""What stands for the hash before the first entry."""
_COLUMNS = "seq, at, user, action, target, allowed, reason, hash"


@dataclass(frozen=True, slots=True)
class Act:
    """What somebody asked for, as it goes into the audit."""

    user: str
    action: str
    """``launch``, ``stop`` …"""
    target: str
    """The run, workflow or package that it is about."""
    allowed: bool
    reason: str = ""
    """The user's own words, or why it was refused."""


@dataclass(frozen=True, slots=True)
class Link:
    """The newest entry, which the next one carries on from."""

    seq: int = 0
    hash: str = GENESIS


def entry_hash(before: str, entry: AuditEntry) -> str:
    """The hash of an audit entry: SHA-256 over the one before and the entry as canonical JSON without its hash."""
    body = entry.model_dump(exclude={"hash"})
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{before}\n{canonical}".encode()).hexdigest()


def append(database: sqlite3.Connection, last: Link, act: Act, at: float) -> Link:
    """Write the entry after ``last``, and give the link that it is."""
    entry = AuditEntry(
        seq=last.seq + 1,
        at=at,
        user=act.user,
        action=act.action,
        target=act.target,
        allowed=act.allowed,
        reason=act.reason,
        hash="",
    )
    digest = entry_hash(last.hash, entry)
    database.execute(
        f"INSERT INTO audit ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 — a constant
        (entry.seq, at, act.user, act.action, act.target, int(act.allowed), act.reason, digest),
    )
    return Link(entry.seq, digest)


def newest(database: sqlite3.Connection) -> Link:
    """The newest entry's link."""
    row = database.execute("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
    return Link(int(row[0]), str(row[1])) if row else Link()


def entries(database: sqlite3.Connection, limit: int) -> list[AuditEntry]:
    """The newest entries, newest first."""
    rows = database.execute(f"SELECT {_COLUMNS} FROM audit ORDER BY seq DESC LIMIT ?", (limit,))  # noqa: S608
    return list(map(_entry, rows))


def broken(database: sqlite3.Connection) -> str:
    """Empty if the chain holds from the first entry to the last, else what is wrong, in words."""
    rows: Iterable[Any] = database.execute(f"SELECT {_COLUMNS} FROM audit ORDER BY seq")  # noqa: S608
    before, expected = GENESIS, 1
    for row in rows:
        entry = _entry(row)
        if entry.seq != expected:
            return f"entry {expected} is missing: the next one is {entry.seq}"
        if entry.hash != entry_hash(before, entry):
            return f"entry {entry.seq} ({entry.action} {entry.target} by {entry.user}) was changed afterwards"
        before, expected = entry.hash, expected + 1
    return ""


def _entry(row: Any) -> AuditEntry:
    seq, at, user, action, target, allowed, reason, digest = row
    return AuditEntry(
        seq=int(seq),
        at=float(at),
        user=user,
        action=action,
        target=target,
        allowed=bool(allowed),
        reason=reason,
        hash=digest,
    )
