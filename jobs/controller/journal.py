"""The controller's durable memory: one SQLite file, one writer.

Each change is one transaction that is on the disk (``synchronous=FULL``) when the call returns, so what was promised
survives ``kill -9`` and a power cut. `jobs.controller.schema` has its tables, `jobs.controller.audit` its chain.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from pydantic import BaseModel, ValidationError

from jobs.alertview import Alert, Silence
from jobs.controller import audit, schema, standings
from jobs.controller.audit import Act
from jobs.controller.database import RESTORE_HINT, JournalError, connect, damage, told
from jobs.controller.health import rows as alert_rows
from jobs.controller.health.rows import AlertRows
from jobs.controller.nodes import rows as node_rows
from jobs.controller.nodes.holds import HoldRecord
from jobs.controller.nodes.rows import NodeRows
from jobs.controller.record import Record
from jobs.controller.standings import Standing
from jobs.model import Move, RunState
from jobs.nodeview import Drain
from jobs.wire import AuditEntry, Permit, Release, Rollback

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

TOOK_RUNS = 20
"""So many of the newest runs that succeeded tell how long the next one takes."""
PRUNED_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that was carried out before."""

    answer: str
    """The id of the run, sweep or rollback that came of it."""
    digest: str
    """Of the request's content: the same id with other content is a mistake of the caller."""


