"""Owns how a training script saves its checkpoints: when, in which form, and that all its ranks do it together.

::

    saver = jobs.Saver()
    if saver.resume:
        …load what is in the folder saver.resume…
    for step in range(saver.step + 1, steps + 1):
        …
        if saver.due(step, last=step == steps):
            with saver.save(step, loss=loss) as folder:
                …each rank writes its own files into folder…
        if saver.leaving:
            break

Standard library only. The ranks talk by torch.distributed, where the script has started it; it is never loaded here.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, SupportsFloat, TypeVar

from jobs import checkpoint, manifest, metrics, pulse
from jobs.errors import Refused
from jobs.manifest import Sealed

_GRACE_SECONDS = 30.0
"""What torchrun gives its ranks between SIGTERM and SIGKILL."""

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class Saver:
    """One for each rank; every rank makes the same calls, for the same steps.

    ``interval`` is the steps between two checkpoints, by default the workflow's ``checkpoint_interval_steps``; 0 saves
    at the last step and when asked to leave. ``directory`` is where ``checkpoints/`` lies: the run's own if not given;
    outside of raydeck nothing is due then. ``every`` has the ranks ask each other for a wish to stop only at each so
    many steps: one tiny all_reduce, which on a GPU waits for what was queued there. ``group`` is the process group for
    that (such as one over gloo, which does not wait), by default the whole gang.

    Make it early, in the main thread: from then on a request to stop (SIGTERM) is noted, not obeyed at once.
    """

    def __init__(
        self,
        interval: int | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        every: int = 1,
        group: Any = None,
    ) -> None:
        if every < 1:
            raise ValueError("every must be at least 1")
        metrics.stopping()
        environment = os.environ
        self._interval = int(environment.get("RAYDECK_CHECKPOINT_INTERVAL") or 0) if interval is None else interval
        where = directory if directory is not None else environment.get("RAYDECK_RUN_DIR")
        self._directory = Path(where) if where else None
        self._every = every
        self._gang = _Gang(group)
        self._leaving = False
        self._grace = float(environment.get("RAYDECK_STOP_GRACE_SECONDS") or _GRACE_SECONDS)
        self._told_slow = False
        path = environment.get("RAYDECK_RESUME_PATH")
        self.resume: Path | None = Path(path) if path else None
        """The checkpoint to begin from; None from nothing."""
        self.step: int = int(environment.get("RAYDECK_RESUME_STEP") or 0) if path else 0
        """The step of that checkpoint; 0 from nothing."""

    @property
    def leaving(self) -> bool:
        """Whether the run was asked to stop: leave the loop. The same on all ranks after `due`."""
        return self._leaving

    def due(self, step: int, *, last: bool = False) -> bool:
        """Whether to save at this step: at the interval, at the ``last`` one, when a rank was asked to stop.

        All ranks decide together, so each gets the same answer.
        """
        pulse.reached(step)
        wanted = last or (self._interval > 0 and step % self._interval == 0)
        if wanted or step % self._every == 0:
            wanted, self._leaving = self._gang.any(wanted, self._leaving or metrics.stopping())
        return self._directory is not None and (wanted or self._leaving)

    @contextmanager
    def save(self, step: int, *, loss: SupportsFloat | None = None) -> Generator[Path]:
        """The folder that each rank writes its files into; complete, or not there at all, when the block is left.

        Every rank enters it. What goes wrong on one rank fails it on all: that rank raises its own error, the others
        `jobs.errors.Refused` with that rank's. Raises Refused too when a newer attempt of the run has begun.
        """
        directory = self._directory
        if directory is None:
            raise Refused("there is no folder to save to outside of raydeck", "Give the Saver a directory")
        began = time.monotonic()
        gang, doing = self._gang, f"save the checkpoint of step {step}"
        draft = gang.first(doing, lambda: checkpoint.begin(directory, step))
        error: Exception | None = None
        try:
            draft.path.mkdir(parents=True, exist_ok=True)  # shared storage may show it late
            yield draft.path
        except Exception as raised:
            error = raised
        try:
            seen = gang.each(doing, lambda: checkpoint.contents(draft.path), error)
            share = _shares(seen)[gang.rank]
            sealed = gang.each(doing, lambda: {name: manifest.seal(draft.path / name) for name in share})
            whole: dict[str, Sealed] = {name: file for part in sealed for name, file in sorted(part.items())}
            gang.first(doing, lambda: checkpoint.finish(draft, loss=loss, world_size=gang.size, sealed=whole).step)
        except Exception:
            # Nobody writes into it any more. Half a checkpoint is no use, and may be what filled the disk.
            if gang.rank == 0:
                checkpoint.remove(draft.path)
            raise
        self._tell_slow(time.monotonic() - began)

    def _tell_slow(self, seconds: float) -> None:
        if seconds > self._grace and not self._told_slow and self._gang.rank == 0:
            self._told_slow = True
            _log.warning(
                "saving a checkpoint took %.0f s, and a stop leaves %.0f s for it: the steps since the last checkpoint "
                "may be lost then (raise stop_grace, or save faster)",
                seconds,
                self._grace,
            )


class _Gang:
    """The ranks of this attempt, as far as they have found each other."""

    def __init__(self, group: Any) -> None:
        self._group = group

    @property
    def rank(self) -> int:
        distributed = _distributed()
        return 0 if distributed is None else int(distributed.get_rank())

    @property
    def size(self) -> int:
        distributed = _distributed()
        return 1 if distributed is None else int(distributed.get_world_size())

    def any(self, *wishes: bool) -> tuple[bool, ...]:
        """Each wish, if any rank has it."""
        distributed = _distributed()
        if distributed is None:
            return wishes
        torch: Any = sys.modules["torch"]
        kinds = [part.partition(":")[0] for part in distributed.get_backend_config(self._group).split(",")]
        device = "cpu" if "cpu" in kinds else kinds[0]
        values = torch.tensor([int(wish) for wish in wishes], dtype=torch.int32, device=device)
        distributed.all_reduce(values, op=distributed.ReduceOp.MAX, group=self._group)
        return tuple(bool(value) for value in values.tolist())

    def each(self, doing: str, action: Callable[[], _T], error: Exception | None = None) -> list[_T]:
        """What the action gave on each rank, on every rank; it fails on all if it fails on one, or came with an error.

        Also waits until all have come here.
        """
        value: _T | None = None
        if error is None:
            try:
                value = action()
            except Exception as raised:
                error = raised
        distributed = _distributed()
        words = "" if error is None else f"{type(error).__name__}: {error}"
        told: list[tuple[str, Any]] = [(words, value)]
        if distributed is not None:
            told *= distributed.get_world_size()
            distributed.all_gather_object(told, (words, value), group=self._group)
        if error is not None:
            raise error
        for rank, (words, _) in enumerate(told):
            if words:
                raise Refused(f"rank {rank} could not {doing}: {words}")
        return [value for _, value in told]

    def first(self, doing: str, action: Callable[[], _T]) -> _T:
        """What the action gave on rank 0, which alone does it, on every rank."""
        mine = self.rank == 0
        values: list[Any] = self.each(doing, lambda: action() if mine else None)
        return values[0]


def _distributed() -> Any:
    """torch.distributed where the script has started it; None for a single process. Raises Refused before that."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    size = os.environ.get("WORLD_SIZE") or "1"
    if size != "1":
        raise Refused(
            f"there are {size} ranks, and they cannot agree on a checkpoint before they have found each other",
            "Call torch.distributed.init_process_group first",
        )
    return None


def _shares(seen: list[dict[str, int]]) -> list[list[str]]:
    """Which rank reads which files through, by the sizes: about as much on each, and only what that rank sees.

    Shared storage may show a rank the others' files late.
    """
    sees: dict[str, list[int]] = {}
    for rank, files in enumerate(seen):
        for name in files:
            sees.setdefault(name, []).append(rank)
    shares: list[list[str]] = [[] for _ in seen]
    load = [0] * len(seen)
    for name in sorted(sees, key=lambda name: (-seen[sees[name][0]][name], name)):
        rank = min(sees[name], key=lambda rank: load[rank])
        shares[rank].append(name)
        load[rank] += seen[rank][name] + 1
    return shares
