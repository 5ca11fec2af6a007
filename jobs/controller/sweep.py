"""One launch of many runs: the points of a sweep's grid, each as a workflow of its own. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from jobs.contradictions import sweep_faults, workflow_contradictions
from jobs.errors import Refused
from jobs.spec import Workflow


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep."""

    workflow: Workflow
    """As if its file had named the values itself, so that the same values launched alone are the same release."""
    parameters: dict[str, Any]
    """Path below ``training`` to value; empty for a workflow without a sweep."""


def expand(workflow: Workflow) -> list[Point]:
    """The points of the workflow's grid, the last parameter changing fastest; without a sweep the workflow alone.

    Raises `Refused` for a grid that is none, and for a point that is no valid workflow.
    """
    if workflow.sweep is None:
        return [Point(workflow, {})]
    for fault in sweep_faults(workflow):
        raise Refused(fault.sentence)
    grid = workflow.sweep.parameters
    return [_point(workflow, dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]


def run_ids(sweep: str, count: int) -> Iterator[str]:
    """The ids of a sweep's runs, in the order of its points."""
    return (f"{sweep}-{number:03d}" for number in range(1, count + 1))


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
    """Lay a value where the path says, making mappings on the way."""
    *above, name = path.split(".")
    place = training
    for step in above:
        place = place.setdefault(step, {})
    place[name] = value
