"""`probes.ports`, `probes.vitals` and `probes.mounts`: on trees of ``/sys`` and ``/proc``, and on this machine."""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.mounts import DEADLINE_SECONDS, Kinds, MountWatch, look_at, parse_mountinfo
from probes.ports import Ports
from probes.reading import UNSUPPORTED, Disk, Health, Missing, Port
from probes.vitals import VMSTAT_EVERY, KernelClock, Vitals, parse_oom_kills, parse_pressure
from tests.unit.probes.live import few, until


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    port = tmp_path / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    put(port, state="4: ACTIVE", phys_state="5: LinkUp", rate="400 Gb/sec (4X NDR)")
    put(port / "counters", link_downed="3", symbol_error="10", port_rcv_errors="5")
    net = tmp_path / "class" / "net"
    put(net / "eth0", operstate="up", carrier_down_count="2", speed="100000")
    put(net / "eth0" / "statistics", rx_errors="1", tx_errors="2")
    put(net / "docker0", operstate="down")
    return tmp_path


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    route = "Iface\tDestination\nlo\t0\neth0\t0A000000\neth0\t00000000\ndocker0\t0\nveth12\t0\n"
    put(folder / "net", route=route, if_inet6="00000000000000000000000000000001 01 80 10 80       lo")
    return folder


def test_ports_and_interfaces_with_an_address(sysfs: Path, proc: Path) -> None:
    ports = Ports(str(sysfs), str(proc))
    assert ports.read() == [Port("mlx5_0/1", True, 3, 15, 400.0), Port("eth0", True, 2, 3, 100.0)]
    assert ports.blind == ""
    put(sysfs / "class" / "infiniband" / "mlx5_0" / "ports" / "1", state="1: DOWN")
    put(sysfs / "class" / "net" / "eth0", operstate="down", carrier_down_count="3")
    assert [(port.name, port.up, port.link_downed_count) for port in ports.read()] == [
        ("mlx5_0/1", False, 3),
        ("eth0", False, 3),
    ]


def test_an_interface_that_lost_its_address_or_is_gone_is_still_told(sysfs: Path, proc: Path) -> None:
    ports = Ports(str(sysfs), str(proc))
    ports.read()
    (proc / "net" / "route").write_text("Iface\n")
    for name in ("operstate", "carrier_down_count", "speed"):
        (sysfs / "class" / "net" / "eth0" / name).unlink()
    for _ in range(20):
        (port,) = ports.read()[1:]
        assert (port.name, port.up, port.link_downed_count, port.rate_gigabits) == ("eth0", False, None, None)


def test_a_machine_without_a_network_says_so(tmp_path: Path) -> None:
    ports = Ports(str(tmp_path), str(tmp_path))
    assert ports.read() == []
    assert ports.blind == "the kernel shows no routes"


def test_an_interface_without_a_link_is_up_while_it_is_there(sysfs: Path, proc: Path) -> None:
    put(sysfs / "class" / "net" / "eth0", operstate="unknown", speed="-1")
    (port,) = Ports(str(sysfs), str(proc)).read()[1:]
    assert (port.up, port.rate_gigabits) == (True, None)


def test_vitals_of_a_tree(tmp_path: Path) -> None:
    put(tmp_path / "pressure", memory="some avg10=12.50 avg60=1.00 avg300=0.00 total=5", io="some avg10=0.00 avg60=0")
    put(tmp_path, meminfo="MemTotal: 1000 kB\nMemAvailable: 400 kB", vmstat="nr_free_pages 5\noom_kill 7\nother 1")
    vitals, health = Vitals(str(tmp_path)), Health()
    vitals.read(health)
    assert (health.memory_pressure_percent, health.io_pressure_percent) == (12.5, 0.0)
    assert (health.memory_available_bytes, health.oom_kills) == (400 * 1024, 7)
    assert health.blind == {}
    put(tmp_path, vmstat="oom_kill 8")
    kills: list[int | None] = []
    for _ in range(VMSTAT_EVERY):
        vitals.read(health)
        kills.append(health.oom_kills)
    assert kills == [7, 7, 8]
    vitals.close()


def test_what_a_kernel_does_not_tell_is_missing(tmp_path: Path) -> None:
    health = Health()
    Vitals(str(tmp_path)).read(health)
    assert health.memory_pressure_percent is health.memory_available_bytes is health.oom_kills is None
    assert health.blind == {"pressure": Missing(UNSUPPORTED, "this kernel tells no pressure (PSI)")}