class Journal:
    """The file. Every method blocks for as long as the disk takes: use it through a `JournalThread`."""

    def __init__(self, path: Path) -> None:
        """Open or create the file (mode 0600). Raises `JournalError`, in words, also for one that is damaged."""
        self._path = path
        self.trouble = ""
        """Why the last change could not be written; empty if it was."""
        try:
            self._db = connect(path)
        except sqlite3.Error as error:
            raise told(path, "opened", error) from error
        try:
            found = damage(self._db)
            if found:
                raise JournalError(f"the journal {path} is damaged: {found}", RESTORE_HINT)
            version = schema.version_of(self._db)
            if version > schema.VERSION:
                raise JournalError(
                    f"the journal {path} was written by a newer raydeck (schema {version}, this one knows "
                    f"{schema.VERSION})",
                    "Start the controller from the newer version",
                )
            schema.migrate(self._db)
            self._last = audit.newest(self._db)
        except sqlite3.Error as error:
            self._db.close()
            raise told(path, "opened", error) from error
        except (ValidationError, ValueError, KeyError) as error:
            self._db.close()
            raise JournalError(f"the journal {path} holds a run that cannot be understood", RESTORE_HINT) from error
        except BaseException:
            self._db.close()
            raise

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._path

    def close(self) -> None:
        """Leave the file whole: the write-ahead log is folded in."""
        self._db.close()

    def _write(self, work: Callable[[], T]) -> T:
        try:
            if self._db.in_transaction:  # its rollback failed too, when the disk did
                self._db.execute("ROLLBACK")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                result = work()
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            failed = told(self._path, "written", error)
            self.trouble = str(failed)
            raise failed from error
        self.trouble = ""
        return result

    def _read(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.Error as error:
            raise told(self._path, "read", error) from error

    def _rows(self, query: str, values: Iterable[object] = ()) -> list[Any]:
        return self._read(lambda: self._db.execute(query, tuple(values)).fetchall())

    def _bodies(self, model: type[M], query: str, values: Iterable[object] = ()) -> list[M]:
        """The rows' bodies. One that cannot be understood is never passed over."""
        rows = self._rows(query, values)
        try:
            return [model.model_validate_json(row[0]) for row in rows]
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise JournalError(
                f"the journal {self._path} holds a {model.__name__.lower()} that cannot be understood: "
                f"{where}: {first['msg']}",
                "Start the controller from the version that wrote it, or restore: raydeck controller restore",
            ) from error

    # --- writing ------------------------------------------------------------------------------------------------------

    def put_run(self, record: Record) -> None:
        """A run as it stands now, and the moves that it made since."""
        self._write(lambda: schema.put(self._db, record))

    def accept(
        self,
        records: Sequence[Record],
        act: Act,
        at: float,
        *,
        request: str,
        digest: str,
        answer: str,
        releases: Sequence[Release] = (),
        rollback: Rollback | None = None,
        nodes: NodeRows | None = None,
        alerts: AlertRows | None = None,
    ) -> None:
        """What was asked for and allowed, in one transaction: the request, the runs, their releases, nodes, the audit.

        ``answer`` is the id of the run, sweep or rollback that a repeat of the request gets.
        """

        def work() -> audit.Link:
            for release in releases:
                self._db.execute(
                    "INSERT OR IGNORE INTO releases (id, workflow, created_at, body) VALUES (?, ?, ?, ?)",
                    (release.id, release.workflow, release.created_at, release.model_dump_json()),
                )
            for record in records:
                schema.put(self._db, record)
            if rollback is not None:
                self._put_rollback(rollback)
            if nodes is not None:
                node_rows.write(self._db, nodes)
            if alerts is not None:
                alert_rows.write(self._db, alerts)
            self._db.execute(
                "INSERT INTO requests (id, digest, answer, at) VALUES (?, ?, ?, ?)", (request, digest, answer, at)
            )
            return audit.append(self._db, self._last, act, at)

        self._last = self._write(work)

    def audit(self, act: Act, at: float) -> None:
        """Append one entry by itself: a refusal, or an action that changes no run."""
        self._last = self._write(lambda: audit.append(self._db, self._last, act, at))

    def put_nodes(self, nodes: NodeRows, acts: Sequence[tuple[Act, float]] = ()) -> None:
        """Holds, drains and permits as they stand now, and what the audit is to say of it."""

        def work() -> audit.Link:
            node_rows.write(self._db, nodes)
            last = self._last
            for act, at in acts:
                last = audit.append(self._db, last, act, at)
            return last

        self._last = self._write(work)

    def put_alerts(self, rows: AlertRows) -> None:
        """Alerts and silences as they stand now, and what is to be remembered."""
        self._write(lambda: alert_rows.write(self._db, rows))

    def put_rollback(self, rollback: Rollback) -> None:
        """A rollback as it stands now."""
        self._write(lambda: self._put_rollback(rollback))

    def _put_rollback(self, rollback: Rollback) -> None:
        self._db.execute(
            "INSERT INTO rollbacks (id, workflow, at, body) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET body = excluded.body",
            (rollback.id, rollback.workflow, rollback.at, rollback.model_dump_json()),
        )

    def prune(self, before: float) -> int:
        """Drop some of the moves of runs that ended before then, and of the ids of older requests; how many.

        0 when nothing is left to drop. The audit stays whole.
        """

        def work() -> int:
            moves = self._db.execute(
                "DELETE FROM moves WHERE id IN (SELECT moves.id FROM runs JOIN moves ON moves.run = runs.id"
                " WHERE runs.ended = 1 AND runs.ended_at < ? LIMIT ?)",
                (before, PRUNED_AT_ONCE),
            )
            requests = self._db.execute(
                "DELETE FROM requests WHERE id IN (SELECT id FROM requests WHERE at < ? LIMIT ?)",
                (before, PRUNED_AT_ONCE),
            )
            others = node_rows.prune(self._db, before, PRUNED_AT_ONCE)
            others += alert_rows.prune(self._db, before, PRUNED_AT_ONCE)
            return moves.rowcount + requests.rowcount + others

        return self._write(work)

    # --- requests and runs --------------------------------------------------------------------------------------------

    def changes(self) -> int:
        """How many rows were changed since it was opened; the same figure means the same content."""
        return self._read(lambda: self._db.total_changes)

    def answered(self, request: str) -> Answered | None:
        """Was this request carried out before?"""
        rows = self._rows("SELECT answer, digest FROM requests WHERE id = ?", (request,))
        return Answered(rows[0][0], rows[0][1]) if rows else None

    def run(self, run: str) -> Record | None:
        """One run, whatever its state."""
        found = self._bodies(Record, "SELECT body FROM runs WHERE id = ?", (run,))
        return found[0] if found else None

    def some(self, runs: Sequence[str]) -> dict[str, Record]:
        """These runs, as far as they are there."""
        marks = ", ".join("?" for _ in runs)
        found = self._bodies(Record, f"SELECT body FROM runs WHERE id IN ({marks})", runs)  # noqa: S608 — only marks
        return {record.id: record for record in found}

    def active(self) -> list[Record]:
        """All runs that have not ended, oldest first."""
        return self._bodies(Record, "SELECT body FROM runs WHERE ended = 0 ORDER BY submitted_at, id")

    def newest(self, limit: int, sweep: str = "") -> list[Record]:
        """The newest runs (of one sweep), newest first."""
        where, values = ("WHERE sweep <> '' AND sweep = ?", (sweep, limit)) if sweep else ("", (limit,))
        query = f"SELECT body FROM runs {where} ORDER BY submitted_at DESC, id LIMIT ?"  # noqa: S608 — a constant
        return self._bodies(Record, query, values)

    def ended(self, limit: int) -> list[Record]:
        """The runs that ended last, the last one first."""
        query = "SELECT body FROM runs WHERE ended = 1 ORDER BY ended_at DESC, id LIMIT ?"
        return self._bodies(Record, query, (limit,))

    def moves(self, run: str) -> list[Move]:
        """Each step of a run from state to state, oldest first."""
        rows = self._rows(
            "SELECT at, attempt, before, after, cause, actor FROM moves WHERE run = ? ORDER BY id", (run,)
        )
        return [
            Move(
                at=at,
                attempt=attempt,
                before=RunState(before) if before else None,
                after=RunState(after),
                cause=cause,
                actor=actor,
            )
            for at, attempt, before, after, cause, actor in rows
        ]

    def durations(self) -> dict[str, float]:
        """By workflow: how long its runs that succeeded last took, in seconds, their median."""
        rows = self._rows(
            "SELECT workflow, seconds FROM (SELECT workflow, seconds, row_number() OVER"
            " (PARTITION BY workflow ORDER BY ended_at DESC) AS place FROM runs"
            " WHERE state = 'succeeded' AND seconds IS NOT NULL) WHERE place <= ?",
            (TOOK_RUNS,),
        )
        took: dict[str, list[float]] = {}
        for workflow, seconds in rows:
            took.setdefault(workflow, []).append(seconds)
        return {workflow: statistics.median(each) for workflow, each in took.items()}

    # --- releases and rollbacks ---------------------------------------------------------------------------------------

    def releases(self, workflow: str = "", limit: int = 200) -> list[Release]:
        """The newest releases, of one workflow or of all."""
        where, values = ("WHERE workflow = ?", (workflow, limit)) if workflow else ("", (limit,))
        query = f"SELECT body FROM releases {where} ORDER BY created_at DESC LIMIT ?"  # noqa: S608 — a constant
        return self._bodies(Release, query, values)

    def release(self, release: str) -> Release | None:
        """One release."""
        found = self._bodies(Release, "SELECT body FROM releases WHERE id = ?", (release,))
        return found[0] if found else None

    def runs_of_release(self, release: str, limit: int = 200) -> list[Record]:
        """A release's newest runs, newest first."""
        query = "SELECT body FROM runs WHERE release = ? ORDER BY submitted_at DESC, id DESC LIMIT ?"
        return self._bodies(Record, query, (release, limit))

    def standings(self, workflow: str = "") -> list[Standing]:
        """All releases (of one workflow) that were ever run, counted, without reading their runs."""
        return self._read(lambda: standings.counted(self._db, workflow))

    def rollbacks(self, workflow: str = "", limit: int = 200) -> list[Rollback]:
        """The newest rollbacks, of one workflow or of all."""
        where, values = ("WHERE workflow = ?", (workflow, limit)) if workflow else ("", (limit,))
        query = f"SELECT body FROM rollbacks {where} ORDER BY at DESC, id LIMIT ?"  # noqa: S608 — a constant
        return self._bodies(Rollback, query, values)

    def rollback(self, rollback: str) -> Rollback | None:
        """One rollback."""
        found = self._bodies(Rollback, "SELECT body FROM rollbacks WHERE id = ?", (rollback,))
        return found[0] if found else None

    # --- nodes --------------------------------------------------------------------------------------------------------

    def holds(self) -> list[HoldRecord]:
        """All holds that are in force."""
        return self._bodies(HoldRecord, "SELECT body FROM holds ORDER BY id")

    def drains(self, limit: int = 200, going_on: bool = False) -> list[Drain]:
        """The newest drains, or of them those that go on."""
        where = "WHERE ended = 0" if going_on else ""
        query = f"SELECT body FROM drains {where} ORDER BY at DESC, id LIMIT ?"  # noqa: S608 — a constant
        return self._bodies(Drain, query, (limit,))

    def permit(self, permit: str) -> Permit | None:
        """One permit."""
        found = self._bodies(Permit, "SELECT body FROM permits WHERE id = ?", (permit,))
        return found[0] if found else None

    # --- alerts -------------------------------------------------------------------------------------------------------

    def alerts(self, limit: int = 200, firing: bool = False) -> list[Alert]:
        """The newest alerts, or of them those that fire."""
        where = "WHERE ended = 0" if firing else ""
        query = f"SELECT body FROM alerts {where} ORDER BY since DESC, id LIMIT ?"  # noqa: S608 — a constant
        return self._bodies(Alert, query, (limit,))

    def silences(self) -> list[Silence]:
        """All that have not been ended; those whose time is over too."""
        return self._bodies(Silence, "SELECT body FROM silences ORDER BY id")

    def remembered(self) -> dict[str, str]:
        """By name, JSON."""
        return dict(self._rows("SELECT name, body FROM remembered"))

    # --- audit --------------------------------------------------------------------------------------------------------

    def entries(self, limit: int) -> list[AuditEntry]:
        """The newest audit entries, newest first."""
        return self._read(lambda: audit.entries(self._db, limit))

    def verify(self) -> str:
        """Empty if the audit's chain holds from the first entry to the last, else what is wrong, in words."""
        return self._read(lambda: audit.broken(self._db))


class JournalThread:
    """The one thread that uses the journal, so that no disk ever holds up the event loop."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")

    @property
    def trouble(self) -> str:
        """Why the last change could not be written; empty if it was."""
        return self._journal.trouble

    @property
    def path(self) -> Path:
        """Where the file lies."""
        return self._journal.path

    async def __call__(self, method: Callable[Concatenate[Journal, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``Journal.method`` there. It is carried out even if the caller is cancelled meanwhile."""
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._thread, lambda: method(self._journal, *args, **kwargs)))

    def close(self) -> None:
        """Finish what was begun, and close the file. Blocks for as long as that takes."""
        self._thread.shutdown(wait=True)
        self._journal.close()
