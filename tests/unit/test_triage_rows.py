"""Each row of the troubleshooting tables: what is broken goes in, the cause and the culprit come out."""

from __future__ import annotations

import pytest

from console.actions import ACTIONS
from jobs.model import Failure, Outcome
from jobs.triage.findings import Culprit
from jobs.triage.patterns import PATTERNS, ROWS
from jobs.triage.report import triage
from probes.reading import Missing
from tests.unit import triage_cases_other, triage_cases_run, triage_cases_start
from tests.unit.triage_case import CASES, health_of, of_run
from tests.unit.triage_made import (
    FAILED_AT,
    failed,
    fleet,
)

assert CASES.keys() >= {
    triage_cases_start.no_driver.__name__,
    triage_cases_run.gpu_memory.__name__,
    triage_cases_other.machine_check.__name__,
}


@pytest.mark.parametrize("name", CASES)
def test_cause_and_culprit(name: str) -> None:
    _, make, cause, who = CASES[name]
    told = triage(make())
    assert told.findings, told.headline
    found = told.findings[0]
    words = found.culprit.words
    if who.startswith("path:"):
        words, who = found.culprit.path, who[5:]
    assert (found.id, words) == (cause, who), told.headline
    assert told.cause is found
    assert found.evidence
    assert found.cause.endswith((".", "…"))
    assert found.action.endswith((".", ")"))
    if who:
        assert who.rpartition(":")[2].lower() in told.headline.lower()
    bad = {step.name: step.state for step in told.steps}
    assert bad[found.step] in ("bad", "suspect")


def test_every_row_of_the_tables_has_cases_and_rules() -> None:
    hangs_are_tried_elsewhere = {"job hangs"}
    assert {row for row, *_ in CASES.values()} | hangs_are_tried_elsewhere == set(ROWS)
    assert len(CASES) >= 60
    by_log = {pattern.row for pattern in PATTERNS}
    assert set(ROWS) - by_log == {"service not reachable", "latency high", "logs missing"}


def test_keys_are_those_of_the_console() -> None:
    keys = {key for action in ACTIONS for key in action.keys} | {""}
    for name, (_, make, _, _) in CASES.items():
        for finding in triage(make()).findings:
            assert finding.key in keys, name


def test_a_blind_source_of_xids_is_said() -> None:
    made = fleet()
    health_of(made, "gpu-2").blind = {"xid": Missing("error", "neither the kernel's log nor NVML events")}
    told = triage(made)
    assert any("XIDs cannot be seen" in text for text in told.unknown)
    assert not any("no XID on 2 nodes" in text for text in told.ruled_out)


def test_an_outcome_alone_has_to_do_where_no_rank_left_anything() -> None:
    made = failed([], Failure.COMMUNICATION)
    outcome = of_run(made).run.attempts[0].outcome
    assert outcome is not None
    of_run(made).run.attempts[0].outcome = Outcome(
        verdict="failed", failure=Failure.COMMUNICATION, suspects=["gpu-2"], wall=FAILED_AT,
        reason="rank 0 on gpu-1 exited 1: RuntimeError: Timed out waiting 6000ms for recv operation to complete",
    )  # fmt: skip
    told = triage(made)
    assert told.findings[0].culprit == Culprit(node="gpu-2", run="run-1")
    assert any("logs of its ranks were not read" in text for text in told.unknown)
