"""What a change would cost a run: where it stands, what was saved last, and the GPU-hours since. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from console.render.prose import listed, number, some
from jobs.model import Run


class Typed(NamedTuple):
    """What a person has to type before a change is made."""

    ask: Literal["y", "name", "count"]
    expected: str


def what_to_type(touched: Sequence[Run], you: str) -> Typed:
    """One key for one run of one's own, its name for another person's, how many there are for more than one.

    Args:
        touched: The runs that feel it.
        you: Who is asking; empty where nobody has said.
    """
    if len(touched) > 1:
        return Typed("count", str(len(touched)))
    if touched and is_anothers(touched[0], you):
        return Typed("name", touched[0].id)
    return Typed("y", "y")


def is_anothers(run: Run, you: str) -> bool:
    """Whether somebody else launched it, as far as one knows."""
    return bool(you and run.user and run.user != you)


def whose(runs: Collection[Run], you: str) -> tuple[str, ...]:
    """The warning that runs of other people are among them; none if they are one's own."""
    others = sorted({run.user for run in runs if is_anothers(run, you)})
    if not others:
        return ()
    count = sum(is_anothers(run, you) for run in runs)
    return (f"{some(count, 'run')} of {listed(others, 4)}, not yours",)


def last_step(run: Run) -> int | None:
    """The last step that its newest attempt reported; None if it reported none."""
    attempt = run.attempt
    if attempt is None:
        return None
    if attempt.status is not None and attempt.status.progress is not None:
        return attempt.status.progress.step
    return attempt.outcome.last_step if attempt.outcome is not None else None


def gpu_hours_since_checkpoint(run: Run, now_wall: float) -> float | None:
    """Accelerators times hours since the newest checkpoint of a run that runs; None for one that has not started.

    When that was saved is not told, so it is worked out from the steps: an estimate, good where they take even times.
    """
    attempt = run.attempt
    if attempt is None or attempt.status is None:
        return None
    begun = run.started_at if attempt.started_at is None else attempt.started_at
    if begun is None:
        return None
    spent = max(0.0, now_wall - begun) / 3600 * max(1, run.gpus)
    step, saved, first = last_step(run), attempt.status.checkpoint_step, attempt.resume_step or 0
    if step is None or saved is None or saved <= first or step <= first:
        return spent
    return spent * max(0, step - saved) / (step - first)


def at_stake(run: Run, now_wall: float) -> str:
    """Where a run stands and what is lost if nothing more is saved, in words."""
    if run.state.waiting:
        return "it waits: nothing is lost"
    status = run.attempt.status if run.attempt else None
    hours = gpu_hours_since_checkpoint(run, now_wall)
    if status is None or hours is None:
        return "it has not started: nothing is lost"
    step = last_step(run)
    stands = "before its first step" if step is None else f"at step {number(step)}"
    saved, first = status.checkpoint_step, run.attempt.resume_step if run.attempt else None
    if saved is None:
        return f"{stands}, no checkpoint yet; {hours:.2f} GPU-hours since its start"
    if first is not None and saved <= first:
        return f"{stands}, no checkpoint since it began at step {number(first)}; {hours:.2f} GPU-hours since then"
    return f"{stands}, checkpoint at step {number(saved)}; about {hours:.2f} GPU-hours since then"
