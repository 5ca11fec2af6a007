"""What a change shows before it asks, and how much has to be typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.dispatch import prepare, preview_launch, preview_stop
from console.preview import SAMPLES
from console.stake import at_stake
from jobs.errors import Refused
from jobs.model import Attempt, GangStatus, Progress, RunState
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


def test_of_a_run_that_saved_only_what_came_after_counts() -> None:
    status = GangStatus(progress=Progress(step=300), checkpoint_step=200)
    attempt = Attempt(number=2, job_id="j", started_at=0.0, resume_step=100, status=status)
    living = run("a").model_copy(update={"attempts": [attempt]})
    (line,) = [line for line in preview_stop([living], 3600.0).lines if line.startswith("a (")]
    assert line.endswith("at step 300, checkpoint at step 200; about 1.00 GPU-hours since then"), "half of 2 GPUs × 1 h"
    fresh = attempt.model_copy(update={"status": status.model_copy(update={"checkpoint_step": 100})})
    line = at_stake(living.model_copy(update={"attempts": [fresh]}), 3600.0)
    assert line == "at step 300, no checkpoint since it began at step 100; 2.00 GPU-hours since then"


def test_one_run_of_anothers_takes_its_name() -> None:
    preview = preview_stop([run("a").model_copy(update={"user": "bob"})], 0.0, you="alice")
    assert (preview.ask, preview.expected) == ("name", "a")
    assert preview.warnings == ("1 run of bob, not yours",)
    assert preview_stop([run("a").model_copy(update={"user": "bob"})], 0.0).ask == "y", "nobody said who is asking"


def test_what_waits_loses_its_place_and_nothing_else() -> None:
    preview = preview_stop([run("a", RunState.QUEUED), run("b")], 0.0)
    assert preview.lines[:2] == (
        "1 run on 2 GPUs: asked to save and leave, then ended.",
        "1 run that waits: out of the queue.",
    )


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
