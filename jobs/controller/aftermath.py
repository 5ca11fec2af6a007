"""What follows the end of an attempt: an end of the run, or another attempt, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from jobs import failure as failures
from jobs.controller.record import Record, Resume, StopWanted, closed, moved
from jobs.model import Attempt, Failure, Outcome, RunState
from jobs.spans import span

LONGEST_BACKOFF_SECONDS = 600.0
SUSPECTED_TWICE = 2
"""So often a node has to be suspected before a run is kept off it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended."""

    state: RunState
    """SUCCEEDED, FAILED or STOPPED."""
    reason: str
    failure: Failure | None = None
    outcome: Outcome | None = None


_LIMITS = {
    "time_limit": Failure.TIME_LIMIT,
    "silence": Failure.SILENCE,
    "start_timeout": Failure.START_TIMEOUT,
}


def follow(record: Record, ended: Ended, now: float) -> Record:
    """The record after its attempt's end."""
    stop = record.stop
    if ended.state is RunState.SUCCEEDED and not (stop and stop.purpose == "restart" and _chosen(stop)):
        return moved(closed(record, RunState.SUCCEEDED, ended.reason, None, now), RunState.SUCCEEDED, ended.reason, now)
    if stop is None and ended.state is RunState.STOPPED:
        reason = f"stopped, though nobody asked raydeck for it; {ended.reason}".rstrip("; ")
        return moved(closed(record, RunState.STOPPED, reason, Failure.CANCELLED, now), RunState.STOPPED, reason, now)
    if stop is None or (ended.state is RunState.FAILED and _own_fault(stop, ended)):
        return _failed(record, ended, now)
    reason = f"{stop.sentence}; {ended.reason}" if ended.reason else stop.sentence
    if stop.purpose == "stop":
        return moved(closed(record, ended.state, reason, ended.failure, now), ended.state, reason, now, stop.user)
    if stop.purpose == "restart":
        done = closed(record, ended.state, reason, ended.failure, now)
        return _again(done, RunState.QUEUED, reason, now, stop.user, resume=stop.resume or Resume(), retries=0)
    if stop.purpose == "preempt":
        done = closed(record, RunState.PREEMPTED, reason, None, now)
        return _again(done, RunState.PREEMPTED, reason, now, stop.user, resume=_next(record))
    if stop.purpose == "drain":
        done = closed(record, RunState.PREEMPTED, reason, None, now)
        return _again(done, RunState.QUEUED, reason, now, stop.user, resume=_next(record))
    kind = _LIMITS[stop.purpose]
    return _failed(record, Ended(RunState.FAILED, f"{stop.reason}; {ended.reason}", kind, ended.outcome), now)


_OF_THE_NODE = frozenset(
    {Failure.NODE_LOST, Failure.DRIVER, Failure.COMMUNICATION, Failure.START_TIMEOUT, Failure.UNKNOWN}
)
"""Failures that are to be expected on a node that somebody empties: they spend no retry."""


def _own_fault(stop: StopWanted, ended: Ended) -> bool:
    """Whether an attempt that failed while it was to leave did so for a reason of its own."""
    if stop.purpose == "drain":
        return (ended.failure or Failure.UNKNOWN) not in _OF_THE_NODE
    return stop.purpose == "preempt"


def _chosen(stop: StopWanted) -> bool:
    """Whether a restart asks for something else than to go on from where the run is."""
    return stop.resume is not None and stop.resume.step is not None


def _failed(record: Record, ended: Ended, now: float) -> Record:
    failure = ended.failure or Failure.UNKNOWN
    earlier = [attempt.outcome for attempt in record.run.attempts[:-1] if attempt.outcome is not None]
    outcome = ended.outcome or Outcome(verdict="failed", reason=ended.reason)
    outcome = outcome.model_copy(update={"failure": failure})
    record = closed(_with_outcome(record, outcome), RunState.FAILED, ended.reason, failure, now)
    record = _suspect(record, outcome)
    refused = _why_not_again(record, outcome, earlier)
    if refused is not None:
        reason = f"{ended.reason}; {refused}" if refused else ended.reason
        return moved(record, RunState.FAILED, reason, now)
    run = record.run
    # A checkpoint that turned out to be broken is not the run's fault: the next older one is free.
    retries = run.retries if failure is Failure.CHECKPOINT else run.retries + 1
    wait = min(LONGEST_BACKOFF_SECONDS, record.retry_backoff_seconds * 2.0 ** max(0, retries - 1))
    which = "with an older checkpoint" if failure is Failure.CHECKPOINT else f"retry {retries} of {run.max_retry}"
    reason = (
        f"attempt {len(run.attempts)} failed ({failure.value}): {ended.reason}; tries again in {span(wait)}, {which}"
    )
    resume = _next(record)
    return _again(
        record, RunState.QUEUED, reason, now, "raydeck", resume=resume, retries=retries, not_before=now + wait
    )


