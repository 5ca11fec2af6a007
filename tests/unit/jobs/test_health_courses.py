"""What the rules are told of runs: usual steps, usual power, usual throughput, learnt from the run itself."""

from __future__ import annotations

import pytest

from jobs.controller.health.courses import BASELINE_SAMPLES, LEAST_STEPS, LONG_SECONDS, Courses, GpuNow
from jobs.model import Attempt, Failure, GangStatus, Progress, Rank, Run, RunState
from probes.health.rule import Seen
from probes.reading import Missing

BUSY = [GpuNow(97.0, 600.0), GpuNow(96.0, 620.0)]
SPINNING = [GpuNow(100.0, 210.0), GpuNow(100.0, 205.0)]


def run(
    step: int | None = None,
    *,
    throughput: float | None = None,
    checkpoint: int | None = None,
    state: RunState = RunState.RUNNING,
    attempt: int = 1,
    warnings: tuple[str, ...] = (),
) -> Run:
    progress = None if step is None else Progress(step=step, throughput=throughput)
    status = GangStatus(phase="running", progress=progress, checkpoint_step=checkpoint, warnings=list(warnings))
    attempts = [Attempt(number=attempt, job_id="job", state=state, status=status)]
    return Run(
        id="lm-1", workflow="lm", release="r", state=state, nodes=1, gpus=2, submitted_at=0.0, attempts=attempts,
        reason="rank 1 exited with code 1" if state is RunState.FAILED else "",
    )  # fmt: skip


class Bench:
    """One run, step by step."""

    def __init__(self) -> None:
        self.courses = Courses()
        self.now = 1000.0

    def see(self, seen: Run, gpus: list[GpuNow] | None = None) -> Seen:
        return self.courses.seen([seen], {seen.id: BUSY if gpus is None else gpus}, {}, self.now, self.now)[0]

    def go(self, steps: int, seconds: float = 1.0, throughput: float | None = None, first: int = 0) -> Seen:
        found = None
        for step in range(first, first + steps):
            found = self.see(run(step, throughput=throughput))
            self.now += seconds
        assert found is not None
        return found

    def after(self, seconds: float, seen: Run, gpus: list[GpuNow] | None = None) -> Seen:
        self.now += seconds
        return self.see(seen, gpus)


def test_nothing_is_judged_before_enough_is_known() -> None:
    measures = Bench().go(2).measures
    assert isinstance(measures["run_stuck_short"], Missing)
    assert isinstance(measures["run_spinning"], Missing)
    assert isinstance(measures["run_throughput_share"], Missing)


def test_a_hang_is_no_step_at_full_utilisation_and_little_power() -> None:
    bench = Bench()
    bench.go(10)
    seen = bench.after(25.0, run(9), SPINNING)
    assert seen.measures["run_spinning"] == 1
    stuck = seen.measures["run_stuck_short"]
    assert not isinstance(stuck, Missing)
    assert stuck > 1
    words = seen.details["run_stuck_short"]
    assert "no step for 26 s after step 9" in words
    assert "draw 208 W instead of 610 W" in words


@pytest.mark.parametrize(
    "gpus",
    [BUSY, [GpuNow(3.0, 90.0), GpuNow(2.0, 90.0)], [GpuNow(100.0, 210.0), GpuNow(97.0, 600.0)]],
    ids=["busy", "idle", "one works"],
)
def test_others_do_not_spin(gpus: list[GpuNow]) -> None:
    bench = Bench()
    bench.go(10)
    assert bench.after(25.0, run(9), gpus).measures["run_spinning"] == 0


def test_without_power_figures_nobody_can_tell() -> None:
    bench = Bench()
    bench.go(10)
    unknown = bench.after(25.0, run(9), [GpuNow(100.0, None), GpuNow(100.0, 200.0)])
    assert isinstance(unknown.measures["run_spinning"], Missing)


def test_slow_steps_are_given_their_time() -> None:
    bench = Bench()
    bench.go(10, seconds=30.0)
    early = bench.after(100.0, run(9)).measures["run_stuck_short"]
    late = bench.after(100.0, run(9)).measures["run_stuck_short"]
    assert not isinstance(early, Missing)
    assert not isinstance(late, Missing)
    assert early < 1 < late


def test_several_steps_between_two_looks_are_averaged() -> None:
    bench = Bench()
    for look in range(LEAST_STEPS + 1):
        bench.see(run(look * 10))
        bench.now += 5.0
    course = bench.courses.course("lm-1")
    assert course is not None
    assert course.usual_step_seconds == pytest.approx(0.5)


def test_a_new_attempt_begins_anew() -> None:
    bench = Bench()
    bench.go(10)
    seen = bench.see(run(3, attempt=2))
    assert isinstance(seen.measures["run_stuck_short"], Missing)


def test_throughput_is_compared_with_the_runs_own() -> None:
    bench = Bench()
    bench.go(BASELINE_SAMPLES, throughput=100.0)
    share = bench.go(LEAST_STEPS, throughput=70.0, first=BASELINE_SAMPLES).measures["run_throughput_share"]
    assert share == pytest.approx(0.7)


