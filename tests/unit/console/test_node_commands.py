"""`raydeck cordon`, `uncordon`, `drain`, `drains`, `retire`, `nodes`: what they ask for, say, refuse and end with."""

from __future__ import annotations

from typing import Any

import pytest

from console.render.prose import moment
from jobs.nodeview import (
    Hold,
    NodePlan,
    NodesPlan,
    NodesView,
    NodeView,
    RunStake,
)
from jobs.wire import NodesReply
from tests.unit.console.desk import WALL, Desk
from tests.unit.console.desk import desk as desk

RUN = RunStake(run="lm-a1", user="bob", state="running", gpus=4, nodes=["w1"], step=20, checkpoint_step=10)
REFS = [{"name": "w1", "address": "10.0.1.1", "machine_id": ""}]


@pytest.fixture(autouse=True)
def workers(desk: Desk) -> None:
    desk.nodes("w1", "w2")
    desk.give("GET", "/v1/nodes", NodesView())


def hold(**more: Any) -> Hold:
    values: dict[str, Any] = {"id": "h1", "node": "w1", "user": "alice", "at": WALL - 60, "reason": "fan", **more}
    return Hold(**values)


def reply(action: str, *, changes: bool = True, held: Hold | None = None, state: str = "cordoned", drain: str = "",
          runs: list[RunStake] | None = None, already: list[str] | None = None) -> NodesReply:  # fmt: skip
    node = NodePlan(name="w1", address="10.0.1.1", gpus=4, runs=runs or [], already=already or [])
    view = NodesView(nodes=[NodeView(name="w1", state=state, holds=[held])] if held is not None else [])  # type: ignore[arg-type]
    plan = NodesPlan(action=action, nodes=[node], nodes_open=2, nodes_open_after=1, gpus_open=8, gpus_open_after=4,  # type: ignore[arg-type]
                     changes=changes)  # fmt: skip
    return NodesReply(plan=plan, view=view, drain=drain)


def asked(desk: Desk, route: str) -> list[dict[str, Any]]:
    return [body for _, path, body in desk.answers.asked if path == route]


# --- cordon and uncordon ----------------------------------------------------------------------------------------------


def test_a_cordon_is_previewed_then_made(desk: Desk) -> None:
    desk.give("POST", "/v1/nodes/cordon", reply("cordon", held=hold(until=WALL + 60), runs=[RUN]))
    code, out, err = desk.call("cordon", "w1", "--reason", "fan", "--for", "2h", "--hold-gpus", "--yes")
    assert (code, out) == (0, f"w1: cordoned; cordoned by alice: fan, until {moment(WALL + 60, WALL)}\n")
    assert err.splitlines()[0] == "Cordon w1"
    assert "a cordon ends nothing" in err
    assert "lm-a1 (running, bob) on 4 GPUs of w1, at step 20, checkpoint at step 10; it goes on." in err
    assert "best effort" in err
    body = {"nodes": REFS, "reason": "fan", "seconds": 7200.0, "gpus": True}
    assert asked(desk, "/v1/nodes/cordon") == [body | {"dry_run": True}, body | {"dry_run": False}]


def test_a_dry_run_does_nothing(desk: Desk) -> None:
    desk.give("POST", "/v1/nodes/cordon", reply("cordon"))
    code, out, _ = desk.call("cordon", "w1", "--dry-run")
    assert (code, out) == (0, "nothing was done\n")
    document = desk.json("cordon", "w1", "--dry-run")
    assert (document["dry_run"], document["changes"], document["nodes_open_after"]) == (True, True, 1)
    assert document["nodes"][0]["node"] == "w1"
    assert all(body["dry_run"] for body in asked(desk, "/v1/nodes/cordon"))


def test_what_is_so_already_is_said_and_is_no_error(desk: Desk) -> None:
    said = "cordoned by alice: fan, since 12:00"
    desk.give("POST", "/v1/nodes/cordon", reply("cordon", changes=False, held=hold(), already=[said]))
    code, out, err = desk.call("cordon", "w1", "--reason", "fan", "--yes")
    assert (code, out) == (0, "w1: cordoned; cordoned by alice: fan\n")
    assert f"Nothing changes.\n  w1: {said}" in err
    assert len(asked(desk, "/v1/nodes/cordon")) == 1


