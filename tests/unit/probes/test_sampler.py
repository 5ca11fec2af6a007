"""The probe as a process: its cadence while the driver misbehaves, and its end."""

from __future__ import annotations

import array
import fcntl
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from probes.reading import ERROR, Facts, Fault, Missing, Pong, Sample, decode
from tests import nvml
from tests.nvml import StandIn
from tests.unit.probes.live import ROOT, LiveProbe, clean_environ, gone, until

QUICK = ("--interval", "0.1", "--deadline", "0.3")


def test_facts_come_first_and_then_a_sample_a_beat(standin: StandIn) -> None:
    with LiveProbe(*QUICK, environ=standin.environ) as probe:
        facts = probe.line()
        assert isinstance(facts, Facts)
        assert facts.source == "nvml"
        assert len(facts.devices) == 8
        assert facts.hostname == os.uname().nodename
        samples = [probe.line() for _ in range(6)]
    walls: list[float] = []
    for number, sample in enumerate(samples, start=1):
        assert isinstance(sample, Sample)
        assert (sample.seq, sample.driver.state, sample.index) == (number, "ok", list(range(8)))
        assert sample.cost_ms > 0
        walls.append(sample.wall)
    gaps = [after - before for before, after in itertools.pairwise(walls)]
    assert 0.05 < statistics.median(gaps) < 0.3
    last = samples[-1]
    assert isinstance(last, Sample)
    assert last.host.memory_total_bytes
    assert last.host.cpu_percent is not None


def test_a_ping_is_answered_at_once_with_the_nodes_clock() -> None:
    with LiveProbe("--interval", "5") as probe:
        probe.next(Sample)
        before = time.time()
        probe.send(b"ping a7\nnonsense\nping\nping b8\n")
        first, second = probe.next(Pong), probe.next(Pong)
        assert (first.id, second.id) == ("a7", "b8")
        assert before <= first.wall <= time.time()


def test_without_a_driver_the_host_alone_is_read_and_it_is_said() -> None:
    with LiveProbe(*QUICK, environ={"LD_LIBRARY_PATH": "/nowhere"}) as probe:
        facts, sample = probe.line(), probe.next(Sample, lambda sample: sample.seq > 3)
        assert isinstance(facts, Facts)
        assert (facts.source, facts.devices) == ("none", [])
        assert (sample.driver.state, sample.driver.reason) == ("none", "no accelerator driver on this machine")
        assert sample.index == []
        assert probe.children() == []


def test_a_call_that_blocks_is_named_while_samples_go_on(standin: StandIn) -> None:
    with LiveProbe(*QUICK, environ=standin.environ) as probe:
        good = probe.next(Sample, lambda sample: sample.driver.state == "ok")
        standin.say("block nvmlDeviceGetPowerUsage 3")
        blocked = probe.next(Sample, lambda sample: sample.driver.state == "blocked")
        assert blocked.driver.reason.startswith("nvmlDeviceGetPowerUsage on GPU 3 has not answered for ")
        assert blocked.driver.seconds >= 0.3
        assert blocked.columns == good.columns
        following = [probe.next(Sample) for _ in range(4)]
        assert [sample.seq for sample in following] == [blocked.seq + step for step in (1, 2, 3, 4)]
        assert following[-1].driver.seconds > blocked.driver.seconds
        assert following[-1].devices_age_seconds > blocked.devices_age_seconds > 0
        probe.send(b"ping x\n")
        probe.next(Pong, limit=0.5)
        (child,) = probe.children()
        standin.say("value nvmlDeviceGetPowerUsage 3 500000")
        healed = probe.next(Sample, lambda sample: sample.driver.state == "ok")
        assert probe.next(Sample, lambda sample: sample.devices_age_seconds == 0).reading(3, "power_watts") == 500.0
        assert healed.driver.reason == ""
        assert probe.children() == [child]  # it was never killed


def test_a_driver_that_blocks_from_the_start_is_named_too(standin: StandIn) -> None:
    standin.say("block nvmlInitWithFlags *")
    with LiveProbe(*QUICK, environ=standin.environ) as probe:
        facts = probe.line()
        assert isinstance(facts, Facts)
        assert (facts.source, facts.devices) == ("nvml", [])
        sample = probe.next(Sample)
        assert sample.driver.state == "blocked"
        assert sample.driver.reason.startswith("nvmlInit has not answered for")
        assert sample.host.memory_total_bytes
        standin.say()
        assert len(probe.next(Facts).devices) == 8
        assert probe.next(Sample).driver.state == "ok"


def test_a_driver_and_library_that_differ_are_a_sentence(standin: StandIn) -> None:
    standin.say(f"error nvmlInitWithFlags * {nvml.VERSION_MISMATCH}")
    with LiveProbe(*QUICK, environ=standin.environ) as probe:
        sample = probe.next(Sample, lambda sample: sample.driver.seconds > 0.1)
    assert sample.driver.state == "error"
    assert sample.driver.reason == "driver and library versions differ: reboot or reload the driver"


def test_a_driver_that_goes_away_leaves_its_gpus_on_the_screen(standin: StandIn) -> None:
    with LiveProbe(*QUICK, environ=standin.environ) as probe:
        probe.next(Sample, lambda sample: sample.driver.state == "ok")
        standin.say("error * * 1")
        sample = probe.next(Sample, lambda sample: sample.driver.state == "error")
    assert sample.index == list(range(8))
    reason = "the NVIDIA driver was unloaded or reset while it was read"
    assert sample.reading(5, "power_watts") == Missing(ERROR, reason)


