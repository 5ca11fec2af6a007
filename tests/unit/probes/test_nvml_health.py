"""`probes.nvml` on health: every field or its reason, events once, and what it costs to ask for nothing."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.nvml_health import _number
from probes.reading import DEVICE_HEALTH_FIELDS, ERROR, UNSUPPORTED, DeviceHealth, Missing
from probes.source import LOST
from tests import nvml
from tests.nvml import StandIn
from tests.unit.probes.live import NvmlSession, few

NOT_SUPPORTED = Missing(UNSUPPORTED, "NVML: not supported")


def complete(device: DeviceHealth) -> None:
    """Each field has a figure or a reason, and none has both."""
    assert set(device.figures) | set(device.missing) == set(DEVICE_HEALTH_FIELDS)
    assert not set(device.figures) & set(device.missing)


def test_a_healthy_gpu(session: NvmlSession) -> None:
    health = session.health()
    assert [device.index for device in health.devices] == list(range(8))
    assert health.blind == {}
    device = health.devices[3]
    complete(device)
    assert device.uuid == "GPU-00000000-0000-0000-0000-000000000003"
    assert device.pci == "0000:13:00"
    assert device.missing == {"retired_pages_pending": NOT_SUPPORTED}
    assert device.figures == {
        "ecc_volatile_corrected_count": 2,
        "ecc_volatile_uncorrected_count": 0,
        "remapped_corrected_count": 0,
        "remapped_uncorrected_count": 0,
        "remap_pending": 0,
        "remap_failed": 0,
        "recovery_action": 0,
        "slowdown_celsius": 87,
        "memory_temperature_celsius": 66,
        "memory_slowdown_celsius": 95,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "pcie_replay_count": 0,
        "nvlinks_active": 18,
        "nvlinks_total": 18,
        "nvlink_error_count": 0,
        "fabric_healthy": 1,
        "persistence": 1,
    }


@pytest.mark.parametrize(
    ("rule", "field", "value"),
    [
        (f"value field:{nvml.FIELD_ECC_UNCORRECTED} 2 4", "ecc_volatile_uncorrected_count", 4),
        (f"value field:{nvml.FIELD_REMAP_PENDING} 2 1", "remap_pending", 1),
        (f"value field:{nvml.FIELD_REMAP_FAILED} 2 1", "remap_failed", 1),
        (f"value field:{nvml.FIELD_RECOVERY_ACTION} 2 4", "recovery_action", 4),
        (f"value field:{nvml.FIELD_MEMORY_CELSIUS} 2 97", "memory_temperature_celsius", 97),
        (f"value field:{nvml.FIELD_NVLINK_STATE}:7 2 0", "nvlinks_active", 17),
        (f"value field:{nvml.FIELD_NVLINK_STATE}:7 2 2", "nvlinks_active", 18),  # asleep
        (f"value field:{nvml.FIELD_NVLINK_REPLAYS}:3 2 50", "nvlink_error_count", 50),
        ("value nvmlDeviceGetCurrPcieLinkWidth 2 8", "pcie_width", 8),
        ("value nvmlDeviceGetCurrPcieLinkGeneration 2 3", "pcie_generation", 3),
        ("value nvmlDeviceGetTemperatureThreshold 2 90 100", "memory_slowdown_celsius", 100),
        ("value nvmlDeviceGetPersistenceMode 2 0", "persistence", 0),
        ("value nvmlDeviceGetGpuFabricInfoV 2 3 2", "fabric_healthy", 0),  # completed, and unhealthy
        ("value nvmlDeviceGetGpuFabricInfoV 2 2 1", "fabric_healthy", 0),  # still joining
        ("value nvmlDeviceGetGpuFabricInfoV 2 3 0", "fabric_healthy", 1),  # no summary, and nothing in the mask
    ],
)
def test_what_is_wrong_shows(session: NvmlSession, standin: StandIn, rule: str, field: str, value: int) -> None:
    standin.say(rule)
    health = session.health()
    assert health.devices[2].figures[field] == value
    complete(health.devices[2])
    assert health.devices[1].figures[field] != value or value == 18 or field == "fabric_healthy"


def test_a_degraded_fabric_without_a_summary(session: NvmlSession, standin: StandIn) -> None:
    standin.say("value nvmlDeviceGetGpuFabricInfoV 0 3 0", "value mask 0 16")  # route unhealthy: yes
    assert session.health().devices[0].figures["fabric_healthy"] == 0


def test_gpus_without_links_fabric_or_limits(session: NvmlSession, standin: StandIn) -> None:
    standin.say(
        f"value field:{nvml.FIELD_NVLINK_COUNT} 0 0",
        "value nvmlDeviceGetGpuFabricInfoV 0 0",
        "value nvmlDeviceGetTemperatureThreshold 0 0 0",
        f"error field:{nvml.FIELD_MEMORY_CELSIUS} 0 2",
        f"error nvmlDeviceGetPersistenceMode 0 {nvml.NO_PERMISSION}",
    )
    device = session.health().devices[0]
    complete(device)
    unsupported = {name for name, missing in device.missing.items() if missing == NOT_SUPPORTED}
    assert unsupported == {
        "retired_pages_pending",
        "nvlinks_active",
        "nvlinks_total",
        "nvlink_error_count",
        "fabric_healthy",
        "slowdown_celsius",
        "memory_slowdown_celsius",
    }
    assert device.missing["memory_temperature_celsius"] == Missing(UNSUPPORTED, "NVML: not for this device")
    assert device.missing["persistence"] == Missing(ERROR, "no permission")


def test_link_errors_are_of_one_set_of_counters(session: NvmlSession, standin: StandIn) -> None:
    """A counter that fails must not make way for others: their sum would look like new errors."""
    standin.say(f"error field:{nvml.FIELD_NVLINK_REPLAYS}:5 0 {nvml.UNKNOWN}", "value field:208 0 1000")
    assert session.health().devices[0].missing["nvlink_error_count"].kind == ERROR
    standin.say(
        f"error field:{nvml.FIELD_NVLINK_REPLAYS} 0 {nvml.NOT_SUPPORTED}",
        *(f"value field:{field} 0 {value}" for field, value in ((208, 2), (211, 0), (215, 1))),
    )
    assert session.health(40.0).devices[0].figures["nvlink_error_count"] == 18 * 3


def test_mig_is_named_as_the_reason(session: NvmlSession, standin: StandIn) -> None:
    standin.say(
        "devices 2",
        f"error field:{nvml.FIELD_REMAP_PENDING} 0 {nvml.NOT_SUPPORTED}",
        "value nvmlDeviceGetMigMode 0 1 1",
    )
    session.facts()
    health = session.health()
    assert health.devices[0].missing["remap_pending"] == Missing(UNSUPPORTED, "NVML: not supported while MIG is on")
    assert health.devices[1].figures["remap_pending"] == 0


def test_a_lost_gpu_keeps_its_place_on_the_bus(session: NvmlSession, standin: StandIn) -> None:
    session.health(0.0)
    standin.say(f"error * 3 {nvml.LOST}")
    device = session.health(1.0).devices[3]
    assert (device.figures, device.missing, device.pci) == ({}, {"*": LOST}, "0000:13:00")
    # One field that says so is enough.
    standin.say(f"error field:{nvml.FIELD_MEMORY_CELSIUS} 5 {nvml.LOST}")
    assert session.health(100.0).devices[5].missing == {"*": LOST}
    standin.say(f"error * 3 {nvml.LOST}")
    session.sample(150.0)
    standin.say("absent 3")
    session.sample(200.0)
    device = session.health(1000.0).devices[3]
    assert device.pci == "0000:13:00"
    assert "fell off the bus" in device.missing["*"].reason
    assert session.health(1000.0).devices[4].pci == "0000:14:00"


def test_what_is_unsupported_costs_no_call(session: NvmlSession, standin: StandIn) -> None:
    standin.say(f"error nvmlDeviceGetCurrPcieLinkWidth * {nvml.NOT_SUPPORTED}")
    session.health(0.0)
    first = list(session.calls)
    assert "nvmlDeviceGetCurrPcieLinkWidth on GPU 0" in first
    session.health(10.0)
    assert [call for call in session.calls if re.search("Width|Temperature|Persistence|Fabric|Pci.*Info", call)] == []
    assert sum(call.endswith("on GPU 0") for call in session.calls) == 2  # the fields together, and the generation
    standin.say()
    session.health(700.0)
    assert "nvmlDeviceGetCurrPcieLinkWidth on GPU 0" in session.calls


def test_nothing_is_asked_for_before_health_is_wanted(session: NvmlSession, standin: StandIn) -> None:
    standin.say(f"event 1 {nvml.XID_EVENT} 94 1")
    session.sample()
    assert session.events() == []
    assert session.calls == []


def test_an_older_driver(tmp_path: Path) -> None:
    standin = StandIn(nvml.build(tmp_path / "old", old_driver=True), tmp_path / "control")
    standin.say("devices 1", "value nvmlDeviceGetNvLinkState 0 1", "value field:52 0 6")
    session = NvmlSession(standin.environ)
    try:
        (device,) = session.health().devices
    finally:
        session.close()
    complete(device)
    assert device.figures["nvlinks_active"] == device.figures["nvlinks_total"] == 18
    assert device.figures["nvlink_error_count"] == 6
    assert device.missing["fabric_healthy"] == Missing(UNSUPPORTED, "NVML: the driver is too old to tell")
    assert device.missing["recovery_action"] == NOT_SUPPORTED


def test_events_are_told_once(session: NvmlSession, standin: StandIn) -> None:
    session.health(0.0)
    assert session.events(0.5) == []
    standin.say(f"event 1 {nvml.XID_EVENT} 94 1", f"event 6 {nvml.DOUBLE_BIT_ECC_EVENT} 0 2")
    told = session.events(1.0)
    assert [(event.kind, event.device, event.code, event.source) for event in told] == [
        ("xid", 1, 94, "nvml"),
        ("xid", 6, 48, "nvml"),
    ]
    assert told[0].text == "NVML: Xid 94 on GPU 1"
    assert told[0].wall > 1e9
    assert session.events(2.0) == []


def test_a_set_that_breaks_is_made_anew_after_a_while(session: NvmlSession, standin: StandIn) -> None:
    session.health(0.0)
    standin.say(f"error nvmlEventSetWait_v2 * {nvml.LOST}", f"event 1 {nvml.XID_EVENT} 94 1")
    assert session.events(1.0) == []
    assert session.health(2.0).blind == {"nvml_events": LOST}
    standin.say(f"event 1 {nvml.XID_EVENT} 94 1")
    assert session.events(3.0) == []  # left alone for a while
    assert [event.code for event in session.events(7.0)] == [94]
    assert session.health(8.0).blind == {}


def test_events_go_on_after_the_library_was_opened_anew(session: NvmlSession, standin: StandIn) -> None:
    session.health(0.0)
    standin.say(f"error * 3 {nvml.LOST}")
    session.sample(1.0)
    standin.say("absent 3", f"event 5 {nvml.XID_EVENT} 79 1")
    session.sample(10.0)
    assert [(event.device, event.code) for event in session.events(10.0)] == [(5, 79)]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (f"error nvmlEventSetCreate * {nvml.NO_PERMISSION}", "no permission"),
        (f"error nvmlDeviceRegisterEvents * {nvml.UNKNOWN}", "the driver failed with an unknown error"),
        ("value nvmlDeviceGetSupportedEventTypes * 0", "NVML: not supported"),
    ],
)
def test_why_there_are_no_events(session: NvmlSession, standin: StandIn, rule: str, reason: str) -> None:
    standin.say(rule)
    health = session.health()
    assert health.blind["nvml_events"].reason == reason
    assert len(health.devices) == 8
    assert session.events(1.0) == []


def test_one_gpu_without_events_hides_no_other(session: NvmlSession, standin: StandIn) -> None:
    standin.say(f"error nvmlDeviceRegisterEvents 0 {nvml.UNKNOWN}", f"event 1 {nvml.XID_EVENT} 31 1")
    assert session.health().blind == {}
    assert [event.device for event in session.events()] == [1]


@few
@given(st.integers(0, 2**64 - 1), st.integers(0, 10))
def test_values_of_every_kind_are_whole_numbers(value: int, kind: int) -> None:
    if kind:
        assert 0 <= _number(kind, value) <= value


def test_a_double_is_a_double() -> None:
    assert _number(0, struct.unpack("=Q", struct.pack("=d", 66.0))[0]) == 66
