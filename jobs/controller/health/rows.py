"""The journal's rows of alerts, silences, and what the rules and the ways out remember over a restart."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.alertview import Alert, Silence

TABLES = (
    "CREATE TABLE alerts (id TEXT PRIMARY KEY, since REAL NOT NULL, ended INTEGER NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX alerts_newest ON alerts (since DESC, id)",
    "CREATE INDEX alerts_firing ON alerts (since) WHERE ended = 0",
    "CREATE TABLE silences (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE remembered (name TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
)


@dataclass(frozen=True, slots=True)
class AlertRows:
    """What is to be written of alerts, in one transaction."""

    alerts: tuple[Alert, ...] = ()
    silences: tuple[Silence, ...] = ()
    over: tuple[str, ...] = ()
    """Ids of silences that are over."""
    remembered: Mapping[str, str] = field(default_factory=dict)
    """By name, JSON: ``engine``, ``notifier``."""

    def __bool__(self) -> bool:
        return bool(self.alerts or self.silences or self.over or self.remembered)


def write(database: sqlite3.Connection, rows: AlertRows) -> None:
    """All of them; inside a transaction of the caller's."""
    database.executemany(
        "INSERT INTO alerts (id, since, ended, body) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET since = excluded.since, ended = excluded.ended, body = excluded.body",
        [(each.id, each.since, int(each.state == "cleared"), each.model_dump_json()) for each in rows.alerts],
    )
    database.executemany(
        "INSERT INTO silences (id, body) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body",
        [(each.id, each.model_dump_json()) for each in rows.silences],
    )
    database.executemany("DELETE FROM silences WHERE id = ?", [(each,) for each in rows.over])
    database.executemany(
        "INSERT INTO remembered (name, body) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body",
        list(rows.remembered.items()),
    )


def prune(database: sqlite3.Connection, before: float, at_most: int) -> int:
    """Drop old alerts that ended; how many."""
    dropped = database.execute(
        "DELETE FROM alerts WHERE id IN (SELECT id FROM alerts WHERE ended = 1 AND since < ? LIMIT ?)",
        (before, at_most),
    )
    return dropped.rowcount
