"""What a change shows before it asks, and how much has to be typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.dispatch import prepare, preview_launch, preview_stop
from console.preview import SAMPLES
from jobs.errors import Refused
from jobs.model import RunState
from tests.unit.console.test_work_state import run


def test_stopping_one_run_takes_one_key_and_shows_what_is_at_stake() -> None:
    living = run("a").model_copy(update={"started_at": 0.0})
    preview = preview_stop([living], 3600.0)
    assert (preview.ask, preview.expected, preview.wants_reason) == ("y", "y", True)
    assert "at step 7, no checkpoint yet; 2.00 GPU-hours" in " ".join(preview.lines)


def test_at_once_takes_the_name_and_many_take_their_count() -> None:
    assert preview_stop([run("a")], 0.0, at_once=True).expected == "a"
    many = preview_stop([run("a"), run("b"), run("c", RunState.FAILED)], 0.0)
    assert (many.ask, many.expected) == ("count", "2"), "an ended run does not count"


def test_what_has_ended_is_not_stopped_again() -> None:
    with pytest.raises(Refused, match="a: ended already"):
        preview_stop([run("a", RunState.STOPPED)], 0.0)
    with pytest.raises(Refused, match="no run is chosen"):
        preview_stop([], 0.0)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_a_workflow_without_mistakes(name: str) -> None:
    prepared = prepare(name)
    assert prepared.workflow.name
    assert prepared.package.content[:2] == b"PK"


def test_the_first_sample_is_two_nodes_by_two() -> None:
    prepared = prepare("lm")
    assert (prepared.workflow.resources.nodes, prepared.workflow.processes_per_node, prepared.gpus) == (2, 2, 4)
    assert "it will wait" in " ".join(preview_launch(prepared, 3).warnings)
    assert not preview_launch(prepared, 4).warnings
    assert prepare("lm").package.digest == prepared.package.digest, "the same code is the same package"


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="does not exist"):
        prepare(str(tmp_path / "none.yaml"))
