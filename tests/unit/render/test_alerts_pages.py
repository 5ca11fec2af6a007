"""What is painted of alerts: rows, all of one, the head of the screen, the strip, the status line. Any text is safe."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import alerting
from console.render.alerts import ALERT_COLUMNS, HISTORY_COLUMNS, AlertRow, alert_lines, alert_row, places, state_of
from console.render.attention import counts_text, status_texts, strip_lines, summary_lines
from console.render.cells import Spans, cell_len, fit_spans, spans_of
from console.render.rules import rule_document, rule_lines, rule_row
from console.state.alerts import Counts, Line
from jobs.alertview import Acknowledged, Alert, AlertsReply, AlertsView, Matcher, Silence
from probes.health.rule import Thresholds
from probes.health.rules import BY_ID, RULES

NOW = 1_780_000_000.0
SILENCE = Silence(id="s1", matcher=Matcher(rule="gpu.hot"), user="bob", reason="fan", at=NOW - 60, until=NOW + 3600)


def alert(identity: str = "a1", level: Any = "critical", **more: Any) -> Alert:
    told: dict[str, Any] = {"rule": "gpu.lost", "title": f"{identity} is lost", "since": NOW - 90, **more}
    return Alert(id=identity, level=level, **told)


def line(one: Alert, **more: Any) -> Line:
    return Line(one.id, one.level, one.title, one.since, one, own=one.source == "console", **more)


def text(lines: list[Spans]) -> str:
    return "\n".join("".join(cell.text for cell in spans) for spans in lines)


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "silence", "word"),
    [
        ({}, None, "firing"),
        ({"latched": True}, None, "firing, latched"),
        ({"flapping": True, "latched": True}, None, "flapping"),
        ({"no_data": "the probe is silent", "flapping": True}, None, "no data"),
        ({"acknowledged": Acknowledged(user="bob", at=NOW), "no_data": "x"}, None, "ack bob"),
        ({"silenced_by": "s1", "acknowledged": Acknowledged(user="bob", at=NOW)}, SILENCE, "silenced until"),
        ({"silenced_by": "gone"}, None, "silenced"),
        ({"state": "cleared", "ended_at": NOW - 5, "silenced_by": "s1"}, None, "cleared 5s ago"),
        ({"state": "cleared", "ended_at": NOW - 5, "cleared_by": "carol"}, None, "cleared by carol"),
        ({"source": "console"}, None, "from this console"),
    ],
)
def test_the_state_that_matters_most_is_told_with_a_sign(more: dict[str, Any], silence: Any, word: str) -> None:
    row = AlertRow(line(alert(**more)), silence, NOW)
    shown = state_of(row).text
    assert word in shown
    assert not shown[0].isalnum()


def test_where_it_is() -> None:
    assert places(line(alert(entities=[f"n{at}" for at in range(20)])), 3) == "n0, n1, n2 and 17 more"
    assert places(line(alert(run="lm-a1"))) == "lm-a1"
    assert places(line(alert())) == "-"
    assert places(Line("k", "info", "t", None, target="n1")) == "n1"


TEXT = st.text(max_size=40)


@given(TEXT, TEXT, TEXT, TEXT, st.booleans(), st.sampled_from([60, 80, 200]))
def test_no_text_of_the_clusters_leaves_its_line(
    title: str, other: str, name: str, reason: str, over: bool, width: int
) -> None:
    one = alert(
        title=title, cause=other, action=other, entities=[name], nodes=[name], run=name, evidence=[other], key=name,
        no_data=reason, rule=name, cleared_by=name, cleared_reason=reason, silenced_by="s1",
        acknowledged=Acknowledged(user=name, at=NOW, reason=reason), state="cleared" if over else "firing",
        ended_at=NOW if over else None,
    )  # fmt: skip
    silence = SILENCE.model_copy(update={"user": name, "reason": reason, "matcher": Matcher(rule=name, node=other)})
    row = AlertRow(line(one, here=(other,), short=reason), silence, NOW)
    view = AlertsView(alerts=[one], silences=[silence], unwatched={name: reason}, blind=[other])
    shown = [
        *alert_lines(row, width),
        *alert_lines(AlertRow(None, silence, NOW), width),
        *summary_lines([row.line] if row.line else [], view, width),
        *strip_lines([row.line] if row.line else [], width, 3, mark_own=True),
        *(spans_of(column.cell(row)) for column in (*ALERT_COLUMNS, *HISTORY_COLUMNS)),
    ]
    for spans in shown:
        painted = "".join(cell.text for cell in fit_spans(spans, width))
        assert cell_len(painted) == width
        assert painted.isprintable()


# --- the head, the strip, the status line -----------------------------------------------------------------------------


def test_counts_in_words_and_in_three_lengths() -> None:
    assert counts_text(Counts()) == ""
    assert status_texts(Counts()) == []
    assert status_texts(Counts(2, 0, 1, 3, 1)) == [
        "alerts 2 critical, 1 info, 3 acknowledged, 1 silenced", "alerts !2 i1 3 ack 1 silenced", "!2 i1 +4",
    ]  # fmt: skip
    assert status_texts(Counts(silenced=1))[-1] == "+1", "also where nothing else fires"


def test_the_strip_says_how_many_are_not_shown_and_how_many_are_set_aside() -> None:
    told = [line(alert(f"a{at}")) for at in range(5)]
    told += [line(alert("w", "warning")), line(alert("s", silenced_by="s1")),
             line(alert("c", state="cleared", ended_at=NOW))]  # fmt: skip
    shown = text(strip_lines(told, 120, 3, mark_own=True)).splitlines()
    assert len(shown) == 3
    assert shown[0].startswith(" ! critical a0 is lost")
    assert shown[0].rstrip().endswith("1 silenced, 7 shows all")
    assert shown[2] == "   and 4 more: 3 critical, 1 warning"
    assert cell_len(shown[0]) <= 120
    narrow = text(strip_lines(told, 80, 6, mark_own=True)).splitlines()
    assert narrow[0].rstrip().endswith("1 sil [7]")
    assert len(narrow) == 6


def test_the_strip_marks_what_only_this_console_sees_where_the_controller_has_a_say() -> None:
    told = [
        Line("k", "critical", "w1 is lost", None, target="w1", own=True),
        line(alert(source="console", flapping=True)),
    ]
    assert text(strip_lines(told, 120, 3, mark_own=True)).count("seen from this console") == 2
    assert "; flapping" in text(strip_lines(told, 120, 3, mark_own=True))
    assert "seen from this console" not in text(strip_lines(told, 120, 3, mark_own=False))
    assert "nothing needs you" in text(strip_lines([], 80, 3, mark_own=True))


def test_the_head_tells_what_cannot_be_seen() -> None:
    view = AlertsView(watched_nodes=3, unwatched={"w1": "no Python", "w2": "no Python"}, blind=["xid: none (on w3)"])
    shown = text(summary_lines([], view, 200))
    assert "no alert   3 nodes watched; no way out is set up" in shown
    assert "not watched by the controller: w1, w2 (no Python); xid: none (on w3)" in shown
    view = AlertsView(watched_nodes=1, blind=[f"b{at}" for at in range(5)], sinks=["mail"])
    assert "b0; b1; b2; and 2 more" in text(summary_lines([], view, 200))
    assert "no way out" not in text(summary_lines([], view, 200))
    silent = text(summary_lines([], None, 200, trouble="controller absent: no", own_nodes=2))
    assert "controller absent: no; 2 nodes judged from here" in silent


# --- one in full ------------------------------------------------------------------------------------------------------


def test_what_is_not_so_is_not_told() -> None:
    shown = text(alert_lines(alert_row(alert(), None, NOW), 80))
    assert "fires since" in shown
    for word in ("acknowledged", "silenced", "told", "evidence", "from here", "run "):
        assert f"   {word}" not in shown
    over = text(alert_lines(alert_row(alert(state="cleared", ended_at=NOW - 9), None, NOW), 80))
    assert "began" in over
    assert "over since" in over


def test_secrets_in_evidence_do_not_show() -> None:
    one = alert(evidence=["token=hf_abcdefghijklmnopqrstuvwxyz012345"], title="password=hunter2hunter2 in the log")
    row = alert_row(one, None, NOW)
    assert "hf_abc" not in text(alert_lines(row, 200))
    assert "hunter2" not in text(alert_lines(row, 200))
    assert row.line is not None
    assert "hunter2" not in text(strip_lines([row.line], 200, 3, mark_own=True))


# --- what is asked before something is done ---------------------------------------------------------------------------


def test_previews_take_a_key_for_one_and_the_count_for_many() -> None:
    one, two = alert("a"), alert("b", "warning")
    assert alerting.acknowledge_preview([one]).ask == "y"
    many = alerting.acknowledge_preview([one, two])
    assert (many.ask, many.expected, many.title) == ("count", "2", "Acknowledge 2 alerts")
    had = alert("c", acknowledged=Acknowledged(user="bob", at=NOW))
    assert alerting.acknowledge_preview([had]).warnings == ("bob has c is lost already",)
    long = alerting.clear_preview([alert(str(at)) for at in range(20)])
    assert "  and 12 more" in long.lines
    hides = AlertsReply(view=AlertsView(), changed=[one, two])
    shown = alerting.silence_preview(hides, Matcher(node="w1"), 7200, NOW)
    assert shown.warnings == ("1 of them is critical",)
    assert (shown.ask, shown.expected, shown.wants_reason) == ("count", "2", True)
    none = alerting.silence_preview(AlertsReply(view=AlertsView()), Matcher(node="w1"), 7200, NOW)
    assert none.ask == "y"
    assert "It hides nothing that fires now, only what comes." in none.lines
    ended = alerting.end_silence_preview([SILENCE], [one], "alice", NOW)
    assert ended.warnings == ("of bob, not yours",)
    assert not alerting.end_silence_preview([SILENCE], [], "bob", NOW).warnings
    assert "none is set up" in alerting.send_test_preview("critical", "", []).lines[0]


def test_what_can_be_cleared() -> None:
    assert alerting.why_not_clear(alert(latched=True)) == ""
    assert alerting.why_not_clear(alert(flapping=True)) == ""
    assert "ends by itself" in alerting.why_not_clear(alert())
    assert "has ended already" in alerting.why_not_clear(alert(latched=True, state="cleared"))


# --- the rules --------------------------------------------------------------------------------------------------------


def test_every_rule_can_be_told() -> None:
    for rule in RULES:
        row = rule_row(rule)
        assert row["rule"] == rule.id
        assert row["source"]
        assert all(isinstance(value, str) and value for value in row.values())
        assert rule.action[:20] in text(rule_lines(rule, None, 400))
        assert rule_document(rule)["fires"]["figure"] == rule.fires[1]


def test_a_change_keeps_the_distance_of_what_clears_apart() -> None:
    rule = BY_ID["gpu.hot"]
    changes = Thresholds(fires={rule.id: rule.fires[1] + 3}, levels={rule.id: "info"}, off=("gpu.idle",))
    body = rule_document(rule, changes)
    assert rule.clears is not None
    assert body["clears"]["figure"] == rule.clears[1] + 3
    assert (body["severity"], body["changed"], body["off"]) == ("info", True, False)
    assert rule_row(BY_ID["gpu.idle"], changes)["level"] == "off"
