"""The probe as a process that was started with ``--health``: when it tells, of what, and that it waits for nothing."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.bundle import boot_argv, bundle
from probes.amd import Amd
from probes.reading import DEVICE_HEALTH_FIELDS, ERROR, STALE, Event, Facts, Health, Missing, Pong, Sample, decode
from tests import nvml
from tests.nvml import StandIn
from tests.unit.probes.live import ROOT, LiveProbe, clean_environ, gone, until
from tests.unit.probes.test_kernel_log import record

QUICK = ("--interval", "0.1", "--deadline", "0.3", "--health-every", "0.3")
XID_94 = "NVRM: Xid (PCI:0000:12:00): 94, pid={pid}, name=python3, Ch 00000008"


@pytest.fixture
def kmsg(tmp_path: Path) -> Path:
    """A FIFO in the place of the kernel's log."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    return path


def told(probe: LiveProbe, true: Callable[[Event], Any], limit: float = 10.0) -> Event:
    """The next event for which something is true."""
    until_at = time.monotonic() + limit
    while True:
        health = probe.next(Health, lambda health: health.events, until_at - time.monotonic())
        for event in health.events:
            if true(event):
                return event


def test_the_first_line_has_everything(standin: StandIn, kmsg: Path, tmp_path: Path) -> None:
    environ = {**standin.environ, "RAYDECK_KMSG": str(kmsg)}
    with LiveProbe(*QUICK, "--disk", str(tmp_path), "--disk", "/tmp", environ=environ) as probe:
        assert isinstance(probe.line(), Facts)
        assert isinstance(probe.line(), Sample)
        health = probe.next(Health)
        assert [device.pci for device in health.devices] == [f"0000:{0x10 + index:02x}:00" for index in range(8)]
        for device in health.devices:
            assert set(device.figures) | set(device.missing) == set(DEVICE_HEALTH_FIELDS)
        assert [mount.path for mount in health.mounts] == [str(tmp_path), "/tmp", "/", "/dev/shm"]
        assert all(
            mount.total_bytes and mount.free_bytes and mount.kind and not mount.reason for mount in health.mounts
        )
        assert health.memory_available_bytes
        assert health.oom_kills is not None
        assert health.clock_synchronised is not None
        assert health.events == []
        assert "kernel_log" not in health.blind
        assert "nvml_events" not in health.blind
        assert health.wall == pytest.approx(time.time(), abs=5)
        second = probe.next(Health)
        assert second.wall - health.wall == pytest.approx(0.3, abs=0.25)


def test_a_probe_without_it_tells_no_health_and_has_no_child_for_it(standin: StandIn) -> None:
    with LiveProbe("--interval", "0.1", environ=standin.environ) as probe:
        kinds = {type(probe.line()) for _ in range(8)}
        assert kinds == {Facts, Sample}
        assert len(probe.children()) == 1


def test_a_line_of_the_kernel_is_told_at_once_with_its_device_and_its_run(standin: StandIn, kmsg: Path) -> None:
    holder = subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], "RAYDECK_RUN": "lm-9", "RANK": "0"})
    try:
        until(lambda: b"lm-9" in Path(f"/proc/{holder.pid}/environ").read_bytes())
        standin.say(f"process 2 {holder.pid} 1024")
        environ = {**standin.environ, "RAYDECK_KMSG": str(kmsg)}
        with LiveProbe("--interval", "5", "--health", environ=environ) as probe:
            probe.next(Health)
            before = time.monotonic()
            kmsg.write_bytes(record("eth0: nothing to see") + record(XID_94.format(pid=holder.pid)))
            event = told(probe, lambda event: event.kind == "xid")
            took = time.monotonic() - before
        assert took < 2.0  # long before the next beat
        assert (event.device, event.code, event.pid, event.process, event.run, event.source) == (
            2,
            94,
            holder.pid,
            "python3",
            "lm-9",
            "kernel",
        )
        assert event.wall == pytest.approx(time.time(), abs=3)
    finally:
        holder.kill()
        holder.wait()


