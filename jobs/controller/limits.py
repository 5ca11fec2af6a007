"""A run's own limits: how long it may run, how long it may take to start, how long it may be silent. Pure."""

from __future__ import annotations

from jobs.controller.record import Record, StopWanted
from jobs.model import RunState
from jobs.spans import span

START_MARGIN_SECONDS = 180.0
"""Beyond the limit for its start: the driver keeps that limit itself, and this is for one that cannot."""


def exceeded(record: Record, progress_age_seconds: float | None, now: float) -> StopWanted | None:
    """The stop that follows from a limit that was passed; None while all are kept."""
    run, attempt = record.run, record.run.attempt
    begun = attempt.started_at if attempt is not None else None
    if begun is None:
        return None
    limit = run.max_duration_seconds
    if limit is not None and record.ran_seconds + (now - begun) > limit:
        reason = f"its time limit of {span(limit)} was reached"
        return StopWanted(at=now, user="raydeck", reason=reason, purpose="time_limit")
    silence = record.silence_timeout_seconds
    if (
        run.state is RunState.RUNNING
        and silence is not None
        and progress_age_seconds is not None
        and progress_age_seconds > silence
    ):
        reason = f"it reported no new step for {span(silence)}"
        return StopWanted(at=now, user="raydeck", reason=reason, purpose="silence")
    start = record.launch.start_timeout_seconds + START_MARGIN_SECONDS
    if run.state is RunState.STARTING and now - begun > start:
        reason = f"it did not start within {span(start)}, and its driver does not say why"
        return StopWanted(at=now, user="raydeck", reason=reason, purpose="start_timeout")
    return None
