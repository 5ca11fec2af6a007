"""`raydeck alerts` and its subcommands: what is shown, what is asked for, and with which exit code it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from console.cli import alerting
from jobs.alertview import Acknowledged, Alert, AlertsReply, AlertsView, Delivery, Matcher, Silence, TestReply
from tests.unit.console.desk import WALL, Desk, squeezed
from tests.unit.console.desk import desk as desk

LATCHED = Alert(id="alert-9f31", rule="gpu.xid.critical", level="critical", title="w1/3: XID 79", since=WALL - 300,
                entities=["w1/3"], nodes=["w1"], run="lm-a1", latched=True, cause="It fell off the bus.",
                action="Drain the node.", key="D",
                evidence=["kernel: token=hf_abcdefghijklmnopqrstuvwxyz012345 \x1b[31m"],
                deliveries=[Delivery(sink="mail", at=WALL - 299, ok=False, detail="550")])  # fmt: skip
HOT = Alert(id="alert-77aa", rule="gpu.hot", level="warning", title="w2/0: 4 °C below its slowdown", since=WALL - 60,
            entities=["w2/0"], nodes=["w2"])  # fmt: skip
HAD = HOT.model_copy(update={"id": "alert-7712", "acknowledged": Acknowledged(user="bob", at=WALL - 9, reason="fan")})
SILENCE = Silence(
    id="silence-c0de", matcher=Matcher(node="w3"), user="bob", reason="rack", at=WALL - 60, until=WALL + 60
)
HIDDEN = HOT.model_copy(update={"id": "alert-0bad", "nodes": ["w3"], "entities": ["w3/1"], "silenced_by": SILENCE.id})
OVER = HOT.model_copy(update={"id": "alert-0ver", "state": "cleared", "ended_at": WALL - 5})
VIEW = AlertsView(alerts=[LATCHED, HOT, HAD, HIDDEN, OVER], silences=[SILENCE], watched_nodes=3,
                  unwatched={"w4": "its probe ended"}, blind=["xid: none (on w4)"],
                  sinks=["mail", "slack"])  # fmt: skip


@pytest.fixture
def told(desk: Desk) -> Desk:
    """A controller with these alerts."""
    desk.give("GET", "/v1/alerts", VIEW)
    desk.give("GET", "/v1/alerts/history", {"alerts": [*VIEW.alerts, OVER.model_copy(update={"id": "alert-old1"})]})
    return desk


def reply(*changed: Alert, already: list[str] | None = None, silence: Silence | None = None) -> AlertsReply:
    return AlertsReply(view=VIEW, changed=list(changed), already=already or [], silence=silence)


def asked(desk: Desk) -> list[tuple[str, dict[str, Any]]]:
    return [(path, body) for _, path, body in desk.answers.asked]


# --- what fires -------------------------------------------------------------------------------------------------------


def test_what_fires_is_a_table_and_what_is_hidden_is_said(told: Desk) -> None:
    code, out, err = told.call("alerts")
    assert code == 0
    rows = squeezed(out)
    assert [row.split()[0] for row in rows[1:]] == ["alert-9f31", "alert-77aa", "alert-7712"]
    assert "! critical w1/3: XID 79" in rows[1]
    assert "firing, latched" in rows[1]
    assert "✓ ack bob" in rows[3]
    assert "1 alert silenced; see them with: raydeck alerts --all" in err
    assert "not watched by the controller: w4" in err
    assert "cannot be seen: xid: none (on w4)" in err
    assert "\x1b" not in out


def test_all_and_one_level(told: Desk) -> None:
    assert len(told.json("alerts", "--all")) == 5
    assert [each["id"] for each in told.json("alerts", "--level", "critical")] == ["alert-9f31"]
    assert "silenced until" in told.call("alerts", "--all")[1]


def test_a_document_has_the_names_that_scripts_know(told: Desk) -> None:
    first, *_ = told.json("alerts")
    assert {"id", "severity", "rule", "entities", "since", "state", "cause", "action"} <= first.keys()
    assert (first["severity"], first["state"], first["run"], first["latched"]) == ("critical", "firing", "lm-a1", True)
    assert "hf_abc" not in first["evidence"][0], "secrets do not leave"
    hidden = told.json("alerts", "--all")[3]
    assert (hidden["silenced_by"], hidden["silenced_until"]) == (SILENCE.id, WALL + 60)
    assert told.json("alerts")[2]["acknowledged"] == {"user": "bob", "at": WALL - 9, "reason": "fan"}


def test_nothing_fires(desk: Desk) -> None:
    desk.give("GET", "/v1/alerts", AlertsView())
    assert desk.call("alerts") == (0, "", "nothing fires\n")
    assert desk.json("alerts") == []


def test_watching_goes_on_until_it_is_interrupted(told: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    async def passes(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("console.cli.opened.asyncio.sleep", passes)
    code, out, _ = told.call("alerts", "--watch", "--json")
    assert code == 130
    assert len([json.loads(line) for line in out.splitlines()]) == 9


def test_without_a_controller_it_tells_what_this_console_sees(desk: Desk) -> None:
    desk.nodes("w1")
    desk.fleet.ssh_state("w1", "lost", "no answer", -12.0)
    desk.work.controller_state("absent", "nobody answers", 0.0)
    code, out, err = desk.call("alerts")
    assert code == 0
    assert "no controller: nobody answers" in err
    assert "w1 is lost for 12 s; Ray still holds it alive" in out
    found = desk.json("alerts", "--level", "critical")
    assert [(each["source"], each["severity"], each["entities"], each["id"]) for each in found] == [
        ("console", "critical", ["w1"], None)
    ]


def test_where_nothing_answers_it_ends_with_3(desk: Desk) -> None:
    desk.work.controller_state("absent", "nobody answers", 0.0)
    desk.fleet.ray.move("down", "no answer", 0.0)
    assert desk.call("alerts")[0] == 3


def test_options_of_the_list_are_not_lost_on_a_subcommand(told: Desk) -> None:
    code, _, err = told.call("alerts", "--json", "ack", "alert-9f31", "--yes")
    assert code == 2
    assert "stand before ack" in err


# --- one, and those of before -----------------------------------------------------------------------------------------


def test_one_alert_in_full(told: Desk) -> None:
    code, out, _ = told.call("alerts", "show", "9f31")
    assert code == 0
    for text in ("w1/3: XID 79", "It fell off the bus.", "Drain the node.  [D]", "stays until somebody clears it",
                 "mail failed", "550", "gpu.xid.critical; alert alert-9f31"):  # fmt: skip
        assert text in out
    assert "hf_abc" not in out
    assert "\x1b" not in out
    assert told.json("alerts", "show", "alert-old1")["id"] == "alert-old1", "from the history"


@pytest.mark.parametrize(
    ("name", "said"),
    [("alert-9f3x", "Did you mean alert-9f31?"), ("zzzzzz", "See: raydeck alerts"), ("alert-77", "several alerts")],
)
def test_an_alert_that_there_is_none_of(told: Desk, name: str, said: str) -> None:
    code, _, err = told.call("alerts", "show", name)
    assert code == 1
    assert said in err


def test_history(told: Desk) -> None:
    code, out, _ = told.call("alerts", "history", "--limit", "3")
    assert code == 0
    assert "ended by itself" in out
    assert told.answers.params[-1] == {"limit": "3"}
    assert len(told.json("alerts", "history")) == 6


def test_silences(told: Desk) -> None:
    code, out, _ = told.call("alerts", "silences")
    assert (code, squeezed(out)[1]) == (0, "silence-c0de node w3 1 bob 20:27:40 rack")
    assert told.json("alerts", "silences")[0]["until"] == WALL + 60


# --- what people say --------------------------------------------------------------------------------------------------


def test_acknowledge(told: Desk) -> None:
    done = LATCHED.model_copy(update={"acknowledged": Acknowledged(user="alice", at=WALL)})
    told.give("POST", "/v1/alerts/acknowledge", reply(done))
    code, out, err = told.call("alerts", "ack", "9f31", "7712", "--reason", "on it", "--yes")
    assert (code, out) == (0, "alert-9f31: acknowledged by alice\n")
    assert "alert-7712 is acknowledged by bob already" in err
    assert asked(told) == [("/v1/alerts/acknowledge", {"alerts": ["alert-9f31"], "reason": "on it"})]


def test_what_somebody_has_is_not_asked_for_again(told: Desk) -> None:
    assert told.call("alerts", "ack", "alert-7712", "--yes")[0] == 0
    assert asked(told) == []


def test_without_a_terminal_a_yes_is_needed(told: Desk) -> None:
    for words in (["ack", "alert-9f31"], ["clear", "alert-9f31", "--reason", "x"], ["unsilence", "silence-c0de"],
                  ["silence", "--node", "w1", "--for", "1h"], ["test"]):  # fmt: skip
        code, _, err = told.call("alerts", *words)
        assert code == 2
        assert "Say --yes" in err
    assert asked(told) == []


def test_clear_takes_a_reason_and_what_stays_by_itself(told: Desk) -> None:
    told.give("POST", "/v1/alerts/clear", reply(LATCHED))
    assert told.call("alerts", "clear", "9f31", "--yes")[0] == 2
    code, out, _ = told.call("alerts", "clear", "9f31", "--reason", "board swapped", "--yes")
    assert (code, out) == (0, "alert-9f31: cleared\n")
    assert asked(told) == [("/v1/alerts/clear", {"alerts": ["alert-9f31"], "reason": "board swapped"})]


def test_clear_refuses_what_ends_by_itself_before_it_is_sent(told: Desk) -> None:
    code, _, err = told.call("alerts", "clear", "9f31", "77aa", "--reason", "x", "--yes")
    assert code == 1
    assert "alert-77aa" in err
    assert "ends by itself" in err
    assert asked(told) == []


def test_silence_shows_what_it_hides_before_it_is_put_on(told: Desk) -> None:
    matcher = Matcher(rule="gpu.hot", node="w2")
    made = Silence(id="silence-new", matcher=matcher, user="alice", reason="fan", at=WALL, until=WALL + 7200)
    told.give("POST", "/v1/alerts/silence", lambda body: reply(HOT, silence=None if body["dry_run"] else made))
    code, out, err = told.call("alerts", "silence", "--rule", "gpu.hot", "--node", "w2", "--for", "2h", "--reason",
                               "fan", "--yes")  # fmt: skip
    assert code == 0
    assert out.startswith("silence-new: rule gpu.hot, node w2: silenced by alice until ")
    assert "It hides 1 alert that fires now:" in err
    assert "w2/0: 4 °C below its slowdown" in err
    assert [body["dry_run"] for _, body in asked(told)] == [True, False]
    assert asked(told)[1][1]["matcher"] == {"rule": "gpu.hot", "node": "w2", "run": "", "level": None}
    assert asked(told)[1][1]["seconds"] == 7200.0


def test_a_dry_run_of_a_silence_puts_none_on(told: Desk) -> None:
    told.give("POST", "/v1/alerts/silence", reply(HOT))
    body = told.json("alerts", "silence", "--level", "warning", "--for", "1h", "--dry-run")
    assert body["dry_run"]
    assert [each["id"] for each in body["hides"]] == ["alert-77aa"]
    assert [each["dry_run"] for _, each in asked(told)] == [True]
    code, out, _ = told.call("alerts", "silence", "--run", "lm-a1", "--for", "1h", "--dry-run")
    assert (code, out) == (0, "nothing was done\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--for", "1h", "--reason", "x"], 2, "say what is to be silenced"),
        (["--node", "w1", "--reason", "x"], 2, "--for"),
        (["--node", "w1", "--for", "1h"], 2, "a silence needs a reason"),
        (["--node", "w1", "--for", "soon", "--reason", "x"], 2, "soon"),
        (["--rule", "gpu.hott", "--for", "1h", "--reason", "x"], 1, "Did you mean gpu.hot?"),
    ],
)
def test_a_silence_that_makes_no_sense(told: Desk, words: list[str], code: int, said: str) -> None:
    found, _, err = told.call("alerts", "silence", *words, "--yes")
    assert found == code
    assert said in err
    assert asked(told) == []


def test_unsilence(told: Desk) -> None:
    told.give("POST", "/v1/silences/silence-c0de/end", reply(HIDDEN))
    code, out, err = told.call("alerts", "unsilence", "silence-c", "--reason", "done", "--yes")
    assert (code, out) == (0, "silence-c0de: ended\n")
    assert "! of bob, not yours" in err
    assert "1 alert would be told of again:" in err
    assert told.call("alerts", "unsilence", "silence-x", "--yes")[0] == 1


def test_a_test_prints_a_row_for_each_way_out_and_fails_with_the_first_that_did(told: Desk) -> None:
    ways = [Delivery(sink="slack", at=WALL, ok=True), Delivery(sink="mail", at=WALL, ok=False, detail="550 no mailbox")]
    told.give("POST", "/v1/alerts/test", TestReply(deliveries=ways, alert=HOT))
    code, out, err = told.call("alerts", "test", "--level", "warning", "--yes")
    assert code == 1
    assert squeezed(out)[1:] == ["slack sent 20:26:40", "mail failed 20:26:40 550 no mailbox"]
    assert "goes out through: mail, slack." in err
    assert asked(told)[-1] == ("/v1/alerts/test", {"level": "warning", "sink": ""})
    told.give("POST", "/v1/alerts/test", TestReply(deliveries=ways[:1], alert=HOT))
    assert [each["ok"] for each in told.json("alerts", "test", "--sink", "slack", "--yes")] == [True]
    told.give("POST", "/v1/alerts/test", TestReply(deliveries=[], alert=HOT))
    assert told.call("alerts", "test", "--yes")[0] == 1, "nobody was told"


def test_a_way_out_that_there_is_none_of(told: Desk) -> None:
    code, _, err = told.call("alerts", "test", "--sink", "slac", "--yes")
    assert (code, "Did you mean slack?" in err) == (1, True)
    assert asked(told) == []


def test_a_refusal_of_the_controllers_is_told_as_it_is(told: Desk) -> None:
    refusal = {"error": {"sentence": "alice is a viewer and may not acknowledge", "hint": ""}}
    told.give("POST", "/v1/alerts/acknowledge", refusal)
    code, _, err = told.call("alerts", "ack", "9f31", "--yes")
    assert code == 1
    assert err.splitlines()[0] == "Acknowledge 1 alert"
    assert err.splitlines()[-1] == "raydeck: alice is a viewer and may not acknowledge"


def test_names_are_data(told: Desk) -> None:
    evil = LATCHED.model_copy(update={"title": "\x1b]0;owned\x07", "cause": "\x1b[2J", "entities": ["\x1b[31mw1"]})
    told.give("GET", "/v1/alerts", AlertsView(alerts=[evil], blind=["\x1b[2J"], unwatched={"\x1b[1m": "x"}))
    for words in ([], ["show", "9f31"], ["history"]):
        code, out, err = told.call("alerts", *words)
        assert code == 0
        assert "\x1b" not in out + err


# --- the rules --------------------------------------------------------------------------------------------------------


def test_the_rules_are_there_without_a_cluster(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert alerting.rules(None, "", False) == 0
    out, err = capsys.readouterr()
    hot = next(row for row in squeezed(out) if row.startswith("gpu.hot "))
    assert hot.startswith("gpu.hot warning gpu_margin_celsius <= 5 °C 1m00s > 10 °C for 2m00s NVML temperature")
    assert "by hand" in next(row for row in squeezed(out) if row.startswith("gpu.ecc "))
    assert "version" in err


def test_the_rules_as_a_cluster_file_changes_them(desk: Desk) -> None:
    desk.file.write_text(
        "cluster:\n  name: lab\n  control_nodes: [{host: h}]\n"
        "  alerting:\n    rules:\n      gpu.hot: {fires: 8, for: 30s, level: critical}\n      gpu.idle: {off: true}\n"
    )
    body = desk.json("alerts", "rules")
    rules = {each["id"]: each for each in body["rules"]}
    assert body["version"]
    hot = rules["gpu.hot"]
    assert (hot["fires"], hot["clears"], hot["for_seconds"], hot["severity"], hot["changed"]) == (
        {"comparison": "<=", "figure": 8.0}, {"comparison": ">", "figure": 13.0}, 30.0, "critical", True,
    )  # fmt: skip
    assert rules["gpu.idle"]["off"]
    assert not rules["gpu.lost"]["changed"]
    assert "off" in next(row for row in squeezed(desk.call("alerts", "rules")[1]) if row.startswith("gpu.idle"))
    code, out, _ = desk.call("alerts", "rules", "gpu.idle")
    assert code == 0
    assert "turned off by the cluster file" in out
    assert desk.call("alerts", "rules", "gpu.idel")[0] == 1
