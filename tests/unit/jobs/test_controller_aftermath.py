"""What follows an attempt's end: another attempt or none, with which words, from where."""

from __future__ import annotations

import pytest

from jobs.controller import wishes
from jobs.controller.aftermath import Ended, excluded, follow
from jobs.controller.begin import Begin, admitted
from jobs.controller.limits import exceeded
from jobs.controller.record import Record, Resume, StopWanted, moved
from jobs.controller.schedule.types import Room
from jobs.controller.wishes import Arrangement, WrongState
from jobs.model import Failure, GangStatus, Outcome, Rank, RunState
from jobs.spans import span
from tests.unit.jobs.test_controller_journal import make_record

NOW = 1000.0
ROOMS = (Room("id-1", "worker-1", {"GPU": 4.0}), Room("id-2", "worker-2", {"GPU": 4.0}))


def running(*, max_retry: int = 2, worked: bool = True, begin: Begin | None = None, **changes: object) -> Record:
    record = make_record()
    record = record.model_copy(update={"run": record.run.model_copy(update={"max_retry": max_retry}), **changes})
    return again(record, begin or Begin(), worked=worked)


def again(record: Record, begin: Begin | None = None, *, worked: bool = True) -> Record:
    """Its next attempt, in the midst of its work."""
    record = admitted(record, ["id-1", "id-2"], ROOMS, begin or Begin(), NOW)
    record = moved(moved(record, RunState.STARTING, "", NOW), RunState.RUNNING, "", NOW)
    attempt = record.run.attempt
    assert attempt is not None
    ranks = [Rank(rank=0, node_id="id-1", node_address="10.0.0.1", pid=7)] if worked else []
    attempt = attempt.model_copy(update={"status": GangStatus(phase="running", ranks=ranks)})
    return record.model_copy(
        update={"run": record.run.model_copy(update={"attempts": [*record.run.attempts[:-1], attempt]})}
    )


def failed(failure: Failure, *, signature: str = "", last_step: int | None = 30, **changes: object) -> Ended:
    outcome = Outcome(verdict="failed", reason="why", failure=failure, signature=signature, last_step=last_step)
    return Ended(RunState.FAILED, "why", failure, outcome.model_copy(update=changes))


def wanted(purpose: str, **changes: object) -> StopWanted:
    return StopWanted.model_validate({"at": NOW, "user": "alice", "reason": "enough", "purpose": purpose, **changes})


def test_a_failure_that_may_pass_is_tried_again_after_a_pause() -> None:
    record = follow(running(), failed(Failure.COMMUNICATION), NOW)
    run = record.run
    assert run.state is RunState.QUEUED
    assert run.reason == "attempt 1 failed (communication time-out): why; tries again in 10 s, retry 1 of 2"
    assert (run.retries, run.not_before, run.ended_at) == (1, NOW + 10, None)
    assert run.attempt is not None
    assert (run.attempt.state, run.attempt.failure) == (RunState.FAILED, Failure.COMMUNICATION)
    assert record.launch.previous_nodes == {"id-1": "worker-1", "id-2": "worker-2"}
    second = follow(again(record), failed(Failure.COMMUNICATION), NOW)
    assert second.run.not_before == NOW + 20
    last = follow(again(second), failed(Failure.COMMUNICATION), NOW)
    assert (last.run.state, last.run.reason) == (RunState.FAILED, "why; all 2 retries are spent")
    assert last.run.ended_at == NOW


def test_an_application_error_that_would_only_repeat_is_not_tried_again() -> None:
    first = follow(running(), failed(Failure.APPLICATION, signature="ValueError: x"), NOW)
    assert first.run.state is RunState.QUEUED
    second = follow(again(first), failed(Failure.APPLICATION, signature="ValueError: x"), NOW)
    assert second.run.state is RunState.FAILED
    assert second.run.reason.startswith("why; ")
    never = follow(running(), failed(Failure.APPLICATION, signature="ImportError", last_step=None), NOW)
    assert never.run.state is RunState.FAILED


