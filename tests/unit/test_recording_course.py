"""Recordings as they are written: at any moment what was last told comes back, and of a large fleet what is kept."""

from __future__ import annotations

import itertools
import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.recording import HEALTH, RUN, Player, Segment
from jobs.recordthin import MOST_RUNS, health_body
from jobs.recordwriter import HEALTH_SECONDS, VIEW_SECONDS, Writer
from probes.reading import DeviceHealth, Event, Facts, Health, Missing, Mount, Sample, decode
from tests.unit.recorded import GB, START, facts, parts, played, run, sample

NODES = ("gpu-1", "gpu-2", "gpu-3")


def health(heat: int = 60, errors: int = 0, **more: Any) -> Health:
    """A line of health: ``heat`` drifts, ``errors`` are news."""
    figures: dict[str, Any] = {"memory_temperature_celsius": heat, "ecc_volatile_uncorrected_count": errors}
    return Health(wall=START, devices=[DeviceHealth(0, "GPU-0", "0000:1b:00", figures)],
                  mounts=[Mount("/", "ext4", 100 * GB, 40 * GB)], clock_synchronised=True, **more)  # fmt: skip


def kept(line: Health) -> Health:
    """A line of health as a recording has it."""
    found = decode(json.dumps(health_body(line)))
    assert isinstance(found, Health)
    return found


# --- any course -------------------------------------------------------------------------------------------------------

_node = st.sampled_from(NODES)
_samples = st.builds(
    sample, st.none() | st.integers(0, 100), gpus=st.integers(1, 3), driver=st.sampled_from(["ok", "blocked"]),
    lost=st.none() | st.just(0), age=st.floats(0, 1e6),
)  # fmt: skip
_healths = st.builds(
    health, st.integers(60, 63), st.integers(0, 1),
    events=st.lists(st.builds(Event, st.just("xid"), st.text(max_size=5), st.floats(0, 1e9)), max_size=2),
)  # fmt: skip
_states = st.tuples(st.sampled_from(["ssh", "ray", "driver"]), st.sampled_from(["up", "down"]), st.text(max_size=3))
_views = st.dictionaries(st.sampled_from(["alerts", "title"]), st.just([]) | st.just([{"id": "a", "state": "firing"}]))
_runs = st.lists(
    st.builds(run, st.sampled_from(["running", "failed"]), st.integers(0, 9), st.sampled_from(["lm", "vit"])),
    min_size=1, max_size=2, unique_by=lambda each: each["id"],
)  # fmt: skip
_told = (
    st.tuples(st.just("sample"), _node, _samples)
    | st.tuples(st.just("health"), _node, _healths)
    | st.tuples(st.just("facts"), _node, st.builds(facts, _node, st.integers(1, 3)))
    | st.tuples(st.just("state"), _node, _states)
    | st.tuples(st.just("view"), st.sampled_from(["alerts", "nodes", "status"]), _views)
    | st.tuples(st.just("runs"), st.just(""), _runs)
)
_seconds = st.sampled_from([0.0, 0.3, 1.0, 7.0, 61.0, -20.0, -500.0])


@dataclass
class Then:
    """What was told last."""

    samples: dict[str, tuple[float, Sample]] = field(default_factory=dict[str, tuple[float, Sample]])
    healths: dict[str, Health] = field(default_factory=dict[str, Health])
    facts: dict[str, Facts] = field(default_factory=dict[str, Facts])
    states: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict[tuple[str, str], tuple[str, str]])
    views: dict[str, Any] = field(default_factory=dict[str, Any])
    runs: dict[str, Any] = field(default_factory=dict[str, Any])

    def copy(self) -> Then:
        return Then(*(dict(getattr(self, name)) for name in self.__dataclass_fields__))

    def tell(self, writer: Writer, what: str, name: str, told: Any, now: float, at: float) -> None:
        if what == "sample":
            assert writer.take_sample(name, told, at), "of a small fleet every sample is kept"
            self.samples[name] = now, told
        elif what == "health":
            writer.take_health(name, told, at)
            self.healths[name] = told
        elif what == "facts":
            writer.take_facts(name, told, at)
            self.facts[name] = told
        elif what == "state":
            writer.take_state(name, told[0], told[1], told[2], at)
            self.states[name, told[0]] = told[1], told[2]
        elif what == "view":
            writer.take_view(name, told, at)
            self.views[name] = told
        else:
            writer.take_view("runs", told, at)
            self.runs.update({each["id"]: each for each in told})

    def check(self, player: Player) -> None:
        """The recording says the same."""
        assert player.nodes.keys() == {*self.samples, *self.healths, *self.facts, *(name for name, _ in self.states)}
        for name, (at, told) in self.samples.items():
            then = player.nodes[name]
            back = then.sample()
            assert back is not None
            assert then.sampled_at is not None
            assert then.sampled_at <= at + 0.006, "what is known came before now, also where the clock went back"
            assert back.columns["utilization_percent"] == told.columns["utilization_percent"]
            assert (back.driver.state, back.missing, back.index) == (told.driver.state, told.missing, told.index)
        for name, line in self.healths.items():
            assert player.nodes[name].health() == kept(line)
        for name, known in self.facts.items():
            assert player.nodes[name].facts() == known
        for (name, what), truth in self.states.items():
            assert player.nodes[name].states[what][:2] == truth
        assert {kind: body for kind, body in player.views.items() if kind != "pace"} == self.views
        assert player.runs == self.runs


