"""Two faults at once, nothing at all, alerts, the fleet's failed runs; and how it is told."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jobs.alertview import Alert
from jobs.model import Failure, Outcome, RunState
from jobs.release import Change
from jobs.triage.evidence import Evidence, NodeEvidence, Target, Truth, lines
from jobs.triage.findings import OTHER, ROOT, STEP_NAMES, Culprit, listed
from jobs.triage.report import as_json, markdown, triage
from probes.reading import DeviceHealth, Event, Health, Mount, Sample
from tests.unit.triage_made import (
    FAILED_AT,
    GIB,
    NOW,
    WATCHDOG,
    device_health,
    evidence,
    failed,
    fleet,
    gang,
    hung,
    lost_device,
    rank,
    ranks,
    run,
    slow,
    traceback,
    xid,
)

OOM = traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")


# --- nothing is wrong -------------------------------------------------------------------------------------------------


def test_a_run_that_goes_on() -> None:
    told = triage(evidence())
    assert told.headline == "Nothing is wrong with run run-1"
    assert told.findings == []
    assert told.cause is None
    assert [step.state for step in told.steps] == ["ok"] * 5
    assert [step.name for step in told.steps] == list(STEP_NAMES)
    assert len(told.ruled_out) > 10


def test_a_fleet_that_is_well() -> None:
    told = triage(fleet())
    assert told.headline == "Nothing is wrong with the fleet"
    assert told.findings == []


def test_a_node_and_a_gpu_that_are_well() -> None:
    for target in (Target("node", "gpu-1"), Target("gpu", "gpu-1/0")):
        told = triage(fleet(target=target))
        assert told.findings == []
        assert told.headline.startswith("Nothing is wrong with")


def test_a_run_that_ended_well() -> None:
    made = evidence(RunState.SUCCEEDED)
    assert made.run is not None
    made.run.run = run(RunState.SUCCEEDED)
    assert triage(made).findings == []


def test_nothing_known_is_not_nothing_wrong() -> None:
    told = triage(Evidence(NOW, Target("run", "run-9"), unread=["the controller does not answer"]))
    assert told.headline == "Nothing is known of run run-9: 1 thing could not be looked at"
    assert {step.state for step in told.steps} == {"unknown"}
    assert told.unknown == ["the controller does not answer"]


def test_what_could_not_be_read_is_said() -> None:
    made = evidence()
    made.nodes["gpu-2"].health = None
    made.nodes["gpu-2"].unread = ["its kernel's log may not be read: permission denied"]
    told = triage(made)
    assert told.findings == []
    assert "as far as it could be looked at" in told.headline
    assert any("kernel's log" in text for text in told.unknown)
    assert not any("of 4 GPUs are as they should be" in text for text in told.ruled_out)


# --- two faults -------------------------------------------------------------------------------------------------------


def test_a_lost_gpu_and_a_full_disk() -> None:
    made = failed(gang(3, traceback("RuntimeError: CUDA error: unknown error")))
    made.nodes["gpu-2"].events = [xid(79)]
    health = made.nodes["gpu-1"].health
    assert health is not None
    health.mounts[1] = Mount("/output", "nfs4", 1000 * GIB, 0, 1000, 900)
    told = triage(made)
    assert [(each.id, each.culprit.words, each.relevance) for each in told.findings] == [
        ("K20", "gpu-2/1", ROOT), ("K23", "gpu-1:/output", OTHER)
    ]  # fmt: skip


def test_out_of_memory_here_and_a_clock_that_is_off_there() -> None:
    made = failed(gang(0, OOM))
    made.nodes["gpu-2"].clock_offset_seconds = 40.0
    told = triage(made)
    assert [each.id for each in told.findings] == ["K03", "clock"]
    assert told.headline.startswith("Rank 0")


def test_two_broken_gpus_the_earlier_one_is_the_cause() -> None:
    made = failed([rank(n, WATCHDOG, exit_code=-6, ended_at=FAILED_AT + n / 10) for n in range(4)])
    made.nodes["gpu-1"].events = [xid(48, gpu=0, at=FAILED_AT - 5)]
    made.nodes["gpu-2"].events = [xid(79, gpu=1, at=FAILED_AT - 20)]
    told = triage(made)
    assert [(each.id, each.culprit.words) for each in told.findings] == [("K20", "gpu-2/1"), ("K19", "gpu-1/0")]


def test_a_stopped_rank_and_a_hot_gpu() -> None:
    made = hung(ranks())
    made.ranks[0] = replace(made.ranks[0], process_state="T")
    health = made.nodes["gpu-2"].health
    assert health is not None
    health.devices[1] = device_health(1, memory_temperature_celsius=104, memory_slowdown_celsius=105)
    told = triage(made)
    assert [(each.id, each.culprit.words) for each in told.findings] == [
        ("S01", "rank 0 (gpu-1, GPU 0)"), ("hot", "gpu-2/1")
    ]  # fmt: skip


def test_a_killed_rank_and_another_nodes_link_are_told_apart() -> None:
    made = failed(gang(1, "step 413", code=-9))
    made.nodes["gpu-1"].events = [Event("oom", "Out of memory: Killed process 1001 (python)", FAILED_AT - 1, pid=1001)]
    made.nodes["gpu-2"].events = [Event("link", "mlx5_core 0000:c1:00.0: Link down", FAILED_AT - 900)]
    told = triage(made)
    assert [each.id for each in told.findings] == ["K04", "K15"]
    assert told.findings[0].culprit.rank == 1


def test_a_slow_run_with_a_nan() -> None:
    made = slow()
    assert made.run is not None
    made.run.course[-1] = made.run.course[-1].model_copy(update={"loss": float("inf")})
    assert [each.id for each in triage(made).findings] == ["K32", "S02"]


def test_one_gpu_seen_in_two_ways_is_one_finding() -> None:
    made = fleet()
    made.nodes["gpu-2"].events = [xid(79)]
    lost_device(made.nodes["gpu-2"], 1)
    facts = made.nodes["gpu-2"].facts
    assert facts is not None
    facts.devices = facts.devices[:1]
    (found,) = triage(made).findings
    assert (found.id, found.culprit.words) == ("K20", "gpu-2/1")
    assert any("GPU is lost" in item.text for item in found.evidence)
    assert any("the driver shows 1 GPU of 2" in item.text for item in found.consequences)


def test_a_line_of_the_kernel_names_the_gpu_by_its_address() -> None:
    made = fleet()
    line = "NVRM: Xid (PCI:00000000:1C:00.0): 119, pid=1001, name=python, Timeout after 6s of waiting for RPC response"
    made.nodes["gpu-2"].kernel = lines(line, NOW - 60)
    (found,) = triage(made).findings
    assert (found.id, found.culprit.words, found.at) == ("K21", "gpu-2/1", NOW - 60)
    made.nodes["gpu-2"].events = [Event("xid", line, NOW - 60, "kernel", 1, 119)]
    assert len(triage(made).findings[0].evidence) == 1


def test_a_broken_gpu_elsewhere_in_the_run_is_not_the_reason_of_a_device_error_here() -> None:
    made = failed(gang(3, traceback("RuntimeError: CUDA error: unknown error")))
    health = made.nodes["gpu-1"].health
    assert health is not None
    health.devices[0] = device_health(0, ecc_volatile_uncorrected_count=3)
    told = triage(made)
    assert told.findings[0].culprit.rank == 3
    assert [(each.id, each.relevance) for each in told.findings[1:]] == [("K19", OTHER)]


def test_of_two_processes_that_the_kernel_ended_the_runs_own_is_named() -> None:
    made = failed(gang(3, "step 413", code=-9))
    made.ranks[2].exit_code = -9
    made.nodes["gpu-2"].events = [
        Event("oom", "Out of memory: Killed process 88 (cron)", FAILED_AT - 30, pid=88),
        Event("oom", "Out of memory: Killed process 1001 (python)", FAILED_AT - 1, pid=1001),
    ]
    found = triage(made).findings[0]
    assert (found.id, found.culprit.rank, found.at) == ("K04", 3, FAILED_AT - 1)


def test_xids_that_follow_a_crash_are_one_finding_about_the_run() -> None:
    made = failed(gang(2, OOM))
    for name in ("gpu-1", "gpu-2"):
        made.nodes[name].events = [xid(45, gpu, FAILED_AT + 1) for gpu in (0, 1)]
    told = triage(made)
    assert [each.id for each in told.findings] == ["K03"]
    assert sum("XID 45" in item.text for item in told.findings[0].consequences) == 4


def test_what_changed_since_the_last_good_release_is_a_possible_reason() -> None:
    made = failed(gang(0, traceback("ValueError: bad")))
    assert made.run is not None
    made.run.differences = [Change("training.batch_size", 32, 64)]
    made.run.last_good_release = "w-r-0"
    told = triage(made)
    assert [(each.id, each.key) for each in told.findings] == [("exception", "l"), ("release", "B")]
    assert told.findings[1].evidence[0].text == "32 → 64"


# --- fleet, alerts ----------------------------------------------------------------------------------------------------


def test_a_failed_run_of_the_fleet_and_the_gpu_behind_it() -> None:
    own = run(RunState.FAILED, Failure.DRIVER)
    own.attempts[0].outcome = Outcome(
        verdict="failed", failure=Failure.DRIVER, suspects=["gpu-2"], wall=FAILED_AT,
        reason="rank 3 on gpu-2 exited 1: RuntimeError: CUDA error: unknown error",
    )  # fmt: skip
    made = fleet(runs=[own])
    made.nodes["gpu-2"].events = [xid(79)]
    told = triage(made)
    assert [(each.id, each.culprit.words) for each in told.findings] == [("K20", "gpu-2/1")]
    assert told.findings[0].culprit.run == "run-1"
    assert "run run-1" in told.findings[0].consequences[0].text or "run-1" in told.findings[0].consequences[0].place


def test_an_alert_that_no_rule_has_found_is_told() -> None:
    alert = Alert(
        id="a", rule="queue.wait", level="warning", title="runs wait long", entities=["training"], since=NOW - 60,
        cause="Too little room", action="Add nodes",
    )  # fmt: skip
    cleared = alert.model_copy(update={"id": "b", "state": "cleared"})
    trial = alert.model_copy(update={"id": "c", "test": True})
    told = triage(fleet(alerts=[cleared, trial, alert]))
    assert [(each.id, each.confidence, each.cause) for each in told.findings] == [
        ("queue.wait", "possible", "Too little room.")
    ]


def test_an_alert_on_what_a_rule_has_found_is_not_told_twice() -> None:
    made = fleet()
    made.nodes["gpu-2"].events = [xid(79)]
    made.alerts = [
        Alert(
            id="a", rule="gpu.lost", level="critical", title="gpu-2/1 is lost", entities=["gpu-2/1"], nodes=["gpu-2"],
            since=NOW - 60,
        )
    ]  # fmt: skip
    assert [each.id for each in triage(made).findings] == ["K20"]
    made.nodes["gpu-2"].events = []
    (found,) = triage(made).findings
    assert (found.id, found.culprit) == ("gpu.lost", Culprit(node="gpu-2", gpu=1))


def test_what_a_driver_told_once_stays_certain_and_its_name_is_said_once() -> None:
    latched = Alert(
        id="a", rule="gpu.xid.critical", level="critical", title="gpu-2/1: XID 95 (uncontained)", entities=["gpu-2/1"],
        nodes=["gpu-2"], since=NOW - 60, latched=True,
    )  # fmt: skip
    told = triage(fleet(alerts=[latched]))
    assert (told.findings[0].title, told.headline) == ("XID 95 (uncontained)", "gpu-2/1: XID 95 (uncontained)")
    several = latched.model_copy(
        update={"title": "gpu-2/0-1: 40 GiB in use", "entities": ["gpu-2/0", "gpu-2/1"], "latched": False}
    )
    told = triage(fleet(alerts=[several]))
    assert told.findings[0].culprit == Culprit(node="gpu-2")
    assert told.headline == "Probably gpu-2/0-1: 40 GiB in use"


def test_what_is_critical_on_the_very_node_comes_before_a_run_that_failed_there() -> None:
    own = run(RunState.FAILED, Failure.APPLICATION)
    own.attempts[0].nodes = ["gpu-1", "gpu-2"]
    own.attempts[0].outcome = Outcome(
        verdict="failed", failure=Failure.APPLICATION, wall=FAILED_AT, reason="rank 1 on gpu-1 exited 1",
        evidence="ValueError: bad batch",
    )  # fmt: skip
    full = Alert(
        id="a", rule="mount.space.critical", level="critical", title="gpu-2:/data: 0 % of its space is left",
        entities=["gpu-2:/data"], nodes=["gpu-2"], since=NOW - 60,
    )  # fmt: skip
    told = triage(fleet(target=Target("node", "gpu-2"), runs=[own], alerts=[full]))
    assert told.headline == "Probably gpu-2:/data: 0 % of its space is left"
    assert [each.culprit.words for each in told.findings] == ["gpu-2:/data", "run run-1"]


def test_a_warning_comes_before_what_is_only_watched() -> None:
    watched = Alert(
        id="a", rule="node.clock.free", level="info", title="gpu-1, gpu-2: nothing keeps its clock",
        entities=["gpu-1", "gpu-2"], nodes=["gpu-1", "gpu-2"], since=NOW - 900,
    )  # fmt: skip
    lanes = Alert(
        id="b", rule="gpu.pcie.width", level="warning", title="gpu-2/1: 8 PCIe lanes of 16", entities=["gpu-2/1"],
        nodes=["gpu-2"], since=NOW - 60,
    )  # fmt: skip
    told = triage(fleet(target=Target("node", "gpu-2"), alerts=[watched, lanes]))
    assert [each.id for each in told.findings] == ["gpu.pcie.width", "node.clock.free"]


def test_a_gpu_is_asked_about_by_itself() -> None:
    made = fleet(target=Target("gpu", "gpu-2/0"))
    made.nodes["gpu-2"].events = [xid(79, gpu=1)]
    told = triage(made)
    assert told.cause is None
    assert told.headline.startswith("Nothing is wrong with GPU gpu-2/0 itself; beside it: gpu-2/1")


def test_other_nodes_are_not_judged_for_a_run() -> None:
    made = evidence()
    made.nodes["gpu-9"] = NodeEvidence("gpu-9", ssh=Truth("lost"), ray=Truth("dead"))
    assert triage(made).findings == []


def test_nodes_that_went_at_different_times_are_several_findings() -> None:
    made = fleet()
    for at, name in enumerate(("gpu-1", "gpu-2", "gpu-3")):
        made.nodes[name] = NodeEvidence(name, ssh=Truth("lost", "", NOW - 4000 + 900 * at), ray=Truth("dead"))
    assert [each.culprit.words for each in triage(made).findings] == ["gpu-1", "gpu-2", "gpu-3"]


# --- telling ----------------------------------------------------------------------------------------------------------


def test_markdown_is_short_and_has_it_all() -> None:
    text = markdown(triage(failed(gang(2, OOM, count=8))))
    assert text.startswith(
        "## Triage of run run-1, 2027-01-15 08:00:00Z\n\n**Rank 2 (gpu-2, GPU 0): GPU memory ran out"
    )
    for part in (
        "(certain, K03)",
        "rank-2.log:5 on gpu-2",
        "(key `R`)",
        "7 ranks",
        "| resources | bad |",
        "Ruled out:",
    ):
        assert part in text
    assert len(text.splitlines()) < 60


def test_markdown_leaves_text_of_the_cluster_alone() -> None:
    made = failed(gang(2, traceback("ValueError: `rm` | **bold** <b> [link](http://x)")))
    text = markdown(triage(made))
    assert "\\| \\*\\*bold\\*\\* \\<b> \\[link](http://x)" in text.splitlines()[2]
    assert "`ValueError: 'rm' | **bold** <b> [link](http://x)`" in text


def test_json_is_json() -> None:
    told = triage(failed(gang(2, OOM)))
    body = json.loads(json.dumps(as_json(told)))
    assert body["headline"] == told.headline
    assert body["findings"][0]["culprit"]["words"] == "rank 2 (gpu-2, GPU 0)"
    assert body["findings"][0]["evidence"][0]["place"] == "rank-2.log:5 on gpu-2"
    assert [step["name"] for step in body["steps"]] == list(STEP_NAMES)


def test_culprits_in_words() -> None:
    assert Culprit(node="gpu-1", gpu=3).words == "gpu-1/3"
    assert Culprit(node="gpu-1", path="/data").words == "gpu-1:/data"
    assert Culprit(nodes=("a", "b"), path="/data").words == "/data on a and b"
    assert Culprit(run="r").words == "run r"
    assert Culprit().words == ""
    assert listed([str(number) for number in range(9)]) == "0, 1, 2, 3, 4, 5 and 3 more"


@given(
    st.lists(st.text(max_size=100), max_size=8),
    st.dictionaries(st.sampled_from(["remap_failed", "recovery_action", "pcie_width"]), st.integers(-5, 99)),
    st.floats(-1e6, 1e6),
    st.sampled_from(["run", "node", "gpu", "fleet"]),
)
def test_nothing_is_raised_on_any_machine(texts: list[str], figures: dict[str, int], offset: float, kind: str) -> None:
    node = NodeEvidence(
        "n", health=Health(devices=[DeviceHealth(0, figures=dict(figures))]), clock_offset_seconds=offset,
        sample=Sample(), ssh=Truth(texts[0] if texts else ""),
        events=[Event(text[:4] or "xid", text, offset, code=len(text)) for text in texts],
        raylet=lines("\n".join(texts)), kernel=lines("\n".join(texts)),
    )  # fmt: skip
    name = {"run": "run-1", "node": "n", "gpu": "n/0", "fleet": ""}[kind]
    told = triage(Evidence(NOW, Target(kind, name), {"n": node}))  # type: ignore[arg-type]
    assert told.headline
    assert markdown(told)
    json.dumps(as_json(told))


def test_the_package_is_light() -> None:
    code = (
        "import sys, jobs.triage.report; heavy = {'ray', 'torch', 'textual', 'httpx', 'asyncssh', 'aiohttp'};"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
