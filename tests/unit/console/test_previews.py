"""Previews of what takes work up again and of how runs wait: the exact words, and how much has to be typed."""

from __future__ import annotations

from typing import Any

import pytest

from console.dispatch import Change, preview_arrange, preview_restart, preview_rollback, preview_undo
from jobs.errors import Refused
from jobs.model import Attempt, GangStatus, Held, Outcome, Progress, Run, RunState
from jobs.queueview import QueueView, Waiting
from jobs.wire import Restarted, Rollback
from tests.unit.console.desk import WALL, a_run


def running(identity: str = "lm-a1", **more: Any) -> Run:
    """Two hours old, at step 900, saved at step 600; 4 GPUs."""
    status = GangStatus(phase="running", progress=Progress(step=900), checkpoint_step=600)
    attempt = Attempt(number=1, job_id="j", state=RunState.RUNNING, started_at=WALL - 7200, status=status)
    return a_run(identity, RunState.RUNNING, started_at=WALL - 7200, attempts=[attempt], **more)


# --- restart ----------------------------------------------------------------------------------------------------------


def test_restarting_what_runs_saves_first_and_tells_what_is_done_again() -> None:
    plan = Restarted(run=running(), from_step=600, set_aside=[800, 900], skipped=["step 700 is passed over: torn"],
                     warnings=["it was saved by 8 ranks, and 4 will read it"])  # fmt: skip
    preview = preview_restart(running(), plan, WALL, you="alice")
    assert preview.title == "Restart lm-a1"
    assert preview.lines == (
        "running on 4 GPUs: it saves and leaves first; at step 900, checkpoint at step 600; "
        "about 2.67 GPU-hours since then",
        "it starts from step 600; it was at step 900, so 300 steps may have to be done again",
        "set aside (renamed, not deleted): 2 checkpoints, 800, 900",
    )
    assert preview.warnings == ("step 700 is passed over: torn", "it was saved by 8 ranks, and 4 will read it")
    assert (preview.ask, preview.expected, preview.wants_reason) == ("y", "y", True)


def test_restarting_what_has_ended_tells_how_it_ended() -> None:
    tried = Attempt(number=1, job_id="j", outcome=Outcome(verdict="failed", last_step=70))
    ended = a_run(state=RunState.FAILED, reason="rank 0 exited with 1", ended_at=WALL - 300, attempts=[tried])
    preview = preview_restart(ended, Restarted(run=ended), WALL)
    assert preview.lines == (
        "failed 5m00s ago: rank 0 exited with 1; back to queue training, priority normal, with all its retries",
        "it starts from the beginning; it was at step 70, so 70 steps may have to be done again",
    )


def test_restarting_anothers_run_takes_its_name() -> None:
    waiting = a_run(user="bob")
    preview = preview_restart(waiting, Restarted(run=waiting, from_step=5), WALL, you="alice")
    assert preview.lines == ("queued: it waits, and goes on waiting at its place", "it starts from step 5")
    assert (preview.ask, preview.expected) == ("name", "lm-a1")
    assert preview.warnings == ("1 run of bob, not yours",)


# --- roll back and undo -----------------------------------------------------------------------------------------------


def rollback(**more: Any) -> Rollback:
    values: dict[str, Any] = {
        "from_release": "lm-r-2", "to_release": "lm-r-1", "from_step": 1200, "from_run": "lm-old", "started": "lm-new",
        **more,
    }  # fmt: skip
    return Rollback(id="rb-1", workflow="lm", at=WALL - 60, user="alice", **values)


def test_a_rollback_tells_what_is_stopped_what_is_lost_and_from_where_it_goes_on() -> None:
    plan = rollback(stopped=["lm-a1"], skipped=["step 1300 is passed over: no manifest"])
    preview = preview_rollback(plan, {"lm-a1": running()}, WALL, differences=2, you="alice")
    assert preview.title == "Roll lm back to lm-r-1"
    assert preview.lines == (
        "stops 1 run on 4 GPUs: saves first, then ends",
        "lm-a1 (running, alice): at step 900, checkpoint at step 600; about 2.67 GPU-hours since then",
        "starts a new run of lm-r-1 in the place of lm-r-2; 2 differences between them",
        "it starts from step 1,200 of lm-old; it waits until that has ended",
        "one way back: undo stops that run and restarts what was stopped",
    )
    assert preview.warnings == ("step 1300 is passed over: no manifest",)
    assert (preview.ask, preview.wants_reason) == ("y", True), "one's own run: one key"


def test_a_rollback_of_nothing_that_runs() -> None:
    preview = preview_rollback(rollback(from_step=None, from_run=""), {}, WALL)
    assert preview.lines[0] == "nothing runs: nothing has to be stopped"
    assert preview.lines[2] == "it starts from the beginning"
    assert preview.ask == "y"


def test_a_rollback_to_what_runs_already_stops_the_others_alone() -> None:
    preview = preview_rollback(rollback(stopped=["x"], started=""), {"x": running("x")}, WALL)
    assert preview.lines[2:] == (
        "lm-r-1 runs already and goes on alone; nothing new is started",
        "one way back: undo restarts what was stopped",
    )


def test_a_rollback_over_others_and_over_many() -> None:
    others = preview_rollback(rollback(stopped=["x"]), {"x": running("x", user="bob")}, WALL, you="alice")
    assert (others.ask, others.expected, others.warnings) == ("name", "x", ("1 run of bob, not yours",))
    many = preview_rollback(rollback(stopped=["x", "y", "z"]), {"x": running("x")}, WALL, you="alice")
    assert (many.ask, many.expected) == ("count", "3")
    assert many.lines[2:4] == ("y", "z"), "a run that is not known here is named all the same"


