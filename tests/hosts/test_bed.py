"""The hosts that other tests stand on: what they are, what may go wrong with them, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from console.demo.hosts.bed import Bed as Hosts
from console.demo.hosts.net import run
from jobs.errors import Refused
from tests.cluster.test_demo import Headless
from tests.hosts.bed import hosts, why_not
from tests.hosts.relay import relay

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def pair() -> Generator[Hosts]:
    """Two hosts without Ray."""
    if reason := why_not():
        pytest.skip(reason)
    with hosts(["head", "worker-1"]) as made:
        yield made


def seconds(made: Hosts, *command: str) -> float:
    began = time.monotonic()
    made.ssh("worker-1", *command)
    return time.monotonic() - began


def offset(made: Hosts) -> float:
    """By how much a probe's interpreter on the host is off."""
    said = made.ssh("worker-1", "python3", "-I", "-S", "-u", "-c", "import time; print(time.time())")
    return float(said) - time.time()


def test_a_host_is_a_machine_of_its_own(pair: Hosts) -> None:
    told = {
        name: pair.ssh(name, "sh", "-c", "hostname; cat /etc/machine-id; ls /proc | grep -c '^[0-9]'; ip -4 -o addr")
        for name in pair.names
    }
    for name, host in pair.hosts.items():
        hostname, machine, processes, *addresses = told[name].splitlines()
        assert (hostname, machine) == (name, host.machine_id)
        assert int(processes) < 20
        assert len(addresses) == 2
        assert host.address in addresses[1]
    assert pair.hosts["head"].machine_id != pair.hosts["worker-1"].machine_id


def test_a_cut_link_is_silence_and_comes_back(pair: Hosts) -> None:
    with pair.hosts["worker-1"].link.cut(), pytest.raises(Refused, match="timed out"):
        pair.ssh("worker-1", "true")
    pair.ssh("worker-1", "true")


def test_a_link_can_be_slow(pair: Hosts) -> None:
    fast = seconds(pair, "head", "-c", "200000", "/dev/zero")
    with pair.hosts["worker-1"].link.slow(800):
        slow = seconds(pair, "head", "-c", "200000", "/dev/zero")
    assert slow > fast + 1.0


def test_a_port_can_refuse_or_swallow_and_packets_get_lost(pair: Hosts) -> None:
    link = pair.hosts["worker-1"].link
    with link.refuse(22), pytest.raises(Refused, match="refused"):
        pair.ssh("worker-1", "true")
    with link.drop(22), pytest.raises(Refused, match="timed out"):
        pair.ssh("worker-1", "true")
    with link.drop(share=0.3):
        pair.ssh("worker-1", "head", "-c", "200000", "/dev/zero", seconds=60.0)
        dropped = next(line for line in link.inside("iptables", "-nvxL", "INPUT").splitlines() if "DROP" in line)
    assert int(dropped.split()[0]) > 0
    pair.ssh("worker-1", "true")


async def test_a_relay_delays_what_goes_through_it(pair: Hosts) -> None:
    async with relay(pair.hosts["worker-1"].address, 22, 0.2) as port:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert (await reader.readline()).startswith(b"SSH-2.0-")
        assert time.monotonic() - began > 0.2
        writer.close()


def test_processes_stand_still_and_go_on(pair: Hosts) -> None:
    host = pair.hosts["worker-1"]
    pair.ssh("worker-1", "sh", "-c", "setsid sleep 77 >/dev/null 2>&1 </dev/null &")
    begun = time.monotonic()
    while not host.pids("sleep 77"):
        assert time.monotonic() < begun + 5

    def states(pids: list[int]) -> list[str]:
        return [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids]

    with host.stopped("sleep 77") as pids:
        assert states(pids) == ["T"]
    deadline = time.monotonic() + 5
    while states(pids) != ["S"]:
        assert time.monotonic() < deadline, states(pids)
    assert host.kill("sleep 77") == pids
    while host.pids("sleep 77"):
        assert time.monotonic() < deadline
    with pytest.raises(Refused, match="nothing like"), host.stopped("sleep 77"):
        pass


def test_a_disk_can_be_full_and_a_clock_wrong(pair: Hosts) -> None:
    host, folder = pair.hosts["worker-1"], pair.folder / "small"
    folder.mkdir()
    with host.small_disk(folder, 2):
        with pytest.raises(Refused):
            pair.ssh("worker-1", "dd", "if=/dev/zero", f"of={folder}/full", "bs=1M", "count=4")
        assert list(folder.iterdir()) == []  # the others have another one there
    assert abs(offset(pair)) < 2
    with host.skewed(100.0):
        assert 98 < offset(pair) < 102
    assert abs(offset(pair)) < 2


def test_a_reboot_leaves_the_machine_and_nothing_that_ran(pair: Hosts) -> None:
    host = pair.hosts["worker-1"]
    before = host.machine_id
    pair.ssh("worker-1", "sh", "-c", "setsid sleep 99 >/dev/null 2>&1 </dev/null &")
    begun = time.monotonic()
    while not host.pids("sleep 99"):
        assert time.monotonic() < begun + 5
    host.reboot()
    assert not host.pids("sleep 99")
    assert pair.ssh("worker-1", "cat", "/etc/machine-id").strip() == before


def test_a_demo_on_hosts_leaves_nothing_also_when_its_keeper_is_killed(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "RAYDECK_CONFIG_DIR": str(tmp_path / "none")}
    demo = Headless(environ, "--hosts")
    try:
        ready = demo.wait_ready()
        assert (ready["nodes"], ready["gpus"]) == (4, 12)
        told = json.loads(Path(ready["context_file"]).read_text())
        rows = demo.command("nodes", "--json")
        assert [(row["name"], row["ssh"], row["ray"], row["gpu_count"]) for row in rows] == [
            ("head", "up", "alive", 0),
            *((f"worker-{number}", "up", "alive", 4) for number in (1, 2, 3)),
        ]
        assert {row["address"].rpartition(".")[0] for row in rows} != {"127.0.0"}
        os.kill(demo.keeper, signal.SIGKILL)
        demo.process.wait(30)
        assert _left(told["hosts"])
        # The next demo finds what the last one left; it need not even come up.
        other = Headless(environ)
        try:
            deadline = time.monotonic() + 30
            while _left(told["hosts"]) or Path(told["folder"]).exists():
                assert time.monotonic() < deadline, _left(told["hosts"])
                time.sleep(0.1)
        finally:
            other.process.terminate()
            other.process.communicate(timeout=60)
    finally:
        demo.process.terminate()
        demo.process.communicate(timeout=60)


def _left(stamp: str) -> list[str]:
    """Devices and namespaces of a demo."""
    devices = [link["ifname"] for link in json.loads(run("ip", "-j", "link")) if stamp in link["ifname"]]
    return devices + [line for line in run("ip", "netns", "list").splitlines() if stamp in line]
