"""From what was seen of an attempt to where its run stands and what to do next. Pure: no clock, no file, no network.

    QUEUED ── admit ──▶ ADMITTED ── submit ──▶ STARTING ──▶ RUNNING ──▶ SAVING ──▶ STOPPING ──▶ an end, or the queue

Everything that may be missing is said to be missing: a Ray that does not answer is no job that failed, and a run
directory that cannot be read is no outcome. Such a run keeps its state. What follows an attempt's end is `aftermath`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from jobs.controller.aftermath import Ended, follow
from jobs.controller.limits import exceeded
from jobs.controller.record import Record, closed, moved
from jobs.controller.wishes import stop
from jobs.model import Failure, GangStatus, Outcome, RunState, job_id

VANISHED_AFTER_LOOKS = 3
"""How often in a row Ray must say that it does not know the job before it is believed."""
DOUBT_SECONDS = 60.0
"""For how long a job that was posted may still arrive in Ray; until then its absence proves nothing."""
OUTCOME_SETTLES_SECONDS = 20.0
"""How long a driver may take to leave after it wrote its outcome; then the outcome stands without Ray's word."""
OUTCOME_ARRIVES_SECONDS = 3.0
"""How long after its job's end an outcome may take to be seen here: shared storage shows new files late."""
STOP_AGAIN_SECONDS = 10.0
"""A stop that had no effect is sent again after this time."""
SAVE_MARGIN_SECONDS = 15.0
"""Beyond the grace: for the driver to write its outcome and sweep, before Ray kills it."""
DRIVER_SILENT_SECONDS = 20.0
"""Its status file is written each second; unchanged for this long it is worth saying."""
LAST_LINES = 3
REASON_LIMIT = 900
"""In characters: a reason is for a screen, the log is for the rest."""

JOB_ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True, slots=True)
class JobSeen:
    """What Ray said about the attempt's job when it was last asked."""

    found: bool
    ours: bool = True
    """Its metadata names this run and attempt."""
    status: str = ""
    """Ray's word: PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED."""
    message: str = ""
    """Ray's sentence; of a driver that failed it has the last lines of its log."""
    looks_missed: int = 0
    """For how many looks in a row Ray has not known it."""

    @property
    def ended(self) -> bool:
        return self.found and self.status in JOB_ENDED


@dataclass(frozen=True, slots=True)
class Seen:
    """All that is known of an attempt at one moment."""

    job: JobSeen | None = None
    """None: Ray was not asked, or did not answer."""
    job_ended_seconds: float = 0.0
    """For how long Ray has said that the job has ended."""
    session: str = ""
    """What tells Ray's head from the one before it; empty if it has not said."""
    ray_silent_seconds: float = 0.0
    """For how long Ray has not answered; 0 if it does."""
    status: GangStatus | None = None
    status_age_seconds: float = 0.0
    """For how long the status file has not changed."""
    progress_age_seconds: float | None = None
    """For how long it has reported no new step; None before it was seen to run."""
    outcome: Outcome | None = None
    outcome_age_seconds: float = 0.0
    unreadable: str = ""
    """Why the run's directory cannot be read from here; empty if it can."""


class Do(Enum):
    """What has to happen in Ray next."""

    NOTHING = "nothing"
    SUBMIT = "submit"
    STOP = "stop"
    LEAVE = "leave"
    """Ask its driver to have it save and leave; Ray is not asked."""


@dataclass(frozen=True, slots=True)
class Step:
    """The record as it is now, and what follows from it."""

    record: Record
    do: Do = Do.NOTHING


def judge(record: Record, seen: Seen, now: float) -> Step:
    """The next step of a run that has not ended. ``now`` is in seconds since 1970."""
    state = record.run.state
    if state.waiting:
        if record.stop is None or record.stop.purpose != "stop":
            return Step(record)
        when = "before it was admitted" if not record.run.attempts else "while it waited for another attempt"
        return Step(moved(record, RunState.STOPPED, f"{record.stop.sentence}, {when}", now, record.stop.user))
    record = _with_report(record, seen)
    if state is RunState.ADMITTED:
        return _admitted(record, seen, now)
    ended = _end(record, seen, now)
    if ended is not None:
        return Step(follow(record, ended, now))
    if record.stop is None:
        over = exceeded(record, seen.progress_age_seconds, now)
        if over is not None:
            record = stop(record, over)
    if record.stop is not None:
        return _stopping(record, seen, now)
    return Step(_going(record, seen, now))