def test_undo_stops_what_it_started_and_restarts_what_it_stopped() -> None:
    plan = rollback(stopped=["lm-a1"], started="lm-new", reason="worse loss")
    runs = {"lm-new": running("lm-new"), "lm-a1": a_run("lm-a1", RunState.STOPPED)}
    preview = preview_undo(plan, runs, WALL, you="alice")
    assert preview.title == "Take back the rollback of lm to lm-r-1"
    assert preview.lines == (
        "stops 1 run on 4 GPUs: saves first, then ends",
        "lm-new (running, alice): at step 900, checkpoint at step 600; about 2.67 GPU-hours since then",
        "restarts lm-a1 from its newest complete checkpoint",
        "rolled back 1m00s ago by alice: worse loss",
    )
    assert preview.ask == "y"


def test_undo_of_what_still_waits_takes_it_out_of_the_queue() -> None:
    preview = preview_undo(rollback(started="lm-new"), {"lm-new": a_run("lm-new")}, WALL)
    assert preview.lines[:2] == ("takes 1 run out of the queue", "lm-new (queued, alice): it waits: nothing is lost")


def test_undo_of_what_has_ended_and_of_what_is_undone() -> None:
    plan = rollback(started="lm-new")
    preview = preview_undo(plan, {"lm-new": a_run("lm-new", RunState.FAILED)}, WALL)
    assert preview.lines[:2] == ("lm-new has ended already", "it had stopped nothing, so nothing is restarted")
    with pytest.raises(Refused, match="taken back already, by bob"):
        preview_undo(rollback(undone_at=WALL, undone_by="bob"), {}, WALL)


# --- how runs wait ----------------------------------------------------------------------------------------------------


def queue(*runs: str, held: int = 0) -> QueueView:
    rows = [
        Waiting(run=run, position=number, queue="training", priority="normal", user="alice", nodes=1, gpus=1,
                since=0.0, sentence="", kind="resources")
        for number, run in enumerate(runs, 1)
    ]  # fmt: skip
    return QueueView(at=WALL, waiting=rows, waiting_total=len(rows) + held, held_total=held)


@pytest.mark.parametrize(
    ("change", "title", "lines"),
    [
        (Change(hold=True), "Hold lm-a1",
         ["lm-a1 (queued, number 2, queue training, priority normal) is held: it keeps waiting until it is released"]),
        (Change(priority="high"), "Change the priority of lm-a1",
         ["lm-a1 (queued, number 2, queue training, priority normal) gets priority high",
          "its place among the others follows from that; a place given by hand is given up"]),
        (Change(queue="b", priority="low"), "Move lm-a1",
         ["lm-a1 (queued, number 2, queue training, priority normal) moves to queue b, gets priority low",
          "its place among the others follows from that; a place given by hand is given up"]),
        (Change(place="first"), "Move lm-a1",
         ["lm-a1 (queued, number 2, queue training, priority normal) goes first of all",
          "new place: number 1; whoever waited there comes after"]),
        (Change(place="last"), "Move lm-a1",
         ["lm-a1 (queued, number 2, queue training, priority normal) goes last of all",
          "new place: number 3, the last"]),
        (Change(place="before", other="x"), "Move lm-a1",
         ["lm-a1 (queued, number 2, queue training, priority normal) goes before x", "x is number 1 now"]),
        (Change(place="own"), "Move lm-a1",
         ["lm-a1 (queued, number 2, queue training, priority normal) goes back to the place that its priority and time "
          "give it"]),
    ],
)  # fmt: skip
def test_what_a_change_of_place_shows(change: Change, title: str, lines: list[str]) -> None:
    preview = preview_arrange([a_run()], change, queue=queue("x", "lm-a1", "z", held=1))
    assert (preview.title, list(preview.lines)) == (title, lines)
    assert (preview.ask, preview.wants_reason) == ("y", True)


def test_releasing_what_somebody_else_holds_says_so() -> None:
    held = a_run(held=Held(user="bob", at=WALL))
    preview = preview_arrange([held], Change(hold=False), you="alice")
    assert preview.lines == ("lm-a1 (held by bob, queue training, priority normal) is released",)
    assert preview.warnings == ("held by bob",)


def test_many_take_their_count_and_what_does_not_wait_is_left() -> None:
    runs = [a_run(f"r{number}", user=("alice", "bob")[number % 2]) for number in range(30)]
    preview = preview_arrange([*runs, running("x")], Change(place="first"), you="alice")
    assert (preview.title, preview.ask, preview.expected) == ("Move 30 runs", "count", "30")
    assert preview.lines[-2:] == ("and 10 more", "new place: numbers 1 to 30; whoever waited there comes after")
    assert preview.warnings == ("15 runs of bob, not yours", "left as they are: x is running")


def test_only_the_priority_of_a_running_run_can_be_changed() -> None:
    assert preview_arrange([running()], Change(priority="high")).title == "Change the priority of lm-a1"
    with pytest.raises(Refused, match="only what waits can be arranged: lm-a1 is running"):
        preview_arrange([running()], Change(priority="high", queue="b"))
    with pytest.raises(Refused, match="no run is chosen"):
        preview_arrange([], Change(hold=True))
    with pytest.raises(Refused, match="nothing is to be changed"):
        preview_arrange([a_run()], Change())
