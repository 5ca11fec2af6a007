"""The course of each run as the rules see it: how its steps went so far, and how they go now. No I/O.

What a run usually does is learnt from the run itself: its own steps, its own throughput, the power that its GPUs drew
while it made progress. Nothing is judged before enough of that is known.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from jobs.model import Rank, Run, RunState
from probes.health.rule import Entity, Measure, Missing, Seen
from probes.reading import ERROR

STEPS_KEPT = 64
LEAST_STEPS = 5
"""Before so many steps nothing is usual yet."""
BASELINE_SAMPLES = 40
POWERS_KEPT = 60
LATEST_SAVINGS = 3
LONG_SECONDS = 1800.0
"""After a first step so much without another is a stall, however long a step takes: collectives give up before."""
LEAST_OF_STEP = 0.1
"""A rank whose own part of a step is longer than the others' by less than this share of the step holds nobody up."""
LATELY_SECONDS = 600.0
FULL_PERCENT = 95.0
IDLE_PERCENT = 5.0
LITTLE_POWER = 0.6
"""A GPU that waits in a collective shows full utilisation at less than this share of its usual power."""


@dataclass(frozen=True, slots=True)
class GpuNow:
    """One GPU of a run at this moment."""

    utilization_percent: float
    power_watts: float | None


@dataclass(slots=True)
class Course:
    """One attempt of one run."""

    attempt: int
    began: float
    step: int | None = None
    stepped_at: float | None = None
    """When the newest step was seen, by the head's clock."""
    seconds: deque[float] = field(default_factory=lambda: deque[float](maxlen=STEPS_KEPT))
    """A step, averaged over what came at once."""
    throughputs: deque[float] = field(default_factory=lambda: deque[float](maxlen=STEPS_KEPT))
    baseline: float | None = None
    powers: deque[float] = field(default_factory=lambda: deque[float](maxlen=POWERS_KEPT))
    """Mean power of its GPUs while it made progress, watts."""
    checkpoint: int | None = None
    checkpoint_at: float | None = None
    between: deque[float] = field(default_factory=lambda: deque[float](maxlen=16))
    """Seconds from one checkpoint to the next."""
    savings: deque[float] = field(default_factory=lambda: deque[float](maxlen=32))
    """Seconds that each took to write."""
    idle_since: float | None = None

    def take(self, run: Run, gpus: Sequence[GpuNow], now: float) -> None:
        """How it stands at this moment."""
        attempt = run.attempt
        status = attempt.status if attempt is not None else None
        if status is None:
            return
        progress = status.progress
        if progress is not None and progress.step != self.step:
            if self.step is not None and self.stepped_at is not None and progress.step > self.step:
                self.seconds.append((now - self.stepped_at) / (progress.step - self.step))
            self.step, self.stepped_at = progress.step, now
            if progress.throughput is not None and progress.throughput > 0:
                self._take_throughput(progress.throughput)
            drawn = [gpu.power_watts for gpu in gpus if gpu.power_watts is not None]
            if drawn and len(drawn) == len(gpus):
                self.powers.append(statistics.fmean(drawn))
        idle = bool(gpus) and all(gpu.utilization_percent < IDLE_PERCENT for gpu in gpus)
        self.idle_since = (self.idle_since or now) if idle else None
        saved = status.checkpoint_step
        if saved is not None and saved != self.checkpoint:
            if self.checkpoint_at is not None:
                self.between.append(now - self.checkpoint_at)
            if status.checkpoint_seconds is not None and self.checkpoint_at is not None:
                self.savings.append(status.checkpoint_seconds)
            self.checkpoint, self.checkpoint_at = saved, now

    def _take_throughput(self, figure: float) -> None:
        self.throughputs.append(figure)
        if self.baseline is None and len(self.throughputs) >= BASELINE_SAMPLES:
            # The first steps load, compile and warm up.
            self.baseline = statistics.median(list(self.throughputs)[BASELINE_SAMPLES // 2 :])

    @property
    def usual_step_seconds(self) -> float | None:
        """The median; None before enough is known."""
        return statistics.median(self.seconds) if len(self.seconds) >= LEAST_STEPS else None

    def stuck_seconds(self, now: float) -> float | None:
        """For how long there was no step, since the first one."""
        return None if self.stepped_at is None else max(0.0, now - self.stepped_at)

    def spinning(self, gpus: Sequence[GpuNow]) -> bool | None:
        """All its GPUs at full utilisation and far below their usual power; None where that cannot be told."""
        if not gpus or len(self.powers) < LEAST_STEPS:
            return None
        usual = statistics.median(self.powers)
        drawn = [gpu.power_watts for gpu in gpus]
        if usual <= 0 or any(power is None for power in drawn):
            return None
        full = all(gpu.utilization_percent >= FULL_PERCENT for gpu in gpus)
        return full and all(power < LITTLE_POWER * usual for power in drawn if power is not None)


class Courses:
    """Of all runs that hold something."""

    def __init__(self) -> None:
        self._courses: dict[str, Course] = {}

    def course(self, run: str) -> Course | None:
        """The one of this run."""
        return self._courses.get(run)

    def seen(
        self, runs: Sequence[Run], gpus: dict[str, list[GpuNow]], waits: dict[str, float], now: float, wall: float
    ) -> list[Seen]:
        """What the rules are to judge of these runs. ``waits``: seconds that a run waits although there is room.

        ``now``: monotonic seconds; ``wall``: the head's clock.
        """
        for name in self._courses.keys() - {run.id for run in runs}:
            del self._courses[name]
        return [self._seen(run, gpus.get(run.id, []), waits.get(run.id), now, wall) for run in runs]

    def _seen(self, run: Run, gpus: list[GpuNow], wait: float | None, now: float, wall: float) -> Seen:
        seen = Seen(Entity("run", run.id, "", run.id))
        measures, details = seen.measures, seen.details
        measures["run_failed"] = 1 if run.state is RunState.FAILED else 0
        spent = run.state is RunState.FAILED and run.max_retry > 0 and run.retries >= run.max_retry
        measures["run_retries_spent"] = int(spent)
        lately = [each for each in run.attempts if each.failure is not None and _lately(each.ended_at, wall)]
        measures["run_attempt_failed"] = int(bool(lately) and not run.state.ended)
        if lately:
            details["run_attempt_failed"] = f"attempt {lately[-1].number}: {lately[-1].reason}"
        measures["run_waits_with_room_seconds"] = 0.0 if wait is None else wait
        if run.state is RunState.FAILED:
            details["run_failed"] = run.reason
            details["run_retries_spent"] = f"{run.retries} of {run.max_retry} retries; {run.reason}"
        attempt = run.attempt
        if attempt is None or run.state is not RunState.RUNNING:
            return seen
        course = self._courses.get(run.id)
        if course is None or course.attempt != attempt.number:
            course = self._courses[run.id] = Course(attempt.number, now)
        course.take(run, gpus, now)
        self._steps(course, gpus, now, measures, details)
        if gpus:
            measures["run_idle_seconds"] = 0.0 if course.idle_since is None else now - course.idle_since
        if attempt.status is not None:
            straggler(attempt.status.ranks, course.usual_step_seconds, measures, details)
        warnings = attempt.status.warnings if attempt.status is not None else []
        bad = [text for text in warnings if "not a number" in text or "infinite" in text]
        measures["run_not_finite"] = len(bad)
        if bad:
            details["run_not_finite"] = bad[-1]
        return seen

    def _steps(
        self, course: Course, gpus: list[GpuNow], now: float, measures: dict[str, Measure], details: dict[str, str]
    ) -> None:
        stuck, usual = course.stuck_seconds(now), course.usual_step_seconds
        unknown = Missing(ERROR, "not enough steps yet")
        spinning = course.spinning(gpus)
        measures["run_spinning"] = Missing(ERROR, "no usual power is known") if spinning is None else int(spinning)
        measures["run_stuck_seconds"] = unknown if stuck is None else stuck
        if stuck is None or usual is None:
            measures["run_stuck_short"] = unknown
            measures["run_stuck_long"] = unknown if stuck is None else stuck / LONG_SECONDS
            if stuck is not None:
                words = f"no step for {stuck:.0f} s after step {course.step}; too few came to know how long one takes"
                details["run_stuck_long"] = words
        else:
            measures["run_stuck_short"] = stuck / max(20.0, 6 * usual)
            measures["run_stuck_long"] = stuck / max(300.0, 10 * usual)
            words = f"no step for {stuck:.0f} s after step {course.step}; a step usually takes {usual:.2g} s"
            if spinning:
                usual_power = statistics.median(course.powers)
                drawn = statistics.fmean([gpu.power_watts or 0.0 for gpu in gpus])
                words += f"; its {len(gpus)} GPUs are at full utilisation and draw {drawn:.0f} W instead of"
                words += f" {usual_power:.0f} W"
            details["run_stuck_short"] = details["run_stuck_long"] = words
        if course.baseline is None or len(course.throughputs) < LEAST_STEPS:
            measures["run_throughput_share"] = unknown
        else:
            recent = statistics.median(list(course.throughputs)[-LEAST_STEPS:])
            measures["run_throughput_share"] = recent / course.baseline
            details["run_throughput_share"] = f"{recent:.4g} a second instead of {course.baseline:.4g}"
        if course.checkpoint_at is None or not course.between:
            measures["run_checkpoint_late"] = unknown
        else:
            between = statistics.median(course.between)
            age = now - course.checkpoint_at
            measures["run_checkpoint_late"] = age / max(60.0, between)
            details["run_checkpoint_late"] = f"the newest is {age:.0f} s old; usually one comes every {between:.0f} s"
        if len(course.savings) > LATEST_SAVINGS:
            latest, usual_saving = list(course.savings)[-LATEST_SAVINGS:], statistics.median(course.savings)
            measures["run_checkpoint_slow"] = statistics.median(latest) / max(0.1, usual_saving)
            words = f"the last {LATEST_SAVINGS} took {statistics.median(latest):.1f} s; usually {usual_saving:.1f} s"
            details["run_checkpoint_slow"] = words


def straggler(
    ranks: Sequence[Rank], step_seconds: float | None, measures: dict[str, Measure], details: dict[str, str]
) -> None:
    """How much longer the slowest rank takes for its own part of a step than the others, where ranks say that."""
    own = [(rank.own_seconds, rank.rank) for rank in ranks if rank.own_seconds is not None]
    if len(own) < 2 or step_seconds is None:
        return
    most, number = max(own)
    usual = statistics.median(seconds for seconds, rank in own if rank != number)
    matters = most - usual >= LEAST_OF_STEP * step_seconds
    measures["run_straggler_share"] = most / max(usual, 1e-6) if matters else 1.0
    if matters:
        words = f"rank {number} takes {most:.3g} s of its own for a step, the others {usual:.3g} s"
        details["run_straggler_share"] = words


def _lately(at: float | None, wall: float) -> bool:
    return at is not None and wall - at < LATELY_SECONDS
