"""`raydeck processes`, `rejoin` and `retire --stop-ray`: what they list, ask for, refuse, and end with."""

from __future__ import annotations

from typing import Any

import pytest

from console.cli import upkeep as upkeep_commands
from console.hands import rejoin, sweep
from console.hands.runs import living_attempt
from console.hands.sweep import Ended, GpuProcess, held_by, left_over
from console.settings import NodeEntry
from console.state.fleet import Node
from jobs.model import Attempt, RunState
from jobs.nodeview import Hold, NodePlan, NodesPlan, NodesView, NodeView
from jobs.wire import NodesReply
from probes.reading import Missing, Process, Sample
from tests.unit.console.desk import WALL, Desk, a_run, squeezed
from tests.unit.console.desk import desk as desk

GB = 1 << 30
LIVES = a_run("lm-live", RunState.RUNNING, attempts=[Attempt(number=2, job_id="j")])
OVER = a_run("lm-over", RunState.FAILED, attempts=[Attempt(number=1, job_id="j")])


def process(pid: int, device: int = 0, **more: Any) -> Process:
    values: dict[str, Any] = {
        "user": "alice", "command": "python train.py", "memory_used_bytes": 2 * GB, "started": 1000 + pid,
        "age_seconds": 7200.0, **more,
    }  # fmt: skip
    return Process(device, pid, **values)


@pytest.fixture(autouse=True)
def workers(desk: Desk) -> None:
    desk.nodes("w1", "w2")
    desk.snapshot(LIVES, OVER)
    desk.fleet.nodes["w1"].sample = Sample(
        index=[0, 1],
        processes=[
            process(11, run="lm-live", attempt=2),
            process(12, run="lm-live", attempt=1),
            process(13, run="lm-over", attempt=1),
            process(13, 1, run="lm-over", attempt=1),
            process(14, user="bob", command="jupyter"),
            process(15, run="of-another", attempt=1),
        ],
    )


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], dict[str, Any]]]:
    """What was to be ended; it all is, but for process 14."""
    asked: list[tuple[list[int], dict[str, Any]]] = []

    async def end(_s: Any, _c: Any, entry: NodeEntry, chosen: list[GpuProcess], reason: str, **how: Any) -> list[Ended]:
        how.pop("tell")
        asked.append(([each.pid for each in chosen], {"reason": reason, "node": entry.name, **how}))
        return [
            Ended(each.pid, "not permitted", "it is bob's") if each.pid == 14 else Ended(each.pid, "ended")
            for each in chosen
        ]

    monkeypatch.setattr(sweep, "end", end)
    return asked


# --- which processes there are ----------------------------------------------------------------------------------------


def test_a_process_on_two_gpus_is_one_with_the_memory_of_both() -> None:
    node = Node(name="w1", address="")
    assert held_by(node) == []
    node.sample = Sample(processes=[process(13, 0), process(13, 2), process(9, 1, memory_used_bytes=None)])
    assert held_by(node) == [
        GpuProcess(13, 1013, "alice", "python train.py", 7200.0, (0, 2), 4 * GB),
        GpuProcess(9, 1009, "alice", "python train.py", 7200.0, (1,), None),
    ]
    node.sample = Sample(processes=[process(13, 0), process(13, 1, memory_used_bytes=None)])
    assert held_by(node)[0].memory_used_bytes is None  # half of it is no figure


def test_what_is_left_over_belongs_to_no_run_that_lives_or_may_live(desk: Desk) -> None:
    found = held_by(desk.fleet.nodes["w1"])
    assert [each.pid for each in left_over(found, {"lm-live": LIVES, "lm-over": OVER})] == [12, 14, 13]


@pytest.mark.parametrize(
    ("state", "attempt"),
    [
        (RunState.RUNNING, 2),
        (RunState.STOPPING, 2),
        (RunState.QUEUED, 0),
        (RunState.PREEMPTED, 0),
        (RunState.FAILED, 0),
    ],
)
def test_which_attempt_of_a_run_lives(state: RunState, attempt: int) -> None:
    attempts = [Attempt(number=1, job_id="j"), Attempt(number=2, job_id="k")]
    assert living_attempt(a_run("lm", state, attempts=attempts)) == attempt
    assert living_attempt(a_run("lm", state)) == 0


