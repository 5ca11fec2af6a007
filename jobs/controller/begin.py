"""What the next attempt of a run begins from, and the run with that attempt. `begin` reads folders, so it may block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs import catalogue
from jobs.controller.aftermath import excluded
from jobs.controller.record import Record, moved
from jobs.controller.schedule.types import Room
from jobs.model import Attempt, RunState, job_id


@dataclass(frozen=True, slots=True)
class Begin:
    """A checkpoint, or nothing."""

    step: int | None = None
    path: str = ""
    run: str = ""
    """Another run, if it is its checkpoint."""
    skipped: tuple[str, ...] = ()
    set_aside: tuple[int, ...] = ()
    """Complete checkpoints beyond a chosen step, which belong to a course that is left."""
    warnings: tuple[str, ...] = ()


def begin(record: Record) -> Begin:
    """The checkpoint that `Record.resume` means, as the storage has it now. Raises `Refused` if it cannot be used."""
    wanted, run = record.resume, record.run
    world = record.launch.nodes * record.launch.processes_per_node
    own = bool(run.attempts) or (wanted.step is not None and not wanted.run_directory)
    choice = catalogue.choose(run.run_directory, None if wanted.run_directory else wanted.step) if own else None
    skipped = tuple(choice.skipped) if choice is not None else ()
    another = ""
    if wanted.run_directory and (choice is None or choice.step is None):
        choice, another = catalogue.choose(wanted.run_directory, wanted.step), wanted.run
        skipped = (*skipped, *choice.skipped)
    if choice is None:
        return Begin()
    warnings: list[str] = []
    if choice.world_size is not None and choice.world_size != world:
        warnings.append(
            f"the checkpoint of step {choice.step} was saved by {choice.world_size} ranks, and it has {world}"
        )
    # What another run has beyond the chosen step is that run's own business.
    aside = () if another else tuple(choice.set_aside)
    return Begin(choice.step, choice.path, another, skipped, aside, tuple(warnings))


def withdrawn(record: Record, why: str, now: float) -> Record:
    """An admitted run that was not given to Ray yet, back in the queue as if it had not been admitted."""
    record = moved(record, RunState.QUEUED, why, now)
    run = record.run.model_copy(update={"attempts": record.run.attempts[:-1]})
    launch = record.launch.model_copy(update={"node_ids": []})
    return record.model_copy(update={"run": run, "launch": launch})


def admitted(record: Record, node_ids: Sequence[str], rooms: Sequence[Room], start: Begin, now: float) -> Record:
    """The run with its next attempt, on these nodes, from that checkpoint."""
    names = {room.node_id: room.name for room in rooms}
    off = excluded(record)
    number = len(record.run.attempts) + 1
    attempt = Attempt(
        number=number,
        job_id=job_id(record.id, number),
        resume_step=start.step,
        resume_run=start.run,
        skipped=list(start.skipped),
        nodes=[names.get(node_id, node_id) for node_id in node_ids],
        excluded=off,
    )
    launch = record.launch.model_copy(
        update={
            "attempt": number,
            "node_ids": list(node_ids),
            "excluded_node_ids": [room.node_id for room in rooms if room.name in off],
            "resume_from_step": start.step,
            "resume_path": start.path,
            "set_aside_after": (start.step or 0) if start.set_aside else None,
        }
    )
    run = record.run.model_copy(update={"attempts": [*record.run.attempts, attempt], "not_before": None})
    fresh = record.model_copy(update={"run": run, "launch": launch, "posted_at": None})
    return moved(fresh, RunState.ADMITTED, _cause(start, attempt), now)


def _cause(start: Begin, attempt: Attempt) -> str:
    parts = [f"on {', '.join(attempt.nodes[:8])}{' …' if len(attempt.nodes) > 8 else ''}"] if attempt.nodes else []
    if start.step is not None:
        parts.append(f"from the checkpoint of step {start.step}{f' of {start.run}' if start.run else ''}")
    elif attempt.number > 1:
        parts.append("from nothing: it has no complete checkpoint")
    if attempt.excluded:
        parts.append(f"kept off {', '.join(attempt.excluded)}, which were suspected twice")
    return "; ".join([*parts, *start.warnings])
