"""`probes.simulated`: devices that follow real processes, in the same way each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.reading import ERROR, Facts, Missing, Sample
from probes.simulated import THROTTLE_IDLE, THROTTLE_THERMAL, Device, Holders, Script, Simulated
from probes.source import DriverError
from tests.unit.probes.live import LiveProbe, few, gone, until

GIB = 1 << 30
Hold = Callable[..., subprocess.Popen[bytes]]


def _device() -> Device:
    return Device("w1", 2, 80 * GIB, 700.0)


def _figures(device: Device) -> tuple[Any, ...]:
    return tuple(sorted((name, value) for name, value in vars(device).items() if not name.startswith("_")))


def test_a_free_gpu_idles() -> None:
    device = _device()
    for now in range(60):
        device.step(float(now), 0)
        assert device.utilization_percent <= 1
        assert device.memory_used_bytes < 16 << 20
        assert 65 <= device.power_watts <= 75
        assert 33 <= device.temperature_celsius <= 40
        assert device.throttle_reasons == THROTTLE_IDLE


def test_a_held_gpu_works_and_cools_down_afterwards() -> None:
    device = _device()
    device.step(0.0, 0)
    temperatures: list[float] = []
    for now in range(1, 91):
        device.step(float(now), 1)
        temperatures.append(device.temperature_celsius)
    assert device.utilization_percent >= 90
    assert 45 * GIB < device.memory_used_bytes < 80 * GIB
    assert 500 < device.power_watts <= 700
    assert 60 < device.temperature_celsius < 80
    assert temperatures[3] < temperatures[15] < temperatures[40]
    assert device.sm_clock_mhz > 1700
    hot = device.temperature_celsius
    for now in range(91, 96):
        device.step(float(now), 0)
    assert device.utilization_percent <= 1
    assert device.memory_used_bytes < 16 << 20
    assert device.power_watts < 80
    assert hot - 20 < device.temperature_celsius < hot


def test_a_hot_gpu_slows_down_by_its_own_account() -> None:
    device = _device()
    for now in range(120):
        device.step(float(now), 1, hot=True)
    assert device.temperature_celsius > 87
    assert device.throttle_reasons == THROTTLE_THERMAL
    assert device.sm_clock_mhz < 1300


@few
@given(st.lists(st.tuples(st.floats(0.01, 30.0), st.integers(0, 3), st.booleans()), max_size=12))
def test_the_same_story_gives_the_same_plausible_figures(story: list[tuple[float, int, bool]]) -> None:
    first, second = _device(), _device()
    now = 1000.0
    for elapsed, holders, hot in story:
        now += elapsed
        first.step(now, holders, hot)
        second.step(now, holders, hot)
        assert _figures(first) == _figures(second)
        assert 0 <= first.utilization_percent <= 100
        assert 0 <= first.memory_utilization_percent <= 100
        assert 0 <= first.memory_used_bytes <= 80 * GIB
        assert 50 <= first.power_watts <= 700
        assert 30 <= first.temperature_celsius <= 95


_parsed = st.none() | st.integers() | st.text(max_size=5)


@few
@given(st.one_of(_parsed, st.lists(_parsed, max_size=2), st.dictionaries(st.text(max_size=2), _parsed, max_size=2)))
def test_a_script_is_right_or_wrong_and_breaks_nothing(raw: Any) -> None:
    for candidate in (raw, {"node": "w", "gpus": 2, "faults": raw}, {"node": raw, "gpus": raw}):
        try:
            Script(candidate)
        except (ValueError, TypeError, AttributeError, OverflowError):
            continue


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"node": "w1", "gpus": 4}))
    return path


def rewrite(path: Path, **fields: Any) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"node": "w1", "gpus": 4, **fields}))
    os.replace(new, path)


@pytest.fixture
def hold() -> Generator[Hold]:
    running: list[subprocess.Popen[bytes]] = []

    def start(gpu: str, rank: int, *argv: str, node: str = "w1", run: str = "lm-1") -> subprocess.Popen[bytes]:
        marks = {
            "RAYDECK_RUN": run,
            "RAYDECK_ATTEMPT": "2",
            "RAYDECK_NODE": node,
            "RAYDECK_GPU": gpu,
            "RANK": str(rank),
        }
        running.append(subprocess.Popen(argv or ["sleep", "60"], env={"PATH": os.environ["PATH"], **marks}))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_it_lists_the_real_processes_that_hold_it(script: Path, hold: Hold) -> None:
    clock = [0.0]
    source = Simulated(str(script), lambda text: None, clock=lambda: clock[0])
    assert source.sample().processes == []
    rank, other, foreign = hold("1", 5), hold("3", 6), hold("1", 7, node="w2")
    sample = source.sample()
    for clock[0] in (1.0, 2.0, 4.0, 8.0, 16.0):
        sample = source.sample()
    held = {process.pid: process for process in sample.processes}
    assert set(held) == {rank.pid, other.pid}
    assert foreign.pid not in held
    mine = held[rank.pid]
    assert (mine.device, mine.run, mine.attempt, mine.rank, mine.command) == (1, "lm-1", 2, 5, "sleep 60")
    assert mine.memory_used_bytes == sample.reading(1, "memory_used_bytes")
    assert sample.columns["utilization_percent"][1] in range(90, 101)
    assert sample.columns["utilization_percent"][0] in (0, 1)
    rank.kill()
    rank.wait()
    for clock[0] in (17.0, 19.0, 21.0):
        sample = source.sample()
    assert [process.pid for process in sample.processes] == [other.pid]
    assert sample.columns["utilization_percent"][1] in (0, 1)


def test_marks_are_found_after_an_exec_and_only_on_the_outermost_process(hold: Hold) -> None:
    holders = Holders("/proc")
    # The shell keeps the rank's own marks; its child inherits them, as a data loader does.
    shell = hold("0", 0, "sh", "-c", "sleep 60 & wait")
    until(lambda: Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().strip())
    # Another is marked by no more than what it execs into.
    line = "read x; RAYDECK_RUN=r RAYDECK_NODE=w1 RAYDECK_GPU=2 RANK=1 exec sleep 60"
    late = subprocess.Popen(["sh", "-c", line], stdin=subprocess.PIPE, env={"PATH": os.environ["PATH"]})
    assert late.stdin is not None
    try:
        assert holders.scan("w1", {}) == {0: [shell.pid]}
        late.stdin.write(b"\n")
        late.stdin.close()
        until(lambda: Path(f"/proc/{late.pid}/comm").read_text().strip() == "sleep")
        found = [holders.scan("w1", {}) for _ in range(4)]
        assert found[-1] == {0: [shell.pid], 2: [late.pid]}
    finally:
        late.kill()
        late.wait()
        for child in Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split():
            os.kill(int(child), 9)


def test_a_process_of_another_demo_holds_nothing_here(hold: Hold) -> None:
    rank = hold("0", 0, "sleep", "60")
    assert Holders("/proc").scan("w1", {})[0] == [rank.pid]
    assert rank.pid not in Holders("/proc").scan("w1", {"RAYDECK_DEMO": "mine"}).get(0, [])


def test_a_lost_gpu_is_lost_and_comes_back(script: Path) -> None:
    source = Simulated(str(script), lambda text: None)
    assert source.facts().devices[2].name == "SIMULATED H100 80GB"
    rewrite(script, faults={"2": {"kind": "lost"}})
    sample = source.sample()
    assert source.changed
    assert sample.reading(2, "power_watts") == Missing(ERROR, "GPU is lost: it fell off the bus")
    assert sample.reading(1, "power_watts") == 70.0
    assert source.facts().devices[2].missing["*"].kind == ERROR
    rewrite(script)
    assert source.sample().reading(2, "power_watts") == 70.0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is wrong"),
        ("[]", "it is not an object"),
        ('{"node": "x", "gpus": 65}', "gpus 0 to 64"),
        ('{"node": "x", "gpus": 2, "faults": {"1": {"kind": "odd"}}}', "must be one of lost, hot, hung"),
    ],
)
def test_a_wrong_script_is_a_sentence(script: Path, text: str, sentence: str) -> None:
    script.write_text(text)
    with pytest.raises(DriverError, match=sentence):
        Simulated(str(script), lambda text: None).sample()


def test_a_script_in_the_middle_of_being_written_changes_nothing_yet(script: Path) -> None:
    source = Simulated(str(script), lambda text: None)
    source.sample()
    script.write_text('{"node": "w1", "gp')
    assert len(source.sample().index) == 4
    script.unlink()
    with pytest.raises(DriverError, match="No such file"):
        source.sample()


def test_a_hung_gpu_blocks_the_driver_for_real_and_lets_go(script: Path) -> None:
    environ = {"RAYDECK_SIMULATED": str(script)}
    with LiveProbe("--interval", "0.1", "--deadline", "0.3", environ=environ) as probe:
        assert probe.next(Facts).source == "simulated"
        probe.next(Sample, lambda sample: sample.driver.state == "ok")
        rewrite(script, faults={"1": {"kind": "hung"}})
        blocked = probe.next(Sample, lambda sample: sample.driver.state == "blocked")
        assert "GPU 1 has not answered for" in blocked.driver.reason
        assert blocked.devices_age_seconds > 0
        assert len(blocked.index) == 4
        rewrite(script)
        assert probe.next(Sample, lambda sample: sample.driver.state == "ok").devices_age_seconds < 0.3
        rewrite(script, faults={"1": {"kind": "hung"}})
        probe.next(Sample, lambda sample: sample.driver.state == "blocked")
        (child,) = probe.children()
        # Killed with no chance to say good-bye, its child goes with it, though it is in a call that does not return.
        probe.process.kill()
        probe.process.wait()
        until(lambda: gone(child))


def test_the_module_needs_no_accelerator_library() -> None:
    code = "import sys, probes.simulated; assert not {'pynvml', 'ctypes', 'random'} & set(sys.modules)"
    subprocess.run([sys.executable, "-S", "-c", code], check=True, timeout=30, cwd=Path(__file__).parents[3])