def test_without_retries_it_just_fails() -> None:
    assert follow(running(max_retry=0), failed(Failure.NODE_LOST), NOW).run.reason == "why"


def test_nothing_is_started_beside_a_process_that_could_not_be_ended() -> None:
    record = follow(running(), failed(Failure.NODE_LOST, survivors=[12, 13]), NOW)
    assert (record.run.state, record.run.reason) == (
        RunState.FAILED,
        "why; not tried again while processes of it live: 12, 13",
    )


def test_a_broken_checkpoint_costs_no_retry() -> None:
    record = follow(running(max_retry=0), failed(Failure.CHECKPOINT), NOW)
    assert (record.run.state, record.run.retries) == (RunState.QUEUED, 0)
    assert record.run.reason.endswith("with an older checkpoint")


def test_a_node_that_was_suspected_twice_is_left_out() -> None:
    record = follow(running(), failed(Failure.NODE_LOST, suspects=["worker-2"]), NOW)
    assert excluded(record) == []
    record = follow(again(record), failed(Failure.NODE_LOST, suspects=["worker-2"]), NOW)
    assert record.run.state is RunState.QUEUED
    record = again(record)
    assert record.launch.excluded_node_ids == ["id-2"]
    assert record.run.attempt is not None
    assert record.run.attempt.excluded == ["worker-2"]
    assert "kept off worker-2, which were suspected twice" in record.unwritten[-3].cause


def test_a_preempted_run_goes_back_to_its_place_and_spends_no_retry() -> None:
    record = wishes.stop(running(), wanted("preempt", user="raydeck", reason="b has a higher priority"))
    record = follow(record, Ended(RunState.STOPPED, "saved step 7"), NOW + 5)
    run = record.run
    assert (run.state, run.retries, record.stop) == (RunState.PREEMPTED, 0, None)
    assert run.reason == "preempted by raydeck: b has a higher priority; saved step 7"
    assert run.attempt is not None
    assert run.attempt.state is RunState.PREEMPTED
    assert again(record).run.attempts[-1].number == 2


def test_a_run_that_ends_well_while_it_should_leave_has_ended_well() -> None:
    record = wishes.stop(running(), wanted("preempt"))
    assert follow(record, Ended(RunState.SUCCEEDED, ""), NOW).run.state is RunState.SUCCEEDED
    record = wishes.restart(running(), Resume(), "alice", "", NOW)
    assert follow(record, Ended(RunState.SUCCEEDED, ""), NOW).run.state is RunState.SUCCEEDED
    record = wishes.restart(running(), Resume(step=20), "alice", "", NOW)
    assert follow(record, Ended(RunState.SUCCEEDED, ""), NOW).run.state is RunState.QUEUED


def test_a_restart_ends_the_attempt_and_begins_where_it_was_asked_to() -> None:
    record = wishes.restart(running(), Resume(step=20), "alice", "lower rate", NOW)
    assert record.run.state is RunState.RUNNING
    record = follow(record, Ended(RunState.STOPPED, "saved step 31"), NOW)
    assert (record.run.state, record.resume.step) == (RunState.QUEUED, 20)
    assert record.run.reason == "restarted by alice: lower rate; saved step 31"


def test_a_stop_wins_over_a_preemption_and_over_a_restart_that_came_before() -> None:
    record = wishes.stop(wishes.stop(running(), wanted("preempt", user="raydeck")), wanted("stop"))
    assert record.stop is not None
    assert (record.stop.purpose, record.stop.user) == ("stop", "alice")
    assert wishes.stop(record, wanted("preempt", user="raydeck")) is record
    record = wishes.stop(wishes.restart(running(), Resume(), "alice", "", NOW), wanted("stop"))
    assert follow(record, Ended(RunState.STOPPED, ""), NOW).run.state is RunState.STOPPED


