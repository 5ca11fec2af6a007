"""How the runs of each release stand, counted in the journal without reading them."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """How the runs of a release stand, counted."""

    release: str
    workflow: str
    created_at: float
    runs: int
    succeeded: int
    launched_at: float | None
    """When it was last launched by somebody, and not by a rollback."""
    newest: str
    """Its newest run's id."""
    newest_at: float
    saved: str | None
    """Its newest run that told of a complete checkpoint."""
    checkpoint: int | None
    """That checkpoint's step."""

    @property
    def place(self) -> float:
        """Where it stands in its workflow's history: a rollback to it does not make it newer than what it replaced."""
        return self.created_at if self.launched_at is None else self.launched_at


def counted(database: sqlite3.Connection, workflow: str = "") -> list[Standing]:
    """All releases (of one workflow) that were ever run."""
    where, values = ("WHERE releases.workflow = ?", (workflow,)) if workflow else ("", ())
    rows = database.execute(
        "SELECT counted.release, releases.workflow, releases.created_at, counted.runs, counted.succeeded,"  # noqa: S608
        " counted.launched_at, newest.id, newest.at, saved.id, saved.checkpoint FROM (SELECT release,"
        " count(*) AS runs, sum(state = 'succeeded') AS succeeded,"
        " max(CASE WHEN rollback = '' THEN submitted_at END) AS launched_at FROM runs GROUP BY release) AS counted"
        " JOIN (SELECT release, id, max(submitted_at) AS at FROM runs GROUP BY release) AS newest"
        " ON newest.release = counted.release"
        " LEFT JOIN (SELECT release, id, checkpoint, max(submitted_at) FROM runs WHERE checkpoint IS NOT NULL"
        " GROUP BY release) AS saved ON saved.release = counted.release"
        f" JOIN releases ON releases.id = counted.release {where}",
        values,
    ).fetchall()
    return [Standing(*row) for row in rows]
