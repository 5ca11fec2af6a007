"""Owns the notes that lie with a checkpoint: that it is broken, that its course was left, which runs need it.

With a folder they lie inside, with a checkpoint that is one file beside it. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from jobs import bounded
from jobs.errors import Refused

BROKEN = "broken.json"
LEFT = "left.json"
_PIN = "pinned-by-"
_RUN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
_MAX_BYTES = 64 << 10
_MAX_PINS = 1000

Place = str | os.PathLike[str]


def mark_broken(path: Place, reason: str) -> None:
    """Write down that a checkpoint cannot be used, so that nobody takes it again.

    Raises Refused where that cannot be written.
    """
    _write(Path(path), BROKEN, {"reason": reason, "at": time.time()})


def mark_left(path: Place, attempt: int) -> None:
    """Write down that an attempt went back to an earlier step, so that this checkpoint is of a course that was left."""
    _write(Path(path), LEFT, {"attempt": attempt, "at": time.time()})


def unusable(path: Place) -> str:
    """Why a checkpoint must not be used, by its notes; empty where they say nothing of that.

    Raises OSError where they cannot be read.
    """
    note = _read(Path(path), BROKEN)
    if note is not None:
        reason = note.get("reason")
        return "it was found to be broken" + (f": {bounded.shown(reason, 300)}" if isinstance(reason, str) else "")
    attempt = left_by(path)
    return left_behind(attempt) if attempt is not None else ""


def left_by(path: Place) -> int | None:
    """The attempt that went back and left this checkpoint, by its note; None without one, 0 where it does not say.

    Raises OSError where it cannot be read.
    """
    note = _read(Path(path), LEFT)
    if note is None:
        return None
    attempt = note.get("attempt")
    return attempt if isinstance(attempt, int) else 0


def left_behind(attempt: int) -> str:
    """The reason of a checkpoint that was set aside."""
    return f"{f'attempt {attempt}' if attempt else 'an attempt'} went back to an earlier step and left it behind"


def pin(path: Place, run: str) -> None:
    """Keep a checkpoint from being pruned for as long as ``run`` needs it. Doing it again is no mistake.

    Raises Refused where it is not there (any more), or cannot be written to.
    """
    place, name = Path(path), _PIN + _checked(run)
    _write(place, name, {"at": time.time()})
    # A prune takes a checkpoint away first and looks at its pins then: one that came too late says so here.
    if not (place.exists() and _place(place, name).exists()):
        raise Refused(f"{path} was deleted at this moment")


def unpin(path: Place, run: str) -> None:
    """``run`` needs it no more. A checkpoint that is gone, or was never pinned, is no mistake."""
    _place(Path(path), _PIN + _checked(run)).unlink(missing_ok=True)


def pins(path: Place) -> list[str]:
    """The runs that need it, by id. Raises OSError where its folder cannot be read."""
    place = Path(path)
    prefix, folder = (_PIN, place) if place.is_dir() else (f"{place.name}.{_PIN}", place.parent)
    found: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            run = entry.name.removeprefix(prefix)
            if entry.name.startswith(prefix) and _RUN.match(run) and len(found) < _MAX_PINS:
                found.append(run)
    return sorted(found)


def is_note(name: str) -> bool:
    """Whether a file in a checkpoint's folder is one of these notes."""
    return name in (BROKEN, LEFT) or name.startswith(_PIN)


def _checked(run: str) -> str:
    if not _RUN.match(run):
        raise ValueError(f"{run!r} is not the id of a run")
    return run


def _place(path: Path, name: str) -> Path:
    return path / name if path.is_dir() else path.with_name(f"{path.name}.{name}")


def _write(path: Path, name: str, value: dict[str, Any]) -> None:
    if not path.exists():
        raise Refused(f"{path} is not there")
    target = _place(path, name)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(target)
        bounded.sync_folder(target.parent)
    except OSError as error:
        raise Refused(f"{target} cannot be written: {error.strerror or error}") from None


def _read(path: Path, name: str) -> dict[str, Any] | None:
    try:
        value: Any = json.loads(bounded.read(_place(path, name), _MAX_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError):
        # That it is there is the message; the reason in it is only for people.
        return {}
    return value if isinstance(value, dict) else {}