def test_what_was_logged_before_it_started_is_told_first(standin: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(record(XID_94.format(pid=1), ago=300) + record("I/O error, dev sda, sector 1", ago=5000))
    with LiveProbe(*QUICK, environ={**standin.environ, "RAYDECK_KMSG": str(path)}) as probe:
        (event,) = probe.next(Health).events
        assert (event.kind, event.device) == ("xid", 2)
        assert event.wall == pytest.approx(time.time() - 300, abs=5)
        assert probe.next(Health).events == []


def test_kernel_and_driver_tell_of_one_xid_once(standin: StandIn, kmsg: Path) -> None:
    with LiveProbe(*QUICK, environ={**standin.environ, "RAYDECK_KMSG": str(kmsg)}) as probe:
        probe.next(Health)
        standin.say(f"event 2 {nvml.XID_EVENT} 94 1", f"event 4 {nvml.XID_EVENT} 48 2")
        kmsg.write_bytes(record(XID_94.format(pid=1)))
        events: list[Event] = []
        until(lambda: events.extend(probe.next(Health).events) or any(event.code == 48 for event in events))
        events += probe.next(Health).events
    assert sorted((event.code, event.device, event.source) for event in events) == [(48, 4, "nvml"), (94, 2, "kernel")]


def test_without_any_source_of_xids_it_says_so(standin: StandIn, tmp_path: Path) -> None:
    standin.say(f"error nvmlEventSetCreate * {nvml.NOT_SUPPORTED}")
    environ = {**standin.environ, "RAYDECK_KMSG": str(tmp_path / "nowhere"), "PATH": "/nowhere"}
    with LiveProbe(*QUICK, environ=environ) as probe:
        health = probe.next(Health, lambda health: "journalctl" in health.blind["kernel_log"].reason)
    assert health.blind["nvml_events"].reason == "NVML: not supported"
    assert health.blind["xid"].reason.startswith(health.blind["kernel_log"].reason)
    assert health.blind["xid"].reason.endswith("NVML: not supported")


def test_a_driver_that_blocks_leaves_names_and_the_rest(standin: StandIn, kmsg: Path) -> None:
    with LiveProbe(*QUICK, environ={**standin.environ, "RAYDECK_KMSG": str(kmsg)}) as probe:
        probe.next(Health)
        standin.say("block nvmlDeviceGetCurrPcieLinkWidth 5")
        health = probe.next(Health, lambda health: health.devices[0].missing.get("*"))
        reason = health.devices[0].missing["*"]
        assert reason.kind == STALE
        assert reason.reason.startswith("nvmlDeviceGetCurrPcieLinkWidth on GPU 5 has not answered for")
        assert [(device.figures, device.pci) for device in health.devices[1:3]] == [
            ({}, "0000:11:00"),
            ({}, "0000:12:00"),
        ]
        assert health.mounts[0].total_bytes
        # What the kernel says meanwhile keeps its device.
        kmsg.write_bytes(record("NVRM: Xid (PCI:0000:15:00): 119, pid=7, name=x, Timeout after 6s"))
        assert told(probe, lambda event: event.code == 119).device == 5
        standin.say()
        healed = probe.next(Health, lambda health: health.devices[5].figures)
        assert healed.devices[5].missing.get("*") is None


def test_a_driver_that_fails_is_the_reason_for_all_devices(standin: StandIn, kmsg: Path) -> None:
    with LiveProbe(*QUICK, environ={**standin.environ, "RAYDECK_KMSG": str(kmsg)}) as probe:
        probe.next(Health)
        standin.say("error * * 1")
        health = probe.next(Health, lambda health: "*" in health.devices[7].missing)
    assert health.devices[7].missing["*"] == Missing(ERROR, "the NVIDIA driver was unloaded or reset while it was read")
    assert health.blind["nvml_events"].kind == ERROR


def test_devices_that_are_slow_to_open_are_told_when_they_are_known(standin: StandIn, kmsg: Path) -> None:
    standin.say("block nvmlInitWithFlags *")
    argv = ("--interval", "0.1", "--deadline", "0.3", "--health-every", "60")
    with LiveProbe(*argv, environ={**standin.environ, "RAYDECK_KMSG": str(kmsg)}) as probe:
        assert probe.next(Health).devices == []
        standin.say()
        assert len(probe.next(Health).devices) == 8


def test_a_mount_that_begins_to_hang_is_told_at_once(hung_mount: Path) -> None:
    argv = ("--interval", "0.2", "--health-every", "60", "--disk", str(hung_mount))
    with LiveProbe(*argv) as probe:
        health = probe.next(Health, lambda health: health.mounts[0].hangs_seconds)
        assert health.mounts[0].hangs_seconds >= 2.0
        assert health.mounts[0].reason.startswith("not answering for")
        assert health.mounts[0].total_bytes is None
        others = health.mounts[1:]
        assert [mount.path for mount in others] == ["/", "/tmp", "/dev/shm"]
        assert all(mount.total_bytes and not mount.hangs_seconds for mount in others)
        assert probe.next(Sample).host.disks[0].reason.startswith("not answering")


def test_a_flood_of_kernel_lines_does_not_keep_the_samples_waiting(standin: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"")
    with LiveProbe(*QUICK, environ={**standin.environ, "RAYDECK_KMSG": str(path)}) as probe:
        probe.next(Health)
        first = probe.next(Sample).seq
        with path.open("ab") as file:
            for number in range(20000):
                file.write(record(f"NVRM: Xid (PCI:0000:12:00): {number % 7 + 40}, pid=1, name=x {number}"))
        events: list[Event] = []
        samples: list[Sample] = []
        while len(samples) < 12:
            line = probe.line()
            if isinstance(line, Sample):
                samples.append(line)
            elif isinstance(line, Health):
                events += line.events
        assert samples[-1].seq - first >= 12
        assert sorted(event.code or 0 for event in events)[:7] == [40, 41, 42, 43, 44, 45, 46]
        assert len(events) <= 14  # the same within five seconds is the same


def test_a_reader_that_stalls_misses_no_event(standin: StandIn, kmsg: Path) -> None:
    with LiveProbe(*QUICK, environ={**standin.environ, "RAYDECK_KMSG": str(kmsg)}) as probe:
        probe.next(Health)
        fcntl.fcntl(probe.stdout, fcntl.F_SETPIPE_SZ, 4096)
        since = time.monotonic()
        until(lambda: time.monotonic() > since + 0.6)  # its output is full by now
        kmsg.write_bytes(record(XID_94.format(pid=1)))
        since = time.monotonic()
        until(lambda: time.monotonic() > since + 0.6)
        assert told(probe, lambda event: event.code == 94).device == 2


def test_once_tells_it_too(standin: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(record(XID_94.format(pid=1)))
    done = subprocess.run(
        [sys.executable, "-m", "probes", "once", "--health"],
        capture_output=True,
        env=clean_environ({**standin.environ, "RAYDECK_KMSG": str(path)}),
        cwd=ROOT,
        timeout=30,
        check=True,
    )
    facts, sample, health = [decode(line) for line in done.stdout.splitlines()]
    assert (type(facts), type(sample)) == (Facts, Sample)
    assert isinstance(health, Health)
    assert len(health.devices) == 8
    assert [event.code for event in health.events] == [94]
    assert done.stderr == b""


def test_its_children_go_with_it(standin: StandIn, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "journalctl").write_text("#!/bin/sh\nexec sleep 60\n")
    (folder / "journalctl").chmod(0o755)
    environ = {
        **standin.environ,
        "RAYDECK_KMSG": str(tmp_path / "nowhere"),
        "PATH": f"{folder}:{os.environ['PATH']}",
    }
    with LiveProbe(*QUICK, environ=environ) as probe:
        probe.next(Health)
        children = probe.children()
        assert len(children) == 3
        probe.process.kill()
        until(lambda: all(gone(child) for child in children))
    with LiveProbe(*QUICK, environ=environ) as probe:
        probe.next(Health)
        children = probe.children()
        probe.stdin.close()
        assert probe.process.wait(5) == 0
        until(lambda: all(gone(child) for child in children))


def test_a_simulated_nodes_clock_goes_wrong_everywhere(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    entry = {"kind": "oom", "text": "Killed process 7 (python3)", "pid": 7}
    script.write_text(json.dumps({"node": "w1", "gpus": 1, "clock_skew_seconds": 100, "events": [entry]}))
    with LiveProbe(*QUICK, environ={"RAYDECK_SIMULATED": str(script)}) as probe:
        ahead = pytest.approx(time.time() + 100, abs=5)
        assert probe.next(Sample).wall == ahead
        health = probe.next(Health)
        assert health.wall == ahead
        assert [event.wall for event in health.events] == [ahead]
        probe.send(b"ping x\n")
        assert probe.next(Pong).wall == ahead
        assert "xid" not in health.blind


SUPPORTED = [sys.executable, *sorted(map(str, Path("~/.pyenv/versions").expanduser().glob("3.8.*/bin/python3.8")))[-1:]]


@pytest.mark.parametrize("python", SUPPORTED)
def test_it_travels(python: str, standin: StandIn, kmsg: Path) -> None:
    argv = [python, *boot_argv(["stream", *QUICK])[1:]]
    with LiveProbe(argv=argv, first=bundle(), environ={**standin.environ, "RAYDECK_KMSG": str(kmsg)}) as probe:
        health = probe.next(Health)
        assert len(health.devices) == 8
        assert health.devices[0].figures["nvlinks_active"] == 18
        standin.say(f"event 4 {nvml.XID_EVENT} 48 2")
        kmsg.write_bytes(record(XID_94.format(pid=1)))
        codes: set[int | None] = set()
        until(lambda: codes.update(event.code for event in probe.next(Health).events) or codes >= {48, 94})


@pytest.mark.parametrize("python", SUPPORTED)
def test_simulated_faults_travel(python: str, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"node": "w1", "gpus": 2, "faults": {"1": {"kind": "xid", "code": 79}}}))
    argv = [python, *boot_argv(["stream", *QUICK])[1:]]
    with LiveProbe(argv=argv, first=bundle(), environ={"RAYDECK_SIMULATED": str(script)}) as probe:
        health = probe.next(Health)
        assert [(event.kind, event.device, event.code) for event in health.events] == [("xid", 1, 79)]
        assert len(health.devices) == 2


def test_amd_tells_what_amdgpu_tells(tmp_path: Path) -> None:
    card = tmp_path / "devices" / "0000:c3:00.0"
    (card / "hwmon" / "hwmon1").mkdir(parents=True)
    (tmp_path / "class" / "drm" / "card0").mkdir(parents=True)
    (tmp_path / "class" / "drm" / "card0" / "device").symlink_to(card)
    for name, text in {
        "mem_info_vram_total": "1",
        "current_link_width": "8",
        "max_link_width": "16",
        "max_link_speed": "32.0 GT/s PCIe",
        "unique_id": "abc",
        "hwmon/hwmon1/temp3_input": "71000",
        "hwmon/hwmon1/temp3_crit": "100000",
    }.items():
        (card / name).write_text(text + "\n")
    source = Amd(lambda mark: None, str(tmp_path))
    health = source.health()
    (device,) = health.devices
    assert (device.pci, device.uuid) == ("0000:c3:00", "abc")
    assert device.figures == {
        "memory_temperature_celsius": 71,
        "memory_slowdown_celsius": 100,
        "pcie_generation_max": 5,
        "pcie_width": 8,
        "pcie_width_max": 16,
    }
    assert set(device.figures) | set(device.missing) == set(DEVICE_HEALTH_FIELDS)
    assert health.blind["xid"].reason == "AMD's GPUs have no XIDs"
    assert source.events() == []
