"""The controller's promises on a real demo: runs that wait and say why, retries that go on, releases put back."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import yaml

from console.render.work import progress_of
from console.sources.http import HttpTransport
from jobs.client import ControllerClient
from jobs.model import Run, RunState
from jobs.package import sample_folder
from tests.cluster.test_demo import Headless, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SHORT = 90.0


@pytest.fixture(scope="module")
def demo() -> Generator[Headless]:
    headless = Headless(dict(os.environ))
    try:
        headless.wait_ready()
        yield headless
    finally:
        headless.process.terminate()
        headless.process.wait(30)


def workflow(folder: Path, name: str, sample: str, **changes: Any) -> str:
    """A file made from a sample; ``section__key`` goes into a section."""
    body = yaml.safe_load((Path(str(sample_folder())) / f"{sample}.yaml").read_text())
    body["workflow"]["name"] = name
    for path, value in changes.items():
        at = body["workflow"]
        *sections, key = path.split("__")
        for section in sections:
            at = at.setdefault(section, {})
        at[key] = value
    (folder / "lm.py").write_text((Path(str(sample_folder())) / "lm.py").read_text())
    (folder / "operations.txt").write_text((Path(str(sample_folder())) / "operations.txt").read_text())
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(body))
    return str(file)


def launch(demo: Headless, *arguments: str) -> str:
    found = demo.command("launch", *arguments, "--yes", "--json")
    return str((found[0] if isinstance(found, list) else found)["id"])


def run_of(demo: Headless, run: str) -> Run:
    """The run, straight from the controller's socket: asked often, it must cost little."""

    async def ask() -> Run:
        transport = HttpTransport.to_socket(str(Path(demo.ready["folder"]) / "store" / "controller.sock"))
        try:
            return await ControllerClient(transport).run(run)
        finally:
            await transport.close()

    return asyncio.run(ask())


def until_state(demo: Headless, run: str, *states: str, limit: float = SHORT) -> Run:
    return until(f"{run} {states}", lambda: (r := run_of(demo, run)).state.value in states and r, limit)


def losses(run: Run) -> dict[int, float]:
    """Step to loss, as the script reported them; a later attempt's count."""
    lines = Path(run.run_directory, "metrics.jsonl").read_text().splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines)}


def test_of_two_that_do_not_fit_together_one_waits_and_says_why(demo: Headless, tmp_path: Path) -> None:
    both = {
        "resources__nodes": 2, "resources__accelerators_per_node": 4, "training__processes_per_node": 1,
        "training__parameters__steps": 5000,
    }  # fmt: skip
    first = launch(demo, workflow(tmp_path, "whole", "lm", **both))
    until_state(demo, first, "running")
    second = launch(demo, workflow(tmp_path, "whole", "lm", **both))
    small = launch(demo, workflow(tmp_path, "small", "lm-single", training__parameters__steps=40))
    told = until("a position", lambda: (t := demo.command("explain", second, "--json"))["position"] and t, 20.0)
    assert told["position"] == 1
    kinds = {blocker["kind"] for blocker in told["blocked_by"]}
    assert kinds & {"resources", "queue_quota"}, told
    assert any(first in blocker["names"] for blocker in told["blocked_by"]), told
    assert told["would_start_if"]
    passed = demo.command("explain", small, "--json")
    assert passed["position"] == 2, "it has no time limit: to let it pass could delay the one ahead"
    assert [ahead["run"] for ahead in passed["ahead"]] == [second]
    text = demo.command("queue").stdout
    assert second in text
    assert "8 of 8" in text
    demo.command("hold", second, "--reason", "the small one first", "--yes")
    demo.command("stop", first, "--reason", "room", "--yes")
    ended = until_state(demo, small, "succeeded", limit=120.0)
    assert len(ended.attempts) == 1
    assert run_of(demo, second).state is RunState.QUEUED
    assert "held" in demo.command("explain", second).stdout
    demo.command("release", second, "--yes")
    until_state(demo, second, "running")
    demo.command("stop", second, "--now", "--wait", "--yes")
    assert demo.command("audit", "--verify").returncode == 0


def test_a_failed_attempt_is_tried_again_and_its_loss_goes_on_to_the_last_bit(demo: Headless, tmp_path: Path) -> None:
    whole = launch(demo, workflow(tmp_path, "unbroken", "failing", training__parameters__fail_attempts=0))
    broken = launch(demo, workflow(tmp_path, "broken", "failing"))
    ended = until_state(demo, broken, "succeeded", "failed", limit=150.0)
    assert (ended.state, len(ended.attempts), ended.retries) == (RunState.SUCCEEDED, 2, 1), ended.reason
    moves = demo.command("events", broken, "--json")
    cause = next(move["cause"] for move in moves if move["after"] == "queued" and move["before"] == "running")
    assert "application error" in cause
    assert "step 25" in cause
    assert any("from the checkpoint of step 20" in move["cause"] for move in moves)
    unbroken = losses(until_state(demo, whole, "succeeded", limit=60.0))
    resumed = losses(ended)
    shared = sorted(unbroken.keys() & resumed.keys())
    assert shared[-1] > 25
    assert [unbroken[step] for step in shared] == [resumed[step] for step in shared]
    rows = {row["step"]: row for row in demo.command("checkpoints", broken, "--json")}
    assert rows[20]["complete"]


def test_a_worse_release_is_rolled_back_and_the_rollback_can_be_taken_back(demo: Headless, tmp_path: Path) -> None:
    brief = {"training__parameters__steps": 40, "training__checkpoint_interval_steps": 20}
    good = launch(demo, workflow(tmp_path, "model", "lm-single", **brief))
    until_state(demo, good, "succeeded", limit=120.0)
    worse = {**brief, "training__parameters__steps": 5000, "training__learning_rate": 0.5}
    bad = launch(demo, workflow(tmp_path, "model", "lm-single", **worse))
    until("a step", lambda: progress_of(run_of(demo, bad)), SHORT)
    rows = demo.command("releases", "--workflow", "model", "--json")
    last_good = [row["id"] for row in rows if row["last_good"]]
    assert last_good == [run_of(demo, good).release]
    done = demo.command("rollback", "model", "--reason", "the loss got worse", "--yes", "--json")
    assert (done["to_release"], done["stopped"], done["from_run"], done["from_step"]) == (last_good[0], [bad], good, 40)
    until_state(demo, bad, "stopped")
    until_state(demo, done["started"], "succeeded", limit=120.0)
    back = demo.command("rollback", "--undo", done["id"], "--reason", "it was the data", "--yes", "--json")
    assert back["undone_at"]
    assert len(until_state(demo, bad, "running").attempts) == 2
    demo.command("stop", bad, "--now", "--wait", "--yes")


def test_a_restart_goes_back_to_a_chosen_step(demo: Headless, tmp_path: Path) -> None:
    brief = {"training__parameters__steps": 60, "training__checkpoint_interval_steps": 20}
    run = launch(demo, workflow(tmp_path, "again", "lm-single", **brief))
    before = losses(until_state(demo, run, "succeeded", limit=120.0))
    plan = demo.command("restart", run, "--from", "20", "--dry-run", "--json")
    assert (plan["from_step"], plan["set_aside"]) == (20, [40, 60])
    demo.command("restart", run, "--from", "20", "--reason", "see it again", "--yes")
    after = until_state(demo, run, "succeeded", limit=120.0)
    assert len(after.attempts) == 2
    assert losses(after)[60] == before[60]
    refused = demo.command("restart", run, "--from", "33", "--yes", check=False)
    assert refused.returncode == 1
    assert "33" in refused.stderr
