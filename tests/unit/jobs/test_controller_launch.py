"""What a launch makes: queue and priority, a sweep in one stroke, the release's identity, and a dry run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from jobs import package
from jobs.controller.access import Access, Caller, NotAllowed, Role
from jobs.controller.fingerprint import fingerprint
from jobs.errors import Refused, Usage
from jobs.model import RunState
from jobs.spec import Roles
from tests.unit.jobs.controller_harness import WORKFLOW, Harness, controller, short_folder
from tests.unit.jobs.ray_stand_in import RayStandIn

CLUSTER = """\
cluster:
  name: c
  control_nodes: [{{host: localhost}}]
  storage: {{output_path: {store}/output, dataset_path: {store}/data}}
  scheduler:
    default_queue: training
    queues:
      - {{name: training, max_accelerators: 4, priority: low}}
      - {{name: inference, priority: high}}
    limits: {{max_queued_runs: 6}}
"""


@pytest.fixture
async def desk() -> AsyncGenerator[Harness]:
    async with (
        short_folder() as store,
        RayStandIn().serving() as ray,
        controller(ray, store, CLUSTER.format(store=store), ticks=False) as harness,
    ):
        yield harness


def workflow(*lines: str) -> str:
    return "workflow:\n  name: lm\n" + "".join(f"  {line}\n" for line in lines)


async def test_a_priority_is_the_requests_the_files_or_the_queues(desk: Harness) -> None:
    plain, files = workflow(), workflow("priority: 7", "queue: inference")
    for request, queue, priority in (
        (desk.request(plain), "training", "low"),
        (desk.request(plain, queue="inference"), "inference", "high"),
        (desk.request(files), "inference", "7"),
        (desk.request(files, priority="normal", queue="training"), "training", "normal"),
    ):
        run = await desk.launch(request)
        assert (run.queue, run.priority) == (queue, priority)


async def test_all_that_the_file_says_of_a_run_is_in_its_record(desk: Harness) -> None:
    text = workflow(
        "max_duration: 2h", "silence_timeout: 10m", "retry_backoff: 30s", "stop_grace: 45s", "seed: 3",
        "training: {max_retry: 2, checkpoint_interval_steps: 50}", "checkpoints: {keep_last: 3, keep_every: 500}",
        "env: {HF_TOKEN: '${env:HF_TOKEN}'}",
    )  # fmt: skip
    run = await desk.launch(desk.request(text))
    record = await desk.service.runs.find(run.id)
    launch = record.launch
    assert (run.max_retry, run.max_duration_seconds) == (2, 7200.0)
    assert (record.silence_timeout_seconds, record.retry_backoff_seconds, launch.stop_grace_seconds) == (600, 30, 45)
    assert (launch.kind, launch.keep_last, launch.keep_every, launch.checkpoint_interval_steps) == ("train", 3, 500, 50)
    assert launch.environment == {"HF_TOKEN": "${env:HF_TOKEN}"}
    assert launch.config["seed"] == 3
    (release,) = await desk.client.releases()
    assert (release.seed, release.id) == (3, run.release)
    assert [(move.before, move.after, move.cause, move.actor) for move in await desk.client.moves(run.id)] == [
        (None, RunState.QUEUED, f"launched by {run.user}", run.user)
    ]


async def test_any_ray_entrypoint_may_refer_to_secrets(desk: Harness) -> None:
    text = workflow("kind: ray", "entrypoint: python search.py --trials 3", "env: {KEY: '${file:/etc/key}'}")
    run = await desk.launch(desk.request(text))
    record = await desk.service.runs.find(run.id)
    assert (run.kind, record.launch.kind, record.launch.script) == (
        "ray",
        "ray",
        ["python", "search.py", "--trials", "3"],
    )
    assert record.launch.environment == {"KEY": "${file:/etc/key}"}


async def test_a_run_can_be_held_from_the_start(desk: Harness) -> None:
    run = await desk.launch(desk.request(hold=True))
    assert run.held is not None
    assert run.held.user == run.user
    assert (await desk.client.audit())[0].reason.endswith(", held")
    assert [blocker.kind for blocker in (await desk.client.explain(run.id)).blocked_by][:1] == ["hold"]


async def test_a_sweep_is_one_launch_of_many_runs(desk: Harness) -> None:
    text = workflow("sweep: {parallel: 2, parameters: {learning_rate: [0.1, 0.2], parameters.width: [8, 16]}}")
    request = desk.request(text)
    runs = await desk.client.launch(request)
    sweep = runs[0].sweep
    assert [run.id for run in runs] == [f"{sweep}-{number:03d}" for number in range(1, 5)]
    assert runs[1].parameters == {"learning_rate": 0.1, "parameters.width": 16}
    assert len({run.release for run in runs}) == 4
    assert (await desk.service.runs.find(runs[0].id)).sweep_parallel == 2
    assert (await desk.service.runs.find(runs[1].id)).launch.config["parameters"] == {"width": 16}
    for run in runs:
        assert json.loads((Path(run.run_directory) / "release.json").read_text())["id"] == run.release
    assert await desk.client.launch(request) == runs
    assert [run.id for run in await desk.client.runs(sweep=sweep)] == [run.id for run in runs]
    (entry,) = await desk.client.audit()
    assert (entry.action, entry.target, entry.reason) == ("launch", sweep, "a sweep of 4 runs")
    with pytest.raises(Usage, match="used for something else"):
        await desk.client.launch(request.model_copy(update={"hold": True}))


async def test_a_point_is_the_same_release_as_its_values_alone(desk: Harness) -> None:
    (point,) = await desk.client.launch(desk.request(workflow("sweep: {parameters: {batch_size: [8]}}")))
    assert point.sweep
    assert point.id.endswith("-001")
    alone = await desk.launch(desk.request(workflow("training: {batch_size: 8}")))
    assert (alone.release, alone.sweep, alone.parameters) == (point.release, "", {})
    (release,) = await desk.client.releases()
    assert release.runs == 2


async def test_more_than_the_queue_takes_are_refused_all_together(desk: Harness) -> None:
    await desk.client.launch(desk.request(workflow("sweep: {parameters: {batch_size: [1, 2, 3, 4]}}")))
    with pytest.raises(Refused, match="4 runs wait already, and 6 are the most"):
        await desk.client.launch(desk.request(workflow("sweep: {parameters: {batch_size: [1, 2, 3]}}")))
    assert len(await desk.client.runs()) == 4
    await desk.launch()


async def test_what_a_quota_can_never_hold_is_refused(desk: Harness) -> None:
    desk.ray.nodes = [{**desk.ray.nodes[1], "resources_total": {"CPU": 8.0, "GPU": 8.0, "memory": 64e9}}]
    text = workflow("resources: {accelerators_per_node: 8}")
    with pytest.raises(Refused, match=r"could never start: .*the quota of queue training is 4"):
        await desk.launch(desk.request(text))
    assert (await desk.launch(desk.request(text, queue="inference"))).queue == "inference"


async def test_a_dry_run_says_what_the_queue_would_say(desk: Harness) -> None:
    run = await desk.launch(desk.request(dry_run=True))
    assert run.reason.startswith("a dry run: ")
    assert (await desk.launch(desk.request(dry_run=True, hold=True))).reason != run.reason
    sweep = workflow("sweep: {parameters: {batch_size: [1, 2]}}")
    assert len(await desk.client.launch(desk.request(sweep, dry_run=True))) == 2
    with pytest.raises(Refused):
        await desk.launch(desk.request(workflow("queue: nowhere"), dry_run=True))
    # Nobody was kept from anything: that is no matter for the audit.
    assert await desk.client.audit() == []
    assert await desk.client.runs() == []
    assert not (desk.store / "output").exists()


async def test_a_priority_above_high_takes_an_operator(desk: Harness) -> None:
    caller = Caller(1000, "alice", Role.SUBMITTER)
    launcher = desk.service.launcher
    launcher._access = Access(Roles(submitters=["alice"]))
    with pytest.raises(NotAllowed, match="launch with priority 101"):
        await launcher.launch(desk.request(priority="101"), caller)
    (run,), new = await launcher.launch(desk.request(priority="high"), caller)
    assert (run.user, new) == ("alice", True)


async def test_the_content_of_the_data_is_part_of_the_release(desk: Harness) -> None:
    manifest = desk.store / "data" / "v1" / "manifest.txt"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("a.bin 5 abc\n")
    text = workflow("storage: {data_root: v1}", "data: {version: '1', manifest: manifest.txt}")
    first = await desk.launch(desk.request(text))
    again = await desk.launch(desk.request(text))
    assert first.release == again.release
    (release,) = await desk.client.releases()
    assert release.data_digest == hashlib.sha256(b"a.bin 5 abc\n").hexdigest()
    assert release.data_version == "1"
    manifest.write_text("a.bin 6 abd\n")
    other = await desk.launch(desk.request(text))
    assert other.release != first.release
    manifest.unlink()
    unknown = await desk.launch(desk.request(text))
    assert "its release does not tell the data's content" in unknown.reason
    assert "cannot be read on the head: No such file" in unknown.reason


async def test_the_same_code_packed_by_another_version_is_the_same_release(desk: Harness) -> None:
    first = await desk.launch()
    archive = (desk.store / "packages" / f"{desk.code}.zip").read_bytes()
    other = desk.store / "their-code"
    built = package.build(other)
    assert built.content == archive
    (release,) = await desk.client.releases()
    assert release.code_digest == built.code_digest != built.digest
    # As another version's own code would change the archive and not what is the operator's.
    (other / "more.py").write_text("")
    (other / "more.py").unlink()
    changed = archive.replace(b"jobs/wire.py", b"jobs/wirX.py")
    digest = hashlib.sha256(changed).hexdigest()
    assert await desk.client.put_package(digest, changed) is True
    second = await desk.launch(desk.request(package=digest))
    assert second.release == first.release
    assert [entry.action for entry in await desk.client.audit()] == ["launch", "package", "launch"]


async def test_the_fingerprint_is_in_the_release_and_no_part_of_its_id(desk: Harness) -> None:
    run = await desk.launch()
    (release,) = await desk.client.releases()
    assert release.environment["ray"] == "2.60.0"
    assert release.environment["python"].count(".") == 2
    desk.service.engine.version = "2.61.0"
    assert (await desk.launch()).release == run.release


def test_nothing_is_made_up_in_a_fingerprint(tmp_path: Path) -> None:
    told = fingerprint("2.60.0", tmp_path / "none")
    assert "driver" not in told
    driver = tmp_path / "version"
    driver.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)\n"
    )
    assert fingerprint("", driver)["driver"] == "580.95.05"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 06:46:07 UTC 2024\n")
    assert fingerprint("", driver)["driver"] == "535.183.06"
    driver.write_text("what is this\n")
    assert "driver" not in fingerprint("", driver)
    assert all(told.values())


async def test_a_directory_that_cannot_be_made_leaves_nothing_behind(desk: Harness) -> None:
    (desk.store / "output").write_text("a file")
    with pytest.raises(Refused, match="cannot be made on the head"):
        await desk.launch(desk.request(WORKFLOW, request_id="the-same-request"))
    assert await desk.client.runs() == []
    os.unlink(desk.store / "output")
    await desk.launch(desk.request(WORKFLOW, request_id="the-same-request"))