def _with_report(record: Record, seen: Seen) -> Record:
    """The newest attempt with what its driver says of itself."""
    attempt = record.run.attempt
    if attempt is None or (seen.status is None and seen.outcome is None):
        return record
    status, outcome = seen.status or attempt.status, seen.outcome or attempt.outcome
    if status == attempt.status and outcome == attempt.outcome:
        return record
    attempts = [*record.run.attempts[:-1], attempt.model_copy(update={"status": status, "outcome": outcome})]
    return record.model_copy(update={"run": record.run.model_copy(update={"attempts": attempts})})


def _reason(record: Record, reason: str, now: float) -> Record:
    return record if record.run.reason == reason else moved(record, record.run.state, reason, now)


def _silence(seen: Seen) -> str:
    return "Ray does not answer the controller; this is what was known before" if seen.ray_silent_seconds > 0 else ""


def _admitted(record: Record, seen: Seen, now: float) -> Step:
    stop_wanted = record.stop
    if stop_wanted is not None and record.posted_at is None:
        sentence = f"{stop_wanted.sentence}, before it was started"
        return Step(follow(record, Ended(RunState.STOPPED, sentence), now))
    job = seen.job
    if job is None:
        return Step(_reason(record, "Ray does not answer the controller; it starts when Ray does", now))
    if job.found and not job.ours:
        attempt = record.run.attempt
        number = attempt.number if attempt else 1
        sentence = (
            f"Ray has a job {job_id(record.id, number)} that is not this run's: delete it in Ray and launch again"
        )
        failed = closed(record, RunState.FAILED, sentence, Failure.UNKNOWN, now)
        return Step(moved(failed, RunState.FAILED, sentence, now))
    if job.found:
        return Step(moved(record, RunState.STARTING, _job_detail(job), now))
    if record.posted_at is not None and seen.session and record.posted_session != seen.session:
        # It may have begun there, and live on for a minute: never the same attempt again.
        state = RunState.FAILED if stop_wanted is None else RunState.STOPPED
        sentence = "Ray's head was started anew after it had been given its job: whether it had begun is not known"
        return Step(follow(record, Ended(state, sentence, None if stop_wanted else Failure.NODE_LOST), now))
    if stop_wanted is not None:
        sentence = f"{stop_wanted.sentence}; its job was posted and may still arrive in Ray, to be stopped there"
        return Step(moved(record, RunState.STOPPING, sentence, now, stop_wanted.user))
    return Step(record, Do.SUBMIT)


def _job_detail(job: JobSeen) -> str:
    return "" if job.status == "RUNNING" else f"Ray has the job as {job.status}: {job.message}".rstrip(": ")


def _going(record: Record, seen: Seen, now: float) -> Record:
    """STARTING, RUNNING or SAVING with nobody wanting it stopped."""
    state, job, status = record.run.state, seen.job, seen.status
    if state is RunState.STARTING:
        if status is not None and status.phase in ("running", "saving"):
            return moved(record, RunState.RUNNING, "", now)
        detail = status.detail if status is not None else ""
        waiting = detail or (_job_detail(job) if job is not None else record.run.reason)
        return _reason(record, _silence(seen) or waiting, now)
    if state is RunState.RUNNING and status is not None and status.phase == "saving":
        return moved(record, RunState.SAVING, "its gang saves and leaves, though nobody asked raydeck for it", now)
    if state is RunState.RUNNING:
        quiet = ""
        if seen.unreadable:
            quiet = f"its progress is not known: {seen.unreadable}"
        elif status is not None and seen.status_age_seconds >= DRIVER_SILENT_SECONDS:
            quiet = "its driver has stopped reporting, though Ray has its job as running"
        elif status is not None and status.warnings:
            quiet = "; ".join(status.warnings)
        return _reason(record, _silence(seen) or quiet, now)
    return record


