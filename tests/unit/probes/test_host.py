"""`probes.host` on trees of ``/proc``, and on a mount that really hangs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.host import HostReader, parse_cpu, parse_meminfo, parse_network
from probes.reading import Sample
from tests.unit.probes.live import LiveProbe, children, few, gone, until

_NET = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 9999 1 0 0 0 0 0 0 9999 1 0 0 0 0 0 0
  eth0:{eth_in} 10 0 0 0 0 0 0 {eth_out} 10 0 0 0 0 0 0
  ib0: 5000 10 0 0 0 0 0 0 7000 10 0 0 0 0 0 0
veth12: 777 1 0 0 0 0 0 0 777 1 0 0 0 0 0 0
docker0: 777 1 0 0 0 0 0 0 777 1 0 0 0 0 0 0
 bond0: 777 1 0 0 0 0 0 0 777 1 0 0 0 0 0 0
eth0.12: 777 1 0 0 0 0 0 0 777 1 0 0 0 0 0 0
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    write(tmp_path, busy=100, idle=900, eth_in=1000, eth_out=2000)
    (tmp_path / "loadavg").write_text("1.25 0.50 0.10 2/345 6789\n")
    (tmp_path / "meminfo").write_text(
        "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\nBuffers:          10 kB\n"
    )
    return tmp_path


def write(proc: Path, *, busy: int, idle: int, eth_in: int, eth_out: int) -> None:
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3 4\nintr 5\nbtime 1700000000\n")
    (proc / "net" / "dev").write_text(_NET.format(eth_in=eth_in, eth_out=eth_out))


def test_rates_are_differences_and_the_first_reading_has_none(proc: Path) -> None:
    reader = HostReader(str(proc))
    first = reader.read(100.0)
    assert (first.load_1m, first.memory_used_bytes, first.memory_total_bytes) == (1.25, 600 * 1024, 1000 * 1024)
    assert first.cpu_percent is None
    assert first.network_receive_bytes_per_second is None
    write(proc, busy=150, idle=1050, eth_in=3000, eth_out=2500)
    second = reader.read(102.0)
    assert second.cpu_percent == 25.0
    assert second.network_receive_bytes_per_second == 1000.0
    assert second.network_send_bytes_per_second == 250.0
    assert reader.read(102.1).cpu_percent == 25.0  # too soon for a rate of its own
    reader.close()


def test_an_interface_that_was_made_anew_gives_no_negative_rate(proc: Path) -> None:
    reader = HostReader(str(proc))
    reader.read(1.0)
    write(proc, busy=100, idle=950, eth_in=10, eth_out=2100)
    host = reader.read(2.0)
    assert host.network_receive_bytes_per_second == 0.0
    assert host.network_send_bytes_per_second == 100.0
    reader.close()


def test_what_the_kernel_does_not_tell_is_unknown(tmp_path: Path) -> None:
    reader = HostReader(str(tmp_path))
    reader.read(1.0)
    host = reader.read(2.0)
    assert (host.cpu_percent, host.load_1m, host.memory_used_bytes) == (None, None, None)
    assert host.network_receive_bytes_per_second is None


def test_only_interfaces_with_traffic_of_their_own_count() -> None:
    found = parse_network(_NET.format(eth_in=1, eth_out=2).encode())
    assert found == {"eth0": (1, 2), "ib0": (5000, 7000)}


def test_facts_of_this_machine() -> None:
    facts = HostReader().facts()
    assert facts.hostname == os.uname().nodename
    assert facts.cpu_count == os.cpu_count()
    assert facts.python == "{}.{}.{}".format(*sys.version_info[:3])
    assert facts.memory_total_bytes > 1 << 28
    assert facts.boot_wall > 1e9


@few
@given(st.binary(max_size=200))
def test_parsers_take_anything(text: bytes) -> None:
    parse_cpu(text)
    parse_cpu(b"cpu " + text)
    parse_meminfo(text)
    parse_network(b"\n\n" + text)


def test_a_hung_mount_gives_a_reason_and_blocks_nothing(hung_mount: Path) -> None:
    with LiveProbe("--interval", "0.2", "--disk", str(hung_mount), "--disk", "/") as probe:
        probe.next(Sample, lambda sample: sample.host.disks[1].used_bytes)
        blocked = probe.next(Sample, lambda sample: "not answering for" in sample.host.disks[0].reason)
        assert blocked.host.disks[0].used_bytes is None
        later = [probe.next(Sample) for _ in range(3)]
        assert [sample.seq for sample in later] == [blocked.seq + 1, blocked.seq + 2, blocked.seq + 3]
        waiting = children(probe.process.pid)
        probe.stdin.close()
        assert until(lambda: probe.process.poll() is not None) < 1.0
        until(lambda: all(gone(pid) for pid in waiting))
