"""What a request makes of a run: ended, tried again, arranged in the queue. Pure; who may ask is checked before."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.controller.record import Record, Resume, StopWanted, moved
from jobs.errors import Refused
from jobs.model import Held, RunState

_BY_PEOPLE = ("stop", "restart")
_GENTLE = ("drain",)
"""Ends that were asked for by a word in the run's folder, and of which Ray knows nothing yet."""


class WrongState(Refused):
    """It cannot be done as things stand."""


def stop(record: Record, wanted: StopWanted) -> Record:
    """Want the newest attempt ended. What a person wants goes before what raydeck wants, and the last word counts."""
    run, before = record.run, record.stop
    if run.state.ended:
        raise WrongState(f"run {run.id} has ended already: {run.state.value}")
    if before is not None and before.purpose in _BY_PEOPLE and wanted.purpose not in _BY_PEOPLE:
        return record
    if before is None:
        merged = wanted
    elif before.purpose == wanted.purpose:
        if before.now or not wanted.now:
            return record.model_copy(update={"stop": before.model_copy(update={"resume": wanted.resume})})
        # Sent again, so that the driver learns that there is no more time.
        merged = before.model_copy(update={"now": True, "sent_at": None})
    else:
        urgent = (wanted.now and not before.now) or before.purpose in _GENTLE
        merged = wanted.model_copy(
            update={"at": before.at, "now": before.now or wanted.now, "sent_at": None if urgent else before.sent_at}
        )
    run = run.model_copy(update={"reason": f"to be {merged.sentence}"})
    return record.model_copy(update={"stop": merged, "run": run})


def restart(record: Record, resume: Resume, user: str, reason: str, at: float) -> Record:
    """Have it try again from ``resume``. One that holds something saves and leaves first."""
    run = record.run
    if run.state.waiting:
        changes = {"not_before": None, "retries": 0}
        return record.model_copy(update={"resume": resume, "run": run.model_copy(update=changes)})
    if not run.state.ended:
        return stop(record, StopWanted(at=at, user=user, reason=reason, purpose="restart", resume=resume))
    return requeued(record, resume, f"restarted by {user}{f': {reason}' if reason else ''}", at, user)


def requeued(record: Record, resume: Resume, reason: str, at: float, actor: str) -> Record:
    """An ended run back in the queue, with all its retries, at the end of its priority."""
    fresh = record.model_copy(update={"stop": None, "posted_at": None, "resume": resume, "ran_seconds": 0.0})
    fresh = moved(fresh, RunState.QUEUED, reason, at, actor)
    changes = {"not_before": None, "retries": 0, "failure": None, "queued_at": at, "after": [], "held": None}
    return fresh.model_copy(update={"run": fresh.run.model_copy(update=changes), "place": None})


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How a run is to wait. None leaves a thing as it is."""

    priority: str | None = None
    queue: str | None = None
    hold: bool | None = None
    place: float | None = None
    """On the scale of the queue's order."""
    own_place: bool = False
    """Give back the place that is its by priority and time."""


def arrange(record: Record, change: Arrangement, user: str, reason: str, at: float) -> Record:
    """The record as it waits from now on. Raises `WrongState` for a run that does not wait (but for its priority)."""
    run = record.run
    waits_only = change.queue is not None or change.hold is not None or change.place is not None or change.own_place
    if run.state.ended:
        raise WrongState(f"run {run.id} has ended already: {run.state.value}")
    if waits_only and not run.state.waiting:
        raise WrongState(
            f"run {run.id} does not wait: it is {run.state.value}", "Only its priority can be changed while it runs"
        )
    changes: dict[str, object] = {}
    place = record.place
    if change.priority is not None:
        changes["priority"] = change.priority
        place = None
    if change.queue is not None:
        changes["queue"] = change.queue
        place = None
    if change.hold is not None:
        changes["held"] = Held(user=user, at=at, reason=reason) if change.hold else None
    if change.place is not None or change.own_place:
        place = change.place
    return record.model_copy(update={"run": run.model_copy(update=changes), "place": place})
