"""The page of the fault matrix: what is kept of one run stands beside what an earlier one found."""

from __future__ import annotations

from pathlib import Path

from tests.faults import page
from tests.faults.fault import Result


def test_rows_are_replaced_one_by_one_and_counted_together(tmp_path: Path) -> None:
    path = tmp_path / "RESULT.md"
    assert page.read(path) == {}
    first = page.Row.of(Result("GPU lost", 1.26, "gpu.lost", True, "worker-1/2: the GPU | is lost"))
    second = page.Row.of(Result("slow link", None, "", False, "", ["a: b"], "Refused: no"))
    page.write(path, {row.fault: row for row in (second, first)}, ["GPU lost", "slow link", "gone"])
    assert page.read(path) == {first.fault: first, second.fault: second}
    assert list(page.read(path)) == ["GPU lost", "slow link"]
    assert path.read_text().endswith("    faults 2, named 1, wrong 1, false alarms 1, median detection 1.3 s\n"), (
        path.read_text()
    )
    again = page.Row.of(Result("slow link", 40.0, "run.slow", True, "Probably run a"))
    page.write(path, {**page.read(path), again.fault: again}, ["GPU lost", "slow link"])
    assert page.read(path)["slow link"] == again