# --- raydeck processes ------------------------------------------------------------------------------------------------


def test_the_processes_as_text_and_as_json(desk: Desk) -> None:
    code, out, err = desk.call("processes", "w1")
    assert code == 0
    assert squeezed(out)[:4] == [
        "PID USER AGE GPUS MEMORY BELONGS COMMAND",
        "11 alice 2h00 0 2.0G of lm-live, which lives python train.py",
        "12 alice 2h00 0 2.0G left over of lm-live python train.py",
        "14 bob 2h00 0 2.0G of no run jupyter",
    ]
    assert "15 alice 2h00 0 2.0G of of-another, of which nothing is known python train.py" in squeezed(out)
    assert err == "End what is left over or of no run (3) with: raydeck processes w1 --all\n"
    rows = {row["pid"]: row for row in desk.json("processes", "w1")}
    assert (rows[13]["gpus"], rows[13]["memory_used_bytes"], rows[13]["run_lives"]) == ([0, 1], 4 * GB, False)
    assert (rows[11]["run_lives"], rows[14]["run_lives"], rows[15]["run_lives"]) == (True, None, None)


def test_ending_all_spares_what_lives_or_may(desk: Desk, ended: list[Any]) -> None:
    code, out, err = desk.call("processes", "w1", "--all", "--kill", "--reason", "stuck", "--yes")
    assert code == 1  # one of them is still there
    assert ended == [([12, 14, 13], {"reason": "stuck", "node": "w1", "kill": True, "even_living": False})]
    assert out.splitlines() == [
        "process 12 ended", "process 14 may not be ended by you: it is bob's", "process 13 ended"
    ]  # fmt: skip
    assert err.splitlines()[:2] == [
        "End 3 processes on w1",
        "  Each gets SIGTERM, if it still is the one that is meant; what is still there after 5 s is killed.",
    ]


def test_ending_some(desk: Desk, ended: list[Any]) -> None:
    assert desk.json("processes", "w1", "--end", "12", "13", "--yes") == [
        {"pid": 12, "result": "ended", "detail": ""}, {"pid": 13, "result": "ended", "detail": ""}
    ]  # fmt: skip
    assert desk.call("processes", "w1", "--end", "11", "--even-living", "--yes")[0] == 0
    assert [pids for pids, _ in ended] == [[12, 13], [11]]
    assert desk.call("processes", "w1", "--end", "12", "--dry-run")[0] == 0
    assert len(ended) == 2


@pytest.mark.parametrize(
    ("pids", "sentence"),
    [
        (["77", "12"], "no GPU of w1 is held by 77. See: raydeck processes w1"),
        (["11"], "process 11 is of lm-live, which lives. Stop the run: raydeck stop lm-live; or say --even-living"),
        (["15"], "process 15 is of of-another, of which nothing is known."),
    ],
)
def test_what_is_refused_before_anything_is_done(desk: Desk, ended: list[Any], pids: list[str], sentence: str) -> None:
    code, _, err = desk.call("processes", "w1", "--end", *pids, "--yes")
    assert code == 1
    assert sentence in err
    assert not ended


def test_nothing_left_over_is_no_error(desk: Desk, ended: list[Any]) -> None:
    desk.fleet.nodes["w1"].sample = Sample(index=[0], missing={0: {"processes": Missing("error", "NVML: busy")}})
    code, out, err = desk.call("processes", "w1", "--all", "--yes")
    assert (code, out) == (0, "w1: no process is left over\n")
    assert err == "! GPU 0: who holds it is not known: NVML: busy\n"
    assert not ended


