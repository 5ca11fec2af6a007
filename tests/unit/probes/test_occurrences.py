"""`probes.occurrences`: each thing once, on the device and of the run that it happened to."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from probes.kernel_log import Record
from probes.occurrences import MOST_EVENTS, WAIT_FOR_KERNEL_SECONDS, Occurrences, devices_of_driver
from probes.reading import Event, Process
from tests.unit.probes.live import few

PLACES = {"0000:1b:00": 0, "0000:1c:00": 1}


def xid(code: int, place: str = "0000:1b:00", pid: int | None = None) -> str:
    owner = "" if pid is None else f", pid={pid}, name=train"
    return f"NVRM: Xid (PCI:{place}): {code}{owner}, Ch 00000008"


def nvml(code: int, wall: float, device: int = 0) -> Event:
    return Event("xid", f"NVML: Xid {code}", wall, "nvml", device, code)


def test_the_kernel_and_the_driver_tell_of_one_thing_and_the_kernel_knows_more() -> None:
    found = Occurrences()
    found.take_events([nvml(94, 1000.0)], now=0.0, wait=True)
    assert found.ready_at() == WAIT_FOR_KERNEL_SECONDS
    assert found.take(PLACES, 0.1) == []
    found.take_records([Record(1000.3, xid(94, pid=77))])
    assert found.ready_at() == 0.0
    (event,) = found.take(PLACES, 0.2)
    assert (event.source, event.device, event.code, event.pid, event.process) == ("kernel", 0, 94, 77, "train")
    assert event.wall == 1000.3
    assert found.take(PLACES, 1.0) == []
    assert found.ready_at() == math.inf


def test_without_the_kernels_log_the_driver_is_believed_at_once() -> None:
    found = Occurrences()
    found.take_events([nvml(79, 1000.0)], now=5.0, wait=False)
    assert found.ready_at() <= 5.0
    assert [event.code for event in found.take(PLACES, 5.0)] == [79]


def test_an_event_that_the_kernel_does_not_confirm_is_told_after_a_moment() -> None:
    found = Occurrences()
    found.take_events([nvml(79, 1000.0)], now=0.0, wait=True)
    assert [event.source for event in found.take(PLACES, WAIT_FOR_KERNEL_SECONDS)] == ["nvml"]


def test_the_same_again_later_is_told_again() -> None:
    found = Occurrences()
    for wall, told in ((1000.0, 1), (1004.0, 0), (1005.1, 1), (1006.0, 0)):
        found.take_records([Record(wall, xid(31))])
        assert len(found.take(PLACES, wall)) == told
    found.take_records([Record(1006.0, xid(31, "0000:1c:00")), Record(1006.0, xid(13))])
    assert [(event.device, event.code) for event in found.take(PLACES, 6.0)] == [(1, 31), (0, 13)]


def test_fallen_off_the_bus_is_one_thing_in_all_its_words() -> None:
    found = Occurrences()
    found.take_records([Record(1.0, xid(79)), Record(1.1, "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.")])
    assert [event.kind for event in found.take(PLACES, 1.0)] == ["xid"]


def test_lines_that_differ_in_numbers_only_are_one() -> None:
    found = Occurrences()
    found.take_records([Record(1.0, f"I/O error, dev nvme0n1, sector {sector}") for sector in range(50)])
    assert len(found.take({}, 1.0)) == 1


def test_a_place_that_no_device_is_at_is_still_told() -> None:
    found = Occurrences()
    found.take_records([Record(1.0, xid(79, "0000:99:00")), Record(1.0, xid(79, "0000:9a:00"))])
    assert [event.device for event in found.take(PLACES, 1.0)] == [None, None]


def test_the_run_is_known_by_the_process_by_its_parent_and_by_the_device() -> None:
    found = Occurrences()
    child = subprocess.Popen(["sleep", "60"])
    try:
        found.seen([Process(0, os.getpid(), run="lm-1"), Process(1, 4194300, run="lm-2", command="train.py")], now=10.0)
        found.take_records(
            [
                Record(1.0, f"Out of memory: Killed process {child.pid} (sleep) total-vm:1kB"),
                Record(1.1, xid(31, "0000:1c:00", pid=4194300)),
                Record(1.2, xid(79, "0000:1c:00")),
                Record(1.3, "Out of memory: Killed process 4194301 (other) total-vm:1kB"),
            ]
        )
        events = found.take(PLACES, 12.0)
        assert [(event.kind, event.run) for event in events] == [
            ("oom", "lm-1"),
            ("xid", "lm-2"),
            ("xid", "lm-2"),
            ("oom", ""),
        ]
    finally:
        child.kill()
        child.wait()


def test_a_device_of_two_runs_or_of_none_for_a_while_names_no_run() -> None:
    found = Occurrences()
    found.seen([Process(0, 11, run="lm-1"), Process(0, 12, run="lm-2"), Process(1, 13, run="lm-2")], now=0.0)
    found.take_records([Record(1.0, xid(79)), Record(1.0, xid(79, "0000:1c:00"))])
    assert [event.run for event in found.take(PLACES, 1.0)] == ["", "lm-2"]
    found.take_records([Record(100.0, xid(79, "0000:1c:00"))])
    assert [event.run for event in found.take(PLACES, 100.0)] == [""]
    # The process is remembered for longer than its hold on the device.
    assert found.run_of(13) == "lm-2"
    assert found.holders(100.0) == []


def test_processes_that_have_long_gone_are_forgotten() -> None:
    found = Occurrences()
    found.seen([Process(0, 4194300, run="lm-1")], now=0.0)
    found.seen([Process(0, 4194301, run="lm-2")], now=1000.0)
    assert found.run_of(4194300) == ""
    assert found.run_of(4194301) == "lm-2"


@few
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 1), st.sampled_from([13, 31, 79]), st.floats(0, 60)), max_size=30)
)
@example([(False, 0, 13, 0.0), (False, 0, 13, 0.0), (True, 0, 13, 5.0)])
@example([(False, 0, 13, 0.0), (True, 0, 13, 5.0), (False, 0, 13, 5.0)])
def test_nothing_is_lost_and_nothing_told_twice(story: list[tuple[bool, int, int, float]]) -> None:
    found = Occurrences()
    told: list[Event] = []
    for kernel, device, code, wall in sorted(story, key=lambda entry: entry[3]):
        if kernel:
            found.take_records([Record(wall, xid(code, list(PLACES)[device]))])
        else:
            found.take_events([nvml(code, wall, device)], now=wall, wait=True)
        told += found.take(PLACES, wall)
    told += found.take(PLACES, 100.0)
    for device in (0, 1):
        for code in (13, 31, 79):
            walls = sorted(event.wall for event in told if (event.device, event.code) == (device, code))
            assert all(after - before >= 4.999 for before, after in itertools.pairwise(walls))
            for wall in (entry[3] for entry in story if entry[1:3] == (device, code)):
                assert any(abs(wall - at) <= 5.001 for at in walls)


def test_what_nobody_reads_is_bounded() -> None:
    found = Occurrences()
    found.take_records([Record(float(n), xid(1000 + n)) for n in range(3 * MOST_EVENTS)])
    found.take_events([nvml(n, float(n)) for n in range(3 * MOST_EVENTS)], now=0.0, wait=False)
    assert len(found.take(PLACES, 1.0)) <= 2 * MOST_EVENTS
    for n in range(20 * MOST_EVENTS):
        found.take_records([Record(float(n), xid(n))])
        found.take(PLACES, 1.0)
    assert len(found._told) <= 10 * MOST_EVENTS


def test_the_drivers_own_list_stands_in_for_nvml(tmp_path: Path) -> None:
    for name in ("0000:9b:00.0", "0000:1b:00.0", "nonsense"):
        (tmp_path / "driver" / "nvidia" / "gpus" / name).mkdir(parents=True)
    assert devices_of_driver(str(tmp_path)) == {"0000:1b:00": 0, "0000:9b:00": 1}
    assert devices_of_driver(str(tmp_path / "none")) == {}
