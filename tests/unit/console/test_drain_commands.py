"""`raydeck drain` and `drains`: what begins, what is told while it is waited for, and how one is decided."""

from __future__ import annotations

import json
from typing import Any

import pytest

from console.cli import follow
from jobs.nodeview import (
    Drain,
    DrainNode,
    DrainPolicy,
    DrainRun,
    NodeRef,
)
from tests.unit.console.desk import WALL, Desk, squeezed
from tests.unit.console.desk import desk as desk
from tests.unit.console.test_node_commands import REFS, RUN, asked, hold, reply
from tests.unit.console.test_node_commands import workers as workers


def test_a_drain_begins_with_all_that_was_said(desk: Desk) -> None:
    began = reply("drain", held=hold(kind="drain", drain="d-1"), state="draining", drain="d-1", runs=[RUN])
    desk.give("POST", "/v1/nodes/drain", began)
    code, out, err = desk.call(
        "drain", "w1", "--reason", "fan", "--deadline", "10m", "--at-deadline", "give-up", "--others", "stop",
        "--most", "1", "--share", "25%", "--off", "--yes",
    )  # fmt: skip
    assert (code, out) == (0, "w1: draining; drained by alice: fan\n")
    assert err.splitlines()[-1] == "It goes on by itself, as drain d-1; see it with: raydeck drains --watch"
    assert "! 1 run of bob, not yours" in err
    body = asked(desk, "/v1/nodes/drain")[-1]
    assert (body["nodes"], body["reason"], body["dry_run"]) == (REFS, "fan", False)
    said = {
        "deadline_seconds": 600.0, "at_deadline": "give_up", "others": "stop", "most_nodes": 1, "most_share": 0.25,
        "gpus": False, "gone": True,
    }  # fmt: skip
    assert body["policy"] == DrainPolicy().model_dump() | said


def test_a_second_person_is_told_who_drains(desk: Desk) -> None:
    refusal = {"sentence": "w1 is being drained by bob since 12:00: disk", "hint": "It is drain d-7"}
    desk.give("POST", "/v1/nodes/drain", {"error": refusal})
    code, _, err = desk.call("drain", "w1", "--yes")
    assert (code, err) == (1, "raydeck: w1 is being drained by bob since 12:00: disk. It is drain d-7\n")


def drained(state: str, *, run: str = "asked", node: str = "moving", **more: Any) -> Drain:
    moved = DrainRun(
        run="lm-a1", attempt=1, state=run, step=20, saved_step=18, left_at=WALL if run in ("left", "again") else None,  # type: ignore[arg-type]
        again_at=WALL + 21 if run == "again" else None, again_on=["w2"] if run == "again" else [],
    )  # fmt: skip
    ended_at = WALL + 51 if node == "empty" else None
    part = DrainNode(
        node=NodeRef(name="w1"), state=node, runs=[moved], began_at=WALL, ended_at=ended_at,  # type: ignore[arg-type]
        overdue=more.pop("overdue", False),
    )  # fmt: skip
    return Drain(id="d-1", at=WALL, user="alice", nodes=[part], state=state, **more)  # type: ignore[arg-type]


def course(desk: Desk, monkeypatch: pytest.MonkeyPatch, *steps: Drain | dict[str, Any]) -> None:
    """What the controller says of drains, look by look; the last for ever."""
    left = list(steps)

    def answer(_: dict[str, Any]) -> dict[str, Any]:
        step = left.pop(0) if len(left) > 1 else left[0]
        return step if isinstance(step, dict) else {"drains": [step]}

    monkeypatch.setattr(follow, "POLL_SECONDS", 0.001)
    desk.give("GET", "/v1/drains", answer)
    desk.give("POST", "/v1/nodes/drain", reply("drain", drain="d-1"))


