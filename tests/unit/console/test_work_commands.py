"""Commands for runs and releases: what they show, ask for, and end with."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.model import Attempt, Failure, GangStatus, Move, Progress, Run, RunState
from jobs.wire import CheckpointRow, ReleaseRow, Restarted, Rollback
from tests.unit.console.desk import WALL, Desk, a_run, squeezed
from tests.unit.console.desk import desk as desk


def ended(identity: str = "lm-a1", state: RunState = RunState.FAILED, **more: Any) -> Run:
    return a_run(identity, state, ended_at=WALL - 60, **more)


def release(identity: str, rate: float = 0.1, **more: Any) -> ReleaseRow:
    return ReleaseRow(
        id=identity, workflow="lm", created_at=WALL - 600, user="alice", code_digest="c" * 16,
        config={"name": "lm", "training": {"learning_rate": rate, "batch_size": 64}}, **more,
    )  # fmt: skip


# --- runs -------------------------------------------------------------------------------------------------------------


def test_runs_as_json_have_the_documented_fields(desk: Desk) -> None:
    desk.snapshot(a_run(failure=Failure.OUT_OF_MEMORY, retries=1, sweep="lm-s", parameters={"learning_rate": 0.1}))
    (run,) = desk.json("runs")
    documented = "id workflow release state reason queue priority user nodes gpus attempt step loss throughput "
    documented += "checkpoint_step submitted_at started_at ended_at failure retries held sweep parameters"
    assert set(documented.split()) <= run.keys()
    assert (run["failure"], run["retries"], run["sweep"]) == ("out of memory", 1, "lm-s")
    assert run["held"] is None


def test_the_runs_of_a_sweep_come_from_the_controller(desk: Desk) -> None:
    desk.give("GET", "/v1/runs", lambda asked: {"runs": [a_run("lm-s-001", sweep=asked["sweep"])]})
    assert [run["id"] for run in desk.json("runs", "--sweep", "lm-s")] == ["lm-s-001"]


def test_a_run_whole(desk: Desk) -> None:
    desk.give("GET", "/v1/runs/lm-a1", ended(suspects={"worker-2": 2}, parameters={"width": 8}))
    code, out, _ = desk.call("show", "lm-a1")
    assert code == 0
    lines = out.splitlines()
    assert "state            failed" in lines
    assert "suspects         worker-2 2" in lines
    assert "parameters       width 8" in lines
    assert "after            -" in lines


def test_events_tell_each_step_with_cause_and_actor(desk: Desk) -> None:
    moves = [
        Move(at=WALL - 90, after=RunState.QUEUED, cause="launched by alice", actor="alice"),
        Move(at=WALL - 60, attempt=1, before=RunState.QUEUED, after=RunState.ADMITTED, cause="room", actor="raydeck"),
    ]
    desk.give("GET", "/v1/runs/lm-a1/moves", {"moves": moves})
    code, out, _ = desk.call("events", "lm-a1")
    assert code == 0
    assert squeezed(out) == [
        "AT NO FROM → TO FOR WHO CAUSE",
        "20:25:10 - … queued 30s alice launched by alice",
        "20:25:40 1 queued → » admitted now raydeck room",
    ]
    assert [step["seconds"] for step in desk.json("events", "lm-a1")] == [30.0, None]
    assert desk.json("events", "lm-a1")[1]["before"] == "queued"


def test_checkpoints_tell_which_can_be_used_and_why_not(desk: Desk) -> None:
    rows = [
        CheckpointRow(step=500, path="/o/step-500", complete=True, size_bytes=1024**3, seconds=2.5, loss=1.5,
                      world_size=4, written_at=WALL - 120),
        CheckpointRow(step=1000, path="/o/step-1000", complete=False, reason="it has no manifest"),
    ]  # fmt: skip
    desk.give("GET", "/v1/runs/lm-a1/checkpoints", {"checkpoints": rows})
    code, out, _ = desk.call("checkpoints", "lm-a1")
    assert code == 0
    assert squeezed(out) == [
        "STEP STATE SIZE TOOK LOSS AGE RANKS FORMAT REASON",
        "500 ✓ complete 1.0G 2.5s 1.5000 2m00s 4 raydeck",
        "1000 ✗ incomplete - - - - - raydeck it has no manifest",
    ]
    assert desk.json("checkpoints", "lm-a1")[0] == {
        "step": 500, "complete": True, "size_bytes": 1024**3, "seconds": 2.5, "reason": "", "path": "/o/step-500",
        "format": "raydeck", "written_at": WALL - 120, "loss": 1.5, "world_size": 4, "attempt": None, "in_use_by": [],
    }  # fmt: skip
    desk.give("GET", "/v1/runs/lm-a2/checkpoints", {"checkpoints": []})
    assert desk.call("checkpoints", "lm-a2") == (0, "", "lm-a2 has no checkpoint yet\n")


def test_a_sweep_in_one_summary(desk: Desk) -> None:
    def point(number: int, loss: float | None, state: RunState) -> Run:
        status = GangStatus(phase="running", progress=None if loss is None else Progress(step=10, loss=loss))
        attempt = Attempt(number=1, job_id="j", status=status)
        return a_run(f"lm-s-00{number}", state, sweep="lm-s", parameters={"learning_rate": 10.0**-number},
                     attempts=[attempt])  # fmt: skip

    runs = [point(2, 1.5, RunState.RUNNING), point(1, 1.9, RunState.SUCCEEDED), point(3, None, RunState.QUEUED)]
    desk.give("GET", "/v1/runs", {"runs": runs})
    document = desk.json("sweep", "lm-s")
    assert (document["points"], document["best"], document["goal"]) == (3, "lm-s-002", "minimize")
    assert document["states"] == {"succeeded": 1, "running": 1, "queued": 1}
    assert [run["id"] for run in document["runs"]] == ["lm-s-001", "lm-s-002", "lm-s-003"]
    desk.give("GET", "/v1/runs", {"runs": [run.model_copy(update={"sweep_goal": "maximize"}) for run in runs]})
    assert desk.json("sweep", "lm-s")["best"] == "lm-s-001"
    desk.give("GET", "/v1/runs", {"runs": runs})
    code, out, _ = desk.call("sweep", "lm-s")
    assert code == 0
    assert "3 points: 1 succeeded, 1 running, 1 queued" in out
    assert "learning_rate=0.01  loss 1.5000  lm-s-002" in out
    desk.give("GET", "/v1/runs", {"runs": []})
    code, _, err = desk.call("sweep", "lm-x")
    assert code == 1
    assert "there is no sweep lm-x" in err


# --- restart ----------------------------------------------------------------------------------------------------------


def plan(run: Run, **more: Any) -> Restarted:
    values: dict[str, Any] = {"from_step": 500, **more}
    return Restarted(run=run, **values)


@pytest.mark.parametrize(("named", "step"), [("latest", None), ("nothing", 0), ("500", 500)])
def test_restart_plans_first_and_then_asks_for_just_that(desk: Desk, named: str, step: int | None) -> None:
    desk.snapshot(ended())
    desk.give("POST", "/v1/runs/lm-a1/restart", plan(ended()))
    code, out, err = desk.call("restart", "lm-a1", "--from", named, "--yes", "--reason", "try again")
    assert code == 0
    assert out == "lm-a1: failed; it starts from step 500\n"
    assert err.splitlines()[0] == "Restart lm-a1"
    assert [body for _, _, body in desk.answers.asked] == [
        {"reason": "", "from_step": step, "dry_run": True},
        {"reason": "try again", "from_step": step, "dry_run": False},
    ]


@pytest.mark.parametrize("named", ["0", "-1", "newest", "5.5", "٥"])
def test_restart_from_what_is_no_step_is_wrong_usage(desk: Desk, named: str) -> None:
    code, _, err = desk.call("restart", "lm-a1", "--from", named, "--yes")
    assert code == 2
    assert "a step of `raydeck checkpoints RUN`, latest, nothing" in err
    assert not desk.answers.asked


def test_a_dry_restart_does_nothing_and_needs_no_yes(desk: Desk) -> None:
    desk.snapshot(ended())
    desk.give(
        "POST", "/v1/runs/lm-a1/restart", plan(ended(), set_aside=[600], skipped=["step 900 is passed over: torn"])
    )
    code, out, err = desk.call("--read-only", "restart", "lm-a1", "--dry-run")
    assert (code, out) == (0, "nothing was restarted\n")
    assert "set aside (renamed, not deleted): 1 checkpoint, 600" in err
    assert "! step 900 is passed over: torn" in err
    document = desk.json("restart", "lm-a1", "--dry-run")
    assert (document["from_step"], document["set_aside"], document["run"]["id"]) == (500, [600], "lm-a1")
    assert all(body["dry_run"] for _, _, body in desk.answers.asked)


def test_waiting_for_a_restart_ignores_the_end_before_it(desk: Desk) -> None:
    desk.snapshot(ended(queued_at=WALL - 500))
    again = a_run("lm-a1", RunState.QUEUED, queued_at=WALL)

    def restart(asked: dict[str, Any]) -> Restarted:
        if not asked["dry_run"]:
            desk.work.run_changed(ended(state=RunState.SUCCEEDED, queued_at=WALL), 1.0)
        return plan(again)

    desk.give("POST", "/v1/runs/lm-a1/restart", restart)
    code, out, _ = desk.call("restart", "lm-a1", "--yes", "--wait")
    assert (code, out) == (0, "lm-a1: succeeded\n")


# --- launch and stop --------------------------------------------------------------------------------------------------


def test_a_held_launch_says_so_to_the_controller(desk: Desk) -> None:
    digest: list[str] = []

    def launch(asked: dict[str, Any]) -> dict[str, Any]:
        digest.append(asked["package"])
        return {"runs": [a_run("lm-a1")]}

    desk.give("POST", "/v1/runs", launch)
    code, out, err = desk.call("launch", "lm", "--hold", "--yes", "--priority", "high", "--queue", "training")
    assert (code, out) == (0, "lm-a1: queued\n")
    assert "held: it waits until somebody releases it" in err
    ((_, _, body),) = desk.answers.asked
    assert (body["hold"], body["priority"], body["queue"], body["dry_run"]) == (True, "high", "training", False)


def test_a_sweep_launches_all_its_points(desk: Desk) -> None:
    runs = [a_run(f"sweep-x-00{number}", sweep="sweep-x") for number in (1, 2, 3)]
    desk.give("POST", "/v1/runs", {"runs": runs})
    code, out, err = desk.call("launch", "sweep", "--yes")
    assert (code, out.splitlines()) == (0, [f"sweep-x-00{number}: queued" for number in (1, 2, 3)])
    assert err.splitlines()[0] == "Launch 3 runs of sweep"
    assert [run["id"] for run in desk.json("launch", "sweep", "--yes")] == [run.id for run in runs]


def test_waiting_for_a_launch_tells_by_its_code_how_it_went(desk: Desk) -> None:
    desk.snapshot(ended("lm-a1", RunState.FAILED, failure=Failure.DATA, reason="no such file"))
    desk.give("POST", "/v1/runs", {"runs": [a_run("lm-a1")]})
    assert desk.call("launch", "lm", "--yes", "--wait")[:2] == (
        1,
        "lm-a1: failed (data or storage): no such file\n",
    )


def test_stop_finds_runs_that_the_session_has_not_heard_of(desk: Desk) -> None:
    desk.give("GET", "/v1/runs/old", a_run("old"))
    desk.give("POST", "/v1/runs/old/stop", a_run("old", RunState.STOPPED, reason="stopped by alice"))
    assert desk.call("stop", "old", "--yes")[:2] == (0, "old: stopped: stopped by alice\n")
    code, _, err = desk.call("stop", "nosuch", "--yes")
    assert code == 1
    assert "nosuch" in err


# --- releases and rollback --------------------------------------------------------------------------------------------


def test_releases_tell_outcome_and_the_last_good_one(desk: Desk) -> None:
    rows = [
        release("lm-r-1", outcome="succeeded", last_good=True, runs=2, last_step=900, loss=1.2, checkpoint_step=800),
        release("lm-r-2", outcome="failed", reason="rank 0 exited with 1", runs=1),
    ]
    desk.give("GET", "/v1/releases", {"releases": rows})
    code, out, _ = desk.call("releases", "--workflow", "lm")
    assert code == 0
    assert "lm-r-1" in out
    assert "✓ succeeded" in out
    assert "✓ last good" in out
    assert "✗ failed" in out
    assert {"id", "workflow", "created_at", "user", "outcome", "last_good"} <= desk.json("releases")[0].keys()


def test_two_releases_side_by_side(desk: Desk) -> None:
    rows = [release("lm-r-1", 0.1), release("lm-r-2", 0.001, environment={"torch": "2.13.0"})]
    desk.give("GET", "/v1/releases", {"releases": rows})
    code, out, _ = desk.call("releases", "--diff", "lm-r-1", "lm-r-2")
    assert code == 0
    assert "training.learning_rate" in out
    assert desk.json("releases", "--diff", "lm-r-1", "lm-r-2") == [
        {"path": "environment.torch", "old": None, "new": "2.13.0"},
        {"path": "training.learning_rate", "old": 0.1, "new": 0.001},
    ]
    code, _, err = desk.call("releases", "--diff", "lm-r-1", "lm-r-9")
    assert code == 1
    assert "there is no release lm-r-9" in err
    assert "lm-r-1" in err


def rolled(**more: Any) -> Rollback:
    values: dict[str, Any] = {
        "from_release": "lm-r-2", "to_release": "lm-r-1", "stopped": ["lm-b2"], "started": "lm-c3", "from_step": 800,
        "from_run": "lm-a1", **more,
    }  # fmt: skip
    return Rollback(id="rb-1", workflow="lm", at=WALL, user="alice", **values)


def test_a_rollback_goes_to_the_release_that_was_shown(desk: Desk) -> None:
    desk.snapshot(a_run("lm-b2", RunState.RUNNING, started_at=WALL - 3600))
    desk.give("POST", "/v1/workflows/lm/rollback", rolled())
    desk.give("GET", "/v1/releases", {"releases": [release("lm-r-1", 0.1), release("lm-r-2", 0.2)]})
    code, out, err = desk.call("rollback", "lm", "--yes", "--reason", "worse loss")
    assert code == 0
    assert out == "rb-1: lm goes back to lm-r-1; lm-c3 starts from step 800; stopping lm-b2\n"
    assert err.splitlines() == [
        "Roll lm back to lm-r-1",
        "  stops 1 run on 4 GPUs: saves first, then ends",
        "  lm-b2 (running, alice): it has not started: nothing is lost",
        "  starts a new run of lm-r-1 in the place of lm-r-2; 1 difference between them",
        "  it starts from step 800 of lm-a1; it waits until that has ended",
        "  one way back: undo stops that run and restarts what was stopped",
    ]
    assert [body for _, _, body in desk.answers.asked] == [
        {"reason": "", "to": "", "dry_run": True},
        {"reason": "worse loss", "to": "lm-r-1", "dry_run": False},
    ]


def test_a_dry_rollback_does_nothing(desk: Desk) -> None:
    desk.snapshot(a_run("lm-b2", RunState.RUNNING))
    desk.give("POST", "/v1/workflows/lm/rollback", rolled())
    desk.give("GET", "/v1/releases", {"releases": []})
    assert desk.call("rollback", "lm", "--to", "lm-r-1", "--dry-run")[:2] == (0, "nothing was rolled back\n")
    assert desk.json("rollback", "lm", "--to", "lm-r-1", "--dry-run")["stopped"] == ["lm-b2"]
    assert {body["dry_run"] for _, _, body in desk.answers.asked} == {True}


def test_a_rollback_is_taken_back_by_its_id(desk: Desk) -> None:
    desk.snapshot(a_run("lm-c3", RunState.RUNNING), ended("lm-b2", RunState.STOPPED))
    desk.give("POST", "/v1/rollbacks/rb-1/undo", rolled())
    code, out, err = desk.call("rollback", "--undo", "rb-1", "--yes")
    assert (code, out) == (0, "rb-1 is taken back: stopping lm-c3, restarting lm-b2\n")
    assert "restarts lm-b2 from its newest complete checkpoint" in err
    assert [body["dry_run"] for _, _, body in desk.answers.asked] == [True, False]


@pytest.mark.parametrize(
    "words", [["rollback"], ["rollback", "lm", "--undo", "rb-1"], ["rollback", "--undo", "rb-1", "--to", "x"]]
)
def test_a_rollback_of_nothing_is_wrong_usage(desk: Desk, words: list[str]) -> None:
    assert desk.call(*words, "--yes")[0] == 2
    assert not desk.answers.asked


def test_rollbacks_tell_who_and_why(desk: Desk) -> None:
    desk.give("GET", "/v1/rollbacks", {"rollbacks": [rolled(reason="worse", undone_at=WALL, undone_by="bob")]})
    code, out, _ = desk.call("rollbacks")
    assert code == 0
    assert squeezed(out) == [
        "ID AT USER TO RELEASE UNDONE WHAT",
        "rb-1 2026-05-28 20:26:40 alice lm-r-1 by bob from lm-r-2; stopped lm-b2; started lm-c3 from step 800; worse",
    ]
    assert desk.json("rollbacks")[0]["undone_by"] == "bob"
