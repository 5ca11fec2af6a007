"""`probes.nvml` with the real nvidia-ml-py: what each answer of the driver becomes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from probes.reading import ERROR, UNSUPPORTED, Facts, Missing, Sample
from probes.source import DriverError
from tests import nvml
from tests.nvml import StandIn
from tests.unit.probes.live import LiveProbe, NvmlSession

LOST = Missing(ERROR, "GPU is lost: it fell off the bus")


def test_every_figure_of_healthy_gpus(session: NvmlSession) -> None:
    facts, sample = session.facts(), session.sample()
    assert (facts.driver_version, facts.library_version, facts.cuda_version) == ("580.65.06", "13.580.65", "13.0")
    assert [device.index for device in facts.devices] == list(range(8))
    third = facts.devices[3]
    assert third.uuid == "GPU-00000000-0000-0000-0000-000000000003"
    assert third.name == "NVIDIA H100 80GB HBM3"
    assert (third.memory_total_bytes, third.power_limit_watts) == (85899345920, 700.0)
    assert (third.ecc_corrected_count, third.ecc_uncorrected_count) == (2, 0)
    assert (third.pcie_generation, third.pcie_width, third.mig_mode) == (5, 16, "off")
    assert third.missing == {}
    assert sample.driver.state == "ok"
    assert sample.missing == {}
    assert {name: column[3] for name, column in sample.columns.items()} == {
        "utilization_percent": 93,
        "memory_utilization_percent": 43,
        "memory_used_bytes": 43 << 30,
        "power_watts": 603.0,
        "temperature_celsius": 58,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "throttle_reasons": 4,
    }


def test_the_drivers_own_memory_is_not_counted_as_used(session: NvmlSession, standin: StandIn) -> None:
    assert session.sample().reading(0, "memory_used_bytes") == 40 << 30
    standin.say("error nvmlDeviceGetMemoryInfo_v2 * 13")
    assert session.sample().reading(0, "memory_used_bytes") == (40 << 30) + (500 << 20)


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        (nvml.NOT_SUPPORTED, Missing(UNSUPPORTED, "NVML: not supported")),
        (nvml.FUNCTION_NOT_FOUND, Missing(UNSUPPORTED, "NVML: the driver is too old to tell")),
        (2, Missing(UNSUPPORTED, "NVML: not for this device")),
        (nvml.NO_PERMISSION, Missing(ERROR, "no permission")),
        (nvml.RESET_REQUIRED, Missing(ERROR, "GPU needs a reset")),
        (nvml.UNKNOWN, Missing(ERROR, "the driver failed with an unknown error")),
        (10, Missing(ERROR, "NVML: timeout")),
        (4711, Missing(ERROR, "NVML: made-up error")),
    ],
)
def test_one_failing_query_costs_one_figure(
    session: NvmlSession, standin: StandIn, code: int, missing: Missing
) -> None:
    standin.say(f"error nvmlDeviceGetPowerUsage 2 {code}")
    sample = session.sample()
    assert sample.reading(2, "power_watts") == missing
    assert sample.columns["power_watts"][2] is None
    assert sample.reading(2, "temperature_celsius") == 57
    assert sample.reading(1, "power_watts") == 601.0


def test_a_lost_gpu_does_not_hide_the_good_ones_and_keeps_its_place(session: NvmlSession, standin: StandIn) -> None:
    session.facts(0.0)
    session.sample(0.0)
    standin.say(f"error * 3 {nvml.LOST}")
    sample = session.sample(1.0)
    assert sample.driver.state == "ok"
    assert sample.missing == {3: {"*": LOST}}
    assert all(column[3] is None for column in sample.columns.values())
    assert sample.reading(4, "utilization_percent") == 94
    # The driver, opened anew after a pause, lists one less: those behind it move up in its list, not in ours.
    standin.say("absent 3")
    for now in (10.0, 11.0):
        sample = session.sample(now)
        assert sample.index == list(range(8))
        assert sample.reading(4, "utilization_percent") == 94
    assert sample.reading(3, "utilization_percent") == sample.missing[3]["*"]
    assert "fell off the bus" in sample.missing[3]["*"].reason
    facts = session.facts(12.0)
    assert facts.devices[3].uuid == "GPU-00000000-0000-0000-0000-000000000003"
    assert facts.devices[3].missing["*"].kind == ERROR
    assert facts.devices[4].uuid == "GPU-00000000-0000-0000-0000-000000000004"
    standin.say()
    sample = session.sample(400.0)
    assert sample.reading(3, "utilization_percent") == 93
    assert session.changed


def test_a_gpu_that_is_lost_in_mid_sample_gives_no_half_of_it(session: NvmlSession, standin: StandIn) -> None:
    standin.say(f"error nvmlDeviceGetTemperature 3 {nvml.LOST}")
    sample = session.sample()
    assert sample.reading(3, "utilization_percent") == LOST
    assert sample.columns["utilization_percent"][3] is None


def test_a_gpu_that_never_said_who_it_is_comes_back_to_its_place(session: NvmlSession, standin: StandIn) -> None:
    standin.say(f"error nvmlDeviceGetHandleByIndex_v2 2 {nvml.LOST}")
    sample = session.sample(0.0)
    assert sample.missing == {2: {"*": LOST}}
    assert session.facts(0.5).devices[2].uuid is None
    standin.say()
    sample = session.sample(60.0)
    assert sample.index == list(range(8))
    assert sample.missing == {}


def test_the_library_is_opened_again_with_growing_pauses(session: NvmlSession, standin: StandIn) -> None:
    standin.say(f"error * 3 {nvml.LOST}")
    opened = [now for now in range(200) if "nvmlInit" in (session.sample(float(now)) and session.calls)]
    assert opened == [0, 5, 15, 35, 75, 155]


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (nvml.VERSION_MISMATCH, "driver and library versions differ: reboot or reload the driver"),
        (nvml.DRIVER_NOT_LOADED, "the NVIDIA driver is not loaded"),
        (nvml.NO_PERMISSION, "no permission to use the NVIDIA driver"),
    ],
)
def test_a_driver_that_cannot_be_used_is_a_sentence(
    session: NvmlSession, standin: StandIn, code: int, sentence: str
) -> None:
    standin.say(f"error nvmlInitWithFlags * {code}")
    with pytest.raises(DriverError) as caught:
        session.sample(0.0)
    assert str(caught.value) == sentence
    standin.say()
    with pytest.raises(DriverError):
        session.sample(4.0)  # left alone for a while
    assert session.calls == []
    assert session.sample(6.0).driver.state == "ok"


def test_a_driver_that_is_unloaded_meanwhile_is_the_drivers_trouble(session: NvmlSession, standin: StandIn) -> None:
    session.sample(0.0)
    standin.say("error nvmlDeviceGetPowerUsage 5 1")
    with pytest.raises(DriverError, match="unloaded or reset"):
        session.sample(1.0)
    standin.say()
    assert len(session.sample(7.0).index) == 8


def test_what_is_unsupported_is_not_asked_again_for_ten_minutes(session: NvmlSession, standin: StandIn) -> None:
    standin.say(f"error nvmlDeviceGetPowerUsage 0 {nvml.NOT_SUPPORTED}")
    call = "nvmlDeviceGetPowerUsage on GPU 0"
    session.sample(0.0)
    assert call in session.calls
    standin.say()
    assert session.sample(599.0).reading(0, "power_watts") == Missing(UNSUPPORTED, "NVML: not supported")
    assert call not in session.calls
    assert session.sample(601.0).reading(0, "power_watts") == 600.0


def test_errors_are_asked_again_at_once(session: NvmlSession, standin: StandIn) -> None:
    standin.say(f"error nvmlDeviceGetPowerUsage 0 {nvml.UNKNOWN}")
    session.sample(0.0)
    standin.say()
    assert session.sample(1.0).reading(0, "power_watts") == 600.0


def test_unified_memory_is_the_machines_and_its_processes_sum(session: NvmlSession, standin: StandIn) -> None:
    mine, parent = os.getpid(), os.getppid()
    rules = [
        "devices 1",
        f"error nvmlDeviceGetMemoryInfo * {nvml.NOT_SUPPORTED}",
        f"error nvmlDeviceGetMemoryInfo_v2 * {nvml.NOT_SUPPORTED}",
        f"process 0 {mine} {3 << 30}",
    ]
    standin.say(*rules, f"graphics 0 {parent} {1 << 30}")
    facts, sample = session.facts(), session.sample()
    total = facts.devices[0].memory_total_bytes
    assert total is not None
    assert total // 1024 == int(Path("/proc/meminfo").read_text().split()[1])
    assert facts.devices[0].notes["memory_total_bytes"].startswith("unified memory")
    assert facts.devices[0].notes["memory_used_bytes"] == "unified memory: the sum of its processes"
    assert sample.reading(0, "memory_used_bytes") == 4 << 30
    standin.say(*rules, f"graphics 0 {parent} -1")
    assert session.sample(1.0).reading(0, "memory_used_bytes") == Missing(
        UNSUPPORTED, "unified memory, and its processes' share cannot be read"
    )


def test_a_driver_that_answers_with_no_memory_at_all_is_not_believed(session: NvmlSession, standin: StandIn) -> None:
    standin.say("devices 1", "value nvmlDeviceGetMemoryInfo_v2 0 0", "value nvmlDeviceGetMemoryInfo 0 0")
    assert session.facts().devices[0].notes
    assert session.sample().reading(0, "memory_used_bytes") == 0  # no process holds any of it


@pytest.mark.parametrize(
    ("now", "later", "word"), [(0, 0, "off"), (1, 1, "on"), (0, 1, "on after reset"), (1, 0, "off after reset")]
)
def test_mig_mode_and_its_pending_change(
    session: NvmlSession, standin: StandIn, now: int, later: int, word: str
) -> None:
    standin.say("devices 1", f"value nvmlDeviceGetMigMode 0 {now} {later}")
    assert session.facts().devices[0].mig_mode == word


def test_mig_is_named_as_the_reason(session: NvmlSession, standin: StandIn) -> None:
    off = f"error nvmlDeviceGetUtilizationRates 0 {nvml.NOT_SUPPORTED}"
    standin.say("devices 2", off, "value nvmlDeviceGetMigMode 0 1 1")
    session.facts(0.0)
    missing = session.sample(0.0).reading(0, "utilization_percent")
    assert missing == Missing(UNSUPPORTED, "NVML: not supported while MIG is on")
    assert session.sample(0.0).reading(1, "utilization_percent") == 91
    # Switched off: what MIG forbade is asked again with the next facts, not after ten minutes.
    standin.say("devices 2")
    session.facts(60.0)
    assert session.sample(61.0).reading(0, "utilization_percent") == 90


def test_processes_are_named_once_whatever_they_do(session: NvmlSession, standin: StandIn) -> None:
    mine = os.getpid()
    standin.say(f"process 1 {mine} {2 << 30}", f"graphics 1 {mine} {2 << 30}", "process 1 4194303 -1")
    (process,) = session.sample(0.0).processes
    assert (process.device, process.pid, process.memory_used_bytes) == (1, mine, 2 << 30)
    assert process.user
    assert "python" in process.command or "pytest" in process.command
    # A pid that is not in /proc may just have gone; when it is listed again it is somewhere else, and is shown.
    assert [process.pid for process in session.sample(1.0).processes] == [mine, 4194303]
    standin.say(f"error nvmlDeviceGetComputeRunningProcesses_v3 1 {nvml.NO_PERMISSION}")
    assert session.sample(2.0).missing == {1: {"processes": Missing(ERROR, "no permission")}}


def test_an_older_driver_without_the_newer_symbols(tmp_path: Path) -> None:
    standin = StandIn(nvml.build(tmp_path / "old", old_driver=True), tmp_path / "control")
    standin.say("devices 2", f"process 1 {os.getpid()} 1024")
    argv = [sys.executable, "-m", "probes", "stream", "--interval", "0.1"]
    with LiveProbe(argv=argv, environ=standin.environ) as probe:
        facts, sample = probe.next(Facts), probe.next(Sample)
    assert facts.source == "nvml"
    assert sample.missing == {}
    assert sample.reading(0, "throttle_reasons") == 4
    assert sample.reading(0, "memory_used_bytes") == (40 << 30) + (500 << 20)
    assert [process.pid for process in sample.processes] == [os.getpid()]
