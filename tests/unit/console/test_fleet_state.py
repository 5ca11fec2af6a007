"""The fleet store: three truths apart, no made-up figures, history with gaps."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from console.render.cells import spans_of
from console.render.documents import gpu_document, node_document
from console.render.fleet import NODE_COLUMNS, NodeRow
from console.state.fleet import FleetStore, Node
from console.state.history import SECONDS, History
from console.state.work import WorkStore
from jobs.raymodel import RayNode
from probes.reading import ERROR, DeviceFacts, Driver, Facts, Missing, Sample

GB = 1024**3


def store() -> FleetStore:
    fleet = FleetStore()
    fleet.add(Node("gpu-01", "10.0.0.2", expected_gpus=2))
    return fleet


def facts(gpus: int = 2) -> Facts:
    devices = [DeviceFacts(index, uuid=f"GPU-{index}", memory_total_bytes=80 * GB) for index in range(gpus)]
    return Facts(hostname="gpu-01", source="nvml", devices=devices)


def sample(load: list[int | None], age: float = 0.0, state: str = "ok") -> Sample:
    missing = {
        i: {"utilization_percent": Missing(ERROR, "GPU is lost")} for i, value in enumerate(load) if value is None
    }
    return Sample(
        driver=Driver(state, "nvmlDeviceGetPowerUsage of GPU 1" if state == "blocked" else "", age),
        devices_age_seconds=age,
        index=list(range(len(load))),
        columns={"utilization_percent": list(load), "memory_used_bytes": [40 * GB for _ in load]},
        missing=missing,
    )


RAY = RayNode("aa" * 14, "10.0.0.2", state="ALIVE", resources_total={"GPU": 2.0})


def cells(fleet: FleetStore, now: float) -> dict[str, str]:
    row = NodeRow(fleet.nodes["gpu-01"], WorkStore(), now)
    found = {}
    for column in NODE_COLUMNS:
        found[column.key] = "".join(part.text for part in spans_of(column.cell(row)))
    return found


def test_the_three_truths_do_not_touch_each_other() -> None:
    fleet = store()
    fleet.ssh_state("gpu-01", "up", "", 1.0)
    fleet.take_facts("gpu-01", facts(), 2.0)
    fleet.take_sample("gpu-01", sample([97, 3]), 3.0)
    fleet.take_ray_nodes([RAY], 3.0)
    node = fleet.nodes["gpu-01"]
    assert (node.ssh.state, node.ray.state, node.driver.state) == ("up", "alive", "ok")
    fleet.ssh_state("gpu-01", "lost", "the connection was reset", 9.0)
    assert (node.ray.state, node.driver.state) == ("alive", "ok")
    assert "Ray still holds it alive" in fleet.findings(10.0)[0].text
    fleet.ssh_state("gpu-01", "up", "", 11.0)
    fleet.take_ray_nodes([replace(RAY, state="DEAD", state_message="missed heartbeats")], 12.0)
    assert node.ssh.state == "up"
    assert fleet.findings(12.0)[0].text == "gpu-01 is dead to Ray; SSH still answers (missed heartbeats)"


def test_a_state_keeps_the_time_it_began_when_only_its_reason_changes() -> None:
    fleet = store()
    fleet.ssh_state("gpu-01", "waiting", "name not found", 5.0)
    fleet.ssh_state("gpu-01", "waiting", "timed out", 9.0)
    assert (fleet.nodes["gpu-01"].ssh.since, fleet.nodes["gpu-01"].ssh.reason) == (5.0, "timed out")


def test_nothing_known_is_said_and_is_not_zero() -> None:
    fleet = store()
    fleet.ssh_state("gpu-01", "refused", "permission denied (tried ~/.ssh/id_ed25519)", 1.0)
    body = gpu_document(fleet.nodes["gpu-01"], 0, WorkStore(), 2.0)
    assert body["utilization_percent"] is None
    assert "permission denied" in body["missing"]["utilization_percent"]
    assert node_document(fleet.nodes["gpu-01"], WorkStore(), 2.0)["gpus_busy"] is None
    painted = cells(fleet, 2.0)
    assert painted["gpus"] == "??"
    assert painted["power"] == "?"
    assert painted["age"] == "never"


def test_old_figures_are_marked_and_one_lost_gpu_does_not_hide_the_other() -> None:
    fleet = store()
    fleet.take_facts("gpu-01", facts(), 0.0)
    fleet.take_sample("gpu-01", sample([100, None]), 0.0)
    assert cells(fleet, 1.0)["gpus"] == "█!"
    assert cells(fleet, 1.0)["memory"] == "80.0G/160G"
    assert cells(fleet, 9.0)["memory"] == "80.0G/160G*"
    assert gpu_document(fleet.nodes["gpu-01"], 0, WorkStore(), 9.0)["stale"] is True


def test_a_blocked_driver_is_shown_with_the_call_that_blocks_and_its_figures_are_old() -> None:
    fleet = store()
    fleet.ssh_state("gpu-01", "up", "", 0.0)
    fleet.take_facts("gpu-01", facts(), 0.0)
    fleet.take_sample("gpu-01", sample([50, 50], age=45.0, state="blocked"), 100.0)
    assert any("driver not answering for 45 s" in finding.text for finding in fleet.findings(100.0))
    assert fleet.nodes["gpu-01"].stale(100.0)
    assert list(fleet.nodes["gpu-01"].history[0]["utilization_percent"]) == [None], "an old figure is a gap"


def test_a_rejoined_node_is_the_living_one_of_two() -> None:
    fleet = store()
    dead = replace(RAY, node_id="bb" * 14, state="DEAD")
    for order in ([dead, RAY], [RAY, dead]):
        fleet.take_ray_nodes(order, 1.0)
        assert fleet.nodes["gpu-01"].ray.state == "alive"
        assert fleet.nodes["gpu-01"].ray_node_id == RAY.node_id


def test_a_node_that_only_ray_knows_is_shown_and_one_that_ray_does_not_know_is_absent() -> None:
    fleet = store()
    fleet.take_ray_nodes([replace(RAY, node_id="cc" * 14, node_ip="10.0.0.9")], 1.0)
    assert fleet.nodes["10.0.0.9"].ssh.state == "none"
    assert fleet.nodes["gpu-01"].ray.state == "absent"


def test_fewer_gpus_than_the_cluster_file_says_is_a_finding() -> None:
    fleet = store()
    fleet.take_facts("gpu-01", facts(1), 0.0)
    fleet.take_sample("gpu-01", sample([0]), 0.0)
    assert "gpu-01 shows 1 of 2 GPUs" in [finding.text for finding in fleet.findings(0.5)]


@given(st.lists(st.one_of(st.none(), st.floats(0, 700)), max_size=3 * SECONDS))
def test_history_keeps_the_newest_ten_minutes_with_their_gaps(values: list[float | None]) -> None:
    ring = History()
    for value in values:
        ring.push(value)
    kept = values[-SECONDS:]
    assert list(ring) == [None if value is None else round(value) for value in kept]
    assert len(ring) == len(kept)
