"""`probes.kernel_lines`: what matters in the kernel's log, in the words that drivers and kernels use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.kernel_lines import LONGEST_TEXT, parse
from probes.source import bus_address
from tests.unit.probes.live import few

Told = tuple[str, int | None, int | None, str, str]


def told(text: str) -> Told | None:
    parsed = parse(text)
    if parsed is None:
        return None
    event, address = parsed
    assert event.text == text[:LONGEST_TEXT]
    return event.kind, event.code, event.pid, event.process, address


def other(kind: str, address: str = "") -> Told:
    return kind, None, None, "", address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:9b:00): 31, pid=12345, name=python3, Ch 00000008, intr 00000000. MMU Fault",
            ("xid", 31, 12345, "python3", "0000:9b:00"),
        ),
        (
            "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            ("xid", 79, None, "", "0000:05:00"),
        ),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", ("xid", 14, None, "", "0000:03:00")),
        (
            "NVRM: Xid (PCI:0000:C1:00.0): 94, pid='7194', name=pt main thread",
            ("xid", 94, 7194, "pt main thread", "0000:c1:00"),
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08",
            ("xid", 149, None, "", "0018:01:00"),
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 119, pid=1, Timeout after 6s of waiting", ("xid", 119, 1, "", "0000:3b:00")),
        ("NVRM: Xid (PCI:0000:3b:00): 45", ("xid", 45, None, "", "0000:3b:00")),
        ("NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.", ("gpu_lost", 79, None, "", "0000:05:00")),
        ("NVRM: GPU at 0000:05:00.0 has fallen off the bus.", ("gpu_lost", 79, None, "", "0000:05:00")),
        (
            "NVRM: The NVIDIA GPU 0000:0a:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus "
            "and is not responding to commands.",
            ("gpu_lost", 79, None, "", "0000:0a:00"),
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO",
            ("sxid", 28006, None, "", "0000:c1:00"),
        ),
        (
            "Out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:1kB, UID:1000 pgtables:1kB",
            ("oom", None, 4242, "python3", ""),
        ),
        (
            "Memory cgroup out of memory: Killed process 77 (ray::IDLE (x)) total-vm:1kB",
            ("oom", None, 77, "ray::IDLE (x)", ""),
        ),
        ("INFO: task python3:991 blocked for more than 122 seconds.", ("hung_task", None, 991, "python3", "")),
        (
            "INFO: task kworker/u8:1:33 blocked on a mutex likely owned by task x:7 for more than 122 seconds.",
            ("hung_task", None, 33, "kworker/u8:1", ""),
        ),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python3:1234]", ("hung_task", None, 1234, "python3", "")),
        ("mlx5_core 0000:5e:00.0 eth2: Link down", other("link", "0000:5e:00")),
        (
            "mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error, High Temperature",
            other("link", "0000:5e:00"),
        ),
        ("igb 0000:04:00.0 eth0: igb: eth0 NIC Link is Up 1000 Mbps Full Duplex", other("link", "0000:04:00")),
        ("bnxt_en 0000:19:00.0 ens1f0: NIC Link is Down", other("link", "0000:19:00")),
        ("bond0: (slave eth1): link status definitely down for interface eth1, disabling it", other("link")),
        ("nfs: server 10.0.0.5 not responding, still trying", other("storage")),
        ("I/O error, dev nvme0n1, sector 1234 op 0x0:(READ) flags 0x0", other("storage")),
        ("EXT4-fs (sda1): Remounting filesystem read-only", other("storage")),
        ("EXT4-fs error (device sda1): ext4_find_entry:1234: inode #2: comm ls: reading", other("storage")),
        ("XFS (dm-0): Filesystem has been shut down due to log error (0x2).", other("storage")),
        ("nvme nvme0: I/O 23 QID 4 timeout, reset controller", other("storage")),
        ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: b200000000070f0f", other("machine_check")),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0", other("machine_check")),
        (
            "pcieport 0000:17:00.0: AER: Uncorrectable (Fatal) error message received from 0000:18:00.0",
            other("machine_check", "0000:18:00"),
        ),
        # Nothing that anybody needs to be woken for.
        ("nfs: server 10.0.0.5 OK", None),
        ("ata1: SATA link down (SStatus 0 SControl 300)", None),
        ("IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready", None),
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06", None),
        ("oom_reaper: reaped process 4242 (python3), now anon-rss:0kB", None),
        ("EXT4-fs (sda1): mounted filesystem with ordered data mode", None),
        ("systemd[1]: Started Session 4 of user ops.", None),
        ("python3 invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0", None),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", None),
        ("", None),
    ],
)
def test_lines_as_they_are_printed(text: str, expected: Told | None) -> None:
    assert told(text) == expected


@few
@given(
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFF),
    st.integers(0, 0x1F),
    st.integers(1, 999),
    st.one_of(st.none(), st.integers(0, 4194304)),
    st.booleans(),
    st.text(st.characters(blacklist_characters=",'", min_codepoint=32, max_codepoint=126), max_size=30),
)
def test_every_xid_keeps_its_number_place_and_process(
    domain: int, bus: int, device: int, code: int, pid: int | None, quoted: bool, rest: str
) -> None:
    place = f"{domain:04x}:{bus:02x}:{device:02x}"
    owner = "" if pid is None else f", pid='{pid}'" if quoted else f", pid={pid}"
    found = told(f"NVRM: Xid (PCI:{place.upper()}): {code}{owner}, name=train, {rest}")
    assert found is not None
    assert found[:3] == ("xid", code, pid)
    assert found[4] == place


@few
@given(st.text(max_size=600))
def test_no_text_breaks_it(text: str) -> None:
    for line in (text, "NVRM: Xid (PCI:" + text, "Killed process " + text, "INFO: task " + text, "link down " + text):
        parsed = parse(line)
        if parsed is not None:
            event, address = parsed
            assert len(event.text) <= LONGEST_TEXT
            assert event.pid is None or event.pid >= 0
            assert address == "" or bus_address(address) == address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:1B:00.0", "0000:1b:00"),
        ("0000:1b:00.0", "0000:1b:00"),
        ("1B:00", "0000:1b:00"),
        ("00010000:c1:00.0", "10000:c1:00"),
        ("1b", ""),
        ("zz:00", ""),
        ("0000:1bb:00", ""),
        ("", ""),
    ],
)
def test_addresses_have_one_form(text: str, address: str) -> None:
    assert bus_address(text) == address