def test_a_reader_that_crashes_is_said_and_started_again(standin: StandIn) -> None:
    with LiveProbe(*QUICK, environ=standin.environ) as probe:
        probe.next(Sample, lambda sample: sample.driver.state == "ok")
        (first,) = probe.children()
        standin.say("crash nvmlDeviceGetTemperature 6")
        crashed = probe.next(Sample, lambda sample: sample.driver.state == "error")
        assert crashed.driver.reason == (
            "the process that reads the driver was ended by SIGSEGV; starting it again in 1 s"
        )
        assert crashed.index == list(range(8))
        assert crashed.devices_age_seconds > 0
        standin.say()
        probe.next(Sample, lambda sample: sample.driver.state == "ok")
        (second,) = probe.children()
        assert second != first


def test_facts_are_said_again_when_they_change(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"node": "w1", "gpus": 2}))
    with LiveProbe(*QUICK, environ={"RAYDECK_SIMULATED": str(script)}) as probe:
        assert len(probe.next(Facts).devices) == 2
        probe.next(Sample, lambda sample: sample.seq > 2)
        script.write_text(json.dumps({"node": "w1", "gpus": 4}))
        assert len(probe.next(Facts).devices) == 4
        assert probe.next(Sample).index == [0, 1, 2, 3]


@pytest.mark.parametrize("blocked", [False, True])
def test_it_ends_at_once_when_the_channel_closes_and_takes_its_children(standin: StandIn, *, blocked: bool) -> None:
    with LiveProbe(*QUICK, environ=standin.environ) as probe:
        probe.next(Sample, lambda sample: sample.driver.state == "ok")
        if blocked:
            standin.say("block * *")
            probe.next(Sample, lambda sample: sample.driver.state == "blocked")
        (child,) = probe.children()
        probe.stdin.close()
        took = until(lambda: gone(probe.process.pid))
        assert probe.process.wait() == 0
        assert until(lambda: gone(child)) < 1.0
        assert took < 1.0  # 3 ms on a free machine, 20 when blocked; the benchmark keeps the figure


def test_it_ends_when_nobody_reads_any_more() -> None:
    with LiveProbe(*QUICK) as probe:
        probe.next(Sample)
        probe.stdout.close()
        until(lambda: gone(probe.process.pid))


def _stall(probe: LiveProbe) -> None:
    """Let the probe's output run full, and some beats go by."""
    fcntl.fcntl(probe.stdout, fcntl.F_SETPIPE_SZ, 4096)
    count = array.array("i", [0])

    def full() -> bool:
        fcntl.ioctl(probe.stdout, termios.FIONREAD, count)
        return count[0] > 0

    until(full)
    since = time.monotonic()
    until(lambda: time.monotonic() > since + 0.6)


def test_it_ends_while_its_output_is_stuck(standin: StandIn) -> None:
    with LiveProbe(*QUICK, environ=standin.environ) as probe:
        _stall(probe)
        probe.stdin.close()
        until(lambda: gone(probe.process.pid))


def test_a_reader_that_stalled_gets_the_newest_and_no_backlog(standin: StandIn) -> None:
    with LiveProbe(*QUICK, environ=standin.environ) as probe:
        _stall(probe)
        numbers = [probe.next(Sample).seq for _ in range(8)]
    steps = [after - before for before, after in itertools.pairwise(numbers)]
    assert sum(step > 1 for step in steps) >= 1
    assert max(steps) >= 4
    assert steps[-1] == 1


def test_a_killed_probe_takes_its_children_with_it(standin: StandIn) -> None:
    with LiveProbe(*QUICK, "--disk", "/", environ=standin.environ) as probe:
        probe.next(Sample, lambda sample: sample.host.disks[0].used_bytes)
        children = probe.children()
        assert len(children) == 2
        os.kill(probe.process.pid, signal.SIGKILL)
        until(lambda: all(gone(child) for child in children))


def test_once_says_facts_and_one_sample_with_rates(standin: StandIn) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "probes", "once", "--disk", "/"],
        capture_output=True,
        env=clean_environ(standin.environ),
        cwd=ROOT,
        timeout=30,
        check=True,
    )
    facts, sample = [decode(line) for line in done.stdout.splitlines()]
    assert isinstance(facts, Facts)
    assert isinstance(sample, Sample)
    assert len(facts.devices) == len(sample.index) == 8
    assert sample.host.cpu_percent is not None
    assert sample.host.disks[0].used_bytes
    assert done.stderr == b""


def test_once_names_a_driver_that_blocks(standin: StandIn) -> None:
    standin.say("block nvmlInitWithFlags *")
    done = subprocess.run(
        [sys.executable, "-m", "probes", "once", "--deadline", "0.3"],
        capture_output=True,
        env=clean_environ(standin.environ),
        cwd=ROOT,
        timeout=30,
        check=True,
    )
    sample = decode(done.stdout.splitlines()[-1])
    assert isinstance(sample, Sample)
    assert sample.driver.state == "blocked"
    assert sample.driver.reason.startswith("nvmlInit has not answered for")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["serve"],
        ["stream", "--interval"],
        ["stream", "--interval", "0"],
        ["stream", "--deadline", "x"],
        ["once", "-v", "1"],
    ],
)
def test_wrong_arguments_are_one_fault_line(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "probes", *arguments], capture_output=True, cwd=ROOT, timeout=30, check=False
    )
    assert done.returncode == 2
    fault = decode(done.stdout)
    assert isinstance(fault, Fault)
    assert "usage" in fault.reason or "must be" in fault.reason
