"""`raydeck triage`: what it prints, its exit codes, the archive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import console.triage.judge as judging
from console.triage.judge import Judged, Told
from jobs.errors import Refused
from jobs.triage.evidence import Evidence, Target
from jobs.triage.findings import STEP_NAMES, StepResult
from jobs.triage.report import triage
from tests.unit.console.desk import WALL, Desk, squeezed
from tests.unit.console.desk import desk as desk
from tests.unit.console.triage_parts import SECRETS, judged


@pytest.fixture
def asked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Target, int | None]]:
    """What was asked about; the answer is always the same run's."""
    desk.nodes("gpu-1", "gpu-2")
    asked: list[tuple[Target, int | None]] = []

    async def judge(session: Any, target: Target, told: Told, *, attempt: int | None = None, **_: Any) -> Judged:
        asked.append((target, attempt))
        if target.name == "nobody-a1":
            raise Refused("there is no run nobody-a1")
        told(STEP_NAMES[0], "the nodes", None)
        told(STEP_NAMES[0], "", StepResult(STEP_NAMES[0], "ok", "all is well"))
        if target.name == "gpu-1":
            evidence = Evidence(WALL, target)
            return Judged(evidence, triage(evidence), 0.1)
        return judged()

    def no_stream(*_: Any, **__: Any) -> Any:
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(judging, "judge", judge)
    monkeypatch.setattr(desk.answers, "stream", no_stream)
    return asked


def test_the_answer_for_a_person(desk: Desk, asked: list[Any]) -> None:
    code, out, err = desk.call("triage", "lm-a1")
    assert code == 0, "it could be done, whatever it found"
    lines = squeezed(out)
    assert lines[0].startswith("run lm-a1 ")
    assert any(line.startswith("seen ") for line in lines)
    assert [line.split(":")[0] for line in err.splitlines()] == ["infrastructure", "infrastructure"]
    assert not any(secret in out for secret in SECRETS)
    assert asked == [(Target("run", "lm-a1"), None)]


def test_as_json_and_as_markdown_without_secrets(desk: Desk, asked: list[Any]) -> None:
    found = desk.json("triage", "lm-a1", "--attempt", "1")
    assert {step["name"] for step in found["steps"]} == set(STEP_NAMES)
    assert not any(secret in json.dumps(found) for secret in SECRETS)
    code, out, _ = desk.call("triage", "gpu-2/9", "--markdown")
    assert code == 1, "gpu-2 shows no such GPU"
    code, out, _ = desk.call("triage", "--markdown")
    assert code == 0
    assert out.startswith("## Triage of run lm-a1, 2026-05-28 20:26:40Z")
    assert not any(secret in out for secret in SECRETS)
    assert asked == [(Target("run", "lm-a1"), 1), (Target(), None)]


def test_check_makes_a_finding_a_failure(desk: Desk, asked: list[Any]) -> None:
    assert desk.call("triage", "lm-a1", "--check")[0] == 1
    assert desk.call("triage", "gpu-1", "--check")[0] == 0
    assert asked[-1] == (Target("node", "gpu-1"), None)


def test_the_bundle_is_written_once(desk: Desk, asked: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    code, _, err = desk.call("triage", "lm-a1", "--bundle", str(path))
    assert code == 0
    assert f"{path}: " in err
    assert "left out: the audit log: " in err
    before = path.read_bytes()
    code, _, err = desk.call("triage", "lm-a1", "--bundle", str(path))
    assert (code, path.read_bytes()) == (1, before)
    assert "exists already" in err
    assert len(asked) == 1, "nothing is gathered for nothing"


def test_nothing_to_reach_is_3(desk: Desk, asked: list[Any]) -> None:
    for node in desk.fleet.nodes.values():
        node.ssh.move("lost", "no route", 0.0)
    desk.fleet.ray.move("down", "no answer", 0.0)
    desk.work.controller_state("absent", "no socket", 0.0)
    code, _, err = desk.call("triage")
    assert code == 3
    assert "neither a node, nor Ray, nor the controller can be reached; gpu-1: ssh is lost: no route" in err
    assert asked == []


def test_wrong_words(desk: Desk, asked: list[Any]) -> None:
    assert desk.call("triage", "lm-a1", "--json", "--markdown")[0] == 2
    code, _, err = desk.call("triage", "nobody-a1")
    assert (code, err.splitlines()[-1]) == (1, "raydeck: there is no run nobody-a1")
    assert asked == [(Target("run", "nobody-a1"), None)]
