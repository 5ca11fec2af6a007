"""Copies of the journal: made while it is in use, checked before an older one goes, and put back in its place."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jobs.controller import audit, schema
from jobs.controller.database import BACKUPS_NAME, RESTORE_HINT, RESTORING_NAME, damage, look_into
from jobs.controller.journal import Act, Journal, JournalError, JournalThread
from jobs.errors import Refused

log = logging.getLogger(__name__)

EVERY_SECONDS = 600.0
KEPT = 5
SPARE_BYTES = 64 * 2**20
"""What has to stay free on the disk beyond the copy itself."""
KEPT_DAYS = 30
"""Moves of runs that ended before, and ids of requests that were carried out before, are dropped."""
PRUNES_AT_ONCE = 20
"""What is left then has time until the next backup."""
TRY_AGAIN_SECONDS = 60.0
"""After a backup that could not be made."""
CHECK_SECONDS = 60.0
_TIME = "%Y%m%dT%H%M%SZ"
_SIDES = ("", "-wal", "-shm")
"""The files that belong to a journal, by what their names end in."""


@dataclass(frozen=True, slots=True)
class Backup:
    """One copy."""

    path: Path
    at: float
    """When it was made, seconds since 1970."""
    size_bytes: int


def backups(store: Path) -> list[Backup]:
    """Those that are there, the newest first."""
    found: list[Backup] = []
    for path in (store / BACKUPS_NAME).glob("journal-*.sqlite"):
        with contextlib.suppress(ValueError, FileNotFoundError):
            at = datetime.strptime(path.stem.partition("-")[2], _TIME).replace(tzinfo=timezone.utc).timestamp()
            found.append(Backup(path, at, path.stat().st_size))
    return sorted(found, key=lambda backup: backup.at, reverse=True)


def make(journal: Path, at: float) -> Backup:
    """Copy the journal while its controller writes on, and let the oldest copies go.

    Raises `Refused` where the disk is short or the copy is not whole: then those that are there stay.
    """
    folder = journal.parent / BACKUPS_NAME
    name = f"journal-{datetime.fromtimestamp(at, timezone.utc).strftime(_TIME)}.sqlite"
    incoming = folder / f".{name}.incoming"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for left in folder.glob(".*.incoming*"):
            left.unlink()
        size = sum(side.stat().st_size for end in _SIDES if (side := Path(f"{journal}{end}")).exists())
        free = shutil.disk_usage(folder).free
        if free < size + SPARE_BYTES:
            raise Refused(
                f"no backup of the journal was made: {free // 2**20} MiB are free under {folder}, and it takes "
                f"{(size + SPARE_BYTES) // 2**20}",
                "Free some space there",
            )
        os.close(os.open(incoming, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            _copy(journal, incoming)
            _sync(incoming)
            os.replace(incoming, folder / name)
            _sync(folder)
        finally:
            incoming.unlink(missing_ok=True)
    except OSError as error:
        raise Refused(f"no backup of the journal was made: {error.strerror}: {error.filename}") from error
    except sqlite3.Error as error:
        raise Refused(f"no backup of the journal was made: {error}") from error
    for old in backups(journal.parent)[KEPT:]:
        old.path.unlink(missing_ok=True)
    return Backup(folder / name, at, (folder / name).stat().st_size)


def _copy(journal: Path, target: Path) -> None:
    """In one step, so that it is one moment of the journal, and a write meanwhile does not make it begin anew."""
    with (
        contextlib.closing(sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True, timeout=30.0)) as source,
        contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy,
    ):
        source.backup(copy, pages=-1)
        # A file of its own, without a log beside it.
        copy.execute("PRAGMA journal_mode=DELETE")
        found = damage(copy, CHECK_SECONDS)
    if found:
        raise Refused(f"no backup of the journal was made: what was copied is damaged: {found}", RESTORE_HINT)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class Backups:
    """Makes them for one controller."""

    def __init__(
        self, journal: JournalThread, every_seconds: float = EVERY_SECONDS, wall: Callable[[], float] = time.time
    ) -> None:
        self._journal = journal
        self._every = every_seconds
        self._wall = wall
        self._one = threading.Lock()
        self._changes = -1
        """How many changes there were when the newest was made; -1: none was made by this controller."""
        self.trouble = ""
        """Why the last one was not made; empty if it was."""

    async def run(self) -> None:
        """One at the start (unless there is a fresh one), then one whenever something changed; until cancelled."""
        known = backups(self._journal.path.parent)
        # One that is started again and again must not push the older copies out.
        wait = max(0.0, known[0].at + self._every - self._wall()) if known else 0.0
        wait = min(wait, self._every)
        while True:
            await asyncio.sleep(wait)
            await self.make_if_changed()
            wait = TRY_AGAIN_SECONDS if self.trouble else self._every
            await self._prune()

    async def make_if_changed(self) -> None:
        """One more, if something was written since the last one. What goes wrong is logged, and in `trouble`."""
        try:
            changes = await self._journal(Journal.changes)
            if changes == self._changes:
                return
            made = await asyncio.to_thread(self._make, self._wall())
        except (Refused, JournalError) as error:
            if str(error) != self.trouble:
                log.error("%s", error)
            self.trouble = str(error)
            return
        self._changes = changes
        self.trouble = ""
        log.info("a backup of the journal: %s, %d bytes", made.path.name, made.size_bytes)

    def _make(self, at: float) -> Backup:
        # One whose waiter was cancelled goes on in its thread: the last one at the stop comes after it.
        with self._one:
            return make(self._journal.path, at)

    async def _prune(self) -> None:
        """Drop what nobody asks for any more, a little at a time, so that others can write between."""
        try:
            for _ in range(PRUNES_AT_ONCE):
                if not await self._journal(Journal.prune, self._wall() - KEPT_DAYS * 86400):
                    return
        except JournalError as error:
            log.error("nothing was pruned: %s", error)


# --- putting one back -------------------------------------------------------------------------------------------------


def restore(store: Path, wanted: Path | None, user: str, at: float) -> dict[str, Any]:
    """Put a backup (the newest whole one, if none is named) in the journal's place. Call it under the store's lock.

    What was there is moved aside, never deleted. Killed halfway, no controller starts until it is repeated. Raises
    `Refused` or `JournalError`.
    """
    skipped: list[str] = []
    chosen: Path | None = wanted
    if chosen is not None:
        _check(chosen)
    else:
        for backup in backups(store):
            try:
                _check(backup.path)
            except Refused as error:
                skipped.append(error.sentence)
                continue
            chosen = backup.path
            break
    if chosen is None:
        raise Refused(
            f"there is no backup in {store / BACKUPS_NAME} that can be used"
            + (f": {'; '.join(skipped)}" if skipped else ""),
            "Name one from elsewhere: raydeck controller restore --from FILE",
        )
    journal = store / "journal.sqlite"
    stamp = datetime.fromtimestamp(at, timezone.utc).strftime(_TIME)
    try:
        moved = _swap(store, journal, chosen, stamp)
    except OSError as error:
        raise Refused(
            f"the backup could not be put in place: {error.strerror}: {error.filename}", "Repeat it once that is mended"
        ) from error
    restored = Journal(journal)
    try:
        newest = restored.entries(1)
        until = newest[0].at if newest else None
        active = len(restored.active())
        restored.audit(Act(user, "restore", chosen.name, True, f"{len(moved)} files moved aside"), at)
    finally:
        restored.close()
    return {
        "event": "restored",
        "backup": str(chosen),
        "until": until,
        "runs_active": active,
        "moved": moved,
        "skipped": skipped,
    }


def _check(path: Path) -> None:
    """Raises `Refused` for what is no whole journal of a version that this one knows."""
    try:
        if not path.is_file():
            raise Refused(f"there is no file {path}")
        with contextlib.closing(look_into(path)) as database:
            found = damage(database, CHECK_SECONDS)
            version = 0 if found else schema.version_of(database)
            broken = "" if found or version == 0 else audit.broken(database)
    except sqlite3.Error as error:
        raise Refused(f"{path.name} cannot be read: {error}") from error
    except OSError as error:
        raise Refused(f"{path.name} cannot be read: {error.strerror}") from error
    if found:
        raise Refused(f"{path.name} is damaged: {found}")
    if version == 0:
        raise Refused(f"{path.name} is no journal")
    if version > schema.VERSION:
        raise Refused(f"{path.name} was written by a newer raydeck", "Restore with that version")
    if broken:
        raise Refused(f"{path.name} has an audit whose chain does not hold: {broken}")


def _swap(store: Path, journal: Path, chosen: Path, stamp: str) -> list[str]:
    """The backup under the journal's name; gives the names that what was there has now."""
    incoming = store / ".journal.incoming"
    shutil.copyfile(chosen, incoming)
    incoming.chmod(0o600)
    _sync(incoming)
    marker = store / RESTORING_NAME
    marker.write_text(f"{chosen}\n")
    _sync(marker)
    _sync(store)
    moved: list[str] = []
    for end in _SIDES:
        side = Path(f"{journal}{end}")
        if side.exists():
            aside = _free(store, f"journal.sqlite.damaged-{stamp}", end)
            side.rename(aside)
            moved.append(aside.name)
    _sync(store)
    incoming.replace(journal)
    _sync(store)
    marker.unlink()
    _sync(store)
    return moved


def _free(store: Path, name: str, end: str) -> Path:
    """A name that nothing has yet."""
    number = 1
    path = store / f"{name}{end}"
    while path.exists():
        number += 1
        path = store / f"{name}-{number}{end}"
    return path