def test_until_a_time_of_day_is_the_next_one(desk: Desk) -> None:
    desk.give("POST", "/v1/nodes/cordon", reply("cordon", held=hold()))
    assert desk.call("cordon", "w1", "--reason", "fan", "--until", "06:00", "--yes")[0] == 0
    assert 0 < asked(desk, "/v1/nodes/cordon")[-1]["seconds"] <= 86_400
    assert desk.call("cordon", "w1", "--reason", "fan", "--until", "2039-01-31 06:00", "--yes")[0] == 0
    assert asked(desk, "/v1/nodes/cordon")[-1]["seconds"] > 86_400


def test_an_uncordon_takes_ones_own_or_anothers(desk: Desk) -> None:
    desk.give("POST", "/v1/nodes/uncordon", reply("uncordon"))
    code, out, _ = desk.call("uncordon", "w1", "--yes")
    assert (code, out) == (0, "w1: open for new work\n")
    assert desk.call("uncordon", "w1", "--of", "bob", "--yes")[0] == 0
    assert [body["of"] for body in asked(desk, "/v1/nodes/uncordon")] == ["", "", "bob", "bob"]
    refusal = {"sentence": "w1 is cordoned by bob: disk: not yours to take back", "hint": "Name whose: --of USER"}
    desk.give("POST", "/v1/nodes/uncordon", {"error": refusal})
    code, _, err = desk.call("uncordon", "w1", "--yes")
    assert (code, err) == (1, f"raydeck: {refusal['sentence']}. {refusal['hint']}\n")


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["w1", "10.0.1.1", "01aabbccdd", "01aabb"])
def test_a_node_goes_by_its_name_its_address_or_rays_id(desk: Desk, named: str) -> None:
    desk.give("POST", "/v1/nodes/cordon", reply("cordon", held=hold()))
    assert desk.call("cordon", named, "w1", "--reason", "fan", "--yes")[0] == 0
    assert asked(desk, "/v1/nodes/cordon")[-1]["nodes"] == REFS


def test_an_unknown_name_is_refused_with_the_nearest(desk: Desk) -> None:
    code, _, err = desk.call("cordon", "w1x", "--reason", "fan", "--yes")
    assert (code, err) == (1, "raydeck: there is no node 'w1x' in context lab. Did you mean w1?\n")
    code, _, err = desk.call("cordon", "gpu", "--reason", "fan", "--yes")
    assert err == "raydeck: there is no node 'gpu' in context lab. There are: w1, w2\n"
    assert not desk.answers.asked


def test_a_node_that_left_ray_and_is_held_is_known(desk: Desk) -> None:
    desk.give("GET", "/v1/nodes", NodesView(nodes=[NodeView(name="gone-7", holds=[hold()], state="cordoned")]))
    desk.give("POST", "/v1/nodes/uncordon", reply("uncordon"))
    assert desk.call("uncordon", "gone-7", "--yes")[0] == 0
    assert asked(desk, "/v1/nodes/uncordon")[0]["nodes"] == [{"name": "gone-7", "address": "", "machine_id": ""}]


# --- retire -----------------------------------------------------------------------------------------------------------


def test_a_retirement_warns_and_is_made(desk: Desk) -> None:
    desk.give("POST", "/v1/nodes/retire", reply("retire", held=hold(kind="retire"), state="retiring"))
    code, out, err = desk.call("retire", "w1", "--reason", "old", "--yes")
    assert (code, out) == (0, "w1: retiring; retired by alice: fan\n")
    assert "! one-way: an uncordon does not undo it" in err
    assert asked(desk, "/v1/nodes/retire")[-1] == {
        "nodes": REFS, "reason": "old", "deadline_seconds": 600.0, "dry_run": False
    }  # fmt: skip


def test_ray_is_ended_only_where_ssh_has_a_way(desk: Desk) -> None:
    desk.give("GET", "/v1/nodes", NodesView(nodes=[NodeView(name="w9", holds=[hold()])]))
    code, _, err = desk.call("retire", "w9", "--stop-ray", "--yes")
    assert (code, err) == (1, "raydeck: there is no node 'w9' in context lab. There are: head, w1, w2\n")
    assert not desk.answers.asked


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_the_nodes_show_who_holds_them_and_why(desk: Desk) -> None:
    view = NodesView(
        nodes=[
            NodeView(name="w1", state="draining", holds=[hold(kind="drain", drain="d-1")], drain="d-1", note="saves")
        ]
    )
    desk.work.nodes.take(view)
    desk.fleet.nodes["w2"].ray.move("dead", "missed health checks", 0.0)
    documents = {row["name"]: row for row in desk.json("nodes")}
    assert (documents["w1"]["cordoned"], documents["w1"]["state"], documents["w1"]["drain"]) == (
        True, "draining", "d-1"
    )  # fmt: skip
    assert documents["w1"]["holds"] == [
        {"user": "alice", "at": WALL - 60, "reason": "fan", "until": None, "kind": "drain", "drain": "d-1",
         "gpus": False}
    ]  # fmt: skip
    assert (documents["w2"]["cordoned"], documents["w2"]["holds"], documents["w2"]["state"]) == (False, [], "open")
    code, out, _ = desk.call("nodes")
    assert code == 0
    assert "drained by alice: fan; saves" in out
    assert "dead for Ray though SSH answers: raydeck rejoin w2" in out


