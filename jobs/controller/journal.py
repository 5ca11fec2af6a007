"""The controller's durable memory: one SQLite file, one writer. The only place with SQL.

Each change is one transaction that is on the disk (``synchronous=FULL``) when the call returns, so what was promised
survives ``kill -9`` and a power cut. The audit is append-only, each entry carrying the hash of the one before; triggers
refuse changes to it, and `Journal.verify` finds those that were made behind SQLite's back.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from jobs.controller.record import Record
from jobs.errors import RaydeckError
from jobs.wire import AuditEntry, Release

P = ParamSpec("P")
T = TypeVar("T")

SCHEMA_VERSION = 1
GENESIS = "0" * 64
"""What stands for the hash before the first entry."""

_SCHEMA = """
CREATE TABLE runs (
  id TEXT PRIMARY KEY, state TEXT NOT NULL, workflow TEXT NOT NULL, submitted_at REAL NOT NULL,
  ended INTEGER NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX runs_newest ON runs (submitted_at DESC, id);
CREATE INDEX runs_active ON runs (ended) WHERE ended = 0;
CREATE TABLE releases (
  id TEXT PRIMARY KEY, workflow TEXT NOT NULL, created_at REAL NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX releases_newest ON releases (workflow, created_at DESC);
CREATE TABLE requests (
  id TEXT PRIMARY KEY, digest TEXT NOT NULL, run TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE audit (
  seq INTEGER PRIMARY KEY, at REAL NOT NULL, user TEXT NOT NULL, action TEXT NOT NULL, target TEXT NOT NULL,
  allowed INTEGER NOT NULL, reason TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TRIGGER audit_is_final BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
"""


class JournalError(RaydeckError):
    """The journal cannot be read or written: nothing may be done until it can."""


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
class Answered:
    """A request that was carried out before."""

    run: str
    digest: str
    """Of the request's content: the same id with other content is a mistake of the caller."""


def entry_hash(before: str, entry: AuditEntry) -> str:
    """The hash of an audit entry: SHA-256 over the one before and the entry as canonical JSON without its hash."""
    body = entry.model_dump(exclude={"hash"})
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{before}\n{canonical}".encode()).hexdigest()


class Journal:
    """The file. Every method blocks for as long as the disk takes: use it through a `JournalThread`."""

    def __init__(self, path: Path) -> None:
        """Open or create the file (mode 0600). Raises `JournalError` in words."""
        self._path = path
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            # One thread uses the connection, but not the one that opened it.
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("PRAGMA foreign_keys=ON")
            self._migrate()
            row = self._db.execute("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
        except (sqlite3.Error, OSError) as error:
            raise JournalError(f"the journal {path} cannot be opened: {error}") from error
        self._last_seq, self._last_hash = (int(row[0]), str(row[1])) if row else (0, GENESIS)

    def _migrate(self) -> None:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise JournalError(
                f"the journal {self._path} was written by a newer raydeck (schema {version}, this one knows "
                f"{SCHEMA_VERSION})",
                "Start the controller from the newer version",
            )
        if version == 0:
            self._db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version={SCHEMA_VERSION};COMMIT;")

    def close(self) -> None:
        """Leave the file whole: the write-ahead log is folded in."""
        self._db.close()

    def _write(self, work: Callable[[], None]) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                work()
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise JournalError(
                f"the journal {self._path} cannot be written: {error}", "Nothing was changed; free the disk and repeat"
            ) from error

    def _rows(self, query: str, values: Iterable[object] = ()) -> list[tuple[str, ...]]:
        try:
            return self._db.execute(query, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise JournalError(f"the journal {self._path} cannot be read: {error}") from error

    def _put(self, record: Record) -> None:
        run = record.run
        self._db.execute(
            "INSERT OR REPLACE INTO runs (id, state, workflow, submitted_at, ended, body) VALUES (?, ?, ?, ?, ?, ?)",
            (
                run.id,
                run.state.value,
                run.workflow,
                run.submitted_at,
                int(run.state.ended),
                record.model_dump_json(),
            ),
        )

    def _append(self, act: Act, at: float) -> tuple[int, str]:
        entry = AuditEntry(
            seq=self._last_seq + 1,
            at=at,
            user=act.user,
            action=act.action,
            target=act.target,
            allowed=act.allowed,
            reason=act.reason,
            hash="",
        )
        digest = entry_hash(self._last_hash, entry)
        self._db.execute(
            "INSERT INTO audit (seq, at, user, action, target, allowed, reason, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (entry.seq, at, act.user, act.action, act.target, int(act.allowed), act.reason, digest),
        )
        return entry.seq, digest

    def put_run(self, record: Record) -> None:
        """A run as it stands now."""
        self._write(lambda: self._put(record))

    def accept(
        self, record: Record, act: Act, at: float, *, request: str, digest: str, release: Release | None = None
    ) -> None:
        """What was asked for and allowed, in one transaction: the request, the run, its release, the audit."""
        last: list[tuple[int, str]] = []

        def work() -> None:
            if release is not None:
                self._db.execute(
                    "INSERT OR IGNORE INTO releases (id, workflow, created_at, body) VALUES (?, ?, ?, ?)",
                    (release.id, release.workflow, release.created_at, release.model_dump_json()),
                )
            self._put(record)
            self._db.execute(
                "INSERT INTO requests (id, digest, run, at) VALUES (?, ?, ?, ?)", (request, digest, record.id, at)
            )
            last.append(self._append(act, at))

        self._write(work)
        self._last_seq, self._last_hash = last[0]

    def audit(self, act: Act, at: float) -> None:
        """Append one entry by itself: a refusal, or an action that changes no run."""
        last: list[tuple[int, str]] = []
        self._write(lambda: last.append(self._append(act, at)))
        self._last_seq, self._last_hash = last[0]

    def answered(self, request: str) -> Answered | None:
        """Was this request carried out before?"""
        rows = self._rows("SELECT run, digest FROM requests WHERE id = ?", (request,))
        return Answered(rows[0][0], rows[0][1]) if rows else None

    def run(self, run: str) -> Record | None:
        """One run, whatever its state."""
        rows = self._rows("SELECT body FROM runs WHERE id = ?", (run,))
        return Record.model_validate_json(rows[0][0]) if rows else None

    def active(self) -> list[Record]:
        """All runs that have not ended, oldest first."""
        rows = self._rows("SELECT body FROM runs WHERE ended = 0 ORDER BY submitted_at, id")
        return [Record.model_validate_json(row[0]) for row in rows]

    def newest(self, limit: int) -> list[Record]:
        """The newest runs, newest first."""
        rows = self._rows("SELECT body FROM runs ORDER BY submitted_at DESC, id LIMIT ?", (limit,))
        return [Record.model_validate_json(row[0]) for row in rows]

    def releases(self, workflow: str = "", limit: int = 200) -> list[Release]:
        """The newest releases, of one workflow or of all."""
        where, values = ("WHERE workflow = ?", (workflow, limit)) if workflow else ("", (limit,))
        rows = self._rows(f"SELECT body FROM releases {where} ORDER BY created_at DESC LIMIT ?", values)  # noqa: S608 — a constant
        return [Release.model_validate_json(row[0]) for row in rows]

    def entries(self, limit: int) -> list[AuditEntry]:
        """The newest audit entries, newest first."""
        rows = self._rows(
            "SELECT seq, at, user, action, target, allowed, reason, hash FROM audit ORDER BY seq DESC LIMIT ?", (limit,)
        )
        return [_entry(row) for row in rows]

    def verify(self) -> str:
        """Empty if the audit's chain holds from the first entry to the last, else what is wrong, in words."""
        before, expected = GENESIS, 1
        cursor = self._db.execute("SELECT seq, at, user, action, target, allowed, reason, hash FROM audit ORDER BY seq")
        for row in cursor:
            entry = _entry(row)
            if entry.seq != expected:
                return f"entry {expected} is missing: the next one is {entry.seq}"
            if entry.hash != entry_hash(before, entry):
                return f"entry {entry.seq} ({entry.action} {entry.target} by {entry.user}) was changed afterwards"
            before, expected = entry.hash, expected + 1
        return ""


def _entry(row: tuple[str, ...]) -> AuditEntry:
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


class JournalThread:
    """The one thread that uses the journal, so that no disk ever holds up the event loop."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")

    async def __call__(self, method: Callable[Concatenate[Journal, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``Journal.method`` there. It is carried out even if the caller is cancelled meanwhile."""
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._thread, lambda: method(self._journal, *args, **kwargs)))

    def close(self) -> None:
        """Finish what was begun, and close the file. Blocks for as long as that takes."""
        self._thread.shutdown(wait=True)
        self._journal.close()