@pytest.mark.parametrize(
    ("purpose", "failure", "state"),
    [
        ("time_limit", Failure.TIME_LIMIT, RunState.FAILED),
        ("silence", Failure.SILENCE, RunState.QUEUED),
        ("start_timeout", Failure.START_TIMEOUT, RunState.QUEUED),
    ],
)
def test_a_limit_that_was_passed_is_a_failure_of_its_own_kind(purpose: str, failure: Failure, state: RunState) -> None:
    record = wishes.stop(running(), wanted(purpose, user="raydeck", reason="its limit"))
    record = follow(record, Ended(RunState.STOPPED, "saved step 7"), NOW)
    assert record.run.attempt is not None
    assert (record.run.state, record.run.attempt.failure) == (state, failure)
    assert "its limit; saved step 7" in record.run.reason


def test_a_chosen_step_is_kept_until_the_attempt_came_to_work() -> None:
    chosen = Resume(step=20)
    idle = follow(running(resume=chosen, worked=False), failed(Failure.START_TIMEOUT, last_step=None), NOW)
    assert idle.resume == chosen
    assert follow(running(resume=chosen), failed(Failure.DRIVER), NOW).resume == Resume()
    other = Resume(step=20, run_directory="/out/lm/lm-other", run="lm-other")
    assert follow(running(resume=other), failed(Failure.DRIVER), NOW).resume == other


def test_an_ended_run_that_is_restarted_begins_anew_at_the_end_of_its_priority() -> None:
    done = follow(running(max_retry=1), failed(Failure.APPLICATION, last_step=None), NOW)
    record = wishes.restart(done, Resume(step=20), "bob", "mended", NOW + 50)
    run = record.run
    assert (run.state, run.retries, run.queued_at, run.ended_at) == (RunState.QUEUED, 0, NOW + 50, None)
    assert run.reason == "restarted by bob: mended"
    assert record.unwritten[-1].actor == "bob"
    assert again(record).run.attempts[-1].number == 2


def test_the_time_limit_counts_all_attempts() -> None:
    record = running()
    record = record.model_copy(update={"run": record.run.model_copy(update={"max_duration_seconds": 100.0})})
    assert exceeded(record, None, NOW + 99) is None
    assert exceeded(record.model_copy(update={"ran_seconds": 60.0}), None, NOW + 41) is not None
    over = exceeded(record, None, NOW + 101)
    assert over is not None
    assert over.sentence == "stopped by raydeck: its time limit of 100 s was reached"


def test_silence_counts_only_while_it_runs() -> None:
    record = running(silence_timeout_seconds=60.0)
    assert exceeded(record, 59.0, NOW) is None
    over = exceeded(record, 61.0, NOW)
    assert over is not None
    assert (over.purpose, over.reason) == ("silence", "it reported no new step for 60 s")
    saving = moved(record, RunState.SAVING, "", NOW)
    assert exceeded(saving, 61.0, NOW) is None


def test_what_does_not_wait_cannot_be_arranged_but_for_its_priority() -> None:
    with pytest.raises(WrongState, match="does not wait: it is running"):
        wishes.arrange(running(), Arrangement(hold=True), "alice", "", NOW)
    assert wishes.arrange(running(), Arrangement(priority="high"), "alice", "", NOW).run.priority == "high"
    waits = wishes.arrange(make_record(), Arrangement(hold=True, place=5.0), "alice", "later", NOW)
    assert waits.run.held is not None
    assert (waits.run.held.user, waits.run.held.reason, waits.place) == ("alice", "later", 5.0)
    released = wishes.arrange(waits, Arrangement(hold=False, own_place=True), "alice", "", NOW)
    assert (released.run.held, released.place) == (None, None)


@pytest.mark.parametrize(
    ("seconds", "words"), [(2.5, "2.5 s"), (90, "90 s"), (600, "10 min"), (5400, "1 h 30 min"), (266400, "3 d 2 h")]
)
def test_a_span_in_words(seconds: float, words: str) -> None:
    assert span(seconds) == words
