"""A validation as rows and lines: the worst first, what is bad stays in sight, and names are data."""

from __future__ import annotations

from console.render.cells import spans_of
from console.render.validation import RUNG_COLUMNS, MatrixRow, Rung, figure_lines, matrix, matrix_columns, row_lines
from console.widgets.table import lay_out
from jobs.validationview import CheckResult, Culprit, Figure, Report, StageResult, Verdict


def check(name: str, node: str = "", gpu: int | None = None, verdict: Verdict = "pass", **more: object) -> CheckResult:
    stage, _, title = name.partition(".")
    return CheckResult(
        check=name, title=title, stage=stage, node=node, gpu=gpu, verdict=verdict, sentence=f"{name} said",  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


def text(lines: object) -> str:
    return "\n".join("".join(cell.text for cell in line) for line in lines)  # type: ignore[attr-defined]


def test_a_row_is_as_bad_as_its_worst_gpu_and_says_how_many_are_so() -> None:
    stage = StageResult(stage="gpu", nodes=["a", "b"], checks=[
        check("gpu.gemm", "a", 0), check("gpu.gemm", "a", 1), check("gpu.gemm", "b", 0, "fail"),
        check("gpu.gemm", "b", 1, "fail"), check("gpu.gemm", "b", 2),
    ])  # fmt: skip
    rows = matrix(stage)
    assert list(rows) == ["b", "a"]
    assert rows["b"].verdict("gpu.gemm") == "fail"
    column = next(column for column in matrix_columns(stage) if column.key == "gpu.gemm")
    assert [spans_of(column.cell(rows[name]))[0].text for name in "ba"] == ["✗ 2", "✓"]


def test_of_what_is_said_of_all_only_whom_it_blames_fails() -> None:
    blame = [Culprit(kind="link", nodes=["a", "c"])]
    stage = StageResult(stage="cluster", nodes=["a", "b", "c"], left_out={"d": "its clock"}, checks=[
        check("cluster.pairs", verdict="fail", culprits=blame), check("cluster.train", verdict="fail"),
    ])  # fmt: skip
    rows = matrix(stage)
    assert [rows[name].verdict("cluster.pairs") for name in "abc"] == ["fail", "pass", "fail"]
    # Nobody alone is to blame: all are.
    assert [rows[name].verdict("cluster.train") for name in "abc"] == ["fail"] * 3
    assert rows["d"].verdict("cluster.pairs") is None
    assert "left out: its clock" in text(row_lines(rows["d"], stage, 80))


def test_where_room_is_short_what_is_bad_stays_in_sight() -> None:
    names = [f"preflight.c{at:02}" for at in range(11)]
    stage = StageResult(stage="preflight", nodes=["a"], checks=[
        check(name, "a", verdict="fail" if name.endswith("10") else "pass") for name in names
    ])  # fmt: skip
    shown = [column.key for column, _ in lay_out(matrix_columns(stage), 60)]
    assert shown[0] == "node"
    assert "preflight.c10" in shown
    assert len(shown) < len(names)


def test_the_page_begins_with_what_is_wrong_and_names_are_no_markup() -> None:
    bad = check("gpu.gemm", "[red]a", 1, "fail", evidence=["[bold]x\x1b[2J"], again=True, stand_in=True)
    row = MatrixRow("[red]a", (check("gpu.train", "[red]a", 0), bad))
    told = text(row_lines(row, StageResult(stage="gpu"), 80)).splitlines()
    assert told[0].startswith(" ✗ FAIL  gemm [red]a/1")
    assert "(CPU, measured twice)" in told[0]
    assert "\x1b" not in "\n".join(told)
    assert any("gpu.train said" in line for line in told)


def test_what_several_gpus_came_through_is_one_line() -> None:
    def one(gpu: int, value: float) -> CheckResult:
        return check("gpu.gemm", "a", gpu, figures=[Figure(name="gemm", unit="TFLOP/s", samples=[value])])

    row = MatrixRow("a", (one(0, 600.0), one(1, 612.0), check("gpu.gemm", "a", 2, "warn"), check("gpu.train", "a", 0)))
    told = text(row_lines(row, StageResult(stage="gpu"), 80)).splitlines()
    assert told[0].startswith(" ▲ WARN  gemm a/2")
    assert told[1] == " ✓ pass  gemm  2 GPUs: 600 to 612 TFLOP/s"
    assert len(told) == 3


def test_a_figure_stands_beside_what_it_is_judged_by_and_what_it_was() -> None:
    def report(run: str, value: float) -> Report:
        figure = Figure(name="gemm", unit="TFLOP/s", samples=[value, value + 2], floor=400.0, peers=610.0)
        checks = [check("gpu.gemm", "a", 0, figures=[figure])]
        return Report(id=run, profile="quick", started_at=0.0, stages=[StageResult(stage="gpu", checks=checks)])

    reports = [report("v1", 600.0), report("v2", 500.0)]
    row = MatrixRow("a", tuple(reports[-1].checks()))
    told = text(figure_lines(row, reports, 100))
    assert "501 TFLOP/s (2 samples, spread 0%)" in told
    assert "400 TFLOP/s" in told
    assert "610 TFLOP/s" in told
    assert "601, 501" in told
    assert "no check of this stage measured a figure" in text(figure_lines(MatrixRow("a", ()), [], 80))


def test_time_left_is_the_budget_less_what_has_passed() -> None:
    column = next(column for column in RUNG_COLUMNS if column.key == "time")
    going = StageResult(stage="gpu", state="running", budget_seconds=240.0, began_at=1000.0)
    assert text([column.cell(Rung(going, 1060.0))]).endswith("60s, 180s left")
    assert text([column.cell(Rung(going, 1300.0))]).endswith("300s, 0s left")