def _with_outcome(record: Record, outcome: Outcome) -> Record:
    """The newest attempt with how it ended, as it was judged here: later ones are compared with it."""
    *before, last = record.run.attempts
    attempts = [*before, last.model_copy(update={"outcome": outcome})]
    return record.model_copy(update={"run": record.run.model_copy(update={"attempts": attempts})})


def _why_not_again(record: Record, outcome: Outcome, earlier: list[Outcome]) -> str | None:
    """Why there is no other attempt (empty where nobody would expect one); None if there is."""
    run = record.run
    if outcome.survivors:
        pids = ", ".join(map(str, outcome.survivors))
        return f"not tried again while processes of it live: {pids}"
    if outcome.failure is Failure.CHECKPOINT:
        return None
    if run.max_retry == 0:
        return ""
    if run.retries >= run.max_retry:
        return f"all {run.max_retry} retries are spent" if run.max_retry > 1 else "its retry is spent"
    again, why = failures.worth_another(outcome, earlier)
    return None if again else why


def _suspect(record: Record, outcome: Outcome) -> Record:
    if not outcome.suspects:
        return record
    suspects = dict(record.run.suspects)
    for node in outcome.suspects:
        suspects[node] = suspects.get(node, 0) + 1
    return record.model_copy(update={"run": record.run.model_copy(update={"suspects": suspects})})


def excluded(record: Record) -> list[str]:
    """The nodes that this run is kept off, by name."""
    return sorted(node for node, count in record.run.suspects.items() if count >= SUSPECTED_TWICE)


def _next(record: Record) -> Resume:
    """What the attempt after this one begins from: the newest checkpoint, unless this one never came to work."""
    attempt = record.run.attempt
    if attempt is None or not _worked(attempt):
        return record.resume
    # The other run's checkpoint stays the ground to fall back to, until there is one of its own.
    return record.resume if record.resume.run_directory else Resume()


def _worked(attempt: Attempt) -> bool:
    """Its ranks were started, so checkpoints of a course that was left are out of the way."""
    status, outcome = attempt.status, attempt.outcome
    started = status is not None and any(rank.pid is not None for rank in status.ranks)
    return started or (outcome is not None and outcome.last_step is not None)


def _again(
    record: Record,
    state: RunState,
    reason: str,
    now: float,
    actor: str,
    *,
    resume: Resume,
    retries: int | None = None,
    not_before: float | None = None,
) -> Record:
    """Back in the queue, at its old place, with nothing left of the attempt before."""
    record = moved(record, state, reason, now, actor)
    run = record.run
    changes: dict[str, object] = {"not_before": not_before}
    if retries is not None:
        changes["retries"] = retries
    if run.attempts and run.attempts[-1].status is not None:
        # Where its ranks were is in the next attempt's launch; a thousand of them are not kept for every attempt.
        last = run.attempts[-1]
        status = last.status.model_copy(update={"ranks": []}) if last.status is not None else None
        changes["attempts"] = [*run.attempts[:-1], last.model_copy(update={"status": status})]
    launch = record.launch.model_copy(update={"previous_nodes": {**record.launch.previous_nodes, **_nodes(record)}})
    update = {
        "run": run.model_copy(update=changes),
        "launch": launch,
        "stop": None,
        "posted_at": None,
        "resume": resume,
    }
    return record.model_copy(update=update)


def _nodes(record: Record) -> dict[str, str]:
    """Ray node ids and names of where the newest attempt had, or may have, processes."""
    attempt = record.run.attempt
    if attempt is None:
        return {}
    named = dict(zip(record.launch.node_ids, attempt.nodes, strict=False))
    status = attempt.status
    return {**{rank.node_id: rank.node_address for rank in (status.ranks if status else []) if rank.node_id}, **named}
