"""Owns which checkpoints a run has, which of them an attempt begins from, which are set aside, and which may go."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from jobs import checkpoint, fence, marks, shelf
from jobs.bounded import sync_folder
from jobs.checkpoint import FOLDER, GONE, OLD
from jobs.errors import Refused
from jobs.marks import pin as pin
from jobs.marks import unpin as unpin
from jobs.shelf import Folder, Spot
from jobs.wire import CheckpointRow

_MAX_SKIPPED = 20


@dataclass(frozen=True, slots=True)
class Choice:
    """What an attempt begins from."""

    step: int | None
    """None: from nothing."""
    path: str = ""
    """The checkpoint, absolute; empty for nothing."""
    skipped: list[str] = field(default_factory=list[str])
    """Newer ones that are passed over, a sentence each."""
    set_aside: list[int] = field(default_factory=list[int])
    """Steps of complete ones beyond it."""
    world_size: int | None = None
    """How many ranks saved it; None where it does not say."""


def rows(run_directory: Folder) -> list[CheckpointRow]:
    """All checkpoints of a run, complete or not, in the order of their steps; of very many the newest.

    Raises Refused where the run's folder cannot be read; one that is not there has none.
    """
    found = [row for spot in shelf.spots(run_directory) if (row := shelf.look(spot)) is not None]
    return sorted(found, key=_better)


def newest(run_directory: Folder) -> CheckpointRow | None:
    """The newest complete one, without a look at the older ones; None if there is none. Raises Refused as `rows`."""
    for found in _from_the_newest(run_directory):
        row = found[-1][1]
        if row.complete:
            return row
    return None


def choose(run_directory: Folder, step: int | None = None) -> Choice:
    """The newest complete one, or the one of ``step``; 0 is nothing.

    Raises Refused for a step without a complete checkpoint, with the reason, and as `rows`.
    """
    if step is not None:
        return _chosen(rows(run_directory), step)
    skipped: list[str] = []
    for found in _from_the_newest(run_directory):
        row = found[-1][1]
        if row.complete:
            return Choice(row.step, row.path, skipped, world_size=row.world_size)
        # A course that was left is passed over on purpose; that needs no telling.
        reasons = [row.reason for spot, row in found if not spot.is_left]
        if reasons and len(skipped) < _MAX_SKIPPED:
            skipped.append(f"the checkpoint of step {row.step} is passed over: {'; '.join(reasons)}")
    return Choice(None, skipped=skipped)


def set_aside(run_directory: Folder, after_step: int, attempt: int) -> list[int]:
    """Rename the checkpoints beyond a step to ``…-left-by-attempt-N``; gives the steps of those that were complete.

    ``attempt`` is the one that goes back. A checkpoint that another run needs keeps its name and is marked instead.
    Raises Refused when a newer attempt has begun, and where it cannot be done.
    """
    aside: set[int] = set()
    try:
        with fence.held(run_directory, attempt):
            for spot in shelf.spots(run_directory):
                if spot.step <= after_step or spot.kind == "draft" or spot.is_left:
                    continue
                row = shelf.look(spot)
                if row is None:
                    # What was replaced must not come back when its replacement is renamed.
                    if spot.is_older:
                        checkpoint.remove(spot.path)
                    continue
                if row.in_use_by:
                    marks.mark_left(spot.path, attempt)
                else:
                    spot.path.rename(_free(spot, attempt))
                if row.complete:
                    aside.add(row.step)
            for folder in (Path(run_directory) / FOLDER, Path(run_directory)):
                if folder.is_dir():
                    sync_folder(folder)
    except OSError as error:
        raise Refused(f"checkpoints beyond step {after_step} cannot be set aside: {error}") from None
    return sorted(aside)


def prune(
    run_directory: Folder, keep_last: int | None, keep_every: int | None = None, attempt: int | None = None
) -> list[int]:
    """Delete complete checkpoints but the ``keep_last`` newest, and those at every ``keep_every`` steps.

    Gives the steps of those that are deleted. Only what lies in ``checkpoints/`` is, and never one that a run needs.
    Incomplete ones are left: they are evidence, and the one being written is among them. ``None`` for ``keep_last``
    keeps all. ``attempt`` is this process's own if not given. Raises Refused when a newer attempt has begun, and where
    a folder cannot be read or changed.
    """
    if keep_last is None:
        return []
    if keep_last < 1:
        raise ValueError("keep_last must be at least 1: a run without its newest checkpoint cannot be resumed")
    folder = Path(run_directory).absolute() / FOLDER
    deleted: list[int] = []
    try:
        with fence.held(run_directory, attempt):
            for path in shelf.entries(folder):
                is_older = path.name.endswith(OLD) and checkpoint.step_of(path.name.removesuffix(OLD)) is not None
                if is_older and shelf.is_superseded(path):
                    checkpoint.remove(path)
            complete = [row for row in rows(run_directory) if row.complete]
            kept = set(sorted({row.step for row in complete})[-keep_last:])
            for row in complete:
                every = keep_every is not None and row.step % keep_every == 0
                if row.step in kept or every or row.in_use_by or Path(row.path).parent != folder:
                    continue
                if _take_away(Path(row.path)):
                    deleted.append(row.step)
        for path in shelf.entries(folder):
            if path.name.endswith(GONE):
                checkpoint.delete(path)
    except OSError as error:
        raise Refused(f"checkpoints in {folder} cannot be deleted: {error}") from None
    return deleted


def _take_away(path: Path) -> bool:
    """Take its name from a checkpoint, in one step. Whether it may go: a run may have pinned it at this moment."""
    gone = checkpoint.gone_name(path)
    try:
        path.rename(gone)
    except FileNotFoundError:
        return False
    if marks.pins(gone if gone.is_dir() else path):
        gone.rename(path)
        return False
    return True


def _chosen(found: list[CheckpointRow], step: int) -> Choice:
    aside = sorted({row.step for row in found if row.complete and row.step > step})
    if step == 0:
        return Choice(None, set_aside=aside)
    of_step = [row for row in found if row.step == step]
    if not of_step:
        raise Refused(f"there is no checkpoint of step {step}", _others(found))
    best = of_step[-1]
    if not best.complete:
        raise Refused(f"the checkpoint of step {step} cannot be used: {best.reason}", _others(found))
    return Choice(step, best.path, set_aside=aside, world_size=best.world_size)


def _others(found: Iterable[CheckpointRow]) -> str:
    steps = sorted({row.step for row in found if row.complete})
    if not steps:
        return "No checkpoint of this run is complete"
    return f"Complete are those of {'… ' if len(steps) > 5 else ''}{', '.join(map(str, steps[-5:]))}"


def _from_the_newest(run_directory: Folder) -> Iterator[list[tuple[Spot, CheckpointRow]]]:
    """What there is of each step, the best last, from the highest step down; read only when it comes to it."""
    for _, group in groupby(reversed(shelf.spots(run_directory)), lambda spot: spot.step):
        found = [(spot, row) for spot in group if (row := shelf.look(spot)) is not None]
        if found:
            yield sorted(found, key=lambda each: _better(each[1]))


def _better(row: CheckpointRow) -> tuple[int, bool, bool]:
    return (row.step, row.complete, row.format == "raydeck")


def _free(spot: Spot, attempt: int) -> Path:
    """A name for it that is not taken."""
    name = f"{spot.path.name.removesuffix(OLD)}-left-by-attempt-{attempt}"
    names = [name, *(f"{name}-{number}" for number in range(2, 1000))]
    return next(path for each in names if not os.path.lexists(path := spot.path.with_name(each)))
