"""Releases, their difference, a run's attempts, checkpoints and moves, the audit log, a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from console.render.audit import AUDIT_COLUMNS, AuditRow, chain_line
from console.render.cells import Column, Spans, spans_of
from console.render.course import (
    ATTEMPT_COLUMNS,
    CHECKPOINT_COLUMNS,
    AttemptRow,
    SavedRow,
    attempt_lines,
    began_from,
    complete_cell,
    move_rows,
    run_facts,
    usable,
)
from console.render.releases import RELEASE_COLUMNS, ShownRelease, difference_lines, newest_first, release_lines
from console.render.sweep import best_of, sweep_lines
from console.render.work import figure_style, loss_text, parameters_text
from jobs.model import Attempt, Failure, GangStatus, Held, Move, Outcome, Progress, Run, RunState
from jobs.queueview import Waiting
from jobs.wire import AuditEntry, CheckpointRow, ReleaseRow

NOW = 1_000_000.0


def text(lines: Iterable[Spans]) -> str:
    return "\n".join("".join(cell.text for cell in line) for line in lines)


def cells(columns: Iterable[Column[Any]], row: Any) -> dict[str, str]:
    return {column.key: "".join(span.text for span in spans_of(column.cell(row))) for column in columns}


def release(identity: str, rate: float = 0.1, **more: Any) -> ReleaseRow:
    config: Mapping[str, Any] = {"name": "lm", "training": {"learning_rate": rate}, "sweep": None}
    told: dict[str, Any] = {"workflow": "lm", "created_at": NOW - 60, "user": "alice", "code_digest": "ab" * 32, **more}
    return ReleaseRow(id=identity, config=dict(config), **told)


def run(**more: Any) -> Run:
    told: dict[str, Any] = {"id": "lm-1", "workflow": "lm", "release": "lm-r-1", "state": RunState.RUNNING, "nodes": 2,
                            "gpus": 4, "submitted_at": NOW - 100, **more}  # fmt: skip
    return Run(**told)


def test_a_release_that_never_ran_has_dashes_and_no_zero() -> None:
    shown = cells(RELEASE_COLUMNS, ShownRelease(release("a"), NOW))
    assert shown["outcome"] == "never ran"
    assert {shown[key] for key in ("step", "loss", "throughput", "checkpoint")} == {"-"}
    good = release("b", last_good=True, active=["lm-2"], outcome="succeeded", loss=1.5, reason="done")
    assert cells(RELEASE_COLUMNS, ShownRelease(good, NOW))["note"] == "✓ last good  runs now: lm-2  done"


def test_the_difference_is_by_part_both_values_beside_each_other() -> None:
    old = release("old", 0.1, environment={"torch": "2.13.0"})
    new = release("new", 0.01, environment={"torch": "2.14.0"}, code_digest="cd" * 32)
    said = text(difference_lines(old, new, 90))
    order = [said.index(word) for word in ("Configuration", "training.learning_rate", "Code ", "Environment", "torch")]
    assert order == sorted(order)
    line = next(line for line in said.splitlines() if "learning_rate" in line)
    assert line.index("0.1 ") < line.index("→") < line.index("0.01")
    assert "the same: data" in said
    assert "same in all parts" in text(difference_lines(old, old, 90))


def test_a_long_value_is_cut_beside_its_other() -> None:
    old, new = release("old"), release("new")
    new = new.model_copy(update={"config": {**new.config, "env": {"LIST": ["word"] * 400}}})
    lines = difference_lines(old, new, 80)
    assert len(lines) < 12
    assert "…" in text(lines)


def test_a_release_page_tells_what_is_not_known_yet() -> None:
    said = text(release_lines(release("a", seed=0), 80, NOW))
    assert "not known yet" in said
    assert "seed" in said
    assert "training.learning_rate" in said
    assert "sweep" in said


def test_the_newest_release_is_first() -> None:
    rows = [release("a", created_at=1.0), release("b", created_at=3.0), release("c", created_at=2.0)]
    assert [row.id for row in newest_first(rows)] == ["b", "c", "a"]


def test_the_facts_name_failure_retry_suspects_and_what_it_waits_for() -> None:
    lost = Attempt(
        number=1, job_id="j", state=RunState.FAILED, failure=Failure.NODE_LOST, reason="worker-2 is dead",
        outcome=Outcome(verdict="failed", evidence="health check failed"), resume_step=400, resume_run="lm-0",
        skipped=["step 500: broken"], excluded=["worker-2"],
    )  # fmt: skip
    waits = Waiting(run="lm-1", position=2, queue="q", priority="high", user="a", nodes=2, gpus=4, since=0.0,
                    sentence="no room", kind="resources")  # fmt: skip
    one = run(state=RunState.QUEUED, attempts=[lost], retries=1, max_retry=3, not_before=NOW + 20, queue="q",
              suspects={"worker-2": 2, "worker-1": 1}, held=Held(user="bob", at=NOW - 60, reason="data"),
              rollback="rb-1", after=["lm-0"], sweep="grid", parameters={"width": 64})  # fmt: skip
    said = text(run_facts(one, waits, 100, NOW))
    for words in ("by bob for 1m00s: data", "position 2: no room", "attempt 1: node lost", "health check failed",
                  "1 of 3 used; the next one in 20s", "step 400 of lm-0", "step 500: broken",
                  "worker-2 (2 times: left out), worker-1 once", "rb-1", "width=64"):  # fmt: skip
        assert words in said, words


def test_an_attempt_from_nothing_is_from_the_beginning() -> None:
    attempt = Attempt(number=2, job_id="raydeck-lm-1-a2", started_at=NOW - 90,
                      outcome=Outcome(verdict="failed", survivors=[77], unanswered=["worker-9"], exit_codes={0: None}),
                      )  # fmt: skip
    assert began_from(attempt) == "the beginning"
    shown = cells(ATTEMPT_COLUMNS, AttemptRow(attempt, NOW))
    assert (shown["from"], shown["took"], shown["last"]) == ("start", "1m30s", "-")
    said = text(attempt_lines(attempt, 80))
    assert "still alive  77" in said
    assert "not asked    worker-9" in said
    assert "rank 0: ?" in said


@pytest.mark.parametrize(("more", "word", "can"), [
    ({"complete": True}, "✓ complete", True), ({"complete": False, "reason": "short"}, "✗ incomplete", False),
    ({"complete": True, "reason": "set aside"}, "· set aside", False),
])  # fmt: skip
def test_a_checkpoint_is_complete_broken_or_set_aside(more: dict[str, Any], word: str, can: bool) -> None:
    row = CheckpointRow(step=5, path="/x", **more)
    assert complete_cell(row).text == word
    assert usable(row) is can
    assert cells(CHECKPOINT_COLUMNS, SavedRow(row, NOW))["size"] == "-"


def test_moves_are_newest_first_with_how_long_each_lasted() -> None:
    moves = [Move(at=NOW - 30, after=RunState.QUEUED),
             Move(at=NOW - 10, before=RunState.QUEUED, after=RunState.ADMITTED)]  # fmt: skip
    rows = move_rows(moves, NOW)
    assert [(row.move.after.value, row.lasted) for row in rows] == [("admitted", None), ("queued", 20.0)]
    assert move_rows([], NOW) == []


def test_a_refused_request_is_worded_and_a_broken_chain_is_said_first() -> None:
    entry = AuditEntry(seq=1, at=NOW, user="carol", action="stop", target="lm-1", allowed=False, reason="no", hash="ab")
    shown = cells(AUDIT_COLUMNS, AuditRow(entry, NOW))
    assert shown["allowed"] == "✗ REFUSED"
    assert text([chain_line("entry 4 was changed", 9, 1)]).startswith(" ! the audit log was changed: entry 4")
    assert "being looked at" in text([chain_line(None, 0, 0)])
    assert "holds" in text([chain_line("", 9, 0)])


def point(identity: str, loss: float | None, state: RunState = RunState.SUCCEEDED) -> Run:
    gang = GangStatus(phase="ended", progress=Progress(step=9, loss=loss))
    return run(id=identity, state=state, parameters={"width": int(identity)},
               attempts=[Attempt(number=1, job_id="j", status=gang)])  # fmt: skip


def test_the_best_point_is_by_the_goal_and_never_one_that_is_no_number() -> None:
    runs = [point("1", 2.0), point("2", math.nan), point("3", 1.0), point("4", None)]
    assert best_of(runs, "minimize") == "3"
    assert best_of(runs, "maximize") == "1"
    assert best_of([runs[1], runs[3]], "minimize") == ""
    said = text(sweep_lines("grid", runs, "minimize", NOW))
    assert "4 points: 4 succeeded" in said
    assert "best (minimize the last loss): width=3  loss 1.0000" in said
    assert "best so far" in text(sweep_lines("grid", [*runs, point("5", 9.0, RunState.RUNNING)], "minimize", NOW))
    assert "none of its runs" in text(sweep_lines("grid", [], "minimize", NOW))


def test_parameters_have_short_names_where_those_are_clear() -> None:
    assert (
        parameters_text(run(parameters={"parameters.width": 64, "learning_rate": 0.1})) == "width=64 learning_rate=0.1"
    )
    assert parameters_text(run(parameters={"a.width": 1, "b.width": 2})) == "a.width=1 b.width=2"


def test_a_loss_that_is_no_number_stands_out() -> None:
    told = {loss: loss_text(Progress(step=1, loss=loss)) for loss in (math.inf, -math.inf, 1.0, None)}
    assert told == {math.inf: "Inf", -math.inf: "-Inf", 1.0: "1.0000", None: None}
    said = loss_text(Progress(step=1, loss=math.nan))
    assert said == "NaN"
    assert figure_style(said) == "bad"
