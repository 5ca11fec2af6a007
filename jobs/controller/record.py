"""What the controller keeps of a run beyond what it shows: how to launch it, and what is wanted of it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from jobs.model import MOVES, Failure, Launch, Move, Run, RunState


class _Kept(BaseModel):
    model_config = ConfigDict(extra="ignore")


Purpose = Literal["stop", "restart", "preempt", "drain", "time_limit", "silence", "start_timeout"]
"""What an attempt is ended for, and so what follows: nothing more, or the queue."""


class Resume(_Kept):
    """What the next attempt begins from."""

    step: int | None = None
    """None: the newest complete checkpoint; 0: nothing."""
    run_directory: str = ""
    """Of another run, whose checkpoint it is as long as there is no own one; empty for its own."""
    run: str = ""
    """That run's id."""


class StopWanted(_Kept):
    """Somebody wants the attempt to end. It is on disk before Ray is told."""

    at: float
    user: str
    """``raydeck`` where a limit or a preemption asks for it."""
    reason: str = ""
    now: bool = False
    """Do not ask the gang, do not wait."""
    sent_at: float | None = None
    """When Ray took the stop; None as long as it has not."""
    purpose: Purpose = "stop"
    resume: Resume | None = None
    """For a restart: what the next attempt begins from."""

    @property
    def sentence(self) -> str:
        """Who and why, for the screen."""
        verb = {"restart": "restarted", "preempt": "preempted", "drain": "moved"}.get(self.purpose, "stopped")
        return f"{verb} by {self.user}: {self.reason}" if self.reason else f"{verb} by {self.user}"


class Record(_Kept):
    """A run, and all that is needed to carry it on after a restart of the controller."""

    run: Run
    launch: Launch
    """Of the newest attempt, or of the first one to come."""
    package: str
    """The digest of the archive that goes to Ray."""
    posted_at: float | None = None
    """When its job was last posted, written before that: from then on Ray may have it. None after a clear refusal."""
    posted_session: str = ""
    """The session of Ray that it was posted to; another head knows nothing of it."""
    stop: StopWanted | None = None
    resume: Resume = Resume()
    """What the next attempt begins from."""
    place: float | None = None
    """A place in the queue that was given by hand, on the scale of `jobs.controller.schedule.order.key`."""
    silence_timeout_seconds: float | None = None
    retry_backoff_seconds: float = 10.0
    sweep_parallel: int | None = None
    ran_seconds: float = 0.0
    """How long its ended attempts ran, together: the time limit counts them."""
    unwritten: list[Move] = Field(default_factory=list[Move], exclude=True)
    """Moves that are not in the journal yet; it writes them together with the record."""

    @property
    def id(self) -> str:
        """The run's id."""
        return self.run.id


class IllegalMove(ValueError):
    """The table of moves has no such way. It is a mistake in the controller, never one of the operator."""


def moved(record: Record, state: RunState, reason: str, now: float, actor: str = "raydeck") -> Record:
    """The record with its run (and an attempt that has not ended) in ``state``; stamps start and end, notes the move.

    Raises `IllegalMove` if the table of moves does not lead there.
    """
    run = record.run
    if state is not run.state and state not in MOVES[run.state]:
        raise IllegalMove(f"run {run.id} cannot go from {run.state.value} to {state.value}")
    changes: dict[str, object] = {"state": state, "reason": reason}
    if state is RunState.RUNNING and run.started_at is None:
        changes["started_at"] = now
    if state.ended:
        changes["ended_at"] = now
    elif run.state.ended:
        changes["ended_at"] = None
    attempts = list(run.attempts)
    if attempts and attempts[-1].ended_at is None and not state.waiting:
        attempt_changes: dict[str, object] = {"state": state, "reason": reason}
        if state is RunState.STARTING and attempts[-1].started_at is None:
            attempt_changes["started_at"] = now
        if state.ended:
            attempt_changes["ended_at"] = now
        attempts[-1] = attempts[-1].model_copy(update=attempt_changes)
    changes["attempts"] = attempts
    update: dict[str, object] = {"run": run.model_copy(update=changes)}
    if state is not run.state:
        number = attempts[-1].number if attempts else 0
        move = Move(at=now, attempt=number, before=run.state, after=state, cause=reason, actor=actor)
        update["unwritten"] = [*record.unwritten, move]
    return record.model_copy(update=update)


def closed(record: Record, state: RunState, reason: str, failure: Failure | None, now: float) -> Record:
    """The record with its newest attempt at its end; where the run goes from there is another matter."""
    attempt = record.run.attempt
    if attempt is None or attempt.ended_at is not None:
        return record
    ran = max(0.0, now - attempt.started_at) if attempt.started_at is not None else 0.0
    last = attempt.model_copy(update={"state": state, "reason": reason, "failure": failure, "ended_at": now})
    run = record.run.model_copy(update={"attempts": [*record.run.attempts[:-1], last], "failure": failure})
    return record.model_copy(update={"run": run, "ran_seconds": record.ran_seconds + ran})
