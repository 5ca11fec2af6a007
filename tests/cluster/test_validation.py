"""The ladder on a real demo: every stage on simulated GPUs, and planted faults that are found and named."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from jobs.validations import workflow_text
from jobs.validationview import Ask, FigureName
from tests.cluster.test_course import launch, until_state
from tests.cluster.test_demo import Headless

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def demo() -> Generator[Headless]:
    headless = Headless(dict(os.environ))
    try:
        headless.wait_ready()
        yield headless
    finally:
        headless.process.terminate()
        headless.process.wait(30)


def planted(demo: Headless, folder: Path, ask: Ask) -> Any:
    """The report of a validation with a fault in it: launched as the workflow that it is."""
    folder.mkdir()
    file = folder / "validation.yaml"
    file.write_text(workflow_text(ask))
    run = launch(demo, str(file))
    until_state(demo, run, "succeeded")
    return demo.command("validate", "--show", run, "--json", check=False)


def verdicts(report: Any) -> dict[str, str]:
    return {stage["stage"]: stage["verdict"] for stage in report["stages"]}


def blamed(report: Any) -> list[tuple[str, list[str], int | None]]:
    return [(each["kind"], each["nodes"], each["gpu"]) for each in report["culprits"]]


def test_a_healthy_cluster_comes_up_the_whole_ladder(demo: Headless) -> None:
    report = demo.command("validate", "--yes", "--json", limit=180.0)
    assert verdicts(report) == dict.fromkeys(("preflight", "gpu", "node", "cluster"), "pass"), report["sentence"]
    assert (report["simulated"], report["done"], report["culprits"]) == (True, True, [])
    gpus = [(check["node"], check["gpu"]) for check in report["stages"][1]["checks"] if check["check"] == "gpu.gemm"]
    assert gpus == [(node, gpu) for node in ("worker-1", "worker-2") for gpu in range(4)]
    assert all(check["stand_in"] for check in report["stages"][1]["checks"] if check["check"] == "gpu.gemm")
    rows = demo.command("validate", "--list", "--json")
    assert [(row["run"], row["verdict"]) for row in rows] == [(report["id"], "pass")]
    shown = demo.command("validate", "--show", "last", "--json")
    assert shown["id"] == report["id"]
    # It gave its GPUs back.
    assert all(node["gpus_busy"] == 0 for node in demo.command("nodes", "--json"))


def test_silent_corruption_and_a_slow_node_are_named_and_the_ladder_goes_on_without(
    demo: Headless, tmp_path: Path
) -> None:
    floors: dict[str, dict[FigureName, float]] = {"CPU": {"gemm": 0.0001, "h2d": 0.0}}
    report = planted(demo, tmp_path / "a", Ask(profile="quick", fault="gemm:1", fault_node="worker-2", floors=floors))
    assert blamed(report) == [("gpu", ["worker-2"], 1)]
    assert verdicts(report) == {"preflight": "pass", "gpu": "fail", "node": "pass", "cluster": "skipped"}
    assert list(report["stages"][2]["left_out"]) == ["worker-2"]
    assert report["stages"][3]["sentence"] == "only worker-1 is left, and two are needed"
    judged = {figure["name"]: figure for check in report["stages"][1]["checks"] for figure in check["figures"]}
    assert (judged["gemm"]["floor"], judged["h2d"]["floor"]) == (0.0001, None)
    report = planted(demo, tmp_path / "b", Ask(stages=["cluster"], fault="slow:1:60", fault_node="all"))
    assert blamed(report) == [("node", ["worker-2"], None)]
    straggler = next(check for check in report["stages"][1]["checks"] if check["check"] == "cluster.straggler")
    assert (straggler["verdict"], straggler["again"]) == ("fail", True)
    # Whoever saved goes on from it, the slow one too: fewer ranks would be another training.
    resume = next(check for check in report["stages"][1]["checks"] if check["check"] == "cluster.resume")
    assert resume["verdict"] == "pass", resume["sentence"]


def test_gpus_in_use_are_waited_for_and_then_their_node_is_skipped(demo: Headless, tmp_path: Path) -> None:
    file = tmp_path / "busy.yaml"
    file.write_text(
        "workflow:\n  name: busy\n  entrypoint: busy.py\n"
        "  resources: {accelerators_per_node: 1, cpu_cores_per_node: 0}\n"
    )
    (tmp_path / "busy.py").write_text("import time\ntime.sleep(300)\n")
    run = launch(demo, str(file))
    until_state(demo, run, "running")
    report = planted(demo, tmp_path / "v", Ask(profile="prolog", stages=["gpu"], wait_seconds=1))
    left_out = report["stages"][1]["left_out"]
    assert len(left_out) == 1
    assert next(iter(left_out.values())) == "1 of its 4 GPUs are in use"
    assert report["stages"][1]["verdict"] == "pass"
    demo.command("stop", run, "--yes", "--now", "--json")


def test_a_node_that_is_not_there_fails_and_wrong_questions_are_refused(demo: Headless, tmp_path: Path) -> None:
    report = planted(demo, tmp_path / "v", Ask(profile="prolog", nodes=["worker-1", "worker-9"], stages=["preflight"]))
    assert blamed(report) == [("node", ["worker-9"], None)]
    refused = demo.command("validate", "--nodes", "nobody", "--yes", check=False)
    assert refused.returncode == 1
    assert "there is no node nobody in context demo" in refused.stderr
    assert demo.command("validate", "--show", "nothing-abc", check=False).returncode == 1
