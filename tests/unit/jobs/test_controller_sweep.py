"""A sweep's points: all of the grid, in its order, each a workflow as if it had been written alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.contradictions import SWEEP_POINTS_AT_MOST
from jobs.controller.sweep import expand, run_ids
from jobs.errors import Refused
from jobs.load import load_workflow
from jobs.release import freeze
from jobs.spec import Workflow


def swept(grid: dict[str, list[Any]], **training: Any) -> Workflow:
    return Workflow.model_validate({"name": "lm", "training": training, "sweep": {"parameters": grid}})


def test_the_last_parameter_changes_fastest() -> None:
    points = expand(swept({"learning_rate": [0.1, 0.2], "parameters.width": [8, 16]}))
    assert [point.parameters for point in points] == [
        {"learning_rate": 0.1, "parameters.width": 8},
        {"learning_rate": 0.1, "parameters.width": 16},
        {"learning_rate": 0.2, "parameters.width": 8},
        {"learning_rate": 0.2, "parameters.width": 16},
    ]
    last = points[-1].workflow
    assert (last.training.learning_rate, last.training.parameters, last.sweep) == (0.2, {"width": 16}, None)


def test_a_workflow_without_a_sweep_is_itself() -> None:
    workflow = Workflow(name="lm")
    (point,) = expand(workflow)
    assert (point.workflow, point.parameters) == (workflow, {})


def test_a_point_is_the_release_that_its_values_alone_would_be() -> None:
    point = expand(swept({"parameters.optimizer.beta": [0.9]}, parameters={"optimizer": {"name": "adam"}}))[0]
    alone = load_workflow(
        "workflow:\n  name: lm\n  training: {parameters: {optimizer: {name: adam, beta: 0.9}}}\n", "lm.yaml"
    )
    assert freeze(point.workflow, code_digest="c", user="a").id == freeze(alone, code_digest="c", user="b").id


def test_the_ids_follow_the_points() -> None:
    assert list(run_ids("lm-abc", 3)) == ["lm-abc-001", "lm-abc-002", "lm-abc-003"]
    assert list(run_ids("lm-abc", 1000))[-1] == "lm-abc-1000"


@pytest.mark.parametrize(
    ("parameters", "training", "words"),
    [
        ({"parameters.a": list(range(40)), "parameters.b": list(range(26))}, {}, r"1,040 points \(40 × 26\)"),
        ({"learning_rat": [0.1]}, {}, "there is no training.learning_rat"),
        ({"parameters": [{}]}, {}, "names none of the script's parameters"),
        ({"parameters.": [1]}, {}, "names none of the script's parameters"),
        ({"batch_size.x": [1]}, {}, "there is no training.batch_size.x"),
        ({"learning_rate": [0.1, -0.1]}, {}, r"learning_rate = -0.1 is no workflow: training.learning_rate: .*greater"),
        ({"batch_size": ["many"]}, {}, "batch_size = many is no workflow"),
        ({"parameters.a.b": [1]}, {"parameters": {"a": 5}}, "training.parameters.a is a value here"),
        ({"parameters.token": ["${env:TOKEN}"]}, {}, "a value of parameters.token .*env"),
    ],
)
def test_what_is_no_grid_is_refused_with_the_reason(
    parameters: dict[str, list[Any]], training: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused, match=words):
        expand(swept(parameters, **training))


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.sampled_from(["learning_rate", "batch_size", "parameters.a", "parameters.b.c"]),
        st.lists(st.integers(1, 50), min_size=1, max_size=5, unique=True),
        min_size=1,
    )
)
def test_each_point_of_the_grid_is_there_once(parameters: dict[str, list[Any]]) -> None:
    values = {
        path: [float(each) for each in row] if path == "learning_rate" else row for path, row in parameters.items()
    }
    points = expand(swept(values))
    assert len(points) == math.prod(map(len, values.values())) <= SWEEP_POINTS_AT_MOST
    assert len({str(point.parameters) for point in points}) == len(points)
    for point in points:
        for path, value in point.parameters.items():
            place: Any = point.workflow.training.model_dump()
            for step in path.split("."):
                place = place[step]
            assert place == value