def test_a_checkpoint_that_does_not_come() -> None:
    bench = Bench()
    for number in range(4):
        bench.see(run(number, checkpoint=number * 100))
        bench.now += 120.0
    seen = bench.after(180.0, run(4, checkpoint=300))
    assert seen.measures["run_checkpoint_late"] == pytest.approx(2.5)


def test_figures_that_are_none_and_a_failure() -> None:
    bench = Bench()
    seen = bench.see(run(3, warnings=("loss is not a number at step 3",)))
    assert seen.measures["run_not_finite"] == 1
    assert seen.details["run_not_finite"] == "loss is not a number at step 3"
    failed = bench.see(run(3, state=RunState.FAILED))
    assert failed.measures["run_failed"] == 1
    assert failed.details["run_failed"] == "rank 1 exited with code 1"


def test_an_attempt_that_failed_and_another_one_follows() -> None:
    bench = Bench()
    seen = run(3, attempt=2)
    first = Attempt(number=1, job_id="job", reason="rank 0 was killed", failure=Failure.UNKNOWN, ended_at=bench.now - 5)
    seen.attempts.insert(0, first)
    found = bench.see(seen)
    assert found.measures["run_attempt_failed"] == 1
    assert found.details["run_attempt_failed"] == "attempt 1: rank 0 was killed"
    assert bench.after(700.0, seen).measures["run_attempt_failed"] == 0


def test_a_run_that_does_nothing() -> None:
    bench = Bench()
    bench.see(run(3))
    assert bench.after(5.0, run(3), [GpuNow(1.0, 80.0)] * 2).measures["run_idle_seconds"] == 0
    assert bench.after(60.0, run(3), [GpuNow(1.0, 80.0)] * 2).measures["run_idle_seconds"] == 60
    assert bench.after(5.0, run(3)).measures["run_idle_seconds"] == 0


def test_checkpoints_that_take_longer_than_they_did() -> None:
    bench = Bench()
    bench.see(run(1))
    course = bench.courses.course("lm-1")
    assert course is not None
    course.savings.extend([2.0] * 10 + [5.0] * 3)
    assert bench.see(run(2)).measures["run_checkpoint_slow"] == pytest.approx(2.5)


def test_a_run_that_hangs_at_its_second_step_is_told_of_in_the_end() -> None:
    bench = Bench()
    bench.go(2)
    measures = bench.after(LONG_SECONDS - 10, run(1)).measures
    assert measures["run_stuck_long"] < 1  # pyright: ignore[reportOperatorIssue]
    seen = bench.after(20, run(1))
    assert seen.measures["run_stuck_long"] >= 1  # pyright: ignore[reportOperatorIssue]
    assert "too few came" in seen.details["run_stuck_long"]


def with_own(step: int, *own: float | None) -> Run:
    """A run whose ranks say how long each took for its own part of a step."""
    made = run(step)
    ranks = [Rank(rank=number, own_seconds=seconds) for number, seconds in enumerate(own)]
    status = GangStatus(phase="running", progress=Progress(step=step), ranks=ranks)
    return made.model_copy(update={"attempts": [made.attempts[0].model_copy(update={"status": status})]})


@pytest.mark.parametrize(
    ("own", "share"),
    [
        ((0.2, 0.9, 0.3, 0.25), 3.6),
        ((0.2, 0.9), 4.5),
        ((0.2, 0.9, None, 0.3), 3.6),
        ((0.01, 0.09, 0.01, 0.01), 1.0),  # nine times as long, and nobody waits for that
        ((0.4, 0.4, 0.4, 0.4), 1.0),
    ],
)
def test_the_rank_that_takes_longest_for_its_own_part_is_named(own: tuple[float | None, ...], share: float) -> None:
    bench = Bench()
    bench.go(LEAST_STEPS + 1)
    seen = bench.see(with_own(LEAST_STEPS + 1, *own))
    assert seen.measures["run_straggler_share"] == pytest.approx(share)
    assert ("rank 1 takes 0.9 s" in seen.details.get("run_straggler_share", "")) is (share > 1)


def test_of_ranks_that_do_not_say_it_nothing_is_told() -> None:
    bench = Bench()
    bench.go(LEAST_STEPS + 1)
    assert "run_straggler_share" not in bench.see(with_own(LEAST_STEPS + 1, None, 0.9)).measures


def test_a_checkpoint_that_takes_much_longer_than_the_others_is_slow() -> None:
    bench, seen = Bench(), None
    for number, seconds in enumerate([10.0, 10.0, 11.0, 9.0, 10.0, 10.0, 40.0, 41.0, 40.0]):
        made = run(number * 10, checkpoint=number * 10)
        status = made.attempts[0].status
        assert status is not None
        status = status.model_copy(update={"checkpoint_seconds": seconds})
        seen = bench.after(60, made.model_copy(
            update={"attempts": [made.attempts[0].model_copy(update={"status": status})]}
        ))  # fmt: skip
    assert seen is not None
    assert seen.measures["run_checkpoint_slow"] == pytest.approx(4.0, rel=0.1)
    assert seen.details["run_checkpoint_slow"] == "the last 3 took 40.0 s; usually 10.5 s"
