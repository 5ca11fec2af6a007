"""Where a run stands, from what was seen: by table, and for any order of anything that Ray may say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.controller import wishes
from jobs.controller.begin import Begin
from jobs.controller.begin import admitted as let_go
from jobs.controller.judge import DOUBT_SECONDS, Do, JobSeen, Seen, judge, short
from jobs.controller.record import IllegalMove, Record, StopWanted, moved
from jobs.model import MOVES, Failure, GangStatus, Outcome, Run, RunState, job_id
from tests.unit.jobs.test_controller_journal import make_record

NOW = 1000.0
GONE = JobSeen(found=False, looks_missed=3)
RUNS = GangStatus(phase="running")
WELL = Outcome(verdict="succeeded")


def admitted(kind: str = "train", **changes: object) -> Record:
    record = let_go(make_record(), ["node-1"], (), Begin(), NOW)
    return record.model_copy(update={"run": record.run.model_copy(update={"kind": kind}), **changes})


def in_state(state: RunState, kind: str = "train", **changes: object) -> Record:
    record = admitted(kind, posted_at=NOW - 2 * DOUBT_SECONDS, **changes)
    for step in {
        RunState.STARTING: (RunState.STARTING,),
        RunState.RUNNING: (RunState.STARTING, RunState.RUNNING),
        RunState.SAVING: (RunState.STARTING, RunState.RUNNING, RunState.SAVING),
        RunState.STOPPING: (RunState.STARTING, RunState.STOPPING),
    }[state]:
        record = moved(record, step, "", NOW)
    return record


def stop(now: bool = False, at: float = NOW) -> StopWanted:
    return StopWanted(at=at, user="alice", reason="enough", now=now)


def ended(status: str, message: str = "", outcome: Outcome | None = None) -> Seen:
    """Long enough ago for an outcome to have arrived."""
    return Seen(job=job(status, message), job_ended_seconds=10.0, outcome=outcome)


def job(status: str, message: str = "") -> JobSeen:
    return JobSeen(True, True, status, message)


def test_a_waiting_run_is_left_to_the_queue() -> None:
    waits = make_record()
    assert judge(waits, Seen(), NOW).record is waits
    stopped = judge(waits.model_copy(update={"stop": stop()}), Seen(), NOW).record
    assert stopped.run.state is RunState.STOPPED
    assert stopped.run.reason == "stopped by alice: enough, before it was admitted"


def test_an_admitted_run_has_its_first_attempt() -> None:
    record = admitted()
    assert record.run.state is RunState.ADMITTED
    assert record.run.attempt is not None
    assert record.run.attempt.job_id == job_id(record.id, 1)


@pytest.mark.parametrize(
    ("record", "seen", "state", "words"),
    [
        (admitted(), Seen(), RunState.ADMITTED, "starts when Ray does"),
        (admitted(), Seen(job=job("PENDING", "waits")), RunState.STARTING, "PENDING: waits"),
        (admitted(), Seen(job=JobSeen(True, ours=False)), RunState.FAILED, "is not this run's"),
        (admitted(stop=stop()), Seen(), RunState.STOPPED, "stopped by alice: enough, before it was started"),
        (admitted(stop=stop(), posted_at=NOW), Seen(), RunState.ADMITTED, "Ray does not answer"),
        (admitted(stop=stop(), posted_at=NOW), Seen(job=GONE), RunState.STOPPING, "may still arrive"),
        (
            in_state(RunState.STARTING),
            Seen(job=job("RUNNING"), status=GangStatus(phase="placing", detail="waits for 2 nodes")),
            RunState.STARTING,
            "waits for 2 nodes",
        ),
        (in_state(RunState.STARTING), Seen(job=job("RUNNING"), status=RUNS), RunState.RUNNING, ""),
        (in_state(RunState.STARTING, "ray"), Seen(job=job("RUNNING"), status=RUNS), RunState.RUNNING, ""),
        (in_state(RunState.STARTING), Seen(job=job("RUNNING")), RunState.STARTING, ""),
        (
            in_state(RunState.RUNNING),
            Seen(ray_silent_seconds=5.0, status=GangStatus(phase="running")),
            RunState.RUNNING,
            "Ray does not answer the controller",
        ),
        (
            in_state(RunState.RUNNING),
            Seen(job=job("RUNNING"), status=GangStatus(phase="running"), status_age_seconds=60),
            RunState.RUNNING,
            "stopped reporting",
        ),
        (
            in_state(RunState.RUNNING),
            Seen(job=job("RUNNING"), unreadable="/data: Stale file handle"),
            RunState.RUNNING,
            "Stale file handle",
        ),
        (in_state(RunState.RUNNING), Seen(job=GONE), RunState.FAILED, "Ray no longer knows its job"),
        (in_state(RunState.RUNNING, stop=stop()), Seen(job=GONE), RunState.STOPPED, "Ray no longer knows its job"),
        (in_state(RunState.RUNNING), Seen(job=JobSeen(False, looks_missed=1)), RunState.RUNNING, ""),
        (
            in_state(RunState.RUNNING),
            ended("FAILED", "Job entrypoint command failed with exit code 9\na\nb\nc\nd: boom"),
            RunState.FAILED,
            "its driver died without an outcome: Job entrypoint command failed with exit code 9 | … | b | c | d: boom",
        ),
        (
            in_state(RunState.RUNNING),
            Seen(job=job("FAILED"), outcome=Outcome(verdict="failed", reason="rank 1 on w2: exit code 3")),
            RunState.FAILED,
            "rank 1 on w2: exit code 3",
        ),
        (in_state(RunState.RUNNING), Seen(job=job("SUCCEEDED"), outcome=WELL), RunState.SUCCEEDED, ""),
        (in_state(RunState.RUNNING), ended("SUCCEEDED"), RunState.SUCCEEDED, "left no outcome"),
        (in_state(RunState.RUNNING), ended("STOPPED"), RunState.STOPPED, "not through raydeck"),
        (in_state(RunState.RUNNING, "ray"), ended("FAILED", "no such file"), RunState.FAILED, "outcome: no"),
        (in_state(RunState.RUNNING), Seen(outcome=Outcome(verdict="succeeded")), RunState.RUNNING, ""),
        (
            in_state(RunState.RUNNING),
            Seen(ray_silent_seconds=60, outcome=Outcome(verdict="succeeded"), outcome_age_seconds=60),
            RunState.SUCCEEDED,
            "",
        ),
        (
            in_state(RunState.SAVING, stop=stop()),
            Seen(job=job("STOPPED"), outcome=Outcome(verdict="stopped", reason="saved step 7", survivors=[12, 13])),
            RunState.STOPPED,
            "stopped by alice: enough; saved step 7; still alive after the sweep: 12, 13",
        ),
        (in_state(RunState.SAVING, stop=stop()), ended("STOPPED"), RunState.STOPPED, "whether it saved"),
        (in_state(RunState.SAVING, stop=stop()), ended("FAILED", "x"), RunState.STOPPED, "whether it saved"),
        (in_state(RunState.RUNNING, stop=stop()), Seen(job=job("RUNNING")), RunState.SAVING, "its gang saves"),
        (in_state(RunState.RUNNING, stop=stop(now=True)), Seen(job=job("RUNNING")), RunState.STOPPING, "by alice"),
        (in_state(RunState.RUNNING, "ray", stop=stop()), Seen(job=job("RUNNING")), RunState.SAVING, "by alice"),
        (in_state(RunState.STARTING, stop=stop()), Seen(job=job("RUNNING")), RunState.STOPPING, "by alice"),
        (in_state(RunState.SAVING, stop=stop()), Seen(job=job("RUNNING")), RunState.SAVING, ""),
        (
            in_state(RunState.SAVING, stop=stop(at=NOW - 31)),
            Seen(job=job("RUNNING")),
            RunState.STOPPING,
            "took longer than 30 s",
        ),
        (
            in_state(RunState.RUNNING),
            Seen(job=job("RUNNING"), status=GangStatus(phase="saving")),
            RunState.SAVING,
            "nobody asked raydeck",
        ),
        (
            in_state(RunState.RUNNING),
            Seen(job=job("SUCCEEDED"), outcome=Outcome(verdict="wonderful")),
            RunState.FAILED,
            "not known here: wonderful",
        ),
    ],
)  # fmt: skip
def test_what_follows(record: Record, seen: Seen, state: RunState, words: str) -> None:
    after = judge(record, seen, NOW).record
    assert after.run.state is state
    assert words in after.run.reason
    assert after.run.attempt is not None
    assert after.run.attempt.state is state


def test_a_job_that_may_still_arrive_is_waited_for_and_stopped() -> None:
    record = admitted(stop=stop(), posted_at=NOW)
    record = judge(record, Seen(job=GONE), NOW + 1).record
    assert judge(record, Seen(job=GONE), NOW + DOUBT_SECONDS - 1).record.run.state is RunState.STOPPING
    assert judge(record, Seen(job=job("PENDING")), NOW + 5).do is Do.STOP
    assert judge(record, Seen(job=GONE), NOW + DOUBT_SECONDS + 1).record.run.state is RunState.STOPPED


def test_it_is_submitted_only_when_ray_says_that_it_has_it_not() -> None:
    assert judge(admitted(), Seen(job=JobSeen(False)), NOW).do is Do.SUBMIT
    assert judge(admitted(), Seen(), NOW).do is Do.NOTHING
    assert judge(admitted(stop=stop(), posted_at=NOW), Seen(job=JobSeen(False)), NOW).do is Do.NOTHING


def test_a_stop_is_sent_once_and_again_when_nothing_came_of_it() -> None:
    record = in_state(RunState.SAVING, stop=stop())
    seen = Seen(job=job("RUNNING"))
    assert judge(record, seen, NOW).do is Do.STOP
    sent = record.model_copy(update={"stop": stop().model_copy(update={"sent_at": NOW})})
    assert judge(sent, seen, NOW + 1).do is Do.NOTHING
    assert judge(sent, seen, NOW + 11).do is Do.STOP
    assert judge(sent, Seen(), NOW + 11).do is Do.NOTHING


def test_an_outcome_may_be_seen_a_little_after_the_end_of_its_job() -> None:
    record = in_state(RunState.RUNNING)
    early = Seen(job=job("FAILED", "exit code 1"), job_ended_seconds=1.0)
    assert judge(record, early, NOW).record.run.state is RunState.RUNNING
    late = judge(record, ended("FAILED", "exit code 1", Outcome(verdict="failed", reason="rank 1")), NOW).record
    assert (late.run.state, late.run.reason) == (RunState.FAILED, "rank 1")


def test_the_table_of_moves_is_kept() -> None:
    with pytest.raises(IllegalMove):
        moved(in_state(RunState.STOPPING), RunState.RUNNING, "", NOW)


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    text = short("first line\n" + "\n".join(f"line {number} {'x' * 400}" for number in range(100)) + "\nError: last")
    assert text.startswith("first line | … | line 98")
    assert text.endswith("Error: last")
    assert len(text) < 1000


_jobs = st.none() | st.builds(
    JobSeen,
    found=st.booleans(),
    ours=st.sampled_from([True, True, True, False]),
    status=st.sampled_from(["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED", "", "NEW-WORD"]),
    message=st.sampled_from(["", "one line", "a\nb\nc\nd\ne\nf"]),
    looks_missed=st.integers(0, 4),
)
_statuses = st.none() | st.builds(
    GangStatus,
    phase=st.sampled_from(["placing", "starting", "running", "saving", "ended", "other"]),
    detail=st.sampled_from(["", "why"]),
)
_outcomes = st.none() | st.builds(
    Outcome,
    verdict=st.sampled_from(["succeeded", "failed", "stopped", "other"]),
    reason=st.sampled_from(["", "why"]),
    survivors=st.sampled_from([[], [12]]),
)
_seen = st.builds(
    Seen,
    job=_jobs,
    job_ended_seconds=st.sampled_from([0.0, 100.0]),
    ray_silent_seconds=st.sampled_from([0.0, 30.0]),
    status=_statuses,
    status_age_seconds=st.sampled_from([0.0, 100.0]),
    outcome=_outcomes,
    outcome_age_seconds=st.sampled_from([0.0, 100.0]),
    unreadable=st.sampled_from(["", "no such device"]),
)
_wishes = st.sampled_from(["", "", "", "stop", "now", "posted"])


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["train", "ray"]),
    course=st.lists(st.tuples(_seen, _wishes, st.floats(0, 100)), max_size=25),
)
def test_any_order_of_answers_makes_only_legal_moves(kind: str, course: list[tuple[Seen, str, float]]) -> None:
    record = make_record()
    record = record.model_copy(update={"run": record.run.model_copy(update={"kind": kind})})
    now = NOW
    for seen, wish, seconds in course:
        now += seconds
        if record.run.state.ended:
            break
        if record.run.state.waiting and record.stop is None:
            record = let_go(record, ["node-1"], (), Begin(), now)
        if wish == "posted" and record.run.state is RunState.ADMITTED:
            record = record.model_copy(update={"posted_at": now})
        elif wish in ("stop", "now"):
            record = wishes.stop(record, StopWanted(at=now, user="alice", now=wish == "now"))
        before: Run = record.run
        step = judge(record, seen, now)
        record = step.record
        assert record.run.state is before.state or record.run.state in MOVES[before.state]
        assert len(record.run.attempts) <= 1
        assert [attempt.job_id for attempt in record.run.attempts] in ([], [job_id(record.id, 1)])
        assert (record.run.ended_at is not None) == record.run.state.ended
        if step.do is Do.SUBMIT:
            assert record.run.state is RunState.ADMITTED
            assert record.stop is None
            assert seen.job is not None
            assert not seen.job.found
        if step.do is Do.STOP:
            assert record.stop is not None
            assert not record.run.state.ended
        if record.run.state in (RunState.FAILED, RunState.STOPPED) and seen.outcome is None:
            assert record.run.reason
        if record.run.state.ended and record.stop is None and before.state is not RunState.QUEUED:
            # Nothing ends because somebody did not answer.
            assert seen.job is not None or seen.outcome is not None
    kept = record.model_copy(update={"unwritten": []})
    assert Record.model_validate_json(record.model_dump_json()) == kept


def drained(now: bool = False, at: float = NOW, **rest: object) -> StopWanted:
    wanted = StopWanted(at=at, user="alice", reason="w1 is drained", now=now, purpose="drain")
    return wanted.model_copy(update=rest)


def test_a_drain_asks_by_a_word_and_never_by_itself_for_more() -> None:
    running = in_state(RunState.RUNNING, stop=drained())
    step = judge(running, Seen(job=job("RUNNING")), NOW)
    assert (step.do, step.record.run.state) == (Do.LEAVE, RunState.SAVING)
    assert step.record.run.reason == "moved by alice: w1 is drained; its gang saves"
    asked = step.record.model_copy(update={"stop": drained(sent_at=NOW)})
    # Long after the run's own grace it still may take its time: the drain has a deadline of its own.
    much_later = NOW + 1500
    assert judge(asked, Seen(job=job("RUNNING")), NOW + 1).do is Do.NOTHING
    step = judge(asked, Seen(job=job("RUNNING")), much_later)
    assert (step.do, step.record.run.state) == (Do.LEAVE, RunState.SAVING)
    urgent = wishes.stop(asked, drained(now=True, at=much_later))
    step = judge(urgent, Seen(job=job("RUNNING")), much_later)
    assert (step.do, step.record.run.state) == (Do.STOP, RunState.STOPPING)


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.RUNNING, RunState.SAVING, RunState.STOPPING])
def test_a_drained_run_goes_back_to_its_old_place_and_spends_no_retry(state: RunState) -> None:
    record = in_state(state, stop=drained(sent_at=NOW))
    run = record.run.model_copy(update={"max_retry": 2, "queued_at": 7.0, "priority": "high"})
    record = record.model_copy(update={"run": run, "place": 3.5})
    seen = Seen(job=job("SUCCEEDED"), outcome=Outcome(verdict="stopped", reason="stopped on request"))
    after = judge(record, seen, NOW + 5).record
    assert (after.run.state, after.run.retries, after.run.queued_at, after.place) == (RunState.QUEUED, 0, 7.0, 3.5)
    assert (after.run.not_before, after.stop, after.run.failure) == (None, None, None)
    assert after.run.reason == "moved by alice: w1 is drained; stopped on request"
    assert after.launch.previous_nodes == {"node-1": "node-1"}


OF_THE_NODE = (Failure.NODE_LOST, Failure.DRIVER, Failure.COMMUNICATION, Failure.UNKNOWN, Failure.START_TIMEOUT)


@pytest.mark.parametrize("failure", list(Failure))
def test_a_failure_on_a_node_that_is_emptied_counts_only_if_it_is_the_runs_own(failure: Failure) -> None:
    record = in_state(RunState.SAVING, stop=drained(sent_at=NOW))
    record = record.model_copy(update={"run": record.run.model_copy(update={"max_retry": 2})})
    seen = Seen(job=job("FAILED"), outcome=Outcome(verdict="failed", reason="rank 0", failure=failure))
    run = judge(record, seen, NOW + 5).record.run
    assert run.attempt is not None
    if failure in OF_THE_NODE:
        assert (run.state, run.retries, run.attempt.failure) == (RunState.QUEUED, 0, None)
    else:
        assert run.attempt.failure is failure
        assert "moved by" not in run.reason


def test_what_a_person_wants_goes_before_a_drain_and_is_told_to_ray() -> None:
    asked = in_state(RunState.SAVING, stop=drained(sent_at=NOW))
    stopped = wishes.stop(asked, stop())
    assert stopped.stop is not None
    assert (stopped.stop.purpose, stopped.stop.sent_at) == ("stop", None)
    assert judge(stopped, Seen(job=job("RUNNING")), NOW + 1).do is Do.STOP
    assert wishes.stop(stopped, drained()) is stopped


def test_one_that_was_let_go_and_not_posted_only_goes_back() -> None:
    after = judge(admitted(stop=drained()), Seen(), NOW).record
    assert (after.run.state, after.run.retries) == (RunState.QUEUED, 0)
