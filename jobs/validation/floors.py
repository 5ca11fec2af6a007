"""What a GPU of a model has to reach, whatever its like do: defaults by model, and what a site says instead. Pure.

Defaults: matrix products 60 % and memory 70 % of what the datasheet says of dense bf16 and of the memory (the best that
is measured in the field is about 80 %), transfers what the Azure health checks ask of PCIe 4 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from jobs.validationview import FigureName

CPU = "CPU"
"""The model that stands for what is measured without a GPU."""
FLOORS: Mapping[str, Mapping[FigureName, float]] = {
    "*A100-SXM4-80GB*": {"gemm": 187.0, "memory_bandwidth": 1430.0, "h2d": 21.0, "d2h": 21.0},
    "*H100 80GB HBM3*": {"gemm": 593.0, "memory_bandwidth": 2345.0, "h2d": 48.0, "d2h": 48.0},
    "*H200": {"gemm": 593.0, "memory_bandwidth": 3360.0, "h2d": 48.0, "d2h": 48.0},
    "NVIDIA B200*": {"gemm": 1350.0, "memory_bandwidth": 5600.0, "h2d": 48.0, "d2h": 48.0},
}
"""By the name that NVML gives (``*`` and ``?`` as in a shell): figure to floor. Other cuts of a chip are others."""


def floors_of(model: str, site: Mapping[str, Mapping[FigureName, float]]) -> dict[FigureName, float]:
    """Figure to floor for a model. What the site says of a figure is taken instead; zero takes a floor away.

    Of several patterns that fit, the later one counts.
    """
    found: dict[FigureName, float] = {}
    for known in (FLOORS, site):
        for pattern, floors in known.items():
            if fnmatchcase(model.casefold(), pattern.casefold()):
                found |= floors
    return {figure: floor for figure, floor in found.items() if floor > 0}
