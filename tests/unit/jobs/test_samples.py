"""The samples are what a newcomer launches first: each file loads, and names what lies beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

import jobs
from jobs import load
from jobs.spec import Workflow

SAMPLES = Path(jobs.__file__).parent / "samples"


def workflow_of(path: Path) -> Workflow:
    return load.load_workflow(path.read_text(), path.name)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_loads_and_has_its_script(path: Path) -> None:
    workflow = workflow_of(path)
    assert workflow.name == path.stem
    assert any((SAMPLES / word).is_file() for word in workflow.script)
    assert path.read_text().startswith("# ")


def test_the_failing_one_is_tried_again_and_gets_to_its_end() -> None:
    workflow = workflow_of(SAMPLES / "failing.yaml")
    parameters = workflow.training.parameters
    saved = workflow.training.checkpoint_interval_steps
    assert parameters["fail_at_step"] > 2 * saved
    assert parameters["fail_attempts"] <= workflow.training.max_retry
    assert parameters["steps"] * parameters["pause_seconds"] < 45
    assert workflow.retry_backoff <= 5


def test_the_sweep_is_of_three_runs_two_at_a_time() -> None:
    workflow = workflow_of(SAMPLES / "sweep.yaml")
    assert workflow.sweep is not None
    assert {name: len(values) for name, values in workflow.sweep.parameters.items()} == {"learning_rate": 3}
    assert workflow.sweep.parallel == 2
