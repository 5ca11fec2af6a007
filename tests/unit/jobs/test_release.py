"""A release: the same for the same, another for anything else, and what differs between two."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.load import load_workflow
from jobs.release import Change, difference, freeze
from jobs.spec import Workflow

DATA = Path(__file__).parents[2] / "data"


def workflow(body: str = "") -> Workflow:
    return load_workflow(f"workflow:\n  name: lm\n{body}", "f.yaml")


def test_a_release_says_everything_that_was_meant() -> None:
    loaded = load_workflow((DATA / "configs/workflow.yaml").read_text(), "workflow.yaml")
    release = freeze(loaded, code_digest="c0de", user="alice", at=5.0, environment={"python": "3.11"})
    assert re.fullmatch(r"model-finetune-r-[0-9a-f]{8}", release.id)
    assert (release.workflow, release.created_at, release.user, release.code_digest) == (
        "model-finetune",
        5.0,
        "alice",
        "c0de",
    )
    assert release.config["training"]["batch_size"] == 64
    assert release.config["start_timeout"] == 600.0
    assert Workflow.model_validate(release.config) == loaded
    assert json.loads(release.model_dump_json())["config"] == release.config


def test_who_and_when_and_how_it_was_written_do_not_matter() -> None:
    first = freeze(workflow("  env: {B: b, A: a}\n"), code_digest="c", user="alice", at=1.0)
    second = freeze(
        workflow("  stop_grace: 30s\n  env:\n    A: 'a'\n    B: b\n"),
        code_digest="c",
        user="bob",
        at=2.0,
        environment={"x": "y"},
    )
    assert first.id == second.id


def test_the_id_is_the_same_in_every_version_that_has_the_same_defaults() -> None:
    first = freeze(workflow(), code_digest="c", user="a", at=0.0)
    again = freeze(Workflow.model_validate(first.config), code_digest="c", user="a", at=0.0)
    assert first.id == again.id


@pytest.mark.parametrize(
    "body",
    ["  seed: 1\n", "  env: {A: a}\n", "  training: {batch_size: 2}\n", "  data: {version: v2}\n", "  queue: q\n"],
)
def test_anything_else_is_another_release(body: str) -> None:
    plain = freeze(workflow(), code_digest="c", user="a", at=0.0)
    assert freeze(workflow(body), code_digest="c", user="a", at=0.0).id != plain.id
    assert freeze(workflow(), code_digest="d", user="a", at=0.0).id != plain.id


def test_the_content_of_the_data_counts_and_the_machine_does_not() -> None:
    plain = freeze(workflow(), code_digest="c", user="a", at=0.0)
    told = freeze(workflow(), code_digest="c", user="a", at=0.0, data_digest="d1")
    assert told.data_digest == "d1"
    assert len({plain.id, told.id, freeze(workflow(), code_digest="c", user="a", data_digest="d2").id}) == 3
    elsewhere = freeze(workflow(), code_digest="c", user="a", at=0.0, environment={"torch": "2.13"})
    assert elsewhere.id == plain.id
    seeded = freeze(workflow("  seed: 7\n"), code_digest="c", user="a", at=0.0)
    assert seeded.seed == 7
    assert difference(plain, told) == [Change("data_digest", "", "d1")]


def test_references_to_secrets_stay_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "resolved-too-early")
    release = freeze(workflow("  env: {HF_TOKEN: '${env:HF_TOKEN}'}\n"), code_digest="c", user="a", at=0.0)
    assert release.config["env"] == {"HF_TOKEN": "${env:HF_TOKEN}"}
    assert "resolved-too-early" not in release.model_dump_json()


def test_what_differs() -> None:
    old = freeze(
        workflow("  env: {A: a, B: b}\n  seed: 1\n"), code_digest="c", user="a", at=0.0, environment={"ray": "2.52"}
    )
    new = freeze(
        workflow("  env: {A: a, C: c}\n  training: {batch_size: 8, parameters: {deep: {x: [1]}}}\n  seed: 1\n"),
        code_digest="d",
        user="b",
        at=9.0,
        environment={"ray": "2.60"},
    )
    assert difference(old, new) == [
        Change("code_digest", "c", "d"),
        Change("env.B", "b", None),
        Change("env.C", None, "c"),
        Change("environment.ray", "2.52", "2.60"),
        Change("training.batch_size", None, 8),
        Change("training.parameters.deep.x", None, [1]),
    ]


def test_an_empty_mapping_is_something() -> None:
    old = freeze(workflow(), code_digest="c", user="a", at=0.0)
    new = freeze(workflow("  training: {parameters: {deep: {}}}\n"), code_digest="c", user="a", at=0.0)
    assert difference(old, new) == [Change("training.parameters.deep", None, {})]


_PARAMETERS = st.dictionaries(
    st.sampled_from("abc"),
    st.one_of(st.integers(0, 2), st.booleans(), st.text("xy", max_size=1), st.lists(st.integers(0, 1))),
)


@settings(deadline=None)
@given(_PARAMETERS, _PARAMETERS)
def test_two_releases_differ_in_something_or_are_one(first: dict[str, object], second: dict[str, object]) -> None:
    old, new = (
        freeze(Workflow.model_validate({"name": "w", "training": {"parameters": p}}), code_digest="c", user="a", at=0.0)
        for p in (first, second)
    )
    there, back = difference(old, new), difference(new, old)
    assert (there == []) == (old.id == new.id)
    assert [(change.path, change.new, change.old) for change in there] == [
        (change.path, change.old, change.new) for change in back
    ]
