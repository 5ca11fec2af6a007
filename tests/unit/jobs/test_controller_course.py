"""The course of a run through any number of attempts, as a state machine over everything that may happen to it.

The world beside the record is small: Ray has or has not the job of an attempt, and its gang lives or does not.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jobs.controller import wishes
from jobs.controller.aftermath import SUSPECTED_TWICE, excluded
from jobs.controller.begin import Begin, admitted, withdrawn
from jobs.controller.judge import DOUBT_SECONDS, VANISHED_AFTER_LOOKS, Do, JobSeen, Seen, judge
from jobs.controller.record import Record, Resume, StopWanted
from jobs.controller.schedule.types import Room
from jobs.model import MOVES, Failure, GangStatus, Outcome, Progress, Rank, RunState
from tests.unit.jobs.test_controller_journal import make_record

ROOMS = tuple(Room(f"id-{index}", f"worker-{index}", {"GPU": 4.0}) for index in range(3))


class Course(RuleBasedStateMachine):
    """One run, its wishes, and a Ray that may be slow, silent or started anew."""

    @initialize(retries=st.integers(0, 3), limit=st.sampled_from([None, 500.0]), silence=st.sampled_from([None, 60.0]))
    def launch(self, retries: int, limit: float | None, silence: float | None) -> None:
        record = make_record()
        run = record.run.model_copy(update={"max_retry": retries, "max_duration_seconds": limit})
        self.record: Record = record.model_copy(update={"run": run, "silence_timeout_seconds": silence})
        self.now = 1000.0
        self.jobs: dict[int, str] = {}
        """Attempt number to Ray's word for its job."""
        self.living: set[int] = set()
        """Attempts whose gang has processes."""
        self.submitted: list[int] = []
        self.phase = "placing"
        self.outcome: Outcome | None = None
        self.step = 0
        self.missed = 0
        self.allowed_restarts = 0
        self.path: list[RunState] = [record.run.state]

    # --- what people and the queue do -----------------------------------------------------------------------------

    def _take(self, record: Record) -> None:
        for move in record.unwritten:
            assert move.before is self.path[-1]
            assert move.after in MOVES[self.path[-1]]
            assert move.cause or move.after in (RunState.RUNNING, RunState.STARTING, RunState.SUCCEEDED), move
            self.path.append(move.after)
        self.record = record.model_copy(update={"unwritten": []})
        assert self.path[-1] is self.record.run.state

    @precondition(lambda self: self.record.run.state.waiting and self.record.stop is None)
    @rule(step=st.sampled_from([None, 20]))
    def admit(self, step: int | None) -> None:
        if self.record.run.not_before is not None and self.now < self.record.run.not_before:
            return
        self._take(admitted(self.record, ["id-0", "id-1"], ROOMS, Begin(step=step), self.now))
        self.phase, self.outcome, self.missed = "placing", None, 0

    @precondition(lambda self: self.record.run.state is RunState.ADMITTED and self.record.posted_at is None)
    @rule()
    def node_goes_before_it_was_posted(self) -> None:
        self._take(withdrawn(self.record, "a node has left", self.now))

    @precondition(lambda self: not self.record.run.state.ended)
    @rule(purpose=st.sampled_from(["stop", "preempt", "restart"]), at_once=st.booleans())
    def want_it_ended(self, purpose: Any, at_once: bool) -> None:
        if purpose == "preempt" and self.record.run.state is not RunState.RUNNING:
            return
        before = self.record.stop
        if purpose == "restart":
            self._take(wishes.restart(self.record, Resume(step=20), "alice", "again", self.now))
            return
        wanted = StopWanted(at=self.now, user="alice", purpose=purpose, now=at_once and purpose == "stop")
        self._take(wishes.stop(self.record, wanted))
        if before is not None and before.purpose in ("stop", "restart") and purpose == "preempt":
            assert self.record.stop == before

    @precondition(lambda self: self.record.run.state.ended)
    @rule()
    def restart_what_has_ended(self) -> None:
        self._take(wishes.restart(self.record, Resume(), "bob", "", self.now))
        assert self.record.run.state is RunState.QUEUED
        assert (self.record.run.retries, self.record.stop, self.record.run.ended_at) == (0, None, None)

    # --- what happens in Ray --------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        return len(self.record.run.attempts)

    @rule(seconds=st.floats(0.1, 120.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.jobs.get(self.number) == "RUNNING")
    @rule(phase=st.sampled_from(["starting", "running", "running"]))
    def the_gang_goes_on(self, phase: str) -> None:
        self.phase = phase
        self.step += phase == "running"
        self.living.add(self.number)

    @precondition(lambda self: self.jobs.get(self.number) == "RUNNING" and self.outcome is None)
    @rule(
        verdict=st.sampled_from(["succeeded", "failed", "failed", "stopped"]),
        failure=st.sampled_from(list(Failure)),
        survivors=st.sampled_from([[], [], [], [77]]),
        suspects=st.lists(st.sampled_from(["worker-0", "worker-1"]), unique=True, max_size=2),
        same=st.booleans(),
    )
    def the_driver_ends(
        self, verdict: str, failure: Failure, survivors: list[int], suspects: list[str], same: bool
    ) -> None:
        self.outcome = Outcome(
            verdict=verdict,
            reason="it broke",
            failure=failure if verdict == "failed" else None,
            signature="same" if same else f"other {self.number}",
            last_step=self.step or None,
            survivors=survivors,
            suspects=suspects,
        )
        if not survivors:
            self.living.discard(self.number)
        self.jobs[self.number] = "FAILED" if verdict == "failed" else "SUCCEEDED"

    @rule()
    def the_head_is_started_anew(self) -> None:
        """Ray forgets its jobs; with its drivers the gangs go."""
        self.jobs.clear()
        self.living.clear()

    # --- the controller's tick ------------------------------------------------------------------------------------

    @rule(silent=st.sampled_from([False, False, False, True]), age=st.sampled_from([0.0, 10.0, 90.0]))
    def tick(self, silent: bool, age: float) -> None:
        if self.record.run.state.ended:
            return
        word = self.jobs.get(self.number)
        self.missed = 0 if word is not None or silent else self.missed + 1
        job = None if silent else JobSeen(word is not None, True, word or "", "", self.missed)
        progress = Progress(step=self.step) if self.step else None
        ranks = [Rank(rank=0, node_id="id-0", pid=1)] if self.phase == "running" else []
        status = GangStatus(phase=self.phase, progress=progress, ranks=ranks) if word is not None else None
        seen = Seen(
            job=job,
            job_ended_seconds=10.0,
            ray_silent_seconds=5.0 if silent else 0.0,
            status=status,
            progress_age_seconds=age if self.phase == "running" else None,
            outcome=self.outcome,
        )
        before = self.record
        step = judge(self.record, seen, self.now)
        self._take(step.record)
        if step.do is Do.SUBMIT:
            self._submit()
        elif step.do is Do.STOP and self.jobs.get(self.number) == "RUNNING":
            stop = self.record.stop
            assert stop is not None
            self._take(self.record.model_copy(update={"stop": stop.model_copy(update={"sent_at": self.now})}))
        if before.run.state.waiting:
            assert self.record.run.state is before.run.state or self.record.run.state is RunState.STOPPED

    def _submit(self) -> None:
        """As the reconciler does it: only when the attempt before has no job that lives."""
        assert self.record.run.state is RunState.ADMITTED
        assert self.record.stop is None or self.record.posted_at is not None
        if any(word == "RUNNING" for number, word in self.jobs.items() if number < self.number):
            return
        self._take(self.record.model_copy(update={"posted_at": self.now}))
        assert self.jobs.get(self.number) is None
        self.jobs[self.number] = "RUNNING"
        self.submitted.append(self.number)

    # --- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def attempts_are_numbered_and_fenced(self) -> None:
        record = self.record
        assert [attempt.number for attempt in record.run.attempts] == list(range(1, self.number + 1))
        if record.run.state is RunState.ADMITTED:
            assert record.launch.attempt == self.number
        assert all(attempt.ended_at is not None for attempt in record.run.attempts[:-1])
        assert len([number for number, word in self.jobs.items() if word == "RUNNING"]) <= 1

    @invariant()
    def what_waits_or_has_ended_holds_no_attempt(self) -> None:
        run = self.record.run
        if (run.state.waiting or run.state.ended) and run.attempt is not None:
            assert run.attempt.ended_at is not None, run.attempt
            assert run.attempt.state.ended or run.attempt.state is RunState.PREEMPTED
        if run.state.waiting:
            assert run.ended_at is None
        if run.state.ended:
            assert run.ended_at is not None

    @invariant()
    def retries_are_never_more_than_allowed(self) -> None:
        assert self.record.run.retries <= self.record.run.max_retry

    @invariant()
    def who_was_suspected_twice_is_left_out(self) -> None:
        assert excluded(self.record) == sorted(
            node for node, count in self.record.run.suspects.items() if count >= SUSPECTED_TWICE
        )
        run = self.record.run
        if run.state is RunState.ADMITTED and run.attempt is not None:
            assert run.attempt.excluded == excluded(self.record)

    @invariant()
    def what_survived_is_never_followed_by_itself(self) -> None:
        attempt = self.record.run.attempt
        outcome = attempt.outcome if attempt is not None else None
        if outcome is not None and outcome.survivors and outcome.verdict == "failed" and attempt is not None:
            assert not (self.record.run.state is RunState.QUEUED and self.record.run.not_before is not None)


TestCourse = Course.TestCase
TestCourse.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_constants_that_the_world_above_relies_on() -> None:
    assert VANISHED_AFTER_LOOKS == 3
    assert DOUBT_SECONDS > 0
