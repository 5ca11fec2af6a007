"""The store of runs: who holds which accelerator, what is listed first, what needs someone."""

from __future__ import annotations

from console.render.cells import Cell
from console.render.work import JOB_COLUMNS, JobRow, gpus_text
from console.state.work import WorkStore
from jobs.model import Attempt, GangStatus, Progress, Rank, Run, RunState
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
            assert isinstance(cell, Cell)
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
