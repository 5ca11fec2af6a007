"""Owns what a checkpoint is on disk: written beside, complete only with its manifest, then renamed into place.

``<run>/checkpoints/step-00000500/`` holds the files a script saved and ``manifest.json`` with their sizes and SHA-256,
written last. A folder without a manifest that fits is not a checkpoint, whatever it is called. Standard library only:
scripts use it on the cluster, raydeck everywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import Refused

MANIFEST = "manifest.json"
_NAME = re.compile(r"^step-(\d{8,})$")
_DRAFT = ".partial"


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
    size_bytes: int | None = None
    """All its files together, by its manifest; None without one."""
    seconds: float | None = None
    """How long it took to write; None without a manifest."""
    written_at: float | None = None
    """Seconds since 1970."""


def folder(run_directory: str | os.PathLike[str], step: int) -> Path:
    """Where the checkpoint of a step is, or would be."""
    return Path(run_directory) / "checkpoints" / f"step-{step:08d}"


def begin(run_directory: str | os.PathLike[str], step: int) -> Draft:
    """Make the folder to save into, empty even if an earlier attempt left one. One rank calls this, then `finish`.

    Where several ranks save, the others write into ``draft.path`` between the two calls.
    """
    final = folder(run_directory, step)
    path = final.with_name(final.name + _DRAFT)
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)
    return Draft(Path(run_directory), step, path, time.time())


def finish(draft: Draft) -> Checkpoint:
    """Make the saved files durable, write the manifest, and put the folder in its place in one rename.

    A checkpoint of the same step that is already there (a resumed run saves a step again) is replaced.
    """
    files: dict[str, dict[str, Any]] = {}
    folders = [draft.path]
    for path in sorted(draft.path.rglob("*")):
        if path.is_symlink():
            raise Refused(f"{path} is a link; a checkpoint holds its own files")
        if path.is_dir():
            folders.append(path)
        else:
            files[path.relative_to(draft.path).as_posix()] = {"size": path.stat().st_size, "sha256": _digest(path)}
            _sync(path)
    if not files:
        raise Refused(f"{draft.path} holds no file, so there is nothing to keep")
    manifest = {"step": draft.step, "begun_at": draft.begun_at, "written_at": time.time(), "files": files}
    target = draft.path / MANIFEST
    partial = draft.path / (MANIFEST + _DRAFT)
    partial.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _sync(partial)
    partial.rename(target)
    for path in folders:
        _sync(path)
    final = folder(draft.run_directory, draft.step)
    if final.exists():
        # Both are complete at this moment; the older one goes out of the way under a name that nobody counts.
        old = final.with_name(final.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
        draft.path.rename(final)
        shutil.rmtree(old)
    else:
        draft.path.rename(final)
    _sync(final.parent)
    return inspect(final)


def inspect(path: Path) -> Checkpoint:
    """What the manifest says of a folder, and whether its files are there in the size it says. Reads no file's content.

    Raises ValueError for a folder whose name is not a step's.
    """
    named = _NAME.match(path.name)
    if named is None:
        raise ValueError(f"{path.name} is not the name of a checkpoint")
    step = int(named.group(1))
    try:
        manifest = _manifest(path)
    except ValueError as error:
        return Checkpoint(step, path, complete=False, reason=str(error))
    size = sum(int(entry["size"]) for entry in manifest["files"].values())
    begun, written = float(manifest["begun_at"]), float(manifest["written_at"])
    reason = "" if manifest["step"] == step else f"its manifest is of step {manifest['step']}"
    if not reason:
        reason = next(iter(_size_mistakes(path, manifest).values()), "")
    return Checkpoint(step, path, not reason, reason, size, max(0.0, written - begun), written)


def list_checkpoints(run_directory: str | os.PathLike[str]) -> list[Checkpoint]:
    """All steps that have a folder, complete or not, in the order of their steps; also those still being written."""
    found: list[Checkpoint] = []
    for path in _entries(run_directory):
        if _NAME.match(path.name):
            found.append(inspect(path))
        elif path.name.endswith(_DRAFT) and (named := _NAME.match(path.name.removesuffix(_DRAFT))):
            found.append(Checkpoint(int(named.group(1)), path, complete=False, reason="it is not finished"))
    return sorted(found, key=lambda checkpoint: (checkpoint.step, checkpoint.complete))


def newest_complete(run_directory: str | os.PathLike[str]) -> Checkpoint | None:
    """The complete checkpoint with the highest step, judged by manifest and sizes; None if there is none."""
    # By number: from a hundred million steps on, the names no longer sort as the steps do.
    steps = {int(named.group(1)): path for path in _entries(run_directory) if (named := _NAME.match(path.name))}
    complete = (inspect(steps[step]) for step in sorted(steps, reverse=True))
    return next((checkpoint for checkpoint in complete if checkpoint.complete), None)


def verify(path: Path) -> list[str]:
    """Read every file and compare it with the manifest; the mistakes as sentences, empty when it is whole."""
    try:
        manifest = _manifest(path)
    except ValueError as error:
        return [str(error)]
    mistakes = _size_mistakes(path, manifest)
    for name, entry in manifest["files"].items():
        if name not in mistakes and _digest(path / name) != entry["sha256"]:
            mistakes[name] = f"{name} does not have the content that was saved (its SHA-256 differs)"
    return list(mistakes.values())


def prune(run_directory: str | os.PathLike[str], keep_last: int, keep_steps: frozenset[int] = frozenset()) -> list[int]:
    """Delete complete checkpoints but the ``keep_last`` newest and those of ``keep_steps``; gives the steps deleted.

    Incomplete ones are left: they are evidence, and the one being written is among them.
    """
    if keep_last < 1:
        raise ValueError("keep_last must be at least 1: a run without its newest checkpoint cannot be resumed")
    complete = [checkpoint for checkpoint in list_checkpoints(run_directory) if checkpoint.complete]
    deleted: list[int] = []
    for checkpoint in complete[:-keep_last]:
        if checkpoint.step in keep_steps:
            continue
        # Without its manifest it stops being a checkpoint at once, so a prune that is cut short leaves no half one.
        (checkpoint.path / MANIFEST).unlink()
        shutil.rmtree(checkpoint.path)
        deleted.append(checkpoint.step)
    return deleted


def _entries(run_directory: str | os.PathLike[str]) -> list[Path]:
    try:
        return list((Path(run_directory) / "checkpoints").iterdir())
    except FileNotFoundError:
        return []


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: Any = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError("it has no manifest") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"its manifest cannot be read: {error}") from None
    try:
        numbers = [int(manifest["step"]), float(manifest["begun_at"]), float(manifest["written_at"])]
        for name, entry in manifest["files"].items():
            numbers.append(int(entry["size"]))
            if not isinstance(entry["sha256"], str):
                raise ValueError(f"it has no SHA-256 for {name}")
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"it names {name}, which is outside")
        if len(numbers) == 3:
            raise ValueError("it names no file")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"its manifest is not one: {error}") from None
    return manifest


def _size_mistakes(path: Path, manifest: dict[str, Any]) -> dict[str, str]:
    """What is wrong with each file, by its name, as far as the file system's own listing tells."""
    mistakes: dict[str, str] = {}
    for name, entry in manifest["files"].items():
        try:
            size = (path / name).stat().st_size
        except OSError:
            mistakes[name] = f"{name} is missing"
            continue
        if size != entry["size"]:
            mistakes[name] = f"{name} has {size} bytes instead of {entry['size']}"
    return mistakes


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
