"""What was before a moment of a recording: a node's last ten minutes, a run's course, what happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.state.history import SECONDS
from console.state.replay import Timeline
from jobs.model import RunState
from jobs.recordwriter import Writer
from tests.unit.console.test_timeline import recorded
from tests.unit.recorded import START, parts, sample


@pytest.fixture
def timeline(tmp_path: Path) -> Timeline:
    made = Timeline()
    made.take(recorded(tmp_path))
    return made


def test_the_history_of_a_node_is_made_of_the_recording(timeline: Timeline) -> None:
    timeline.seek(START + 130.5)
    rings = timeline.fleet.nodes["gpu-1"].history
    first, lost = rings.get(0, {}), rings.get(1, {})
    load = list(first["utilization_percent"])
    assert load == [float(second % 100) for second in range(131)]
    assert len(load) == 131
    assert list(first["memory_percent"])[-1] == pytest.approx(100 * 62 / 80, abs=1)
    assert list(lost["power_watts"])[:40] == [640.0] * 40
    assert set(list(lost["power_watts"])[41:]) == {None}
    assert dict(rings.items()).keys() == {0, 1}
    timeline.advance(START + 135)
    assert list(timeline.fleet.nodes["gpu-1"].history.get(0, {})["utilization_percent"])[-1] == 35
    timeline.seek(START + 20)
    assert len(timeline.fleet.nodes["gpu-1"].history.get(0, {})["utilization_percent"]) <= 22
    assert timeline.history("of no recording") == {}


def test_history_goes_back_ten_minutes_and_a_gpu_that_was_away_is_a_gap(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for second in range(0, 800, 2):
        gpus = 1 if 500 <= second < 600 else 2
        writer.take_sample("gpu-1", sample(second % 100, gpus=gpus), START + second)
    writer.close()
    timeline = Timeline()
    timeline.take(parts(tmp_path))
    timeline.seek(START + 799)
    rings = timeline.history("gpu-1")
    there, away = (list(rings[index]["power_watts"]) for index in (0, 1))
    assert SECONDS - 1 <= len(there) == len(away) <= SECONDS
    assert None not in there
    assert away[-299:-199] == [None] * 100
    assert set(away[:-299]) == set(away[-199:]) == {640.0}
    memory = set(rings[0]["memory_percent"])
    assert memory == {None}, "without facts there is no share of anything"


def test_the_course_of_a_run_is_made_of_the_recording(timeline: Timeline) -> None:
    timeline.seek(START + 90)
    points, moves = timeline.course("lm-k3f9qz")
    assert [point.step for point in points] == list(range(91))
    assert moves == []
    timeline.seek(START + 250)
    points, moves = timeline.course("lm-k3f9qz")
    assert points[-1].step == 100
    assert [(move.before, move.after, move.at) for move in moves] == [
        (RunState.RUNNING, RunState.FAILED, pytest.approx(START + 100, abs=0.01)),
    ]
    assert timeline.course("lm-k3f9") == ([], []), "another run's name that begins the same"


def test_what_happened_is_there_in_the_order_of_time(timeline: Timeline) -> None:
    assert [mark.kind for mark in timeline.marks] == ["alert", "run"]
    assert [mark.at for mark in timeline.marks] == sorted(mark.at for mark in timeline.marks)
