"""One launch of many runs: the points of a sweep's grid, each as a workflow of its own. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from jobs.contradictions import workflow_contradictions
from jobs.errors import Refused
from jobs.spec import Training, Workflow

POINTS_AT_MOST = 1_000
_FREE = "parameters"
"""Below it a workflow's author names what the script takes."""


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep."""

    workflow: Workflow
    """As if its file had named the values itself, so that the same values launched alone are the same release."""
    parameters: dict[str, Any]
    """Path below ``training`` to value; empty for a workflow without a sweep."""


def expand(workflow: Workflow) -> list[Point]:
    """The points of the workflow's grid, the last parameter changing fastest; without a sweep the workflow alone.

    Raises `Refused` for more than `POINTS_AT_MOST`, for a parameter that there is none of, and for a point that is no
    valid workflow.
    """
    if workflow.sweep is None:
        return [Point(workflow, {})]
    grid = workflow.sweep.parameters
    count = math.prod(len(values) for values in grid.values())
    if count > POINTS_AT_MOST:
        sizes = " × ".join(str(len(values)) for values in grid.values())
        raise Refused(
            f"the sweep has {count:,} points ({sizes}), and {POINTS_AT_MOST:,} is the most",
            "Give its parameters fewer values, or launch it in parts",
        )
    for path in grid:
        _check(path)
    return [_point(workflow, dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]


def run_ids(sweep: str, count: int) -> Iterator[str]:
    """The ids of a sweep's runs, in the order of its points."""
    return (f"{sweep}-{number:03d}" for number in range(1, count + 1))


def _check(path: str) -> None:
    head, *rest = path.split(".")
    if rest:
        if head == _FREE and all(rest):
            return
    elif head in Training.model_fields and head != _FREE:
        return
    known = ", ".join(sorted(Training.model_fields.keys() - {_FREE}))
    raise Refused(
        f"the sweep varies {path}, and there is no training.{path}",
        f"A parameter of the script's own is written {_FREE}.{rest[-1] if rest and rest[-1] else head}; besides there "
        f"are {known}",
    )


def _point(workflow: Workflow, parameters: dict[str, Any]) -> Point:
    raw = workflow.model_dump(mode="json")
    raw["sweep"] = None
    for path, value in parameters.items():
        _set(raw["training"], path, value)
    words = ", ".join(f"{path} = {value}" for path, value in parameters.items())
    try:
        made = Workflow.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Refused(f"the sweep's point {words} is no workflow: {where}: {first['msg']}") from error
    for place, sentence in workflow_contradictions(made):
        raise Refused(f"the sweep's point {words} is no workflow: {'.'.join(map(str, place))}: {sentence}")
    return Point(made, parameters)


def _set(training: dict[str, Any], path: str, value: Any) -> None:
    """Lay a value where the path says, making mappings on the way. Raises `Refused` where something else lies there."""
    *above, name = path.split(".")
    place = training
    for step in above:
        inner = place.setdefault(step, {})
        if not isinstance(inner, dict):
            raise Refused(f"the sweep varies {path}, but training has no mapping at {step}")
        place = inner
    place[name] = value
