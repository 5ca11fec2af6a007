"""The report for people, and two of them compared."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from jobs.errors import Refused
from jobs.load import load_workflow
from jobs.validation.book import Book
from jobs.validation.plan import BY_ID, CHECKS, FIGURES, checks_of
from jobs.validationreport import compare, markdown
from jobs.validations import read_report, workflow_text
from jobs.validationview import PROFILES, STAGES, Ask, CheckResult, Culprit, Figure, Report, StageResult, Verdict


def check(verdict: Verdict = "pass", gpu: int | None = 0, rate: float = 700.0) -> CheckResult:
    return CheckResult(
        check="gpu.gemm", title="matrix product", stage="gpu", node="gpu-1", gpu=gpu, verdict=verdict,
        sentence=f"{rate:g} TFLOP/s | of it", criterion="no reference",
        figures=[Figure(name="gemm", unit="TFLOP/s", samples=[rate])],
        culprits=[Culprit(kind="gpu", nodes=["gpu-1"], gpu=gpu)] if verdict == "fail" else [],
        evidence=["line one"] if verdict == "fail" else [], stand_in=True,
    )  # fmt: skip


def report(*checks: CheckResult) -> Report:
    stages = [StageResult(stage="preflight"), StageResult(stage="gpu", nodes=["gpu-1"], checks=list(checks))]
    return Report(id="validation-a1", profile="quick", started_at=1.0, nodes=["gpu-1"], stages=stages, simulated=True)


def test_a_stage_is_as_good_as_its_worst_check_and_names_it(tmp_path: Path) -> None:
    book = Book(tmp_path, report(check(), check("fail", 1, 300.0)))
    book.skip("preflight", "not asked for")
    book.end(book.stage("gpu"), 3.0)
    book.close()
    made = read_report((tmp_path / "report.json").read_text(), "x")
    assert (made.verdict, made.done) == ("fail", True)
    assert made.sentence == "gpu-1/1: not to be trusted"
    assert made.stages[1].sentence == "gpu-1/1: 300 TFLOP/s | of it"
    text = (tmp_path / "report.md").read_text()
    assert "# Validation validation-a1: FAIL" in text
    assert "- gpu-1/1" in text
    assert "SIMULATED" in text
    assert "| FAIL | matrix product | gpu-1/1 | 300 TFLOP/s \\| of it (CPU) | no reference |" in text
    assert "    line one" in text
    assert text == markdown(made)


def test_what_is_all_skipped_proves_nothing(tmp_path: Path) -> None:
    book = Book(tmp_path, report())
    for stage in ("preflight", "gpu"):
        book.skip(stage, "GPUs in use")
    book.close()
    assert book.report.verdict == "unknown"


def test_two_reports_are_compared_by_verdict_and_by_figure() -> None:
    old, new = report(check(), check("pass", 1)), report(check("pass", 0, 600.0), check("fail", 1), check("pass", 2))
    lines = compare(old, new)
    assert lines == [
        "matrix product gpu-1/1: pass → FAIL (700 TFLOP/s | of it)",
        "matrix product gpu-1/0: gemm 700 → 600 TFLOP/s (-14%)",
        "matrix product gpu-1/2: not in the older one",
    ]
    assert compare(old, old) == []


def test_what_is_no_report_is_refused() -> None:
    with pytest.raises(Refused, match="is not a validation's report"):
        read_report('{"id": 3}', "report.json")


def test_a_validation_is_a_workflow_like_any_other() -> None:
    workflow = load_workflow(workflow_text(Ask(profile="quick", nodes=["gpu-1"], wait_seconds=3)), "validation.yaml")
    assert (workflow.kind, workflow.resources.accelerators) == ("ray", 0)
    assert Ask.model_validate(workflow.training.parameters) == Ask(profile="quick", nodes=["gpu-1"], wait_seconds=3)


def test_the_plan_is_whole() -> None:
    assert len(BY_ID) == len(CHECKS)
    assert {check.stage for check in CHECKS} < set(STAGES)
    for smaller, larger in itertools.pairwise(PROFILES):
        for stage in STAGES:
            assert {each.id for each in checks_of(smaller, stage)} <= {each.id for each in checks_of(larger, stage)}
    assert all(kind.title and kind.unit for kind in FIGURES.values())


def test_a_culprit_in_words() -> None:
    assert Culprit(kind="gpu", nodes=["gpu-1"], gpu=3).words == "gpu-1/3"
    assert Culprit(kind="link", nodes=["a", "b"], detail="port 6379").words == "the link a ↔ b (port 6379)"
    assert Culprit(kind="uplink", nodes=["a", "b"]).words == "the uplink of a, b"
    assert Culprit(kind="cluster", detail="rendezvous").words == "rendezvous"


def test_what_was_cut_off_has_ended_and_proves_nothing() -> None:
    made = report(check())
    made.stages[1].state, made.stages[1].doing = "running", {"gpu-1": "matrix product"}
    made.end("its run failed before it came to its end: killed")
    assert (made.done, made.verdict) == (True, "unknown")
    assert [(stage.state, stage.doing) for stage in made.stages] == [("done", {})] * 2
    assert made.stages[1].sentence == "it did not come to its end"
