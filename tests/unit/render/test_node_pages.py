"""Nodes that are kept free, as cells and sentences; drains as rows; spans and ends that people type."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.render.cells import Cell, use_ascii
from console.render.drains import DRAIN_COLUMNS, RUN_COLUMNS, DrainRow, decision_preview, drain_lines, rows_of
from console.render.nodes import Standing, deadline_text, held_words, standing_lines, standing_word, state_words
from console.render.processes import ProcessRow, belongs
from console.screens.nodeforms import ends_in, share, span
from console.state.fleet import Node
from console.state.work import WorkStore
from jobs.nodeview import Drain, DrainNode, DrainRun, Hold, NodeRef, NodesView, NodeView, Other

NOW = 1_780_000_000.0
EVIL = "\x1b]0;owned\x07\u202e"


def standing(
    view: NodeView | None, drains: list[Drain] | None = None, *, ssh: str = "up", ray: str = "alive"
) -> Standing:
    work = WorkStore()
    work.controller_state("ok", "", 0.0)
    work.nodes.take(NodesView(nodes=[view] if view else [], drains=drains or []))
    node = Node("n", "10.0.0.1")
    node.ssh.move(ssh, "", 0.0)
    node.ray.move(ray, "", 0.0)
    return Standing(node, work, NOW)


def hold(**more: Any) -> Hold:
    told: dict[str, Any] = {"id": "h", "node": "n", "user": "bob", "at": NOW - 60, "reason": "fan", **more}
    return Hold(**told)


def a_drain(part: DrainNode, **more: Any) -> Drain:
    return Drain(id="d", at=NOW - 100, user="alice", nodes=[part], **more)


def a_part(state: Any = "moving", runs: int = 0, **more: Any) -> DrainNode:
    made = [
        DrainRun(
            run=f"r{number}", attempt=1, user="carol", asked_at=NOW - 50, left_at=NOW - 40 if number else None,
            step=100, saved_step=90,
        )
        for number in range(runs)
    ]  # fmt: skip
    return DrainNode(node=NodeRef(name="n"), state=state, runs=made, **more)


def text_of(row: Standing) -> str:
    return "".join(cell.text for cell in held_words(row))


@pytest.mark.parametrize(
    ("state", "words"),
    [("cordoned", "⊘ cordoned"), ("waiting", "◇ waiting turn"), ("drained", "∅ drained"), ("retiring", "□ retiring"),
     ("retired", "■ retired")],
)  # fmt: skip
def test_each_state_has_a_sign_and_a_word_that_fit_its_column(state: Any, words: str) -> None:
    cell = state_words(standing(NodeView(name="n", state=state, holds=[hold()])))
    assert cell.text == words
    assert len(cell.text) <= 14
    use_ascii(True)
    try:
        plain = state_words(standing(NodeView(name="n", state=state, holds=[hold()]))).text
        assert plain.isascii()
        assert not plain[0].isalnum(), "behind a name in the heatmap a letter would be part of it"
    finally:
        use_ascii(False)


def test_nobody_said_is_not_open() -> None:
    row = standing(None)
    assert state_words(row).text == "· open"
    row.work.nodes.take(None)
    assert state_words(row) == Cell("-", "muted")


def test_a_drain_is_counted_and_its_deadline_comes_nearer_and_passes() -> None:
    view = NodeView(name="n", state="draining", holds=[hold(kind="drain")], drain="d")
    row = standing(view, [a_drain(a_part(runs=3, deadline_at=NOW + 65))])
    assert state_words(row).text == "↓ draining 2/3"
    assert text_of(row).startswith("2 of 3 have left, 1m05s to go · bob: fan")
    late = standing(view, [a_drain(a_part(runs=3, deadline_at=NOW - 5, overdue=True))])
    assert state_words(late) == Cell("! overdue 2/3", "bad")
    assert "overdue for 5s: choose" in text_of(late)
    checking = standing(view, [a_drain(a_part("checking", empty_since=NOW - 8))])
    assert text_of(checking).startswith("empty; checked for 22s more")
    assert deadline_text(a_part("checking", empty_since=NOW - 99), NOW) == "empty; checked for 0s more"


def test_what_slipped_in_comes_before_who_holds_it() -> None:
    others = [Other(kind="actor", id="abc", name="Tuner", gpus=2, slipped=True), Other(kind="task", id="def")]
    row = standing(NodeView(name="n", state="cordoned", holds=[hold(), hold(user="eve")], others=others))
    assert state_words(row) == Cell("⊘ cordoned +1", "bad")
    assert text_of(row) == "+1 other: actor Tuner, 2 GPUs · bob: fan and 1 more hold"


@pytest.mark.parametrize(("ray", "says"), [("dead", "Ray says dead"), ("absent", "Ray does not list it")])
def test_ssh_that_answers_where_ray_is_gone_offers_rejoin(ray: str, says: str) -> None:
    assert state_words(standing(None, ray=ray)) == Cell("✗ out of Ray", "bad")
    assert text_of(standing(None, ray=ray)) == f"SSH answers, {says}: J rejoins"
    assert state_words(standing(None, ray=ray, ssh="lost")).text == "· open", "Ray's own column says that it is dead"
    retired = standing(NodeView(name="n", state="retired", holds=[hold(kind="retire")]), ray=ray)
    assert state_words(retired).text == "■ retired"
    assert "J rejoins" in text_of(retired)


def test_a_hold_is_told_whole_and_many_lines_are_counted() -> None:
    view = NodeView(name="n", state="cordoned", holds=[hold(until=NOW + 120, gpus=True)], note="its note")
    text = "\n".join("".join(cell.text for cell in line) for line in standing_lines(standing(view), 200))
    assert "cordoned by bob 1m00s ago: fan; until" in text
    assert "(2m00s more), idle GPUs held too (best effort)" in text
    assert "its note" in text
    assert "1 more line: i shows all" not in text
    cut = standing_lines(standing(view.model_copy(update={"holds": [hold(id=str(n)) for n in range(9)]})), 200, 3)
    assert len(cut) == 3
    assert "and 8 more lines" in cut[-1][0].text
    assert standing_lines(standing(None), 80) == []


def test_names_from_the_cluster_are_data() -> None:
    other = Other(kind="actor", id="x", name=EVIL, slipped=True)
    part = a_part(runs=1, others=[other], note=EVIL, overdue=True, deadline_at=NOW - 1)
    view = NodeView(
        name="n", state="draining", holds=[hold(reason=EVIL, user=EVIL)], others=[other], drain="d", note=EVIL
    )
    drain = a_drain(part, reason=EVIL)
    row = standing(view, [drain])
    lines = [held_words(row), *standing_lines(row, 80), *drain_lines(DrainRow(drain, part, NOW), 80),
             (belongs(ProcessRow(1, EVIL, EVIL, None, (0,), None, EVIL, None, False)),)]  # fmt: skip
    for column in DRAIN_COLUMNS:
        cell = column.cell(DrainRow(drain, part, NOW))
        lines.append((cell,) if isinstance(cell, Cell) else cell)
    assert not any(set("\x1b\x07\u202e") & set(cell.text) for line in lines for cell in line)


def test_a_run_tells_where_it_runs_again_what_it_lost_and_how_long_it_took() -> None:
    run = DrainRun(run="r", attempt=1, asked_at=NOW - 50, left_at=NOW - 47, again_at=NOW - 10, step=1250,
                   saved_step=1200, again_on=["a", "b"], state="again")  # fmt: skip
    by_key = {column.key: column.cell(run) for column in RUN_COLUMNS}
    assert by_key["steps"] == Cell("1,250 → 1,200")
    assert by_key["lost"] == Cell("50", "warn")
    assert by_key["took"] == Cell("left 3.0s, back 40s")
    assert by_key["again"] == Cell("a, b", "ok")
    fresh = {column.key: column.cell(DrainRun(run="r", attempt=1)) for column in RUN_COLUMNS}
    assert (fresh["lost"], fresh["took"]) == (Cell("-", "muted"), Cell("-", "muted")), "not known is not nothing"


def test_drains_that_go_on_come_first_and_in_one_what_needs_someone() -> None:
    over = Drain(id="old", at=NOW, user="a", nodes=[DrainNode(node=NodeRef(name="x"), state="empty")], state="done")
    going = Drain(id="new", at=NOW - 9, user="a", nodes=[
        DrainNode(node=NodeRef(name="w")), DrainNode(node=NodeRef(name="m"), state="moving"),
        DrainNode(node=NodeRef(name="late"), state="moving", overdue=True)])  # fmt: skip
    assert list(rows_of([over, going], NOW)) == ["new/late", "new/m", "new/w", "old/x"]


def test_ending_what_is_left_takes_its_name_or_their_number() -> None:
    one = a_drain(a_part(runs=1))
    assert (decision_preview(one, "stop").ask, decision_preview(one, "stop").expected) == ("name", "r0")
    assert "1 run of carol, not yours" in decision_preview(one, "stop", you="alice").warnings
    several = a_drain(a_part(runs=0).model_copy(update={"runs": [DrainRun(run=n, attempt=1) for n in ("x", "y")]}))
    assert (decision_preview(several, "stop").ask, decision_preview(several, "stop").expected) == ("count", "2")
    for decision in ("wait", "give_up", "cancel"):
        assert decision_preview(one, decision).ask == "y"
        assert "the drain of alice, not yours" in " ".join(decision_preview(one, decision, you="eve").warnings)


def test_whose_a_process_is() -> None:
    def words(run: str = "", **more: Any) -> str:
        return belongs(ProcessRow(1, "u", "c", 1.0, (0,), 1, run, **more)).text

    assert words(run="lm", rank=2, lives=True) == "lm rank 2"
    assert words(run="lm") == "▲ left over: lm"
    assert words() == "▲ left over: no run"
    assert words(other="actor X") == "◇ not ours: actor X"
    assert words(run="lm", lives=None) == "? lm, not known", "of whom nobody knows is not left over"


def test_how_a_node_stands_after_a_request() -> None:
    assert standing_word(None) == "open for new work"
    assert standing_word(NodeView(name="n", state="cordoned", holds=[hold(), hold()])) == "cordoned, by bob"


NOON = datetime(2026, 5, 1, 12, 0, 0).astimezone()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", None), ("2h", 7200), ("30m", 1800), ("until 13:30", 5400), ("06:00", 18 * 3600), ("until 2h", 7200),
     ("12:00", 86400)],
)  # fmt: skip
def test_when_a_hold_ends(text: str, seconds: float | None) -> None:
    assert ends_in(text, NOON) == seconds


@pytest.mark.parametrize("text", ["soon", "25:00", "30", "0m", "until"])
def test_an_end_that_is_none_is_a_sentence(text: str) -> None:
    if text == "until":
        assert ends_in("", NOON) is None
        return
    with pytest.raises(ValueError, match=r"\S"):
        ends_in(text, NOON)


@settings(deadline=None)
@given(st.text(max_size=12))
def test_whatever_is_typed_is_a_time_or_a_sentence(text: str) -> None:
    readers: tuple[Callable[[str], float | None], ...] = (lambda typed: ends_in(typed, NOON), span, share)
    for read in readers:
        try:
            found = read(text)
        except ValueError:
            continue
        assert found is None or found > 0


def test_a_share_is_a_share() -> None:
    assert (share("25%"), share("0.25"), share("")) == (0.25, 0.25, None)
    for wrong in ("0", "101%", "x", "-5%"):
        with pytest.raises(ValueError, match="is no share"):
            share(wrong)
