"""The codec of recordings: what goes in comes out within what rounding takes, and damage is never trusted."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.difference import difference, patched
from jobs.lanes import lanes_of, packed, rest_of, sample_from, shape_of, template_of, unpacked
from jobs.recording import MAGIC, BadRecording, Player, samples_of, segments
from jobs.recordwriter import Writer
from probes.reading import Disk, Driver, Host, Missing, Process, Sample
from tests.unit.recorded import GB, START, facts, parts, played, run, sample

_names = st.sampled_from(["id", "name", "a", "b"])
_leaves = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3) | st.floats(-9, 9)
_json = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_names, inner, max_size=4)
    | st.lists(st.fixed_dictionaries({"id": st.integers(0, 5), "v": inner}), max_size=5),
    max_leaves=25,
)  # fmt: skip


@given(_json, _json)
@settings(max_examples=300, deadline=None)
def test_a_difference_makes_the_newer_of_the_older(old: Any, new: Any) -> None:
    found = difference(old, new)
    if found is None:
        assert old == new
        return
    assert patched(old, json.loads(json.dumps(found))) == new


def test_of_a_large_run_only_what_changed_is_kept() -> None:
    ranks = [{"rank": rank, "node_id": "ab" * 28, "pid": 4000 + rank} for rank in range(512)]
    old = {"id": "lm", "status": {"ranks": ranks, "progress": {"step": 7}}}
    new = {"id": "lm", "status": {"ranks": [*ranks[:-1], {**ranks[-1], "exit_code": 1}], "progress": {"step": 8}}}
    assert len(json.dumps(difference(old, new))) < 160


_lane = st.none() | st.integers(-300, 300) | st.integers(-(2**66), 2**66)


@given(st.lists(st.lists(_lane, min_size=5, max_size=5), min_size=1, max_size=6))
@settings(deadline=None)
def test_lanes_come_back_as_they_went(rows: list[list[int | None]]) -> None:
    base, there = [0] * 5, [0] * 5
    for row in rows:
        body, base = packed(row, base)
        there, blank = unpacked(body, there)
        assert [None if at in blank else value for at, value in enumerate(there)] == row
        assert there == base


_figure = st.none() | st.integers(0, 100) | st.floats(0, 1000, allow_nan=False)
_bytes = st.none() | st.integers(0, 80 * GB)


@st.composite
def _samples(draw: st.DrawFn) -> Sample:
    gpus = draw(st.integers(0, 3))
    index = list(range(1, gpus + 1))
    columns: dict[str, Any] = {
        "utilization_percent": draw(st.lists(_figure, min_size=gpus, max_size=gpus)),
        "memory_used_bytes": draw(st.lists(_bytes, min_size=gpus, max_size=gpus)),
        "throttle_reasons": draw(st.lists(st.none() | st.integers(0, 2**60), min_size=gpus, max_size=gpus)),
    }
    if draw(st.booleans()):
        columns["of_a_newer_probe"] = draw(st.lists(_figure, min_size=gpus, max_size=gpus))
    missing = {1: {"*": Missing("error", "lost")}} if gpus and draw(st.booleans()) else {}
    processes = [Process(1, pid, "alice", "python", draw(_bytes), "lm", 1, None, pid, draw(st.none() | st.just(9.5)))
                 for pid in draw(st.lists(st.integers(1, 9), max_size=3, unique=True))]  # fmt: skip
    host = Host(draw(_figure), draw(_figure), draw(_bytes), draw(_bytes), draw(_figure), draw(_figure),
                [Disk("/", draw(_bytes), 100 * GB, draw(st.text(max_size=4)))])  # fmt: skip
    driver = Driver(draw(st.sampled_from(["ok", "blocked", "error"])), draw(st.text(max_size=5)), 0.0)
    return Sample(wall=START + 3.26, driver=driver, index=index, columns=columns, missing=missing,
                  processes=processes, host=host, devices_age_seconds=draw(st.sampled_from([0.0, 4.2])))  # fmt: skip


def _near(one: Any, other: Any, within: float) -> None:
    assert (one is None) == (other is None)
    if one is not None:
        assert abs(one - other) <= within + 1e-6


def _close(then: Sample, told: Sample) -> None:
    """The same, within what rounding takes."""
    assert then.index == told.index
    assert then.missing == told.missing
    assert (then.driver.state, then.driver.reason) == (told.driver.state, told.driver.reason)
    room = {"utilization_percent": 0.5, "memory_used_bytes": 2**19, "throttle_reasons": 0, "of_a_newer_probe": 0.005}
    for name, values in told.columns.items():
        for was, value in zip(then.columns[name], values, strict=True):
            _near(was, value, room[name])
    for was, process in zip(then.processes, told.processes, strict=True):
        assert (was.pid, was.device, was.user, was.run) == (process.pid, process.device, process.user, process.run)
        _near(was.memory_used_bytes, process.memory_used_bytes, 2**19)
        _near(was.age_seconds, process.age_seconds, 3.0)
    _near(then.host.cpu_percent, told.host.cpu_percent, 0.5)
    _near(then.host.load_1m, told.host.load_1m, 0.05)
    _near(then.host.memory_used_bytes, told.host.memory_used_bytes, 2**23)
    rate = told.host.network_receive_bytes_per_second
    _near(then.host.network_receive_bytes_per_second, rate, 0.03 * ((rate or 0) + 1))
    assert [disk.path for disk in then.host.disks] == [disk.path for disk in told.host.disks]
    for was, disk in zip(then.host.disks, told.host.disks, strict=True):
        _near(was.used_bytes, disk.used_bytes, 50 * GB / 1000)
    _near(then.devices_age_seconds, told.devices_age_seconds, 0.05)
    _near(then.wall, told.wall, 0.051)


@given(_samples())
@settings(deadline=None)
def test_a_sample_comes_back_within_what_rounding_takes(told: Sample) -> None:
    at = START + 3.2
    shape = shape_of(told)
    row, _ = packed(lanes_of(told, at), [0] * shape.lanes)
    lanes, blank = unpacked(row, [0] * shape.lanes)
    rest = json.loads(json.dumps(rest_of(told, at, {})))
    _close(sample_from(shape, lanes, blank, template_of(rest), at), told)


@given(st.lists(st.tuples(st.sampled_from("abc"), _samples(), st.sampled_from([0.2, 1.0, 9.0, 61.0])), max_size=14))
@settings(max_examples=60, deadline=None)
def test_nodes_come_and_go_in_any_order(steps: list[tuple[str, Sample, float]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer, at = Writer(Path(folder)), START
        told: dict[str, tuple[float, Sample]] = {}
        course: list[tuple[float, dict[str, tuple[float, Sample]]]] = []
        for name, each, seconds in steps:
            at += seconds
            each.wall = at + 0.06
            assert writer.take_sample(name, each, at), "of a small fleet every sample is kept"
            told[name] = at, each
            course.append((at, dict(told)))
        writer.close()
        found = parts(Path(folder)) if steps else []
        for moment, nodes in course:
            part = [one for one in found if one.since <= moment + 0.005][-1]
            player = played(part, moment + 0.006)
            for name, (seen, each) in nodes.items():
                then = player.nodes[name]
                assert then.sampled_at is not None
                assert abs(then.sampled_at - seen) < 0.011, "also what was told before the minute began"
                if seen > moment - 0.1 or each is nodes[name][1]:
                    back = then.sample()
                    assert back is not None
                    _close(back, each)


def _recorded(folder: Path) -> bytes:
    writer = Writer(folder, flush_seconds=1.0, segment_seconds=5.0)
    for second in range(12):
        for name in ("gpu-1", "gpu-2"):
            writer.take_facts(name, facts(name), START + second)
            writer.take_sample(name, sample(50 + second, wall=START + second), START + second)
        writer.take_view("runs", [run(step=second)], START + second)
        writer.tick(START + second + 0.5)
    writer.close()
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return _recorded(tmp_path_factory.mktemp("recording"))


@given(st.data())
@settings(deadline=None)
def test_of_a_torn_file_all_is_there_up_to_the_tear(recorded: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(recorded)))
    whole = segments(recorded)
    ends = [[each for each in part.chunks if each.end <= cut] for part in whole]
    there = [(part, chunks) for part, chunks in zip(whole, ends, strict=True) if len(chunks) > 1]
    if not there:
        with pytest.raises(BadRecording):
            segments(recorded[:cut])
        return
    found = segments(recorded[:cut])
    assert [part.seq for part in found] == [part.seq for part, _ in there]
    for part, (full, chunks) in zip(found, there, strict=True):
        assert part.chunks == chunks
        assert part.records == full.records[: len(part.records)]
        assert part.records, "what is there says something"
        for then in played(part).nodes.values():
            back = then.sample()
            if back is not None and then.sampled_at is not None:
                assert back.columns["utilization_percent"] == [50 + round(then.sampled_at - START)] * 2


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_what_is_damaged_is_left_out_or_refused(recorded: bytes, data: st.DataObject) -> None:
    body = bytearray(recorded)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    try:
        for part in segments(bytes(body)):
            for then in played(part).nodes.values():
                then.sample()
                then.facts()
    except BadRecording:
        return


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_bytes_that_are_no_recording_are_refused(body: bytes) -> None:
    with pytest.raises(BadRecording):
        segments(MAGIC + body if body[:1] < b"\x80" else body)


def test_a_torn_minute_does_not_hide_the_next_one(recorded: bytes) -> None:
    found = segments(recorded[: len(recorded) - 40] + recorded)
    assert [part.torn for part in found] == [False, False, True, False, False, False]
    assert played(found[-1]).nodes["gpu-1"].sampled_at == pytest.approx(START + 11)


def test_a_chunk_that_swells_beyond_measure_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = _recorded(tmp_path)
    monkeypatch.setattr("jobs.recording.INFLATED_LIMIT_BYTES", 100)
    with pytest.raises(BadRecording, match="larger than"):
        Player(segments(body)[0]).forward(START + 5)


def test_one_nodes_samples_in_order_and_each_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for second in range(130):
        writer.take_sample("gpu-1", sample(second % 100), START + second)
        writer.take_sample("gpu-2", sample(1), START + second)
    writer.close()
    found = parts(tmp_path)
    assert len(found) == 3
    seen = [(at, then.lanes[0]) for at, then in samples_of(found, "gpu-1", START + 50, START + 125)]
    assert [round(at - START) for at, _ in seen] == list(range(51, 126))
    assert [load for _, load in seen] == [second % 100 for second in range(51, 126)]
