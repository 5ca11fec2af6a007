"""Alerts through the controller's socket: what fires, what people say to it, and what a restart leaves of both."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from jobs.alertview import (
    AcknowledgeRequest,
    Alert,
    AlertsChanged,
    AlertsView,
    ClearRequest,
    EndSilenceRequest,
    Matcher,
    SilenceRequest,
    TestRequest,
)
from jobs.controller.access import Caller, Role
from jobs.errors import Refused, Usage
from jobs.wire import Snapshot
from probes.health import engine
from probes.reading import DeviceHealth, Driver, Event, Facts, Health, Mount, Sample, encode
from tests.unit.jobs.controller_harness import Harness, controller, short_folder
from tests.unit.jobs.ray_stand_in import RayStandIn

NODE = b"worker-1".hex()
COLUMNS = {
    "utilization_percent": [10.0] * 4,
    "memory_used_bytes": [1 << 30] * 4,
    "power_watts": [90.0] * 4,
    "temperature_celsius": [40.0] * 4,
    "throttle_reasons": [1] * 4,
}
SINK = """\
cluster:
  name: c
  control_nodes: [{{host: head}}]
  alerting:
    sinks: [{{name: file, kind: command, command: [sh, -c, "cat >> {folder}/told; echo >> {folder}/told"]}}]
