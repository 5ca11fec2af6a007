"""The store of runs: who holds which accelerator, what is listed first, what needs someone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from console.render.cells import Cell, spans_of
from console.render.work import JOB_COLUMNS, JobRow, gpus_text
from console.state.work import ENDED_KEPT, WorkStore, ranks
from jobs.model import Attempt, Failure, GangStatus, Progress, Rank, Run, RunState
from jobs.queueview import QueueView, Waiting
from jobs.raymodel import RayJob
from jobs.wire import ControllerStatus


def status() -> ControllerStatus:
    return ControllerStatus(
        version="0", code_digest="", pid=1, user="ray", host="head", python="", started_at=0.0, dashboard="", ray="ok",
        metadata_store="", supervised_by="none", you="alice", role="viewer",
    )  # fmt: skip


def run(identity: str, state: RunState = RunState.RUNNING, at: float = 100.0, exit_code: int | None = None) -> Run:
    ranks = [Rank(rank=i, node_id="n1", gpu=str(i), pid=10 + i, exit_code=exit_code) for i in range(2)]
    gang = GangStatus(phase="running", ranks=ranks, progress=Progress(step=7, loss=None))
    return Run(
        id=identity, workflow="lm", release="r", state=state, nodes=1, gpus=2, submitted_at=at,
        attempts=[Attempt(number=1, job_id=f"raydeck-{identity}-a1", status=gang)],
    )  # fmt: skip


def test_holders_are_those_whose_process_lives() -> None:
    work = WorkStore()
    work.snapshot(status(), [run("a")], 0.0)
    assert work.holders("n1") == {0: ("a", 0), 1: ("a", 1)}
    assert work.runs_on("n1") == ["a"]
    work.run_changed(run("a", exit_code=0), 1.0)
    assert work.holders("n1") == {}
    work.run_changed(run("a", RunState.STOPPED), 2.0)
    assert work.holders("n1") == {}


def test_living_runs_come_first_then_the_newest_then_foreign_jobs() -> None:
    work = WorkStore()
    work.snapshot(status(), [run("old", at=1.0), run("done", RunState.FAILED, at=9.0), run("new", at=5.0)], 0.0)
    work.take_ray_jobs([RayJob("raydeck-old-a1", status="RUNNING"), RayJob("other", status="RUNNING")])
    assert work.keys == ["new", "old", "done", "other"], "an attempt of ours is no foreign job"


def test_what_is_not_known_is_a_dash() -> None:
    work = WorkStore()
    work.snapshot(status(), [run("a")], 0.0)
    work.take_ray_jobs([RayJob("other", status="RUNNING")])
    for key in work.keys:
        for column in JOB_COLUMNS:
            cell = column.cell(JobRow(work.job(key), 200.0))
            assert all(isinstance(span, Cell) for span in spans_of(cell))
    row = JobRow(work.job("a"), 200.0)
    by_key = {column.key: column.cell(row) for column in JOB_COLUMNS}
    assert by_key["loss"] == Cell("-", "muted")
    assert by_key["step"] == Cell("7")


def test_findings_name_the_controller_and_a_fresh_failure() -> None:
    work = WorkStore()
    work.controller_state("absent", "no such file", 0.0)
    assert "no controller" in work.findings(0.0)[0].text
    failed = run("a", RunState.FAILED).model_copy(update={"ended_at": 1000.0, "reason": "rank 1 exited 1"})
    work.snapshot(status(), [failed], 0.0)
    work.controller_state("ok", "", 0.0)
    assert [finding.text for finding in work.findings(1100.0)] == ["a failed: rank 1 exited 1"]
    assert work.findings(1000.0 + 3600) == []


def test_gpus_are_nodes_times_accelerators() -> None:
    assert gpus_text(run("a")) == "1×2"


# --- ten thousand of them ---------------------------------------------------------------------------------------------

STATES = st.sampled_from(list(RunState))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), STATES, st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_what_is_kept_run_by_run_is_what_one_would_find_by_looking_through_all(
    news: list[tuple[int, RunState, int, int]],
) -> None:
    """Order and holders after any course of news are those of a store that was told the end of it at once."""
    work = WorkStore()
    work.snapshot(status(), [], 0.0)
    latest: dict[str, Run] = {}
    for number, state, node, gpu in news:
        rank = Rank(rank=0, node_id=f"n{node}", gpu=str(gpu), pid=1)
        told = run(f"r{number}", state, at=float(number)).model_copy(
            update={"attempts": [Attempt(number=1, job_id="j", status=GangStatus(ranks=[rank]))]}
        )
        latest[told.id] = told
        work.run_changed(told, 0.0)
    order = sorted(latest.values(), key=lambda one: (one.state.ended, one.state.waiting, -one.submitted_at, one.id))
    assert work.keys == [one.id for one in order]
    for node in range(4):
        claims: dict[int, set[str]] = {}
        for one in latest.values():
            rank = ranks(one)[0]
            if not one.state.ended and rank.node_id == f"n{node}":
                claims.setdefault(int(rank.gpu), set()).add(one.id)
        held = work.holders(f"n{node}")
        assert held.keys() == claims.keys()
        assert all(held[gpu][0] in claims[gpu] for gpu in claims)


def test_ended_runs_are_bounded_and_the_oldest_go_first() -> None:
    work = WorkStore()
    work.snapshot(status(), [run("lives", at=0.0)], 0.0)
    for number in range(ENDED_KEPT + 50):
        one = run(f"r{number:05d}", RunState.SUCCEEDED).model_copy(update={"ended_at": 1000.0 + number})
        work.run_changed(one, 0.0)
    assert len(work.runs) == ENDED_KEPT + 1
    assert work.keys[:2] == ["lives", f"r{ENDED_KEPT + 49:05d}"]
    assert "r00049" not in work.runs
    assert "r00050" in work.runs
    assert {"r00000", "r00049"} <= work.changed


def test_a_restarted_run_stands_among_the_living_again() -> None:
    work = WorkStore()
    work.snapshot(status(), [run("a", RunState.FAILED), run("b", at=1.0)], 0.0)
    assert work.keys == ["b", "a"]
    work.run_changed(run("a", RunState.RUNNING), 1.0)
    assert work.keys == ["a", "b"]
    keys = work.keys
    work.run_changed(run("a", RunState.RUNNING), 2.0)
    assert work.keys is keys, "the same rows are the same list: nobody has to compare them"


def test_an_old_attempt_of_a_run_that_is_no_longer_listed_is_no_foreign_job() -> None:
    work = WorkStore()
    work.snapshot(status(), [run("a")], 0.0)
    jobs = [RayJob("raydeck-a-a2", status="RUNNING"), RayJob("raydeck-gone-a1", status="FAILED"),
            RayJob("raydeck-stray-a1", status="RUNNING"), RayJob("mine", status="RUNNING")]  # fmt: skip
    work.take_ray_jobs(jobs)
    assert list(work.ray_jobs) == ["raydeck-stray-a1", "mine"], "one that runs and that nobody knows is shown"


def test_the_queue_is_kept_and_said_to_have_changed_once() -> None:
    work = WorkStore()
    view = QueueView(at=1.0, waiting=[_waits("a", "held by bob")], waiting_total=1)
    work.snapshot(status(), [run("a", RunState.QUEUED)], 0.0, view)
    assert work.take_queue_changed()
    assert not work.take_queue_changed()
    told = work.job("a").waiting
    assert told is not None
    assert told.sentence == "held by bob"
    work.take_queue(QueueView(at=2.0), 1.0)
    assert work.take_queue_changed()
    assert work.job("a").waiting is None


def _waits(key: str, sentence: str) -> Waiting:
    return Waiting(run=key, position=1, queue="q", priority="low", user="bob", nodes=1, gpus=1, since=0.0,
                   sentence=sentence, kind="hold")  # fmt: skip


def test_failures_have_their_kind_retries_say_so_and_waiting_is_no_finding() -> None:
    lost = Attempt(number=1, job_id="j", state=RunState.FAILED, failure=Failure.NODE_LOST, reason="worker-2 is dead",
                   ended_at=90.0)  # fmt: skip
    more = {"retries": 1, "max_retry": 3, "attempts": [lost]}
    again = run("again", RunState.QUEUED).model_copy(update=more)
    over = run("over", RunState.FAILED).model_copy(
        update={**more, "failure": Failure.OUT_OF_MEMORY, "reason": "rank 1 was killed", "ended_at": 100.0}
    )
    work = WorkStore()
    work.snapshot(status(), [run("waits", RunState.QUEUED, at=-1e6), again, over], 0.0)
    found = {finding.text: finding.severity for finding in work.findings(120.0)}
    assert found == {
        "again waits to try again, retry 1 of 3; attempt 1 failed (node lost): worker-2 is dead": "info",
        "over failed (out of memory) after retry 1 of 3: rank 1 was killed": "warning",
    }


def test_what_a_gang_warns_of_is_a_finding_while_it_runs() -> None:
    gang = GangStatus(phase="running", warnings=["the loss is not a number since step 40"])
    nan = run("a").model_copy(update={"attempts": [Attempt(number=1, job_id="j", status=gang)]})
    work = WorkStore()
    work.snapshot(status(), [nan], 0.0)
    assert [finding.text for finding in work.findings(0.0)] == ["a: the loss is not a number since step 40"]
    work.run_changed(nan.model_copy(update={"state": RunState.STOPPED}), 1.0)
    assert work.findings(0.0) == []
