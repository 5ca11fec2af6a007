"""Owns the ground that an attempt starts on: fenced, swept of earlier attempts, its checkpoint verified and pinned.

Two writers on one checkpoint folder is the worst accident there is, so where any of this fails nothing is started.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from jobs import catalogue, checkpoint, failure, fence
from jobs.errors import RaydeckError, Refused
from jobs.gang.apart import apart
from jobs.gang.verdict import Blame, Broken, broken
from jobs.model import Failure, Launch

if TYPE_CHECKING:
    from jobs.gang.leftovers import Swept


_LOOK_EVERY_SECONDS = 0.25


class Stopped(Exception):
    """The run was asked to stop before anything of it was started."""


class GoOn(Protocol):
    """What is done while something lasts, of which ``detail`` tells. Raises `Stopped` when that is asked for."""

    def __call__(self, detail: str) -> None: ...


def prepare(
    launch: Launch, sweep: Callable[[Callable[[], None]], Swept], go_on: GoOn, say: Callable[[str], None]
) -> None:
    """All of it, but for the fence, in its order. Raises Broken where it fails, and what ``go_on`` raises.

    ``sweep`` ends what earlier attempts left; it is given what to call while it waits.
    """
    if launch.previous_nodes:
        swept = sweep(lambda: go_on("looking for what earlier attempts left on their nodes"))
        judge_sweep(swept, say)
    if launch.set_aside_after is not None:
        aside = f"setting aside the checkpoints beyond step {launch.set_aside_after}"
        apart(lambda: set_aside(launch, say), lambda: go_on(aside), _LOOK_EVERY_SECONDS)
    if launch.resume_path:
        verifying = f"verifying the checkpoint of step {launch.resume_from_step}"
        apart(lambda: take_checkpoint(launch, say), lambda: go_on(verifying), _LOOK_EVERY_SECONDS)


def whole(launch: Launch) -> Launch:
    """The launch with the folder of the checkpoint that it begins from, also where only its step is given."""
    if launch.resume_path or not launch.resume_from_step:
        return launch
    path = str(checkpoint.folder(launch.run_directory, launch.resume_from_step))
    return launch.model_copy(update={"resume_path": path})


def raise_fence(launch: Launch) -> None:
    """From here on earlier attempts may not write. Raises Broken when this one is an earlier one itself."""
    try:
        fence.raise_fence(launch.run_directory, launch.attempt)
    except Refused as error:
        raise _broken(error, Failure.UNKNOWN) from None


def judge_sweep(swept: Swept, say: Callable[[str], None]) -> None:
    """Say what became of earlier attempts. Raises Broken when a process of theirs lives, or may live."""
    for node, pids in sorted(swept.ended.items()):
        say(f"ended what an earlier attempt had left on {node}: {_listed(pids)}")
    for node in sorted(swept.gone):
        say(
            f"{node} is not in Ray any more: what an earlier attempt left there cannot be ended; the fence keeps it out"
        )
    if swept.survivors:
        where = "; ".join(f"{_listed(pids)} on {node}" for node, pids in sorted(swept.survivors.items()))
        pids = sorted(pid for pids in swept.survivors.values() for pid in pids)
        reason = f"not started: these processes of an earlier attempt could not be ended: {where}"
        raise Broken(
            Blame(
                reason,
                Failure.UNKNOWN,
                signature=failure.signature(reason),
                survivors=pids,
                unanswered=swept.unanswered,
            )
        )
    if swept.unanswered:
        nodes = sorted(swept.unanswered)
        reason = (
            f"not started: whether processes of an earlier attempt live on {', '.join(nodes)} could not be found out"
        )
        raise Broken(Blame(reason, Failure.UNKNOWN, signature=failure.signature(reason), unanswered=nodes))


def set_aside(launch: Launch, say: Callable[[str], None]) -> None:
    """Put checkpoints of a course that was left out of the way. Raises Broken. Blocks on the storage."""
    if launch.set_aside_after is None:
        return
    try:
        steps = catalogue.set_aside(launch.run_directory, launch.set_aside_after, launch.attempt)
    except RaydeckError as error:
        raise _broken(error, Failure.DATA) from None
    if steps:
        say(f"set aside the checkpoints beyond step {launch.set_aside_after}: {_listed(steps)}")


def take_checkpoint(launch: Launch, say: Callable[[str], None]) -> None:
    """Pin and verify the one that it begins from; a broken one is marked, so that nobody takes it again.

    Raises Broken: CHECKPOINT when it is broken, and marked; DATA when that cannot be told. Blocks on the storage.
    """
    if not launch.resume_path:
        return
    path, step = Path(launch.resume_path), launch.resume_from_step
    named = f"the checkpoint of step {step} ({path})"
    try:
        catalogue.pin(path, launch.run)
    except Refused as error:
        if not path.exists():
            # The controller saw it a moment ago: the storage is not the same everywhere, or somebody deleted it.
            raise broken(
                Failure.DATA, f"cannot begin from {named}: it is not there on the node of its driver"
            ) from None
        say(f"{named} is not protected from being deleted meanwhile: {error.sentence}")
    if not (mistakes := checkpoint.verify(path)):
        say(f"begins from {named}, which is whole")
        return
    reason = f"cannot begin from {named}: {mistakes[0]}"
    if failure.classify(1, mistakes[0]).failure is Failure.DATA:
        # The storage fails, which says nothing of the checkpoint.
        raise broken(Failure.DATA, reason)
    try:
        checkpoint.mark_broken(path, mistakes[0])
    except Refused as error:
        # Unmarked it would be taken again, for ever.
        raise broken(Failure.DATA, f"{reason}; and that cannot be noted: {error.sentence}") from None
    raise Broken(Blame(reason, Failure.CHECKPOINT, mistakes[0], failure.signature(mistakes[0])))


def _broken(error: RaydeckError, otherwise: Failure) -> Broken:
    """What was refused, as the storage's failure where its words say so."""
    told = failure.classify(None, error.sentence)
    kind = told.failure if told.failure is Failure.DATA else otherwise
    return Broken(Blame(error.sentence, kind, told.evidence, failure.signature(error.sentence)))


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (f" and {len(numbers) - 10} more" if len(numbers) > 10 else "")
