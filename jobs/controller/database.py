"""Opens the journal's SQLite file, tells whether it is whole, and says in words what SQLite says in codes."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from jobs.errors import RaydeckError

BUSY_SECONDS = 3.0
"""How long a lock of another process is waited for."""
CHECK_SECONDS = 10.0
"""How long the check at the start may take. A file that is larger than that is taken as it is."""
RESTORING_NAME = "journal.restoring"
"""It lies beside the journal while a backup is put in its place."""
BACKUPS_NAME = "backups"
RESTORE_HINT = "Put the newest backup in its place: raydeck controller restore"

_MAGIC = b"SQLite format 3\0"
_DAMAGED = ("malformed", "not a database", "corrupt")


class JournalError(RaydeckError):
    """The journal cannot be read or written: nothing may be done until it can."""


def told(path: Path, doing: str, error: sqlite3.Error | OSError) -> JournalError:
    """What keeps the journal from being ``doing`` (``opened``, ``read``, ``written``), for a person."""
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return JournalError(f"the journal {path} cannot be {doing}: {reason}", _FOLDER_HINT.format(path.parent))
    text = str(error)
    if any(word in text for word in _DAMAGED):
        return JournalError(f"the journal {path} is damaged: {text}", RESTORE_HINT)
    if "locked" in text:
        return JournalError(
            f"the journal {path} cannot be {doing}: another process has had it locked for {BUSY_SECONDS:g} s",
            f"Nothing was changed; see who has it open: fuser -v {path}",
        )
    if "full" in text:
        return JournalError(
            f"the journal {path} cannot be {doing}: there is no room left on its disk",
            f"Nothing was changed; free space under {path.parent}, and repeat it",
        )
    if "readonly" in text or "unable to open" in text:
        return JournalError(f"the journal {path} cannot be {doing}: {text}", _FOLDER_HINT.format(path.parent))
    hint = f"Look at the disk under {path.parent} before you repeat it" if "I/O" in text else ""
    return JournalError(f"the journal {path} cannot be {doing}: {text}", hint)


_FOLDER_HINT = "Check who owns {}, and how it is mounted"


def connect(path: Path) -> sqlite3.Connection:
    """The file, opened or made (mode 0600) to be written durably. Raises `JournalError` or `sqlite3.Error`.

    A file that is gone while there are backups of it is not made anew in silence.
    """
    try:
        if path.with_name(RESTORING_NAME).exists():
            raise JournalError(f"a restore of the journal {path} was cut off", "Repeat it: raydeck controller restore")
        size = path.stat().st_size if path.exists() else 0
        _check_before(path, size)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise told(path, "opened", error) from error
    # One thread uses the connection, but not the one that opened it.
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
    except BaseException:
        database.close()
        raise
    return database


def _check_before(path: Path, size: int) -> None:
    """Refuse what SQLite would take for a new file: it would throw away the log beside it, which may be all there is.

    Raises `JournalError` or `OSError`.
    """
    if size:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise JournalError(f"the journal {path} is damaged: it is not a database", RESTORE_HINT)
        return
    backups = path.parent / BACKUPS_NAME
    if next(backups.glob("journal-*.sqlite"), None) is not None:
        raise JournalError(
            f"the journal {path} is gone, and there are backups of it",
            f"{RESTORE_HINT}; to begin anew, move {backups} away",
        )
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise JournalError(
            f"the journal {path} is gone, and its log {log.name} is still there",
            f"{RESTORE_HINT} --from FILE; to begin anew, move {log.name} away",
        )


def look_into(path: Path) -> sqlite3.Connection:
    """A file that nobody writes, opened for reading alone: nothing is made beside it. Raises `sqlite3.Error`."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)


def damage(database: sqlite3.Connection, seconds: float = CHECK_SECONDS) -> str:
    """What SQLite finds wrong in the file, in its words; empty if nothing, or if ``seconds`` do not suffice."""
    deadline = time.monotonic() + seconds
    late = False

    def over() -> int:
        nonlocal late
        late = time.monotonic() > deadline
        return int(late)

    database.set_progress_handler(over, 10_000)
    try:
        rows = database.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.DatabaseError as error:
        if late:
            return ""
        if isinstance(error, sqlite3.OperationalError) and not any(word in str(error) for word in _DAMAGED):
            raise
        return str(error)
    finally:
        database.set_progress_handler(None, 0)
    said = " ".join(str(rows[0][0]).split()) if rows else "ok"
    return "" if said == "ok" else said