def test_a_node_without_a_sample_is_unreachable_with_the_reason(desk: Desk) -> None:
    desk.fleet.nodes["w2"].ssh.move("lost", "no answer for 6 s", 0.0)
    code, _, err = desk.call("processes", "w2")
    assert (code, err) == (3, "raydeck: what runs on w2 is not known: ssh is lost: no answer for 6 s\n")
    code, _, err = desk.call("processes", "w9")
    assert code == 1
    assert "there is no node 'w9' in context lab" in err


def test_without_a_controller_processes_are_listed_and_none_is_ended(desk: Desk, ended: list[Any]) -> None:
    desk.work.controller_state("down", "gone", 0.0)
    assert desk.call("processes", "w1")[0] == 0
    assert desk.call("processes", "w1", "--all", "--yes")[0] == 3
    assert not ended


# --- rejoin and retire ------------------------------------------------------------------------------------------------


def test_a_rejoin_tells_its_steps_and_how_it_ended(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    holds = [
        Hold(id="1", node="w1", user="alice", at=WALL, reason="fan"),
        Hold(id="2", node="w1", user="bob", at=WALL, reason="disk"),
    ]
    desk.work.nodes.take(NodesView(nodes=[NodeView(name="w1", holds=holds, state="cordoned")]))
    asked: list[tuple[str, str]] = []

    async def joined(_s: Any, _c: Any, entry: NodeEntry, reason: str, tell: Any) -> str:
        asked.append((entry.name, reason))
        tell("w1 answers over SSH")
        return "w1 is in Ray as 5f3a0011 with 4 GPUs after 12 s, and takes new work"

    monkeypatch.setattr(rejoin, "rejoin", joined)
    code, out, err = desk.call("rejoin", "w1", "--reason", "fan is in", "--yes")
    assert (code, out) == (0, "w1 is in Ray as 5f3a0011 with 4 GPUs after 12 s, and takes new work\n")
    assert err.splitlines()[0] == "Rejoin w1"
    assert "  These holds are taken back then: cordoned by alice: fan." in err.splitlines()
    assert "  These stay, and keep it closed: cordoned by bob: disk." in err.splitlines()
    assert err.splitlines()[-1] == "w1 answers over SSH"
    assert desk.json("rejoin", "w1", "--yes")["steps"] == ["w1 answers over SSH"]
    assert desk.json("rejoin", "w1", "--dry-run")["outcome"] == "nothing was done"
    assert asked == [("w1", "fan is in"), ("w1", "")]


def test_a_retirement_ends_ray_once_ray_has_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    told = NodesReply(plan=NodesPlan(action="retire", nodes=[NodePlan(name="w1")]), view=NodesView())
    desk.give("POST", "/v1/nodes/retire", told)
    views = [
        NodesView(nodes=[NodeView(name="w1", state="retiring", ray="alive")]),
        NodesView(nodes=[NodeView(name="w1", state="retiring", ray="alive", ray_draining_until=0.0)]),
    ]
    desk.give("GET", "/v1/nodes", lambda _: views.pop(0))
    monkeypatch.setattr(upkeep_commands, "POLL_SECONDS", 0.001)

    async def stopped(*_: Any) -> str:
        assert not views  # not before Ray says that it drains the node
        return "Ray on w1 has ended: no raylet is left there"

    monkeypatch.setattr(upkeep_commands, "stop_ray", stopped)
    code, out, _ = desk.call("retire", "w1", "--stop-ray", "--yes")
    assert (code, out.splitlines()[-1]) == (0, "Ray on w1 has ended: no raylet is left there")


def test_ray_is_left_where_ray_does_not_say_that_it_drains(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    told = NodesReply(plan=NodesPlan(action="retire", nodes=[NodePlan(name="w1")]), view=NodesView())
    desk.give("POST", "/v1/nodes/retire", told)
    desk.give("GET", "/v1/nodes", NodesView(nodes=[NodeView(name="w1", ray="alive", note="Ray refuses")]))
    monkeypatch.setattr(upkeep_commands, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(upkeep_commands, "RETIRE_SECONDS", 0.01)
    code, _, err = desk.call("retire", "w1", "--stop-ray", "--yes")
    assert code == 1
    assert "Ray there was left as it is. Ray refuses" in err