"""


@pytest.fixture
async def ray() -> AsyncGenerator[RayStandIn]:
    stand_in = RayStandIn()
    async with stand_in.serving():
        yield stand_in


@pytest.fixture
async def store() -> AsyncGenerator[Path]:
    async with short_folder() as folder:
        yield folder


@pytest.fixture
async def desk(ray: RayStandIn, store: Path) -> AsyncGenerator[Harness]:
    async with controller(ray, store) as harness:
        await watched(harness)
        yield harness


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.health.engine.GRACE_SECONDS", 0.0)
    monkeypatch.setattr("jobs.controller.health.service.STEP_SECONDS", 0.1)


async def until(so: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.02)


async def watched(harness: Harness) -> None:
    """Until the node is known; then it tells that all is well."""
    await until(lambda: "worker-1" in harness.service.health.fleet.nodes)
    tell(harness)


def tell(harness: Harness, *, driver: str = "ok", **health: object) -> None:
    """What the probe of worker-1 says at this moment."""
    fleet = harness.service.health.fleet
    lines = [
        Facts(hostname="worker-1", source="nvml"),
        Sample(seq=1, wall=time.time(), driver=Driver(driver, "", 60.0), index=[0, 1, 2, 3], columns=dict(COLUMNS)),  # pyright: ignore[reportArgumentType]
        Health(wall=time.time(), **health),  # pyright: ignore[reportArgumentType]
    ]
    for line in lines:
        fleet.line(NODE, line, encode(line))


def broken(action: int = 1) -> list[DeviceHealth]:
    """GPU 2 whose driver asks for something."""
    return [
        DeviceHealth(index, figures={"recovery_action": action if index == 2 else 0, "remap_failed": 0})
        for index in range(4)
    ]


async def alert(harness: Harness, rule: str, seconds: float = 25.0) -> Alert:
    """The alert of this rule, once it fires."""
    deadline = time.monotonic() + seconds
    while True:
        view = await harness.client.alerts()
        found = [each for each in view.alerts if each.rule == rule and each.state == "firing"]
        if found:
            return found[0]
        assert time.monotonic() < deadline, view.model_dump_json(indent=1)
        await asyncio.sleep(0.05)


async def gone(harness: Harness, rule: str, seconds: float = 10.0) -> AlertsView:
    deadline = time.monotonic() + seconds
    while True:
        view = await harness.client.alerts()
        if not any(each.rule == rule and each.state == "firing" for each in view.alerts):
            return view
        assert time.monotonic() < deadline, f"{rule} still fires"
        await asyncio.sleep(0.05)


def new() -> str:
    return uuid.uuid4().hex


async def fires(harness: Harness) -> Alert:
    """An alert that stays until somebody clears it."""
    tell(harness, devices=broken())
    return await alert(harness, "gpu.recovery")


async def test_what_the_driver_asks_for_is_an_alert_with_cause_and_action(desk: Harness) -> None:
    found = await fires(desk)
    assert found.level == "critical"
    assert found.entities == ["worker-1/2"]
    assert found.nodes == ["worker-1"]
    assert "GPU reset" in found.title
    assert found.cause
    assert found.action
    assert found.latched


async def test_listeners_are_told(desk: Harness) -> None:
    events = desk.client.events()
    first = await anext(events)
    assert isinstance(first, Snapshot)
    assert first.alerts is not None
    tell(desk, devices=broken())
    async for event in events:
        if isinstance(event, AlertsChanged) and any(each.rule == "gpu.recovery" for each in event.alerts.alerts):
            break
    await events.aclose()  # pyright: ignore[reportAttributeAccessIssue]


async def test_an_alert_is_acknowledged_once(desk: Harness) -> None:
    found = await fires(desk)
    asked = AcknowledgeRequest(request_id=new(), alerts=[found.id], reason="on it")
    reply = await desk.client.acknowledge(asked)
    (changed,) = reply.changed
    assert changed.acknowledged is not None
    assert changed.acknowledged.reason == "on it"
    again = await desk.client.acknowledge(asked)
    assert again.already == ["this very request was carried out before"]
    other = await desk.client.acknowledge(AcknowledgeRequest(request_id=new(), alerts=[found.id]))
    assert "acknowledged by" in other.already[0]
    entries = await desk.client.audit(5)
    assert any(entry.action == "acknowledge" and found.id in entry.target for entry in entries)


async def test_nobody_acknowledges_what_is_not_there(desk: Harness) -> None:
    with pytest.raises(Refused, match="there is no alert alert-nowhere"):
        await desk.client.acknowledge(AcknowledgeRequest(request_id=new(), alerts=["alert-nowhere"]))


async def test_a_silence_hides_and_ends(desk: Harness) -> None:
    found = await fires(desk)
    matcher = Matcher(rule="gpu.recovery", node="worker-1")
    dry = await desk.client.silence(SilenceRequest(request_id=new(), matcher=matcher, seconds=60, dry_run=True))
    assert [each.id for each in dry.changed] == [found.id]
    assert not dry.view.silences
    reply = await desk.client.silence(SilenceRequest(request_id=new(), matcher=matcher, seconds=60, reason="repair"))
    assert reply.silence is not None
    hidden = (await desk.client.alerts()).alerts[0]
    assert hidden.silenced_by == reply.silence.id
    ended = await desk.client.end_silence(reply.silence.id, EndSilenceRequest(request_id=new()))
    assert not ended.view.silences
    assert (await desk.client.alerts()).alerts[0].silenced_by == ""
    twice = await desk.client.end_silence(reply.silence.id, EndSilenceRequest(request_id=new()))
    assert "there is no silence" in twice.already[0]


async def test_a_silence_of_the_same_is_renewed_and_one_of_everything_is_refused(desk: Harness) -> None:
    matcher = Matcher(node="worker-1")
    first = await desk.client.silence(SilenceRequest(request_id=new(), matcher=matcher, seconds=60))
    second = await desk.client.silence(SilenceRequest(request_id=new(), matcher=matcher, seconds=600))
    assert first.silence is not None
    assert second.silence is not None
    assert second.silence.id == first.silence.id
    assert len(second.view.silences) == 1
    with pytest.raises(Usage, match="a silence needs"):
        await desk.client.silence(SilenceRequest(request_id=new(), matcher=Matcher(), seconds=60))


async def test_what_is_latched_stays_until_it_is_cleared(desk: Harness) -> None:
    found = await fires(desk)
    tell(desk, devices=broken(action=0))
    await asyncio.sleep(0)
    assert (await alert(desk, "gpu.recovery")).id == found.id
    reply = await desk.client.clear(ClearRequest(request_id=new(), alerts=[found.id], reason="was reset"))
    assert [each.cleared_reason for each in reply.changed] == ["was reset"]
    await gone(desk, "gpu.recovery")
    history = await desk.client.alert_history()
    assert [(each.id, each.state) for each in history if each.rule == "gpu.recovery"] == [(found.id, "cleared")]


async def test_cleared_though_it_holds_it_fires_again_in_a_while_and_anything_new_at_once(
    desk: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MENDED_SECONDS", 4.0)
    found = await fires(desk)
    cleared_at = time.monotonic()
    await desk.client.clear(ClearRequest(request_id=new(), alerts=[found.id], reason="was reset"))
    await gone(desk, "gpu.recovery")
    again = await alert(desk, "gpu.recovery")
    assert again.id != found.id
    assert time.monotonic() - cleared_at > 3.0
    monkeypatch.setattr(engine, "MENDED_SECONDS", 3600.0)
    await desk.client.clear(ClearRequest(request_id=new(), alerts=[again.id], reason="was reset"))
    await gone(desk, "gpu.recovery")
    tell(desk, devices=broken(2))
    assert (await alert(desk, "gpu.recovery")).id not in (found.id, again.id)


async def test_what_ends_by_itself_is_not_cleared_by_hand(desk: Harness) -> None:
    tell(desk, driver="blocked")
    found = await alert(desk, "node.driver.blocked")
    with pytest.raises(Refused, match="ends by itself"):
        await desk.client.clear(ClearRequest(request_id=new(), alerts=[found.id], reason="no"))


async def test_only_operators_say_something_to_alerts(desk: Harness) -> None:
    found = await fires(desk)
    sam = Caller(4243, "sam", Role.SUBMITTER)
    said = desk.service.said
    with pytest.raises(Refused, match="sam"):
        await said.acknowledge(AcknowledgeRequest(request_id=new(), alerts=[found.id]), sam)
    with pytest.raises(Refused, match="sam"):
        await said.clear(ClearRequest(request_id=new(), alerts=[found.id], reason="x"), sam)


async def test_a_restart_forgets_nothing(ray: RayStandIn, store: Path) -> None:
    async with controller(ray, store) as harness:
        await watched(harness)
        found = await fires(harness)
        await harness.client.acknowledge(AcknowledgeRequest(request_id=new(), alerts=[found.id], reason="on it"))
        await harness.client.silence(SilenceRequest(request_id=new(), matcher=Matcher(rule="mount.space"), seconds=600))
    async with controller(ray, store) as harness:
        view = await harness.client.alerts()
        (same,) = [each for each in view.alerts if each.rule == "gpu.recovery"]
        assert same.id == found.id
        assert same.acknowledged is not None
        assert [silence.matcher.rule for silence in view.silences] == ["mount.space"]
        await watched(harness)
        tell(harness, devices=broken())
        await until(lambda: not harness.service.health.view().alerts[0].no_data)
        assert (await alert(harness, "gpu.recovery")).id == found.id


async def test_a_node_that_ray_says_is_dead(desk: Harness, ray: RayStandIn) -> None:
    ray.nodes[1]["state"] = "DEAD"
    ray.nodes[1]["state_message"] = "health check failed"
    found = await alert(desk, "node.ray_dead")
    assert found.nodes == ["worker-1"]
    assert "health check failed" in "\n".join([found.cause, *found.evidence])


async def test_a_mount_and_an_event(desk: Harness) -> None:
    full = Mount("/data", "nfs4", hangs_seconds=65.0, reason="not answering for 65 s")
    xid = Event("xid", "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus", time.time(), device=1, code=79)
    tell(desk, mounts=[full], events=[xid])
    assert (await alert(desk, "gpu.xid.critical")).entities == ["worker-1/1"]
    assert (await alert(desk, "mount.hangs")).entities == ["worker-1:/data"]


async def test_nodes_that_nobody_watches_are_named(ray: RayStandIn, store: Path) -> None:
    async with controller(ray, store) as harness:
        await until(lambda: "worker-1" in harness.service.health.fleet.nodes)
        view = await harness.client.alerts()
        assert set(view.unwatched) == {"head", "worker-1"}
        assert view.watched_nodes == 0


async def test_ways_out_are_used_and_tried(ray: RayStandIn, store: Path, tmp_path: Path) -> None:
    async with controller(ray, store, SINK.format(folder=tmp_path)) as harness:
        reply = await harness.client.test_alert(TestRequest(request_id=new()))
        assert [each.ok for each in reply.deliveries] == [True]
        assert '"test":true' in (tmp_path / "told").read_text().replace(" ", "")
        await watched(harness)
        await fires(harness)
        await until(lambda: "gpu.recovery" in (tmp_path / "told").read_text(), 20.0)
        found = await alert(harness, "gpu.recovery")
        await until(lambda: harness.service.health.notifier.deliveries(found.id))
    with pytest.raises(Refused, match="no way out"):
        async with controller(ray, store) as harness:
            await harness.client.test_alert(TestRequest(request_id=new()))