def _stopping(record: Record, seen: Seen, now: float) -> Step:
    """Somebody wants it stopped, and it has not ended."""
    wanted, state, status = record.stop, record.run.state, seen.status
    assert wanted is not None
    gentle = wanted.purpose == "drain" and not wanted.now
    # A drain has a deadline of its own, which makes it urgent when it has passed.
    over = not gentle and now - wanted.at > record.launch.stop_grace_seconds
    if state is RunState.RUNNING and not wanted.now:
        record = moved(record, RunState.SAVING, f"{wanted.sentence}; its gang saves", now, wanted.user)
    elif state in (RunState.STARTING, RunState.RUNNING):
        record = moved(record, RunState.STOPPING, wanted.sentence, now, wanted.user)
    elif state is RunState.SAVING and (
        wanted.now or over or seen.outcome is not None or (status is not None and status.phase == "ended")
    ):
        late = f", which took longer than {record.launch.stop_grace_seconds:.0f} s" if over else ""
        sentence = f"{wanted.sentence}; waits for its job to end{late}"
        record = moved(record, RunState.STOPPING, sentence, now, wanted.user)
    unsent = wanted.sent_at is None or now - wanted.sent_at >= STOP_AGAIN_SECONDS
    if gentle:
        return Step(record, Do.LEAVE if unsent and seen.outcome is None else Do.NOTHING)
    if seen.job is None:
        return Step(record)
    return Step(record, Do.STOP if unsent and seen.job.found and not seen.job.ended else Do.NOTHING)


_VERDICTS = {"succeeded": RunState.SUCCEEDED, "failed": RunState.FAILED, "stopped": RunState.STOPPED}


def _end(record: Record, seen: Seen, now: float) -> Ended | None:
    """How the attempt ended, or None if it has not."""
    job, outcome = seen.job, seen.outcome
    settled = outcome is not None and seen.outcome_age_seconds >= OUTCOME_SETTLES_SECONDS
    gone = job is not None and not job.found and job.looks_missed >= VANISHED_AFTER_LOOKS and not _doubt(record, now)
    ended = job is not None and job.ended
    late = outcome is None and seen.job_ended_seconds < OUTCOME_ARRIVES_SECONDS
    if not (settled or gone or (ended and not late)):
        return None
    if outcome is not None:
        return _by_outcome(outcome)
    if job is not None and job.ended:
        return _by_job(record, job, seen.unreadable)
    if record.stop is not None:
        return Ended(RunState.STOPPED, "Ray no longer knows its job")
    sentence = "Ray no longer knows its job: Ray's head was started anew, or the job was deleted there"
    return Ended(RunState.FAILED, sentence, Failure.NODE_LOST)


def _doubt(record: Record, now: float) -> bool:
    """May a job that Ray does not know still be on its way there?"""
    return record.posted_at is not None and abs(now - record.posted_at) < DOUBT_SECONDS


def _by_outcome(outcome: Outcome) -> Ended:
    state = _VERDICTS.get(outcome.verdict)
    if state is None:
        sentence = f"its driver wrote an outcome that is not known here: {outcome.verdict}"
        return Ended(RunState.FAILED, sentence, Failure.UNKNOWN)
    reason = outcome.reason
    if outcome.survivors:
        pids = ", ".join(map(str, outcome.survivors))
        reason = f"{reason}; still alive after the sweep: {pids}".lstrip("; ")
    failure = (outcome.failure or Failure.UNKNOWN) if state is RunState.FAILED else None
    return Ended(state, reason, failure, outcome)


def _by_job(record: Record, job: JobSeen, unreadable: str) -> Ended:
    """Ray alone tells how it ended: its driver could not write an outcome."""
    blind = f" (its directory cannot be read: {unreadable})" if unreadable else ""
    if job.status == "SUCCEEDED":
        return Ended(RunState.SUCCEEDED, f"Ray says so; its driver left no outcome{blind}")
    if job.status == "STOPPED" or record.stop is not None:
        asked = "" if record.stop is not None else "stopped in Ray, not through raydeck; "
        return Ended(RunState.STOPPED, f"{asked}its driver left no outcome, so whether it saved is not known{blind}")
    died = f"its driver died without an outcome{blind}"
    said = short(job.message)
    sentence = f"{died}: {said}" if said else f"{died}, and Ray does not say why"
    return Ended(RunState.FAILED, sentence, Failure.UNKNOWN)


def short(message: str) -> str:
    """Ray's message on a failed job, which may be 20,000 characters of log, as its first line and the last ones."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if len(lines) > 1 + LAST_LINES:
        lines = [lines[0], "…", *lines[-LAST_LINES:]]
    text = " | ".join(lines)
    return text if len(text) <= REASON_LIMIT else f"{text[: REASON_LIMIT // 3]} … {text[-REASON_LIMIT * 2 // 3 :]}"
