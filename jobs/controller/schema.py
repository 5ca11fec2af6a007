"""The journal's tables, the rows of a run, and the ways from older tables to these. Each way is one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import Any

from jobs.controller.health import rows as alert_rows
from jobs.controller.nodes import rows as node_rows
from jobs.controller.record import Record
from jobs.model import Run, RunState

VERSION = 4

_RUNS = (
    "CREATE TABLE runs (id TEXT PRIMARY KEY, state TEXT NOT NULL, workflow TEXT NOT NULL, release TEXT NOT NULL,"
    " sweep TEXT NOT NULL, rollback TEXT NOT NULL, submitted_at REAL NOT NULL, ended INTEGER NOT NULL, ended_at REAL,"
    " seconds REAL, checkpoint INTEGER, body TEXT NOT NULL)",
    "CREATE INDEX runs_newest ON runs (submitted_at DESC, id)",
    "CREATE INDEX runs_active ON runs (submitted_at, id) WHERE ended = 0",
    "CREATE INDEX runs_ended ON runs (ended_at DESC, id) WHERE ended = 1",
    "CREATE INDEX runs_of_sweep ON runs (sweep, submitted_at DESC, id) WHERE sweep <> ''",
    "CREATE INDEX runs_of_release ON runs (release, submitted_at, id, state, rollback)",
    "CREATE INDEX runs_took ON runs (workflow, ended_at DESC, seconds) WHERE state = 'succeeded'",
    "CREATE INDEX runs_saved ON runs (release, submitted_at, id, checkpoint) WHERE checkpoint IS NOT NULL",
    "CREATE TABLE moves (id INTEGER PRIMARY KEY, run TEXT NOT NULL, at REAL NOT NULL, attempt INTEGER NOT NULL,"
    " before TEXT, after TEXT NOT NULL, cause TEXT NOT NULL, actor TEXT NOT NULL)",
    "CREATE INDEX moves_of_run ON moves (run, id)",
)
_RELEASES = (
    "CREATE TABLE releases (id TEXT PRIMARY KEY, workflow TEXT NOT NULL, created_at REAL NOT NULL, body TEXT NOT NULL)"
    " WITHOUT ROWID",
    "CREATE INDEX releases_newest ON releases (workflow, created_at DESC)",
)
_REQUESTS = (
    "CREATE TABLE requests (id TEXT PRIMARY KEY, digest TEXT NOT NULL, answer TEXT NOT NULL, at REAL NOT NULL)"
    " WITHOUT ROWID",
)
_AUDIT = (
    "CREATE TABLE audit (seq INTEGER PRIMARY KEY, at REAL NOT NULL, user TEXT NOT NULL, action TEXT NOT NULL,"
    " target TEXT NOT NULL, allowed INTEGER NOT NULL, reason TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER audit_is_final BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END",
    "CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END",
)
_SINCE_2 = (
    "CREATE TABLE rollbacks (id TEXT PRIMARY KEY, workflow TEXT NOT NULL, at REAL NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX rollbacks_newest ON rollbacks (at DESC, id)",
    "CREATE INDEX releases_of_all ON releases (created_at DESC)",
    "CREATE INDEX requests_by_age ON requests (at)",
)


def migrate(database: sqlite3.Connection) -> None:
    """Bring the tables to `VERSION`, from nothing or from an older one. Killed halfway it has done nothing."""
    version = version_of(database)
    if version == VERSION:
        return
    database.execute("BEGIN IMMEDIATE")
    try:
        if version == 0:
            _each(database, (*_RUNS, *_RELEASES, *_REQUESTS, *_AUDIT, *_SINCE_2))
        elif version == 1:
            _from_1(database)
        if version < 3:
            _each(database, node_rows.TABLES)
        _each(database, alert_rows.TABLES)
        database.execute(f"PRAGMA user_version={VERSION}")
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def version_of(database: sqlite3.Connection) -> int:
    """Which tables the file has; 0 for none."""
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _from_1(database: sqlite3.Connection) -> None:
    """Runs get the columns that lists are made from. What kind a run is stood beside its launch then."""
    _each(database, ("ALTER TABLE runs RENAME TO runs_1", "DROP INDEX runs_newest", "DROP INDEX runs_active"))
    _each(database, _RUNS)
    for (body,) in database.execute("SELECT body FROM runs_1 ORDER BY submitted_at, id").fetchall():
        kept: dict[str, Any] = json.loads(body)
        kept["launch"].setdefault("kind", kept["run"].get("kind", "train"))
        put(database, Record.model_validate(kept))
    _each(database, ("DROP TABLE runs_1", "ALTER TABLE requests RENAME COLUMN run TO answer", *_SINCE_2))


def _each(database: sqlite3.Connection, statements: Iterable[str]) -> None:
    """One by one: `executescript` would end the transaction that they belong to."""
    for statement in statements:
        database.execute(statement)


def put(database: sqlite3.Connection, record: Record) -> None:
    """The row of a run as it stands now, and rows for its moves that have none yet."""
    run = record.run
    database.execute(
        "INSERT INTO runs (id, state, workflow, release, sweep, rollback, submitted_at, ended, ended_at, seconds,"
        " checkpoint, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
        " state = excluded.state, ended = excluded.ended, ended_at = excluded.ended_at, seconds = excluded.seconds,"
        " checkpoint = excluded.checkpoint, body = excluded.body",
        (
            run.id,
            run.state.value,
            run.workflow,
            run.release,
            run.sweep,
            run.rollback,
            run.submitted_at,
            int(run.state.ended),
            run.ended_at,
            _seconds(record),
            newest_checkpoint(run),
            record.model_dump_json(),
        ),
    )
    for move in record.unwritten:
        before = move.before.value if move.before is not None else None
        database.execute(
            "INSERT INTO moves (run, at, attempt, before, after, cause, actor) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (run.id, move.at, move.attempt, before, move.after.value, move.cause, move.actor),
        )


def newest_checkpoint(run: Run) -> int | None:
    """The newest complete checkpoint that an attempt of the run told of; the storage may know better."""
    for attempt in reversed(run.attempts):
        for told in (attempt.outcome, attempt.status):
            if told is not None and told.checkpoint_step is not None:
                return told.checkpoint_step
    return None


def _seconds(record: Record) -> float | None:
    """How long a run that succeeded ran; None for any other, whose time tells nothing of the next one's."""
    run = record.run
    if run.state is not RunState.SUCCEEDED:
        return None
    if record.ran_seconds:
        return record.ran_seconds
    return run.ended_at - run.started_at if run.ended_at is not None and run.started_at is not None else None
