"""Owns what a checkpoint is on disk: written beside, complete only with its manifest, then renamed into place.

``<run>/checkpoints/step-00000500/`` holds the files a script saved and ``manifest.json`` with their sizes and SHA-256,
written last. A folder without a manifest that fits is not a checkpoint, whatever it is called. Only the newest attempt
of a run may write (`jobs.fence`). Standard library only: scripts use it on the cluster, raydeck everywhere.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsFloat

from jobs import fence, manifest, marks, recognise
from jobs.bounded import shown, sync_folder
from jobs.errors import Refused
from jobs.manifest import Manifest, Sealed
from jobs.marks import mark_broken as mark_broken

_log = logging.getLogger(__name__)

FOLDER = "checkpoints"
PARTIAL = ".partial"
OLD = ".old"
"""Of a step that is saved again: the one before, for the moment in which the new one takes its place."""
GONE = ".gone"
"""What is being deleted; nobody counts it."""
_NAME = re.compile(r"^step-([0-9]{8,18})$")
_DRAFT = re.compile(r"^step-([0-9]{8,18})(?:\.attempt-([0-9]{1,9}))?\.partial$")


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint that is being written. Save files into ``path``, then call `finish`."""

    run_directory: Path
    step: int
    path: Path
    begun_at: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A step's folder as it is on disk."""

    step: int
    path: Path
    complete: bool
    reason: str = ""
    """Why it is not complete; empty for one that is."""
    manifest: Manifest | None = None
    """What was written down about it; None where that cannot be read."""

    @property
    def size_bytes(self) -> int | None:
        """All its files together, by its manifest; None without one."""
        return self.manifest.size_bytes if self.manifest else None

    @property
    def seconds(self) -> float | None:
        """How long it took to write; None without a manifest."""
        return self.manifest.seconds if self.manifest else None

    @property
    def written_at(self) -> float | None:
        """Seconds since 1970; None without a manifest."""
        return self.manifest.written_at if self.manifest else None


def folder(run_directory: str | os.PathLike[str], step: int) -> Path:
    """Where the checkpoint of a step is, or would be."""
    if not 0 <= step < 10**18:
        raise ValueError(f"{step} is not a step")
    return Path(run_directory) / FOLDER / f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step of a finished checkpoint's folder by its name; None for another name."""
    named = _NAME.match(name)
    return int(named.group(1)) if named else None


def draft_of(name: str) -> tuple[int, int | None] | None:
    """Step and attempt of a folder that is being written, by its name; the attempt is None outside of raydeck."""
    named = _DRAFT.match(name)
    return (int(named.group(1)), int(named.group(2)) if named.group(2) else None) if named else None


def begin(run_directory: str | os.PathLike[str], step: int) -> Draft:
    """Make the folder to save into, empty even if an earlier save left one. One rank calls this, then `finish`.

    Where several ranks save, the others write into ``draft.path`` between the two calls. What older attempts did not
    finish is deleted. Raises Refused when a newer attempt of the run has begun.
    """
    final = folder(run_directory, step)
    attempt = fence.own_attempt(run_directory)
    # An attempt has drafts of its own: one that lives on by mistake cannot write into another one's.
    path = final.with_name(f"{final.name}{f'.attempt-{attempt}' if attempt is not None else ''}{PARTIAL}")
    with fence.held(run_directory):
        if not final.parent.is_dir():
            final.parent.mkdir(parents=True, exist_ok=True)
            sync_folder(final.parent.parent)
        for name in os.listdir(final.parent):
            if (draft := draft_of(name)) is not None and (name == path.name or _is_older(draft[1], attempt)):
                remove(final.with_name(name))
        path.mkdir()
    return Draft(Path(run_directory), step, path, time.time())


def _is_older(attempt: int | None, own: int | None) -> bool:
    return attempt is not None and own is not None and attempt < own


def contents(path: Path) -> dict[str, int]:
    """The files in a draft and their sizes, by their path below it. Raises Refused for what cannot be kept."""
    files: dict[str, int] = {}
    for each in sorted(path.rglob("*")):
        name = each.relative_to(path).as_posix()
        if each.is_symlink():
            raise Refused(f"{each} is a link; a checkpoint holds its own files")
        if each.is_dir():
            continue
        if not each.is_file():
            raise Refused(f"{each} is no file; a checkpoint holds files only")
        if name == manifest.FILE or marks.is_note(name):
            raise Refused(f"{each} has a name that raydeck needs itself")
        files[name] = each.stat().st_size
    return files


