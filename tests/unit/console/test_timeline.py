"""The fleet as it was: any moment of a recording in the stores that live figures go into."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.render.documents import gpu_document, node_document, run_document
from console.state.alerts import attention
from console.state.fleet import Node
from console.state.replay import GAP_SECONDS, NO_SSH, Timeline
from jobs.model import RunState
from jobs.recording import BadRecording, Segment
from jobs.recordwriter import Writer
from probes.reading import Health
from tests.unit.recorded import START, facts, parts, run, sample

CLUSTER = {"ray": "ok", "nodes": [{"name": "gpu-1", "address": "10.0.0.1", "role": "head", "node_id": "aa",
                                   "gpus_total": 2.0, "gpus_used": 1.0, "of_a_newer_one": 7}]}  # fmt: skip
ALERT = {"id": "a1", "rule": "gpu.lost", "level": "critical", "title": "gpu-1/1 is lost", "state": "firing",
         "since": START + 40}  # fmt: skip


def recorded(folder: Path, until: int = 300) -> list[Segment]:
    """Five minutes: gpu-2 comes after one and falls silent after two; a run fails at 100, an alert fires from 40 on."""
    writer = Writer(folder, flush_seconds=1.0)
    writer.take_facts("gpu-1", facts("gpu-1"), START)
    writer.take_view("cluster", CLUSTER, START)
    for second in range(until):
        at = START + second
        writer.take_sample("gpu-1", sample(second % 100, lost=1 if second >= 40 else None, wall=at), at)
        writer.take_state("gpu-1", "driver", "ok", "", at)
        if 60 <= second < 120:
            writer.take_sample("gpu-2", sample(7, gpus=1), at)
            writer.take_health("gpu-2", Health(oom_kills=second // 30), at)
        if second == 40:
            writer.take_view("alerts", {"alerts": [ALERT], "rules_version": "1", "of_a_newer_one": []}, at)
        if second == 80:
            writer.take_state("gpu-1", "ray", "dead", "missed heartbeats", at)
        if second <= 100:
            writer.take_view("runs", [run("failed" if second == 100 else "running", second)], at)
        if second % 10 == 0:
            waiting = {"run": "lm-w", "position": 1, "queue": "q", "priority": "normal", "user": "bob", "nodes": 1,
                       "gpus": 8, "since": START, "sentence": f"waits since {second}", "kind": "resources"}  # fmt: skip
            writer.take_view("queue", {"at": at, "waiting": [waiting], "waiting_total": 1}, at)
        writer.tick(at)
    writer.close()
    return parts(folder)


@pytest.fixture(scope="module")
def five_minutes(tmp_path_factory: pytest.TempPathFactory) -> list[Segment]:
    return recorded(tmp_path_factory.mktemp("recording"))


@pytest.fixture
def timeline(five_minutes: list[Segment]) -> Timeline:
    made = Timeline()
    made.take(five_minutes)
    return made


def seen(timeline: Timeline) -> dict[str, Any]:
    """All that a screen would show of it."""
    fleet, work, at = timeline.fleet, timeline.work, timeline.at
    nodes = fleet.nodes.values()
    return {
        "nodes": {node.name: node_document(node, work, at) for node in nodes},
        "gpus": {node.name: [gpu_document(node, index, work, at) for index in node.gpu_indexes] for node in nodes},
        "truths": {node.name: (node.ssh, node.ray, node.driver.state, node.health, node.facts) for node in nodes},
        "runs": {name: run_document(each) for name, each in work.runs.items()},
        "keys": work.keys,
        "queue": work.queue,
        "alerts": work.alerts.view,
        "attention": sorted(line.text for line in attention(fleet, work, at, at)),
        "history": {name: {index: {column: list(ring) for column, ring in rings.items()}
                           for index, rings in timeline.history(name).items()} for name in fleet.nodes},
    }  # fmt: skip


# --- going ------------------------------------------------------------------------------------------------------------


@given(st.floats(0, 299), st.lists(st.floats(0.1, 40.0), max_size=12))
@settings(max_examples=20, deadline=None)
def test_to_go_there_step_by_step_shows_the_same_as_to_jump(
    five_minutes: list[Segment], start: float, steps: list[float]
) -> None:
    walked = Timeline()
    walked.take(five_minutes)
    at = START + start
    walked.seek(at)
    for step in steps:
        at = min(at + step, START + 310)
        walked.advance(at)
    jumped = Timeline(walked.fleet.nodes.values())
    jumped.take(five_minutes)
    jumped.seek(at)
    assert seen(walked) == seen(jumped)
    assert seen(walked.moved(at)) == seen(jumped)


def _on(gpu: int, step: int, state: str) -> dict[str, Any]:
    """A run on a GPU of its own."""
    made = run(state, step, f"lm-{gpu}")
    made["attempts"][0]["status"]["ranks"][0]["gpu"] = str(gpu)
    return made


_what = st.sampled_from(["sample", "blocked", "ray", "health", "facts", "runs", "cluster", "jobs"])
_course = st.lists(
    st.tuples(st.sampled_from([0.5, 3.0, 20.0, 61.0]), _what, st.integers(1, 3)), min_size=1, max_size=25
)


@given(_course, st.data())
@settings(max_examples=40, deadline=None)
def test_of_any_course_steps_and_jumps_show_the_same(steps: list[tuple[float, str, int]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer, at = Writer(Path(folder)), START
        for number, (seconds, what, node) in enumerate(steps):
            at, name = at + seconds, f"gpu-{node}"
            if what in ("sample", "blocked"):
                state = "blocked" if what == "blocked" else "ok"
                line = sample(number % 100, driver=state)
                writer.take_sample(name, line, at)
                writer.take_state(name, "driver", state, line.driver.reason, at)
            elif what == "ray":
                writer.take_state(name, "ray", ("alive", "dead")[number % 2], "", at)
            elif what == "health":
                writer.take_health(name, Health(oom_kills=number), at)
            elif what == "facts":
                writer.take_facts(name, facts(name, node), at)
            elif what == "runs":
                writer.take_view("runs", [_on(node, number, ("running", "failed")[number % 2])], at)
            elif what == "jobs":
                writer.take_view("runs", [_on(node, number, "running")], at)
                jobs = [{"submission_id": f"raydeck-lm-{node}-a1", "status": "RUNNING"}]
                writer.take_view("jobs", [{"submission_id": "theirs", "status": "RUNNING"}, *jobs], at)
            else:
                writer.take_view("cluster", CLUSTER, at)
            writer.tick(at)
        writer.close()
        walked = Timeline()
        walked.take(parts(Path(folder)))
        start, end = walked.span
        moment = data.draw(st.floats(start, end))
        walked.seek(start)
        while walked.at < moment:
            walked.advance(min(moment, walked.at + 7.0))
        jumped = Timeline(walked.fleet.nodes.values())
        jumped.take(parts(Path(folder)))
        jumped.seek(moment)
        assert seen(walked) == seen(jumped)


def test_of_two_runs_that_claim_a_gpu_the_later_one_has_it(tmp_path: Path) -> None:
    writer, names = Writer(tmp_path), [f"lm-{number}" for number in (7, 2, 9, 1, 4)]
    for second, name in enumerate(names):
        writer.take_view("runs", [run(name=name)], START + second)
    writer.close()
    timeline = Timeline()
    timeline.take(parts(tmp_path))
    for second, name in enumerate(names):
        timeline.seek(START + second + 0.1)
        assert timeline.work.holders("aa") == {0: (name, 0)}


def test_what_is_shown_is_what_was_true_then(timeline: Timeline) -> None:
    timeline.seek(START + 50.5)
    node = timeline.fleet.nodes["gpu-1"]
    assert (node.reading(0, "utilization_percent"), node.sampled_at) == (50, pytest.approx(START + 50, abs=0.01))
    assert "fell off the bus" in str(node.reading(1, "power_watts"))
    assert (node.address, node.role, node.ray_node_id, node.ray_gpus_used) == ("10.0.0.1", "head", "aa", 1.0)
    assert (node.ssh.state, node.ssh.reason) == ("none", NO_SSH)
    assert node.ray.state == "unknown"
    assert timeline.work.runs["lm-k3f9qz"].state is RunState.RUNNING
    assert timeline.work.runs["lm-k3f9qz"].attempts[0].status is not None
    assert timeline.work.holders("aa") == {0: ("lm-k3f9qz", 0)}
    assert timeline.work.queue is not None
    assert timeline.work.queue.waiting[0].sentence == "waits since 50"
    assert timeline.work.alerts.view is not None
    assert [alert.title for alert in timeline.work.alerts.view.alerts] == ["gpu-1/1 is lost"]
    timeline.seek(START + 105)
    assert (timeline.fleet.nodes["gpu-1"].ray.state, timeline.fleet.nodes["gpu-1"].ray.since) == ("dead", START + 80)
    assert timeline.work.runs["lm-k3f9qz"].state is RunState.FAILED
    timeline.seek(START + 20)
    assert timeline.work.alerts.view is None
    assert timeline.fleet.nodes["gpu-1"].ray.state == "unknown", "nothing of later is left"


def test_nodes_come_and_stay_in_the_list_also_before_they_came(timeline: Timeline) -> None:
    timeline.seek(START + 30)
    assert list(timeline.fleet.nodes) == ["gpu-1"]
    before = timeline.fleet.membership
    timeline.advance(START + 70)
    assert list(timeline.fleet.nodes) == ["gpu-1", "gpu-2"]
    assert timeline.fleet.membership > before, "a screen sees that its list is another one"
    timeline.seek(START + 30)
    late = timeline.fleet.nodes["gpu-2"]
    assert (late.sample, late.sampled_at, late.facts) == (None, None, None)
    timeline.seek(START + 200)
    assert timeline.fleet.nodes["gpu-2"].stale(timeline.at)
    assert timeline.fleet.nodes["gpu-2"].age_seconds(timeline.at) == pytest.approx(81, abs=0.1)


def test_nodes_that_are_known_anyway_are_there_without_a_record(five_minutes: list[Segment]) -> None:
    timeline = Timeline([Node("gpu-9", "10.0.0.9", expected_gpus=8), Node("gpu-1", "elsewhere")])
    timeline.take(five_minutes)
    timeline.seek(START + 10)
    assert list(timeline.fleet.nodes) == ["gpu-9", "gpu-1"]
    assert timeline.fleet.nodes["gpu-9"].gpu_indexes == list(range(8))
    assert timeline.fleet.nodes["gpu-9"].missing_because == f"ssh is none: {NO_SSH}"
    assert timeline.fleet.nodes["gpu-1"].address == "10.0.0.1"


def test_no_two_stores_are_taken_for_the_same(timeline: Timeline) -> None:
    timeline.seek(START + 30)
    first = timeline.fleet
    timeline.seek(START + 30)
    assert first is not timeline.fleet
    assert first.membership != timeline.fleet.membership
    assert timeline.near(START + 34)
    assert not timeline.near(START + 36)
    assert not timeline.near(START + 29)
    timeline.seek(START + 58)
    assert not timeline.near(START + 61), "that is another minute"


def test_where_nothing_is_recorded_nothing_is_shown() -> None:
    timeline = Timeline()
    assert timeline.span == (0.0, 0.0)
    assert timeline.gap_seconds == 0.0
    for go in (timeline.seek, timeline.advance, timeline.moved):
        with pytest.raises(BadRecording, match="nothing is recorded"):
            go(START)


# --- gaps -------------------------------------------------------------------------------------------------------------


def test_a_gap_is_said(tmp_path: Path) -> None:
    for begin in (0, 200):  # the controller was away in between
        writer = Writer(tmp_path)
        for second in range(begin, begin + 30):
            writer.take_sample("gpu-1", sample(5), START + second)
        writer.close()
    timeline = Timeline()
    timeline.take(parts(tmp_path))
    for second, gap in ((10, 0), (29, 0), (40, 0), (29 + GAP_SECONDS + 1, GAP_SECONDS + 1), (199, 170), (201, 0)):
        timeline.seek(START + second)
        assert timeline.gap_seconds == pytest.approx(gap, abs=0.1)
        assert timeline.covers(timeline.at) == (second <= 29 or second >= 200)
    timeline.seek(START + 199)
    assert timeline.fleet.nodes["gpu-1"].stale(timeline.at)
    timeline.seek(START + 205)
    ring = timeline.history("gpu-1")[0]["utilization_percent"]
    values = list(ring)
    assert values[:30] == [5.0] * 30
    assert values[31:199] == [None] * 168, "what is not known is no figure"
    assert values[-5:] == [5.0] * 5


def test_samples_that_come_seldom_stand_until_the_next_is_due(tmp_path: Path) -> None:
    writer = Writer(tmp_path, lanes_per_second=8.5, flush_seconds=1.0)  # one in eight seconds of each node
    for second in range(200):
        for name in ("gpu-1", "gpu-2", "gpu-3", "gpu-4"):
            writer.take_sample(name, sample(second % 100), START + second)
        writer.tick(START + second)
    writer.close()
    timeline = Timeline()
    timeline.take(parts(tmp_path))
    stale: list[int] = []
    for second in range(100, 199):
        timeline.advance(START + second)
        if timeline.fleet.nodes["gpu-1"].stale(timeline.at):
            stale.append(second)
    assert stale == []
    assert None not in list(timeline.history("gpu-1")[0]["power_watts"])
    timeline.seek(START + 260)
    assert timeline.fleet.nodes["gpu-1"].stale(timeline.at)


def test_where_the_clock_went_back_what_was_told_last_counts(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for begin, load in ((0, 1), (-300, 2)):
        for second in range(begin, 180 if begin else 200):
            writer.take_sample("gpu-1", sample(load), START + second)
    writer.close()
    timeline = Timeline()
    timeline.take(parts(tmp_path))
    for second, load in ((-250, 2), (-1, 2), (30, 2), (100, 2), (179, 2), (195, 1)):
        timeline.seek(START + second + 0.5)
        assert timeline.fleet.nodes["gpu-1"].reading(0, "utilization_percent") == load
    assert timeline.span == (START - 300, pytest.approx(START + 199, abs=0.01))


# --- more of it, and less ---------------------------------------------------------------------------------------------


def test_more_of_a_minute_that_is_shown_goes_on_where_it_was(tmp_path: Path) -> None:
    writer = Writer(tmp_path, flush_seconds=1.0)
    timeline = Timeline()
    for second in range(50):
        writer.take_sample("gpu-1", sample(second), START + second)
        writer.take_view("runs", [run(step=second)], START + second)
        writer.tick(START + second)
        timeline.take(parts(tmp_path))
        if timeline.sequence:
            timeline.advance(START + second)
    writer.flush()
    (whole,) = parts(tmp_path)
    timeline.take([whole])
    timeline.take([])
    timeline.advance(START + 49.5)
    assert timeline.fleet.nodes["gpu-1"].reading(0, "utilization_percent") == 49
    timeline.take(parts(tmp_path)[:1])
    assert timeline.size_bytes == whole.end - whole.start
    assert timeline.sequence == {1}


def test_what_is_shown_is_not_let_go_of(tmp_path: Path) -> None:
    for begin in (0, 5000):
        writer = Writer(tmp_path, keep_seconds=10_000.0)
        writer.take_view("alerts", {"alerts": [{**ALERT, "state": "firing"}] if begin else []}, START + begin)
        for second in range(begin, begin + 130):
            writer.take_sample("gpu-1", sample(5), START + second)
        writer.close()
    found = parts(tmp_path)
    timeline = Timeline()
    timeline.take(found)
    timeline.seek(START + 4500)  # in a gap: what is shown is an hour old
    timeline.let_go(1800.0)
    assert timeline.sequence == {3, 4, 5, 6}
    timeline.take([])
    timeline.advance(START + 4501)
    assert timeline.gap_seconds > 4000
    timeline.seek(START + 5125)
    timeline.let_go(0.0)
    assert timeline.sequence == {6}
    assert timeline.marks == []
    assert timeline.fleet.nodes["gpu-1"].history.get(0), "and what was unpacked is unpacked again"
    timeline.take(found)
    assert [mark.text for mark in timeline.marks] == ["gpu-1/1 is lost"]
    timeline.seek(START + 10)
    timeline.let_go(60.0)
    assert timeline.sequence == {1, 2}


# --- what cannot be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("runs", [{"id": "lm"}], r"Run workflow: Field required"),
        ("queue", {"waiting": 7}, r"QueueView at"),
        ("alerts", {"alerts": [{"id": 1}]}, r"AlertsView alerts\.0"),
        ("jobs", [{"submission_id": "x", "status": []}], r"Ray's jobs 0\.status"),
        ("cluster", {"nodes": [{}]}, r"Cluster nodes\.0\.name"),
        ("status", {}, r"ControllerStatus"),
        ("nodes", {"drains": 7}, r"NodesView"),
    ],
)
def test_what_is_no_view_of_this_version_is_a_sentence(tmp_path: Path, kind: str, body: Any, said: str) -> None:
    writer = Writer(tmp_path)
    writer.take_view(kind, body, START)
    writer.close()
    timeline = Timeline()
    timeline.take(parts(tmp_path))
    with pytest.raises(BadRecording, match=f"what is recorded cannot be read: {said}"):
        timeline.seek(START + 1)


def test_views_and_fields_of_a_newer_version_are_passed_over(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.take_view("of_a_newer_one", {"x": 1}, START)
    writer.take_view("runs", [run(new_field=[1, 2])], START)
    writer.take_view("cluster", {**CLUSTER, "new": 1}, START)
    writer.take_state("gpu-1", "network", "slow", "", START)  # pyright: ignore[reportArgumentType]
    writer.close()
    timeline = Timeline()
    timeline.take(parts(tmp_path))
    timeline.seek(START + 1)
    assert timeline.work.runs.keys() == {"lm-k3f9qz"}
    assert timeline.fleet.nodes["gpu-1"].ray_node_id == "aa"
