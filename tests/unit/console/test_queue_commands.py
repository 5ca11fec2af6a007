"""`raydeck queue`, `explain`, `hold`, `release`, `priority`, `move`: what they show, ask for, and end with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from console.cli import opened
from jobs.model import Held, RunState
from jobs.queueview import Ahead, Blocker, Explanation, NodeNote, QueueUse, QueueView, Waiting
from tests.unit.console.desk import WALL, Desk, a_run, squeezed
from tests.unit.console.desk import desk as desk


def row(number: int, **more: Any) -> Waiting:
    values: dict[str, Any] = {
        "run": f"lm-{number}", "position": number, "queue": "training", "priority": "normal", "user": "alice",
        "nodes": 2, "gpus": 4, "since": WALL - 60 * number, "sentence": "queue training holds 8 of its 8 GPUs",
        "kind": "queue_quota", **more,
    }  # fmt: skip
    return Waiting(**values)


def view(rows: list[Waiting], total: int | None = None) -> QueueView:
    return QueueView(
        at=WALL,
        queues=[QueueUse(name="training", max_accelerators=8, used_accelerators=8, running=2, waiting=len(rows),
                         waiting_accelerators=4 * len(rows), default=True)],
        waiting=rows, waiting_total=len(rows) if total is None else total, accelerators=16, free_accelerators=8,
        foreign_accelerators=0, active_runs=2, max_active_runs=100, pass_seconds=0.012,
    )  # fmt: skip


def test_the_queue_as_text(desk: Desk) -> None:
    desk.give("GET", "/v1/queue", view([row(1, estimated_start=WALL + 600), row(2, user="bob", priority="high")]))
    code, out, err = desk.call("queue")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == " 16 GPUs: 8 by runs, 8 free · 2 of 100 active · 2 wait · a pass takes 12ms"
    assert "8 of 8 · 2 wait for 8" in lines[1]
    assert squeezed(out)[-3:] == [
        "POS RUN USER QUEUE PRIO GPUS SINCE EST. WHY",
        "1 lm-1 alice training normal 2×2 1m00s ~10m00s queue training holds 8 of its 8 GPUs",
        "2 lm-2 bob training high 2×2 2m00s - queue training holds 8 of its 8 GPUs",
    ]


def test_an_empty_queue_is_said(desk: Desk) -> None:
    desk.give("GET", "/v1/queue", view([]))
    code, _, err = desk.call("queue")
    assert (code, err) == (0, "no run waits\n")


def test_the_queue_as_json_has_units_in_its_names(desk: Desk) -> None:
    desk.give("GET", "/v1/queue", view([row(1)]))
    document = desk.json("queue")
    assert document["waiting"][0] == {
        "position": 1, "run": "lm-1", "queue": "training", "priority": "normal", "user": "alice", "nodes": 2, "gpus": 4,
        "since": WALL - 60, "waited_seconds": 60.0, "kind": "queue_quota",
        "reason": "queue training holds 8 of its 8 GPUs", "moved": False, "estimated_start": None,
    }  # fmt: skip
    assert (document["queues"][0]["max_accelerators"], document["waiting_total"]) == (8, 1)


def test_the_first_are_listed_and_all_on_demand_page_by_page(desk: Desk) -> None:
    rows = [row(number) for number in range(1, 2501)]

    def page(asked: dict[str, Any]) -> QueueView:
        at = int(asked["offset"])
        # Between two pages one run has started: the one that was on both sides of the cut comes twice.
        return view(rows[max(0, at - 1) : at + int(asked["limit"])], len(rows))

    desk.give("GET", "/v1/queue", page)
    code, out, _ = desk.call("queue")
    assert code == 0
    assert out.splitlines()[-1] == "and 2,480 more: raydeck queue --all"
    every = desk.json("queue", "--all")["waiting"]
    assert [one["run"] for one in every] == [f"lm-{number}" for number in range(1, 2501)]


def test_watching_gives_a_line_each_second_until_interrupted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    views = iter([view([row(1)]), view([])])

    def answer(asked: dict[str, Any]) -> QueueView:
        found = next(views, None)
        if found is None:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(opened, "WATCH_SECONDS", 0.01)
    desk.give("GET", "/v1/queue", answer)
    code, out, _ = desk.call("queue", "--json", "--watch")
    assert code == 130
    assert [json.loads(line)["waiting_total"] for line in out.splitlines()] == [1, 0]


def test_why_a_run_waits(desk: Desk) -> None:
    told = Explanation(
        run="lm-2", state=RunState.QUEUED, sentence="It waits for 4 GPUs: queue training has used up its quota",
        position=2, ahead_total=1, estimated_start=WALL + 600, estimated_from="the time limit of lm-0 (1h)",
        ahead=[Ahead(run="lm-1", user="bob", queue="training", priority="high", gpus=4, sentence="higher priority")],
        blocked_by=[Blocker(kind="queue_quota", sentence="queue training holds 8 of its 8 GPUs",
                            would_start_if="lm-0 (4 GPUs) ends", names=["training"])],
        would_start_if=["lm-0 (4 GPUs) ends"],
        nodes=[NodeNote(node="worker-1", usable=False, sentence="no GPU of 4 is free")],
    )  # fmt: skip
    desk.give("GET", "/v1/runs/lm-2/explain", told)
    code, out, _ = desk.call("explain", "lm-2")
    assert code == 0
    for words in (
        "queued  lm-2   position 2", "queue training holds 8 of its 8 GPUs", "lm-0 (4 GPUs) ends",
        "Ahead of it: 1 run", "lm-1  bob, training, high, 4 GPUs", "worker-1", "an estimate, not a promise",
    ):  # fmt: skip
        assert words in out
    document = desk.json("explain", "lm-2")
    assert {"position", "ahead", "blocked_by", "would_start_if", "estimated_start"} <= document.keys()
    assert document["blocked_by"][0]["would_start_if"] == "lm-0 (4 GPUs) ends"
    code, _, err = desk.call("explain", "nosuch")
    assert (code, err) == (1, "raydeck: there is no /v1/runs/nosuch/explain\n")


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["hold", "lm-1", "--reason", "new data"], {"hold": True, "reason": "new data"}),
        (["release", "lm-1"], {"hold": False}),
        (["priority", "lm-1", "high"], {"priority": "high"}),
        (["priority", "lm-1", "-50"], {"priority": "-50"}),
        (["priority", "lm-1", "HIGH", "--reason", "r"], {"priority": "high", "reason": "r"}),
        (["move", "lm-1", "--first"], {"place": "first"}),
        (["move", "lm-1", "--last", "--queue", "b"], {"place": "last", "queue": "b"}),
        (["move", "lm-1", "--before", "lm-2"], {"place": "before", "other": "lm-2"}),
        (["move", "lm-1", "--after", "lm-2"], {"place": "after", "other": "lm-2"}),
        (["move", "lm-1", "--own-place"], {"place": "own"}),
    ],
)  # fmt: skip
def test_what_each_command_asks_for(desk: Desk, words: list[str], body: dict[str, Any]) -> None:
    desk.snapshot(a_run("lm-1"))
    desk.give("GET", "/v1/queue", view([row(1)]))
    desk.give("POST", "/v1/runs/lm-1/arrange", a_run("lm-1"))
    code, out, _ = desk.call(*words, "--yes")
    assert (code, out) == (0, "lm-1: queued, number 1, queue training, priority normal\n")
    nothing = {"priority": None, "queue": None, "hold": None, "place": None, "other": "", "reason": ""}
    assert desk.answers.asked == [("POST", "/v1/runs/lm-1/arrange", nothing | body)]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["priority", "lm-1", "urgent"], "the priority 'urgent' must be low, normal, high or a whole number"),
        (["priority", "lm-1", "--urgent", "high"], "No such option '--urgent'"),
        (["priority", "high"], "Missing argument"),
        (["move", "lm-1"], "where to?"),
        (["move", "lm-1", "--first", "--before", "lm-2"], "a run can go to one place only"),
        (["hold"], "Missing argument"),
    ],
)
def test_wrong_usage(desk: Desk, words: list[str], sentence: str) -> None:
    code, out, err = desk.call(*words, "--yes")
    assert (code, out) == (2, "")
    assert sentence in err
    assert not desk.answers.asked


def test_several_to_one_place_keep_their_order(desk: Desk) -> None:
    desk.snapshot(*(a_run(name) for name in ("a", "b", "c")))
    desk.give("GET", "/v1/queue", view([]))
    for name in "abc":
        desk.give("POST", f"/v1/runs/{name}/arrange", a_run(name))
    assert [run["id"] for run in desk.json("move", "a", "b", "c", "--first", "--yes")] == ["a", "b", "c"]
    assert [path for _, path, _ in desk.answers.asked] == [f"/v1/runs/{name}/arrange" for name in "cba"]


def test_without_a_terminal_nothing_is_asked_and_nothing_done(desk: Desk) -> None:
    desk.snapshot(a_run("lm-1"))
    code, _, err = desk.call("hold", "lm-1")
    assert code == 2
    assert "Say --yes" in err
    assert desk.call("--read-only", "hold", "lm-1", "--yes")[0] == 2
    assert not desk.answers.asked


def test_what_was_done_before_a_refusal_is_told(desk: Desk) -> None:
    desk.snapshot(a_run("a"), a_run("b"))
    desk.give("POST", "/v1/runs/a/arrange", a_run("a"))
    desk.give("POST", "/v1/runs/b/arrange", {"error": {"sentence": "run b is held by bob", "hint": "Ask bob"}})
    code, _, err = desk.call("hold", "a", "b", "--yes")
    assert code == 1
    assert err.splitlines()[-1] == "raydeck: run b is held by bob; done before that: a. Ask bob"


def test_a_held_run_and_one_that_is_unknown_here(desk: Desk) -> None:
    desk.give("GET", "/v1/queue", view([]))
    desk.give("GET", "/v1/runs/old", a_run("old"))
    desk.give("POST", "/v1/runs/old/arrange", a_run("old", held=Held(user="alice", at=WALL)))
    code, out, _ = desk.call("hold", "old", "--yes")
    assert (code, out) == (0, "old: held by alice, queue training, priority normal\n")
