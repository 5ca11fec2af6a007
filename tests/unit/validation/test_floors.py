"""What a GPU has to reach: by its model, and as the site says."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from jobs.load import FileMistakes, load_cluster
from jobs.validation.floors import CPU, FLOORS, floors_of
from jobs.validation.plan import FIGURES
from jobs.validationview import FigureName

CLUSTER = (Path(__file__).parents[2] / "data/configs/cluster.yaml").read_text()


@pytest.mark.parametrize(
    ("model", "gemm"),
    [
        ("NVIDIA H200", 593.0), ("NVIDIA H100 80GB HBM3", 593.0), ("NVIDIA A100-SXM4-80GB", 187.0),
        ("NVIDIA B200", 1350.0),
        # Other cuts of the same chips are slower by right.
        ("NVIDIA H100 PCIe", None), ("NVIDIA H200 NVL", None), ("NVIDIA A100 80GB PCIe", None), ("NVIDIA GB200", None),
        ("", None), (CPU, None),
    ],
)  # fmt: skip
def test_a_model_has_its_floors_and_no_other_ones(model: str, gemm: float | None) -> None:
    assert floors_of(model, {}).get("gemm") == gemm


def test_the_site_says_otherwise_for_one_figure_and_takes_one_away() -> None:
    site: dict[str, dict[FigureName, float]] = {"*h200*": {"gemm": 700.0, "h2d": 0.0}, "NVIDIA H200": {"gemm": 720.0}}
    assert floors_of("NVIDIA H200", site) == {"gemm": 720.0, "memory_bandwidth": 3360.0, "d2h": 48.0}
    assert floors_of("NVIDIA H200 NVL", site) == {"gemm": 700.0}


def test_every_figure_has_a_name_and_every_floor_is_of_one() -> None:
    assert set(get_args(FigureName)) == set(FIGURES)
    assert {figure for floors in FLOORS.values() for figure in floors} <= set(FIGURES)


def test_the_cluster_file_says_them_and_a_figure_that_there_is_not_is_refused() -> None:
    line = "    alert_on_failure: true"
    with_floors = CLUSTER.replace(line, line + '\n    validation: {floors: {"NVIDIA H200": {gemm: 700, h2d: 0}}}')
    floors = load_cluster(with_floors, "c").observability.validation.floors
    assert floors == {"NVIDIA H200": {"gemm": 700.0, "h2d": 0.0}}
    for wrong in ("gemn: 700", "gemm: -1", "gemm: fast"):
        with pytest.raises(FileMistakes) as told:
            load_cluster(with_floors.replace("gemm: 700", wrong), "c")
        (mistake,) = told.value.mistakes
        assert (mistake.line, wrong.split(":")[0] in mistake.message) == (49, True), mistake
