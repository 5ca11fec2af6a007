"""The queues as bars and rows, why a run waits as a page, and sentences in lines."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.render.cells import Spans, cell_len, spans_of
from console.render.prose import estimate, facts, listed, some, wrapped
from console.render.queue import (
    KIND_WORDS,
    WAITING_COLUMNS,
    WaitingRow,
    explanation_lines,
    priority_rank,
    queue_bar,
    queue_lines,
    total_line,
    waiting_note,
)
from jobs.model import RunState
from jobs.queueview import Blocker, BlockerKind, Explanation, QueueUse, QueueView, UserUse, Waiting

NOW = 1_000_000.0


def text(lines: Iterable[Spans]) -> str:
    return "\n".join("".join(cell.text for cell in line) for line in lines)


def row(**more: object) -> WaitingRow:
    told: dict[str, object] = {
        "run": "lm-abc", "position": 3, "queue": "training", "priority": "high", "user": "alice", "nodes": 2, "gpus": 8,
        "since": NOW - 60, "sentence": "no room", "kind": "resources", **more,
    }  # fmt: skip
    return WaitingRow(Waiting.model_validate(told), NOW)


def cells(one: WaitingRow) -> dict[str, str]:
    return {column.key: "".join(span.text for span in spans_of(column.cell(one))) for column in WAITING_COLUMNS}


@given(st.integers(0, 500), st.integers(0, 500), st.none() | st.integers(0, 500), st.integers(0, 600),
       st.integers(4, 60))  # fmt: skip
def test_a_bar_has_exactly_its_width_and_hides_nothing(
    used: int, waits: int, most: int | None, scale: int, wide: int
) -> None:
    spans = queue_bar(used, waits, most, scale, wide)
    bar = "".join(span.text for span in spans)
    assert cell_len(bar) == wide
    if used:
        assert "█" in bar, "a little never looks like nothing"
    if not used:
        assert "█" not in bar
    if not waits:
        assert "▒" not in bar


def test_what_does_not_fit_into_the_quota_stands_beyond_its_end() -> None:
    assert "".join(span.text for span in queue_bar(8, 12, 8, 8, 16)) == "████████│▒▒▒▒▒▒▒"
    assert "".join(span.text for span in queue_bar(2, 4, 8, 8, 16)) == "████▒▒▒▒▒▒▒▒░░░░"
    assert "".join(span.text for span in queue_bar(0, 0, None, 8, 4)) == "░░░░"


def test_the_cluster_in_a_line_never_makes_up_a_number() -> None:
    assert "Ray does not tell how many GPUs there are" in text([total_line(QueueView(at=NOW), 100)])
    view = QueueView(at=NOW, accelerators=16, free_accelerators=0, waiting_total=10_000, preemption=True,
                     queues=[QueueUse(name="a", used_accelerators=16)])  # fmt: skip
    said = text([total_line(view, 100)])
    assert "16 GPUs: 16 by runs, 0 free" in said
    assert "10,000 wait" in said
    assert "preemption on" in said
    assert "held" not in said


def test_of_many_queues_those_with_most_waiting_stay_and_the_others_are_counted() -> None:
    queues = [QueueUse(name=f"q{number}", waiting=number, max_accelerators=8) for number in range(9)]
    users = [UserUse(user="alice", used_accelerators=3, max_accelerators=4, waiting=2)]
    lines = queue_lines(QueueView(at=NOW, queues=queues, users=users), 80, 7)
    assert len(lines) == 7
    said = text(lines)
    assert "q8" in said
    assert "q5" in said
    assert "q4" not in said
    assert "and 5 more queues, 10 wait there" in said
    assert "alice 3 of 4 (2 wait)" in said


def test_a_quota_per_user_is_shown_only_where_there_is_one() -> None:
    view = QueueView(at=NOW, queues=[QueueUse(name="a")], users=[UserUse(user="alice", used_accelerators=3)])
    assert "users" not in text(queue_lines(view, 80, 8))


def test_a_row_says_place_gang_and_estimate() -> None:
    assert cells(row(estimated_start=NOW + 90, moved=True)) == {
        "position": "3*", "run": "lm-abc", "user": "alice", "queue": "training", "priority": "high", "gpus": "2×4",
        "since": "1m00s", "estimate": "~1m30s", "why": "no room",
    }  # fmt: skip
    held = cells(row(position=None))
    assert held["position"] == "held"
    assert held["estimate"] == "-"


def test_held_ones_sort_last_and_priorities_by_their_weight() -> None:
    by_key = {column.key: column for column in WAITING_COLUMNS}
    order, weight = by_key["position"].sort, by_key["priority"].sort
    assert order is not None
    assert weight is not None
    assert order(row(position=None)) > order(row(position=9_999))
    assert [priority_rank(word) for word in ("low", "normal", "high", "250", "-3", "odd")] == [-100, 0, 100, 250, -3, 0]


def test_text_from_the_cluster_is_data_in_every_cell() -> None:
    evil = "\x1b[31m\x07evil\u202e"
    for value in cells(row(run=evil, user=evil, queue=evil, priority=evil, sentence=evil)).values():
        assert not set("\x1b\x07\u202e") & set(value)
    told = Explanation(run=evil, state=RunState.QUEUED, sentence=evil, estimated_from=evil,
                       blocked_by=[Blocker(kind="order", sentence=evil, would_start_if=evil)])  # fmt: skip
    assert not set("\x1b\x07\u202e") & set(text(explanation_lines(told, 80, NOW)))
    assert not set("\x1b\x07\u202e") & set(text(waiting_note(row(sentence=evil).waiting, 80, NOW)))


def test_an_explanation_marks_the_estimate_and_says_why_there_is_none() -> None:
    told = Explanation(run="a", state=RunState.QUEUED, sentence="It waits", estimated_start=NOW + 60,
                       estimated_from="the time limit of b")  # fmt: skip
    said = text(explanation_lines(told, 80, NOW))
    assert "~1m00s" in said
    assert "an estimate, not a promise" in said
    none = told.model_copy(update={"estimated_start": None, "estimated_from": "b has no time limit"})
    assert "no estimate: b has no time limit" in text(explanation_lines(none, 80, NOW))


@pytest.mark.parametrize("kind", BlockerKind.__args__)
def test_every_kind_of_blocker_has_a_word(kind: str) -> None:
    assert KIND_WORDS[kind]


@given(st.text(max_size=200), st.integers(8, 60))
def test_wrapped_lines_fit_and_lose_no_letter(said: str, width: int) -> None:
    from console.render.safe import safe

    lines = wrapped(said, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(safe(said).split())


def test_small_words() -> None:
    assert [some(1, "run"), some(3, "run"), some(2, "is", "are")] == ["1 run", "3 runs", "2 are"]
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert [estimate(None, NOW), estimate(NOW - 5, NOW), estimate(NOW + 61, NOW)] == ["-", "~now", "~1m01s"]
    assert text(facts([("a", "1", ""), ("empty", "", ""), ("longer", "2", "")], 40)) == " a       1\n longer  2"