def test_a_node_is_found_by_rays_id_where_its_name_is_another(desk: Desk) -> None:
    view = NodesView(nodes=[NodeView(name="ip-10-0-1-1", node_id="01aabbccdd", state="cordoned", holds=[hold()])])
    desk.work.nodes.take(view)
    assert [row["cordoned"] for row in desk.json("nodes")] == [True, False]


def test_unless_a_controller_said_so_nobody_knows_who_holds_a_node(desk: Desk) -> None:
    assert desk.work.nodes.view is None
    assert [(row["cordoned"], row["holds"], row["state"]) for row in desk.json("nodes")] == [(None, None, None)] * 2


# --- what is not done -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cordon", "w1", "--reason", "x", "--for", "1h", "--until", "06:00"], "say the same thing twice"),
        (["cordon", "w1"], "a cordon needs a reason"),
        (["cordon"], "Missing argument"),
        (["cordon", "w1", "--reason", "x", "--for", "soon"], "must be a duration such as 45s, 10m or 1h30m"),
        (["cordon", "w1", "--reason", "x", "--until", "noon"], "is neither a time such as 06:00"),
        (["cordon", "w1", "--reason", "x", "--until", "2001-01-01 06:00"], "has passed"),
        (["drain"], "say which nodes, or which drain"),
        (["drain", "w1", "--cancel", "d-1"], "say which nodes, or which drain"),
        (["drain", "w1", "--share", "250%"], "is no share: say 25%, or 0.25"),
        (["drain", "w1", "--most", "0"], "Invalid value for '--most'"),
        (["drain", "--decide", "d-1", "perhaps"], "'perhaps' is no choice"),
        (["drain", "--cancel", "d-1", "--dry-run"], "go with neither --dry-run nor --wait"),
        (["processes", "w1", "77"], "say what is to be done with these processes"),
        (["processes", "w1", "--end"], "say which processes are ended"),
        (["processes", "w1", "--end", "--all"], "say different things"),
        (["processes", "w1", "--kill"], "go with --end PID... or --all"),
    ],
)
def test_wrong_usage(desk: Desk, words: list[str], sentence: str) -> None:
    code, out, err = desk.call(*words, "--yes")
    assert (code, out) == (2, "")
    assert sentence in err
    assert not desk.answers.asked


@pytest.mark.parametrize(
    "words",
    [
        ["cordon", "w1", "--reason", "x"], ["uncordon", "w1"], ["drain", "w1"], ["drain", "--cancel", "d-1"],
        ["drain", "--decide", "d-1", "stop"], ["retire", "w1"], ["rejoin", "w1"], ["processes", "w1", "--all"],
        ["processes", "w1", "--end", "77"],
    ],
)  # fmt: skip
def test_without_a_terminal_nothing_is_asked_and_read_only_changes_nothing(desk: Desk, words: list[str]) -> None:
    code, _, err = desk.call(*words)
    assert code == 2
    assert "Say --yes" in err
    code, _, err = desk.call("--read-only", *words, "--yes")
    assert (code, err) == (2, "raydeck: read-only: nothing is changed\n")
    assert not desk.answers.asked


def test_without_a_controller_it_is_unreachable(desk: Desk) -> None:
    desk.work.controller_state("absent", "nobody listens", 0.0)
    for words in (["cordon", "w1", "--reason", "x"], ["uncordon", "w1"], ["drain", "w1"], ["retire", "w1"], ["drains"]):
        code, _, err = desk.call(*words, *([] if words == ["drains"] else ["--yes"]))
        assert code == 3
        assert "raydeck controller start" in err


def test_the_shell_is_given_names(desk: Desk) -> None:
    from click.shell_completion import ShellComplete

    from console.cli.main import command_line

    complete = ShellComplete(command_line, {}, "raydeck", "_RAYDECK_COMPLETE")
    found = complete.get_completions(["-c", str(desk.file), "cordon"], "w")
    assert [item.value for item in found] == ["w1", "w2"]
    assert complete.get_completions(["-c", "/no/such.yaml", "cordon"], "w") == []
