"""Owns what lies in a run's folder that is, was, or is to become a checkpoint, and what is known of each. Only looks.

Raydeck's own lie in ``<run>/checkpoints/``; scripts of other makes also put theirs into the run's folder itself. What
is read may change meanwhile: a run saves, another one prunes. No pickle is opened.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jobs import checkpoint, manifest, marks, recognise
from jobs.checkpoint import FOLDER, GONE, OLD, PARTIAL
from jobs.errors import Refused
from jobs.wire import CheckpointRow

Folder = str | os.PathLike[str]

_LEFT = re.compile(r"^(?P<name>.+)-left-by-attempt-(?P<attempt>[0-9]{1,9})(?:-[0-9]{1,4})?$", re.DOTALL)
_IN_RUN = re.compile(r"step|iter|epoch|checkpoint|ckpt", re.IGNORECASE)
"""In the run's own folder only what is called like this is looked into: the rest is the script's business."""
_MAX_NAMES = 200_000
_MAX_SPOTS = 10_000


@dataclass(frozen=True, slots=True)
class Spot:
    """A name that may be a checkpoint's."""

    step: int
    path: Path
    """Absolute."""
    kind: Literal["own", "draft", "other"]
    name: str
    """What it was called when it was finished."""
    left_by: int | None = None
    """The attempt that set it aside, by its name."""

    @property
    def is_older(self) -> bool:
        """Whether it is what a step that is saved again had before."""
        return self.kind == "own" and self.left_by is None and self.path.name.endswith(OLD)

    @property
    def is_left(self) -> bool:
        """Whether it belongs to a course that was left, by its name or by its note."""
        try:
            return self.left_by is not None or marks.left_by(self.path) is not None
        except OSError:
            return False  # `look` tells what is the matter with it


def spots(run_directory: Folder) -> list[Spot]:
    """What may be a checkpoint, by name, in the order of the steps; of very many those with the highest.

    Raises Refused where a folder cannot be read; one that is not there holds nothing.
    """
    directory = Path(run_directory).absolute()
    found = [spot for path in entries(directory / FOLDER) if (spot := _named(path)) is not None]
    for path in entries(directory):
        if path.name != FOLDER and _IN_RUN.search(path.name) and (spot := _named(path)) is not None:
            found.append(spot)
    return sorted(found, key=lambda spot: spot.step)[-_MAX_SPOTS:]


def entries(folder: Path) -> list[Path]:
    """What lies in a folder; nothing if it is not there. Raises Refused where it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return [Path(entry.path) for entry, _ in zip(found, range(_MAX_NAMES), strict=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise Refused(f"the checkpoints in {folder} cannot be read: {error.strerror or error}") from None


def look(spot: Spot) -> CheckpointRow | None:
    """What is known of it. None for what is no checkpoint after all, went away, or was replaced by a newer one."""
    try:
        if spot.path.is_symlink() or (spot.is_older and is_superseded(spot.path)):
            return None
        row = _known(spot)
        if row is None or row.path == str(spot.path):
            return row
        return row.model_copy(update={"complete": False, "reason": "its name is not text"})
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = f"it cannot be read: {error.strerror or error}"
        made_by = "unknown" if spot.kind == "other" else "raydeck"
        return CheckpointRow(step=spot.step, path=_text(spot.path), format=made_by, complete=False, reason=reason)


def is_superseded(old: Path) -> bool:
    """Whether what was saved again in its place is there and complete."""
    return checkpoint.inspect(old.with_name(old.name.removesuffix(OLD))).complete


def _named(path: Path) -> Spot | None:
    name = path.name
    if (draft := checkpoint.draft_of(name)) is not None:
        return Spot(draft[0], path, "draft", name)
    attempt = None
    if left := _LEFT.match(name):
        name, attempt = left["name"], int(left["attempt"])
    if name.endswith((PARTIAL, GONE)):
        return None
    if (step := checkpoint.step_of(name.removesuffix(OLD))) is not None:
        return Spot(step, path, "own", name, attempt)
    step = recognise.step_in(name)
    return None if step is None else Spot(step, path, "other", name, attempt)


def _known(spot: Spot) -> CheckpointRow | None:
    path = spot.path
    if spot.kind == "draft":
        return CheckpointRow(step=spot.step, path=_text(path), complete=False, reason="it is not finished")
    # Somebody may save another format straight into a name of ours.
    foreign = not (path / manifest.FILE).exists() and (path / ".metadata").exists()
    if spot.kind == "own" and not foreign:
        row = _own(spot)
    else:
        candidate = recognise.recognise(path, spot.name)
        row = None if candidate is None else _other(candidate)
    if row is not None and spot.left_by is not None:
        return row.model_copy(update={"complete": False, "reason": marks.left_behind(spot.left_by)})
    return row


def _own(spot: Spot) -> CheckpointRow:
    found = checkpoint.inspect(spot.path, spot.step)
    known = found.manifest
    return CheckpointRow(
        step=found.step,
        path=_text(spot.path),
        complete=found.complete,
        reason=found.reason,
        written_at=found.written_at,
        size_bytes=found.size_bytes,
        seconds=found.seconds,
        loss=_finite(known.loss) if known else None,
        world_size=known.world_size if known else None,
        attempt=known.attempt if known else None,
        in_use_by=marks.pins(spot.path),
    )


def _other(candidate: recognise.Candidate) -> CheckpointRow:
    found = recognise.examine(candidate)
    reason = marks.unusable(candidate.path) or found.reason
    return CheckpointRow(
        step=candidate.step,
        path=_text(candidate.path),
        format=candidate.format,
        complete=not reason,
        reason=reason,
        written_at=found.written_at,
        size_bytes=found.size_bytes,
        loss=_finite(found.loss),
        world_size=found.world_size,
        in_use_by=marks.pins(candidate.path),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _text(path: Path) -> str:
    """A path that every reader takes; of one that is not text, something that differs from it."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