def test_waiting_tells_each_step_once_and_ends_when_it_is_empty(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    done = drained("done", run="again", node="empty", ended_at=WALL + 51)
    course(
        desk, monkeypatch, drained("running"), drained("running"), drained("running", overdue=True),
        drained("running", run="left"), drained("running", run="again", node="checking"), done,
    )  # fmt: skip
    code, out, _ = desk.call("drain", "w1", "--wait", "--yes")
    assert code == 0
    assert [line.partition(" ")[2] for line in out.splitlines()[:-1]] == [
        "lm-a1: asked to save and to leave at step 20",
        "w1: its work is moved off",
        "w1: its time is up. Choose: raydeck drain --decide d-1 wait, stop or give-up",
        "lm-a1: has left at step 20, checkpoint at step 18: 2 steps to do again",
        "lm-a1: runs again on w2 after 21s",
        "w1: empty; for a while it is looked at whether it stays so",
        "w1: empty after 51s",
    ]
    assert out.splitlines()[-1] == "drain d-1: done after 51s; empty: w1; 2 steps to do again"


def test_waiting_as_json_is_a_line_for_each_change(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = drained("stopped", node="stopped", ended_by="bob", ended_at=WALL + 9)
    course(desk, monkeypatch, drained("running"), drained("running"), stopped)
    code, out, _ = desk.call("drain", "w1", "--wait", "--yes", "--json")
    assert code == 1  # the node is not empty
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["state"] for line in lines] == ["running", "stopped"]
    assert lines[0]["nodes"][0]["runs"][0]["lost_steps"] is None
    assert lines[1]["ended_by"] == "bob"


def test_waiting_goes_on_through_a_controller_that_is_away_and_not_for_ever(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: dict[str, Any]) -> dict[str, Any]:
        nonlocal looks
        looks += 1
        if looks < 3:
            raise ConnectionError("no such file")
        return {"drains": [drained("done", run="again", node="empty", ended_at=WALL + 51)]}

    looks = 0
    course(desk, monkeypatch, drained("running"))
    desk.give("GET", "/v1/drains", gone)
    assert desk.call("drain", "w1", "--wait", "--yes")[0] == 0
    looks = -1_000_000
    monkeypatch.setattr(follow, "GONE_SECONDS", 0.05)
    code, _, err = desk.call("drain", "w1", "--wait", "--yes")
    assert code == 3
    assert "the controller is away while drain d-1 is waited for" in err


@pytest.mark.parametrize(
    ("words", "decision", "seconds"),
    [
        (["--cancel", "d-1"], "cancel", 1800.0),
        (["--cancel", "w1"], "cancel", 1800.0),
        (["--decide", "d-1", "wait", "--for", "1h"], "wait", 3600.0),
        (["--decide", "w1", "stop"], "stop", 1800.0),
        (["--decide", "d-1", "give-up", "--reason", "dead disk"], "give_up", 1800.0),
    ],
)
def test_a_drain_is_decided_by_its_id_or_its_node(desk: Desk, words: list[str], decision: str, seconds: float) -> None:
    desk.give("GET", "/v1/drains", {"drains": [drained("running")]})
    desk.give("POST", "/v1/drains/d-1/decide", drained("running"))
    code, out, _ = desk.call("drain", *words, "--yes")
    assert code == 0
    assert out.startswith("drain d-1: running after ")
    body = asked(desk, "/v1/drains/d-1/decide")[0]
    assert (body["decision"], body["seconds"]) == (decision, seconds)


def test_deciding_about_no_drain_names_those_that_go_on(desk: Desk) -> None:
    desk.give("GET", "/v1/drains", {"drains": [drained("running")]})
    code, _, err = desk.call("drain", "--cancel", "d-2", "--yes")
    assert code == 1
    assert err == (
        "raydeck: there is no drain 'd-2', and no node of that name is being drained. These go on: d-1 (w1)\n"
    )


def test_cancelling_what_has_ended_is_no_error(desk: Desk) -> None:
    desk.give("GET", "/v1/drains", {"drains": [drained("stopped", node="stopped", ended_by="bob", ended_at=WALL)]})
    code, out, _ = desk.call("drain", "--cancel", "d-1", "--yes")
    assert (code, out) == (0, "drain d-1: stopped by bob after 0s; stopped: w1; 0 steps to do again\n")
    assert not desk.answers.asked


def test_the_drains_as_text_and_as_json(desk: Desk) -> None:
    desk.give("GET", "/v1/drains", {"drains": [drained("running", run="left", overdue=True, reason="fan")]})
    code, out, _ = desk.call("drains")
    assert code == 0
    assert squeezed(out)[0] == "DRAIN STATE BEGAN TOOK USER NODES RUNS STEPS LOST REASON"
    assert squeezed(out)[1].endswith("alice w1 overdue 1 of 1 left 2 fan")
    assert desk.json("drains")[0]["policy"]["deadline_seconds"] == 1800.0
    desk.give("GET", "/v1/drains", {"drains": []})
    assert desk.call("drains")[2] == "nothing was drained yet\n"
