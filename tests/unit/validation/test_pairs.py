"""Packets that were lost, as the kernel counts them."""

from __future__ import annotations

from pathlib import Path

from jobs.validation.pairs import sent_again

SNMP = "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: RtoAlgorithm RetransSegs InErrs\nTcp: 1 17 0\n"
NETSTAT = "TcpExt: SyncookiesSent TCPDSACKRecv\nTcpExt: 0 5\nIpExt: InNoRoutes\nIpExt: 0\n"


def test_what_came_twice_was_not_lost(tmp_path: Path) -> None:
    (tmp_path / "snmp").write_text(SNMP)
    (tmp_path / "netstat").write_text(NETSTAT)
    assert sent_again(tmp_path) == 12


def test_a_kernel_that_does_not_count_says_nothing(tmp_path: Path) -> None:
    assert sent_again(tmp_path) == 0
    (tmp_path / "snmp").write_text("Tcp: RtoAlgorithm\nTcp: 1\n")
    (tmp_path / "netstat").write_text("")
    assert sent_again(tmp_path) == 0