@given(st.lists(st.tuples(_seconds, _told), min_size=1, max_size=25))
@settings(max_examples=150, deadline=None)
def test_at_any_moment_of_any_course_what_was_told_last_is_there(steps: list[tuple[float, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer, now, told = Writer(Path(folder), flush_seconds=1.0), START, Then()
        course: dict[tuple[int, float], Then] = {}
        for seconds, (what, name, body) in steps:
            at = now + seconds
            now = at if seconds < -60 else max(now, at)
            told.tell(writer, what, name, body, now, at)
            if seconds < -60:
                told.samples = {each: (min(then, now), line) for each, (then, line) in told.samples.items()}
            course[writer.index()[-1].seq, now] = told.copy()
            writer.tick(at)
        writer.close()
        written = {part.seq: part for part in parts(Path(folder))}
        for (seq, moment), then in course.items():
            then.check(played(written[seq], moment + 0.006))


@given(st.lists(st.tuples(st.sampled_from([0.2, 1.0, 3.0, 70.0]), st.sampled_from(sorted(VIEW_SECONDS))), max_size=30))
@settings(max_examples=60, deadline=None)
def test_a_view_that_changes_often_is_never_older_than_is_said(steps: list[tuple[float, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer, now, told = Writer(Path(folder)), START, dict[str, list[float]]()
        moments: list[tuple[float, dict[str, float]]] = []
        for seconds, kind in steps:
            now += seconds
            writer.take_view(kind, {"told": now}, now)
            writer.tick(now)
            told.setdefault(kind, []).append(now)
            old = {each: [at for at in ats if at <= now - VIEW_SECONDS[each]] for each, ats in told.items()}
            moments.append((now, {each: ats[-1] for each, ats in old.items() if ats}))
        writer.close()
        written = parts(Path(folder)) if steps else []
        for moment, least in moments:
            player = played([part for part in written if part.since <= moment][-1], moment + 0.006)
            for kind, at in least.items():
                assert at <= player.views[kind]["told"] <= moment
        for kind in told:
            start = f'["{kind}"'.encode()
            ats = [record.at for part in written for key, record in part.records
                   if not key and record.body.startswith(start)]  # fmt: skip
            for earlier, later in itertools.pairwise(ats):
                assert later - earlier >= VIEW_SECONDS[kind] - 0.02


# --- what is kept of a large fleet ------------------------------------------------------------------------------------


def _changes(part: Segment, kind: int) -> list[float]:
    return [record.at for key, record in part.records if not key and record.kind == kind]


def test_of_a_large_fleet_samples_come_less_often_and_what_is_news_at_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path, lanes_per_second=3.4)  # two nodes of 17 lanes: one in ten seconds
    taken: list[int] = []
    for second in range(60):
        at = START + second
        blocked, lost = second >= 24, 1 if second >= 33 else None
        line = sample(second, driver="blocked" if blocked else "ok", lost=lost)
        writer.take_sample("gpu-2", sample(second), at)
        if writer.take_sample("gpu-1", line, at):
            taken.append(second)
    assert writer.interval_seconds == pytest.approx(10.0)
    assert taken == [0, 10, 20, 24, 33, 43, 53], "a driver that blocks and a GPU that is lost do not wait"


def test_a_recording_that_takes_more_than_its_part_is_thinned_until_it_does_not(tmp_path: Path) -> None:
    writer = Writer(tmp_path, hour_bytes=10_000.0, lanes_per_second=17.0)
    counts: list[int] = []
    for minute in range(8):
        seconds = range(60 * minute, 60 * minute + 60)
        counts.append(sum(writer.take_sample("gpu-1", sample(second * 37 % 100), START + second) for second in seconds))
    assert counts[0] == 60
    assert counts[-1] < 20
    assert writer.interval_seconds <= 8.0, "and never further apart than eight times"


def test_a_node_that_is_no_longer_heard_takes_no_room_from_the_others(tmp_path: Path) -> None:
    writer = Writer(tmp_path, lanes_per_second=8.5)
    for second in range(300):
        writer.take_sample("gpu-1", sample(1), START + second)
        if second < 10:
            writer.take_sample("gpu-2", sample(1), START + second)
        if second == 9:
            assert writer.interval_seconds == pytest.approx(4.0)
    assert writer.interval_seconds == pytest.approx(2.0)


def test_how_far_apart_samples_are_is_in_the_recording(tmp_path: Path) -> None:
    writer = Writer(tmp_path, lanes_per_second=4.25, flush_seconds=1.0)
    for second in range(300):
        writer.take_sample("gpu-1", sample(1), START + second)
        writer.tick(START + second)
    writer.close()
    assert played(parts(tmp_path)[-1]).views["pace"]["seconds"] == pytest.approx(4.0, abs=0.6)


def test_health_that_merely_drifts_is_kept_once_a_minute_and_news_at_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path, lanes_per_second=3.4)
    writer.take_sample("gpu-1", sample(1), START)
    for second in range(0, 100, 10):
        line = health(60 + second // 10, errors=second >= 50)
        if second == 70:
            line = replace(line, events=[Event("xid", "NVRM: Xid 79", START)])
        writer.take_health("gpu-1", line, START + second)
    writer.close()
    (part,) = parts(tmp_path)
    at = [round(moment - START) for moment in _changes(part, HEALTH)]
    assert at == [0, 50, 70, 80], "and once more when the event is over"
    assert HEALTH_SECONDS == 60.0


def test_runs_that_only_come_further_are_told_no_more_often_than_there_is_room(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    ranks = [{"rank": rank} for rank in range(2500)]
    for second in range(20):
        wide = run(step=second)
        wide["attempts"][0]["status"]["ranks"] = ranks
        if second == 7:
            wide["attempts"][0]["status"]["warnings"] = ["loss is not a number"]
        writer.take_view("runs", [wide], START + second)
    writer.close()
    (part,) = parts(tmp_path)
    assert [round(at - START) for at in _changes(part, RUN)] == [0, 4, 7, 8, 12, 16]
    assert played(part, START + 7.1).runs["lm-k3f9qz"]["attempts"][0]["status"]["warnings"]


def test_a_minute_begins_with_the_runs_that_hold_something_and_those_that_changed_last(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.take_view("runs", [run(name="holds")], START)
    for number in range(MOST_RUNS + 20):
        writer.take_view("runs", [run("failed", name=f"lm-{number:04d}")], START + 1 + number / 100)
    writer.take_view("nodes", {}, START + 61)
    writer.close()
    told = played(parts(tmp_path)[-1]).runs
    assert len(told) == MOST_RUNS
    assert "holds" in told
    assert "lm-0000" not in told
    assert f"lm-{MOST_RUNS + 19:04d}" in told


def test_a_node_that_was_silent_for_longer_than_is_kept_is_not_told_again(tmp_path: Path) -> None:
    writer = Writer(tmp_path, keep_seconds=200.0)
    writer.take_sample("gpu-1", sample(1), START)
    for second in range(0, 400, 20):
        writer.take_sample("gpu-2", sample(2), START + second)
    writer.take_sample("gpu-1", sample(7), START + 401)
    writer.close()
    before, after = parts(tmp_path)[-1], played(parts(tmp_path)[-1])
    assert "gpu-1" not in played(before, START + 400.5).nodes
    back = after.nodes["gpu-1"].sample()
    assert back is not None
    assert back.columns["utilization_percent"] == [7, 7]


def test_a_figure_that_no_device_has_is_refused_and_the_next_sample_is_whole(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.take_sample("gpu-1", sample(5), START)
    for figure in (10**40, -(10**40), 10**400):
        hostile = sample(6)
        hostile.host.memory_used_bytes = figure
        with pytest.raises((ValueError, OverflowError)):
            writer.take_sample("gpu-1", hostile, START + 1)
    writer.take_sample("gpu-1", sample(None, lost=0), START + 2)
    writer.take_sample("gpu-1", sample(8), START + 3)
    writer.close()
    back = played(parts(tmp_path)[0]).nodes["gpu-1"].sample()
    assert back is not None
    assert back.columns["utilization_percent"] == [8, 8]
    assert back.missing == {}


def test_why_there_is_no_figure_comes_back(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.take_sample("gpu-1", sample(5, lost=1), START)
    writer.close()
    back = played(parts(tmp_path)[0]).nodes["gpu-1"].sample()
    assert back is not None
    assert back.reading(1, "power_watts") == Missing("error", "GPU is lost: it fell off the bus")
