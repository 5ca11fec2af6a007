"""Triage on a real demo: the rank that failed, and why; the rank that was stopped; the archive."""

from __future__ import annotations

import json
import os
import signal
import tarfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_course import launch, run_of, until_state, workflow
from tests.cluster.test_demo import Headless, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

STILL_SECONDS = 45.0
"""A run that has reported nothing for half a minute stands still; and some time for the look at its ranks."""


@pytest.fixture(scope="module")
def demo() -> Generator[Headless]:
    headless = Headless(dict(os.environ))
    try:
        headless.wait_ready()
        yield headless
    finally:
        headless.process.terminate()
        headless.process.wait(30)


def test_the_rank_that_failed_first_is_named_with_its_line(demo: Headless, tmp_path: Path) -> None:
    run = launch(demo, workflow(tmp_path, "fails-once", "failing", training__max_retry=0))
    assert run_of(demo, run).id == run
    until_state(demo, run, "failed")
    path = tmp_path / "bundle.tar.gz"
    found = demo.command("triage", run, "--json", "--bundle", str(path))
    assert "told to fail at step 25" in json.dumps(found["findings"][0])
    cause = found["findings"][0]
    assert (cause["culprit"]["rank"], cause["culprit"]["node"], cause["step"]) == (1, "worker-2", "code and model")
    line = next(item for item in cause["evidence"] if "told to fail" in item["text"])
    assert line["place"].startswith("rank-1.log:")
    assert line["place"].endswith(" on worker-2")
    assert line["wall"] is not None
    # Rank 0 may be asked to end before it has said that it lost its peer: then its end is told instead of a line.
    followed = [item["place"] for item in cause["consequences"]]
    assert any(place.startswith(("rank-0.log", "rank 0 on ")) for place in followed), followed
    assert {step["name"]: step["state"] for step in found["steps"]}["infrastructure"] == "ok"
    assert demo.command("triage", run, "--check", check=False).returncode == 1

    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        assert {"manifest.json", "logs/worker-2-rank-1.log", "timeline.jsonl", "samples/newest.json"} <= names
        member = next(member for member in archive if member.name.endswith("timeline.jsonl"))
        file = archive.extractfile(member)
        assert file is not None
        happened = [json.loads(line) for line in file]
    told = [(each["kind"], each["what"]) for each in happened]
    assert told.index(("rank", f"{run} rank 1")) < told.index(("rank", f"{run} rank 0"))
    assert ("run", run) in told


def test_an_attempt_that_was_made_good_can_still_be_asked_about(demo: Headless, tmp_path: Path) -> None:
    run = launch(demo, workflow(tmp_path, "fails-first", "failing", training__parameters__steps=40))
    until_state(demo, run, "succeeded")
    cause = demo.command("triage", run, "--attempt", "1", "--json")["findings"][0]
    assert cause["culprit"]["rank"] == 1
    assert "told to fail" in json.dumps(cause)
    assert demo.command("triage", run, "--attempt", "9", check=False).returncode == 1


def test_the_rank_that_was_stopped_is_named_while_the_others_wait(demo: Headless, tmp_path: Path) -> None:
    run = launch(demo, workflow(tmp_path, "stands-still", "lm", training__parameters__steps=5000))
    until_state(demo, run, "running")

    def steps() -> Any:
        attempt = run_of(demo, run).attempt
        status = attempt.status if attempt is not None else None
        return status if status is not None and status.progress is not None and status.progress.step > 10 else None

    status = until("some steps", steps, 90.0)
    rank = next(rank for rank in status.ranks if rank.rank == 2)
    os.kill(rank.pid, signal.SIGSTOP)
    try:

        def named() -> Any:
            found = demo.command("triage", run, "--json")
            cause = found["findings"][0] if found["findings"] else {"culprit": {"rank": None}}
            return found if cause["culprit"]["rank"] == 2 else None

        found = until("rank 2 is named", named, STILL_SECONDS + 30.0)
        assert "stopped" in json.dumps(found["findings"][0])
        assert found["findings"][0]["culprit"]["node"] == "worker-2"
    finally:
        os.kill(rank.pid, signal.SIGCONT)
        demo.command("stop", run, "--yes", "--now")


def test_the_fleet_a_node_and_a_gpu_can_be_asked_about(demo: Headless) -> None:
    for target in ((), ("worker-1",), ("worker-1/2",)):
        found = demo.command("triage", *target, "--json")
        assert {step["name"]: step["state"] for step in found["steps"]}["infrastructure"] in ("ok", "suspect"), found
    assert demo.command("triage", "worker-1/9", check=False).returncode == 1
    assert "| infrastructure |" in demo.command("triage", "worker-1", "--markdown").stdout
