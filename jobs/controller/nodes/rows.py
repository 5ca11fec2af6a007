"""The journal's rows of holds, drains and permits. A hold that is over has no row: the audit tells of it."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from jobs.controller.nodes.holds import HoldRecord
from jobs.nodeview import Drain
from jobs.wire import Permit

TABLES = (
    "CREATE TABLE holds (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE drains (id TEXT PRIMARY KEY, at REAL NOT NULL, ended INTEGER NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX drains_newest ON drains (at DESC, id)",
    "CREATE TABLE permits (id TEXT PRIMARY KEY, at REAL NOT NULL, body TEXT NOT NULL) WITHOUT ROWID",
)


@dataclass(frozen=True, slots=True)
class NodeRows:
    """What is to be written of nodes, in one transaction."""

    holds: tuple[HoldRecord, ...] = ()
    over: tuple[str, ...] = ()
    """Ids of holds that are over."""
    drains: tuple[Drain, ...] = ()
    permits: tuple[Permit, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.holds or self.over or self.drains or self.permits)


def write(database: sqlite3.Connection, rows: NodeRows) -> None:
    """All of them; inside a transaction of the caller's."""
    for record in rows.holds:
        database.execute(
            "INSERT INTO holds (id, body) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body",
            (record.hold.id, record.model_dump_json()),
        )
    database.executemany("DELETE FROM holds WHERE id = ?", [(each,) for each in rows.over])
    for drain in rows.drains:
        database.execute(
            "INSERT INTO drains (id, at, ended, body) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET ended = excluded.ended, body = excluded.body",
            (drain.id, drain.at, int(drain.ended_at is not None), drain.model_dump_json()),
        )
    for permit in rows.permits:
        database.execute(
            "INSERT INTO permits (id, at, body) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body",
            (permit.id, permit.at, permit.model_dump_json()),
        )


def prune(database: sqlite3.Connection, before: float, at_most: int) -> int:
    """Drop old drains that ended, and old permits; how many."""
    drains = database.execute(
        "DELETE FROM drains WHERE id IN (SELECT id FROM drains WHERE ended = 1 AND at < ? LIMIT ?)", (before, at_most)
    )
    permits = database.execute(
        "DELETE FROM permits WHERE id IN (SELECT id FROM permits WHERE at < ? LIMIT ?)", (before, at_most)
    )
    return drains.rowcount + permits.rowcount