def finish(
    draft: Draft,
    *,
    loss: SupportsFloat | None = None,
    world_size: int | None = None,
    sealed: Mapping[str, Sealed] | None = None,
) -> Checkpoint:
    """Make the saved files durable, write the manifest, and put the folder in its place in one rename.

    A checkpoint of the same step that is already there (a resumed run saves a step again) is replaced; whenever this
    is cut short, one of the two is there and complete. ``sealed`` has the files where the ranks sealed them together.
    Raises Refused when a newer attempt of the run has begun, and for an empty folder.
    """
    files = {name: manifest.seal(draft.path / name) for name in contents(draft.path)} if sealed is None else sealed
    if not files:
        raise Refused(f"{draft.path} holds no file, so there is nothing to keep")
    for below in {draft.path / parent for name in files for parent in Path(name).parents}:
        sync_folder(below)
    ranks = os.environ.get("WORLD_SIZE", "")
    written = Manifest(
        step=draft.step,
        begun_at=draft.begun_at,
        written_at=time.time(),
        files=dict(files),
        world_size=int(ranks) if world_size is None and ranks.isdecimal() else world_size,
        attempt=fence.own_attempt(draft.run_directory),
        loss=None if loss is None else float(loss),
        versions=manifest.versions(),
    )
    manifest.write(draft.path, written)
    final = folder(draft.run_directory, draft.step)
    with fence.held(draft.run_directory):
        _put_in_place(draft.path, final)
    remove(final.with_name(final.name + OLD))
    return inspect(final)


def _put_in_place(path: Path, final: Path) -> None:
    """Rename a finished draft to its name. Until then an older one of that step counts, under either name."""
    old = final.with_name(final.name + OLD)
    if final.exists():
        if old.exists() and not inspect(final).complete:
            # A replacement was cut short here before, and what took its place broke since: the older one still counts.
            remove(final)
        else:
            remove(old)
            final.rename(old)
    path.rename(final)
    sync_folder(final.parent)


def remove(path: Path) -> None:
    """Delete a checkpoint, or what was to become one, if it is there: away from its name at once, then file by file.

    What cannot be deleted is told in the log and left to the next prune: its name is free.
    """
    gone = gone_name(path)
    try:
        path.rename(gone)
    except FileNotFoundError:
        return
    try:
        delete(gone)
    except OSError as error:
        _log.warning("%s could not be deleted: %s", gone, error)


def gone_name(path: Path) -> Path:
    """Where to put what is to be deleted."""
    return path.with_name(f"{path.name}.{os.getpid()}-{time.time_ns()}{GONE}")


def delete(path: Path) -> None:
    """Delete a folder or a file that nobody counts any more, if it is there."""
    if path.is_dir() and not path.is_symlink():
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            # Two who delete the same: what one finds missing the other has deleted.
            if path.exists():
                raise
    else:
        path.unlink(missing_ok=True)


def inspect(path: Path, step: int | None = None) -> Checkpoint:
    """What the manifest says of a folder, and whether its files are there in the size it says. Reads no file's content.

    ``step`` says what it should be of where its name no longer does; raises ValueError where neither tells.
    """
    step = step_of(path.name.removesuffix(OLD)) if step is None else step
    if step is None:
        raise ValueError(f"{path.name} is not the name of a checkpoint")
    try:
        found = manifest.read(path)
    except ValueError as error:
        return Checkpoint(step, path, complete=False, reason=str(error))
    reason = "" if found.step == step else f"its manifest is of step {found.step}"
    try:
        reason = reason or marks.unusable(path) or next(iter(_size_mistakes(path, found).values()), "")
    except OSError as error:
        reason = f"its notes cannot be read: {error.strerror or error}"
    return Checkpoint(step, path, not reason, reason, found)


def newest_complete(run_directory: str | os.PathLike[str]) -> Checkpoint | None:
    """The complete checkpoint with the highest step, judged by manifest and sizes; None if there is none."""
    try:
        names = os.listdir(Path(run_directory) / FOLDER)
    except FileNotFoundError:
        return None
    # By number: from a hundred million steps on, the names no longer sort as the steps do.
    steps = sorted({step for name in names if (step := step_of(name.removesuffix(OLD))) is not None}, reverse=True)
    for step in steps:
        final = folder(run_directory, step)
        for path in (final, final.with_name(final.name + OLD)):
            if path.name in names and (found := inspect(path)).complete:
                return found
    return None


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Read every file and compare it with the manifest; the mistakes as sentences, empty when it is whole.

    One that is not raydeck's own is looked at as far as its format allows.
    """
    path = Path(path)
    try:
        if unusable := marks.unusable(path):
            return [unusable]
        foreign = None if (path / manifest.FILE).exists() else recognise.recognise(path)
        if foreign is not None:
            reason = recognise.examine(foreign).reason
            return [reason] if reason else []
        found = manifest.read(path)
    except OSError as error:
        return [f"it cannot be read: {error.strerror or error}"]
    except ValueError as error:
        return [str(error)]
    mistakes = _size_mistakes(path, found)
    for name, file in found.files.items():
        if name in mistakes:
            continue
        try:
            same = manifest.seal(path / name, durable=False) == file
        except OSError as error:
            mistakes[name] = f"{shown(name)} cannot be read: {error.strerror or error}"
            continue
        if not same:
            mistakes[name] = f"{shown(name)} does not have the content that was saved (its SHA-256 differs)"
    return list(mistakes.values())


def _size_mistakes(path: Path, found: Manifest) -> dict[str, str]:
    """What is wrong with each file, by its name, as far as the file system's own listing tells."""
    mistakes: dict[str, str] = {}
    for name, file in found.files.items():
        try:
            size = (path / name).stat().st_size
        except (OSError, ValueError):
            mistakes[name] = f"{shown(name)} is missing"
            continue
        if size != file.size:
            mistakes[name] = f"{shown(name)} has {size} bytes instead of {file.size}"
    return mistakes