@few
@given(st.binary(max_size=80))
def test_odd_files_are_no_figures(data: bytes) -> None:
    for text in (data, b"some avg10=" + data, b"oom_kill " + data):
        assert parse_pressure(text) is None or 0 <= (parse_pressure(text) or 0.0) < 1000
        assert parse_oom_kills(text) is None or (parse_oom_kills(text) or 0) >= 0


def test_the_clock_agrees_with_the_kernel() -> None:
    told = KernelClock().synchronised()
    buffer = ctypes.create_string_buffer(512)
    state = ctypes.CDLL(None).adjtimex(buffer)
    assert told is (state != 5 and not int.from_bytes(buffer.raw[40:44], "little") & 0x40)


def test_a_file_system_and_why_there_is_none(tmp_path: Path) -> None:
    kinds = Kinds()
    found = look_at(str(tmp_path), kinds)
    figures = os.statvfs(tmp_path)
    assert found["total_bytes"] == figures.f_blocks * figures.f_frsize
    assert 0 < found["used_bytes"] <= found["total_bytes"]
    assert found["inodes_total"] == figures.f_files
    assert found["read_only"] is False
    assert found["kind"]
    assert look_at("/dev/shm", kinds)["kind"] == "tmpfs"
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path / "nope", "no such path on this node"),
        (tmp_path / "file" / "below", "not a directory"),
        (Path("/proc"), "the file system tells no size"),
    ):
        assert look_at(str(path), kinds)["reason"] == reason


def test_kinds_by_number_and_by_path(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        "30 27 0:50 /vol /data rw shared:1 master:2 - btrfs /dev/vdb rw\n"
        "31 27 0:51 / /data/deep rw - nfs4 server:/x rw\nnonsense\n"
    )
    kinds = Kinds(str(table))
    assert kinds.of("/data/deep/x", os.makedev(0, 51)) == "nfs4"
    assert kinds.of("/data/other", os.makedev(0, 99)) == "btrfs"  # a subvolume's number stands in no table
    assert kinds.of("/database", os.makedev(0, 98)) == "ext4"
    assert Kinds(str(tmp_path / "none")).of("/", 5) == ""


@few
@given(st.text(max_size=200))
def test_no_mountinfo_breaks_it(text: str) -> None:
    by_device, by_point = parse_mountinfo(text)
    assert len(by_device) <= len(by_point)


@pytest.fixture
def watch(request: pytest.FixtureRequest) -> Generator[MountWatch]:
    paths, machine = request.param
    watch = MountWatch(paths, machine)
    yield watch
    if watch.worker.running:
        watch.worker.stop()


def take(watch: MountWatch) -> bool:
    watch.receive(time.monotonic())
    return watch.answered


@pytest.mark.parametrize("watch", [(["/", "/dev/shm"], True)], indirect=True)
def test_one_child_looks_at_the_machine(watch: MountWatch) -> None:
    assert watch.mount("/", 0.0).reason == "not read yet"
    watch.begin(time.monotonic())
    until(lambda: take(watch))
    now = time.monotonic()
    assert watch.machine is not None
    assert watch.machine["clock_synchronised"] in (True, False, None)
    assert watch.mount("/dev/shm", now).kind == "tmpfs"
    assert watch.mount("/", now).free_bytes
    disk = watch.disk("/", now)
    assert disk.used_bytes
    assert disk.total_bytes == watch.mount("/", now).total_bytes
    json.dumps([watch.mount("/", now).__dict__])


def test_a_mount_that_hangs_is_named_and_hides_no_other(hung_mount: Path) -> None:
    watch = MountWatch(["/", str(hung_mount), "/dev/shm"])
    try:
        start = time.monotonic()
        watch.begin(start)
        until(lambda: take(watch) or watch.mount("/", start).total_bytes)
        assert not watch.answered
        until(lambda: watch.worker.call() == f"statvfs of {hung_mount}"[:96])
        assert watch.hangs_seconds(str(hung_mount), start + DEADLINE_SECONDS - 0.1) == 0.0
        later = start + 12.0
        told = watch.mount(str(hung_mount), later)
        assert (told.hangs_seconds, told.reason, told.total_bytes) == (12.0, "not answering for 12 s", None)
        assert watch.disk(str(hung_mount), later) == Disk(str(hung_mount), reason="not answering for 12 s")
        for other in ("/", "/dev/shm"):
            assert watch.mount(other, later).hangs_seconds == 0.0
        watch.begin(later)  # asks nothing more of a child that hangs
        assert watch.waited(later) == pytest.approx(12.0)
    finally:
        watch.worker.stop()
