"""This console's own look at the rules of health: of which nodes, over what, and what comes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from console.settings import Context
from console.sources.session import Session
from console.state.fleet import Node
from console.state.judge import ROUND_SECONDS, SLICE, Judge
from console.state.work import WorkStore
from jobs.alertview import AlertsView
from jobs.nodeview import NodesView, NodeView
from probes.health.rule import Thresholds
from probes.reading import ERROR, DeviceFacts, Driver, Event, Facts, Health, Host, Missing, Sample
from tests.unit.console.test_alerts_state import NOW, WALL, alert, cluster

LOST = {3: {"*": Missing(ERROR, "GPU is lost")}}


def sample(*, lost: bool = False, memory: float = 0.1) -> Sample:
    host = Host(memory_used_bytes=int(100 * memory), memory_total_bytes=100)
    columns = {"utilization_percent": [0, 0, 0, None if lost else 0]}
    return Sample(driver=Driver("ok"), index=[0, 1, 2, 3], columns=columns, missing=LOST if lost else {}, host=host)  # type: ignore[arg-type]


class Course:
    """A cluster whose controller is away, or tells what it is given; time goes on in rounds."""

    def __init__(self, *names: str, view: AlertsView | None = None, thresholds: Thresholds | None = None) -> None:
        self.fleet, self.work = cluster(*names)
        if view is None:
            self.work.controller_state("absent", "nobody answers", NOW)
        else:
            self.work.take_alerts(view, NOW)
        self.judge = Judge(thresholds)
        self.now = NOW

    def go(self, seconds: float = ROUND_SECONDS, **told: Sample | None) -> list[str]:
        """So long with these samples each round; then the rules that fire, worst known first as they are told."""
        names = list(self.fleet.nodes)
        end = self.now + seconds
        while self.now < end:
            for name in names:
                if (one := told.get(name, sample())) is not None:
                    self.fleet.take_sample(name, replace(one), self.now - 0.2)
            pauses = list(self.judge.round(self.fleet, self.work, self.now, WALL + self.now - NOW))
            assert sum(pauses) >= ROUND_SECONDS - 0.001
            self.now += ROUND_SECONDS
        return [each.rule for each in self.work.alerts.own]


def test_a_lost_gpu_is_an_alert_of_this_consoles_own() -> None:
    course = Course("w1", "w2")
    assert course.go(20) == []
    assert course.go(w1=sample(lost=True)) == ["gpu.lost"]
    found = course.work.alerts.own[0]
    assert (found.entities, found.nodes, found.source, found.level) == (["w1/3"], ["w1"], "console", "critical")
    assert found.since == pytest.approx(WALL + 20, abs=0.01), "by the head's clock"
    assert found.cause
    assert found.action
    assert course.work.alerts.judged == 2
    assert course.go(130) == []


def test_what_the_controller_watches_is_not_judged_here_but_for_ssh() -> None:
    course = Course("w1", "w2", view=AlertsView(unwatched={"w2": "its probe ended"}))
    assert course.go(6, w1=sample(lost=True), w2=sample(lost=True)) == ["gpu.lost"]
    assert course.work.alerts.own[0].nodes == ["w2"]
    assert course.work.alerts.judged == 1
    course.fleet.ssh_state("w1", "lost", "no answer", course.now)
    assert sorted(course.go(8, w1=None, w2=sample(lost=True))) == ["gpu.lost", "node.ssh_lost"]
    told = next(each for each in course.work.alerts.own if each.rule == "node.ssh_lost")
    assert told.entities == ["w1"]
    assert any("Ray still holds it alive" in line for line in told.evidence)


def test_a_node_that_the_controller_begins_to_watch_is_no_longer_told_of_here() -> None:
    course = Course("w1")
    assert course.go(4, w1=sample(lost=True)) == ["gpu.lost"]
    course.work.take_alerts(AlertsView(), course.now)
    course.work.controller_state("ok", "", course.now)
    assert course.go(w1=sample(lost=True)) == []
    course.work.controller_state("down", "it ended", course.now)
    assert course.go(4, w1=sample(lost=True)) == ["gpu.lost"], "with no controller this console judges again"


def test_a_switch_that_takes_ten_nodes_is_one_alert_with_ten_names() -> None:
    names = [f"w{at:02d}" for at in range(SLICE + 8)]
    course = Course(*names)
    course.go(4)
    for name in names[-10:]:
        course.fleet.ssh_state(name, "lost", "no answer", course.now)
    assert course.go(8) == ["node.ssh_lost"], "across slices too"
    assert sorted(course.work.alerts.own[0].nodes) == names[-10:]


def test_that_ray_does_not_answer_makes_no_node_dead() -> None:
    course = Course("w1")
    course.fleet.nodes["w1"].ray.move("dead", "missed heartbeats", NOW)
    assert course.go(10) == ["node.ray_dead"]
    course = Course("w1")
    course.fleet.nodes["w1"].ray.move("dead", "missed heartbeats", NOW)
    course.fleet.ray_answers("down", "no answer", NOW)
    assert course.go(10) == []


def test_a_node_that_was_taken_out_of_ray_is_not_dead() -> None:
    course = Course("w1")
    course.fleet.nodes["w1"].ray.move("dead", "drained", NOW)
    course.work.take_nodes(NodesView(nodes=[NodeView(name="w1", state="retired", ray="dead")]), NOW)
    assert course.go(10) == []


def test_clocks_are_compared_with_the_heads_not_with_this_machines() -> None:
    course = Course("head", "w1", "w2")
    course.fleet.nodes["head"].role = "head"
    for name, offset in (("head", 9.0), ("w1", 9.1), ("w2", 0.0)):
        course.fleet.take_clock(name, offset, 1.0)
    course.go(60)
    assert [(each.rule, each.entities) for each in course.work.alerts.own] == [("node.clock.critical", ["w2"])]


def test_events_of_several_lines_between_two_looks_are_all_taken() -> None:
    course = Course("w1")
    devices = [DeviceFacts(index=index) for index in range(4)]
    course.fleet.take_facts("w1", Facts(devices=devices), NOW)
    course.go(20)
    for at, code in enumerate((79, 13)):
        event = Event("xid", f"NVRM: Xid: {code}", wall=1000.0 + at, device=at, code=code)
        course.fleet.take_health("w1", Health(wall=1001.0, events=[event]), course.now - 0.5)
    course.fleet.take_health("w1", Health(wall=1001.0), course.now - 0.1)
    assert {"gpu.xid.critical", "gpu.xid.program"} <= set(course.go())
    course.fleet.take_health("w1", Health(wall=1003.0), course.now - 0.1)
    course.go()
    assert all(each.fired == 1 for each in course.work.alerts.own), "none is taken twice"


def test_what_a_cluster_file_changes_counts_here_too() -> None:
    full = sample(memory=0.98)
    assert Course("w1").go(60, w1=full) == ["node.memory.critical"]
    changed = Thresholds(off=("node.memory.critical", "node.memory"))
    assert Course("w1", thresholds=changed).go(200, w1=full) == []


def test_nodes_that_only_ray_tells_of_are_left_alone() -> None:
    course = Course("w1")
    course.fleet.nodes["w1"].ssh.move("none", "not in this context", NOW)
    assert course.go(60, w1=None) == []
    assert course.work.alerts.judged == 0


def test_no_node_at_all_is_no_loop_without_a_rest() -> None:
    judge, work = Judge(), WorkStore()
    fleet, _ = cluster("w1")
    fleet.nodes.clear()
    assert sum(judge.round(fleet, work, NOW, WALL)) >= ROUND_SECONDS
    assert work.alerts.own == []


def test_the_times_of_alerts_stand_still_while_clocks_jitter() -> None:
    course = Course("w1")
    course.go(4, w1=sample(lost=True))
    before = list(course.work.alerts.own)
    course.work.alerts.take_changed()
    for at in range(4):
        course.fleet.take_sample("w1", sample(lost=True), course.now)
        list(course.judge.round(course.fleet, course.work, course.now, WALL + course.now - NOW + 0.01 * at))
        course.now += ROUND_SECONDS
    assert course.work.alerts.own == before
    assert not course.work.alerts.take_changed()


def test_both_judges_agree_on_who_tells() -> None:
    course = Course("w1", view=AlertsView(alerts=[alert("a", "node.ssh_lost", family="node.lost")]))
    course.fleet.ssh_state("w1", "lost", "no answer", NOW)
    course.go(8, w1=None)
    assert [line.key for line in course.work.alerts.lines] == ["a"]


async def test_a_session_judges_for_as_long_as_it_is_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("console.state.judge.ROUND_SECONDS", 0.02)
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "cluster:\n  name: lab\n  control_nodes: [{host: h}]\n  alerting: {rules: {node.gpus_missing: {off: true}}}\n"
    )
    session = Session(Context(name="lab", cluster_file=file))
    session.fleet.add(Node("w1", "10.0.0.1", expected_gpus=8))
    session.ssh_state("w1", "up", "", session.now())
    session.start(ray=False, controller=False)
    try:
        session.sample("w1", sample(lost=True), session.now())
        assert await session.until(lambda: bool(session.work.alerts.own), 10)
        assert [each.rule for each in session.work.alerts.own] == ["gpu.lost"], "what the file turns off is not judged"
    finally:
        await session.close()


async def test_a_cluster_file_that_is_being_written_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("console.state.judge.ROUND_SECONDS", 0.02)
    session = Session(Context(name="lab", cluster_file=tmp_path / "gone.yaml"))
    session.fleet.add(Node("w1", "10.0.0.1"))
    session.start(ray=False, controller=False)
    try:
        assert await session.until(lambda: session.work.alerts.judged == 1, 10)
    finally:
        await session.close()
