"""What the controller keeps of a run beyond what it shows: how to launch it, and what is wanted of it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from jobs.model import MOVES, Launch, Run, RunState


class _Kept(BaseModel):
    model_config = ConfigDict(extra="ignore")


class StopWanted(_Kept):
    """Somebody wants the run to end. It is on disk before Ray is told."""

    at: float
    user: str
    reason: str = ""
    now: bool = False
    """Do not ask the gang, do not wait."""
    sent_at: float | None = None
    """When Ray took the stop; None as long as it has not."""

    @property
    def sentence(self) -> str:
        """Who and why, for the screen."""
        return f"stopped by {self.user}: {self.reason}" if self.reason else f"stopped by {self.user}"


class Record(_Kept):
    """A run, and all that is needed to carry it on after a restart of the controller."""

    run: Run
    launch: Launch
    package: str
    """The digest of the archive that goes to Ray."""
    entrypoint: list[str] = Field(default_factory=list)
    """For kind ``ray``: the command, run from ``workload/``. Empty for a gang."""
    posted_at: float | None = None
    """When its job was last posted, written before that: from then on Ray may have it. None after a clear refusal."""
    stop: StopWanted | None = None

    @property
    def id(self) -> str:
        """The run's id."""
        return self.run.id


class IllegalMove(ValueError):
    """The table of moves has no such way. It is a mistake in the controller, never one of the operator."""


def moved(record: Record, state: RunState, reason: str, now: float) -> Record:
    """The record with its run (and newest attempt) in ``state``; stamps the start and the end.

    Raises `IllegalMove` if the table of moves does not lead there.
    """
    run = record.run
    if state is not run.state and state not in MOVES[run.state]:
        raise IllegalMove(f"run {run.id} cannot go from {run.state.value} to {state.value}")
    changes: dict[str, object] = {"state": state, "reason": reason}
    if state is RunState.RUNNING and run.started_at is None:
        changes["started_at"] = now
    if state.ended and run.ended_at is None:
        changes["ended_at"] = now
    attempts = list(run.attempts)
    if attempts:
        attempt_changes: dict[str, object] = {"state": state, "reason": reason}
        if state is RunState.STARTING and attempts[-1].started_at is None:
            attempt_changes["started_at"] = now
        if state.ended and attempts[-1].ended_at is None:
            attempt_changes["ended_at"] = now
        attempts[-1] = attempts[-1].model_copy(update=attempt_changes)
    changes["attempts"] = attempts
    return record.model_copy(update={"run": run.model_copy(update=changes)})
