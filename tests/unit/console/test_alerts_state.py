"""What needs someone is one line, whoever sees it: the controller's alerts with what this console sees itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.sources.controller import ControllerWatcher
from console.state.alerts import AlertsState, Counts, attention, counted, ssh_words
from console.state.fleet import FleetStore, Node
from console.state.work import WorkStore
from jobs.alertview import LEVELS, Acknowledged, Alert, AlertsChanged, AlertsView, Matcher, Silence
from jobs.raymodel import RayNode
from jobs.wire import Snapshot
from probes.reading import Disk, Driver, Facts, Host, Sample
from tests.unit.console.desk import a_run, status

NOW, WALL = 500.0, 1_780_000_000.0


def alert(identity: str = "alert-1", rule: str = "node.ray_dead", level: Any = "critical", **more: Any) -> Alert:
    told: dict[str, Any] = {
        "title": f"{identity} {rule}",
        "nodes": ["w1"],
        "entities": ["w1"],
        "since": WALL - 60,
        **more,
    }
    return Alert(id=identity, rule=rule, level=level, **told)


def cluster(*names: str, alerts: list[Alert] | None = None, **view: Any) -> tuple[FleetStore, WorkStore]:
    """Nodes that SSH and Ray both have, and a controller that tells these alerts; None: one that tells of none."""
    fleet, work = FleetStore(), WorkStore()
    for at, name in enumerate(names or ("w1", "w2")):
        fleet.add(Node(name, f"10.0.0.{at}"))
        fleet.ssh_state(name, "up", "", NOW - 100)
    fleet.take_ray_nodes(
        [RayNode(node_id=f"id{at}", node_ip=f"10.1.0.{at}", labels={"raydeck.io/node": name}, state="ALIVE")
         for at, name in enumerate(names or ("w1", "w2"))],
        NOW,
    )  # fmt: skip
    fleet.ray_answers("ok", "", NOW)
    told = None if alerts is None else AlertsView(alerts=alerts, **view)
    work.snapshot(status(), [], NOW, alerts=told)
    work.controller_state("ok", "", NOW)
    return fleet, work


def lines(fleet: FleetStore, work: WorkStore) -> list[Any]:
    return attention(fleet, work, NOW, WALL)


# --- the same thing is one line ---------------------------------------------------------------------------------------


def test_a_node_that_is_dead_for_ray_there_and_lost_for_ssh_here_is_one_line_with_both_truths() -> None:
    fleet, work = cluster(alerts=[alert()])
    fleet.ssh_state("w1", "lost", "no answer", NOW - 12)
    found = lines(fleet, work)
    assert [line.text for line in found] == ["alert-1 node.ray_dead"]
    assert found[0].short == "SSH from here: lost for 12 s"
    assert found[0].here == ("w1 is lost for 12 s; Ray still holds it alive",)
    assert not found[0].own


def test_that_ssh_answers_a_node_that_is_dead_for_ray_stands_beside_it() -> None:
    fleet, work = cluster(alerts=[alert()])
    assert lines(fleet, work)[0].short == "SSH from here: answers"


def test_what_is_another_thing_on_the_same_node_stays_a_line_of_its_own() -> None:
    fleet, work = cluster(alerts=[alert(rule="gpu.hot", level="warning")])
    fleet.ssh_state("w1", "lost", "no answer", NOW - 12)
    found = lines(fleet, work)
    assert [(line.level, line.own) for line in found] == [("critical", True), ("warning", False)]
    assert found[0].text.startswith("w1 is lost for 12 s")
    assert found[0].since == WALL - 12, "by the head's clock"


def test_ten_nodes_of_one_alert_take_their_ten_findings() -> None:
    names = [f"w{at}" for at in range(10)]
    fleet, work = cluster(*names, alerts=[alert(nodes=names, entities=names)])
    for name in names[:7]:
        fleet.ssh_state(name, "lost", "no answer", NOW - 9)
    found = lines(fleet, work)
    assert len(found) == 1
    assert found[0].short == "SSH from here: 7 lost, 3 up"
    assert len(found[0].here) == 7


def test_a_node_that_the_controller_knows_by_its_address_alone_is_found() -> None:
    fleet, work = cluster(alerts=[alert(nodes=["10.1.0.0"], entities=["10.1.0.0"])])
    fleet.ssh_state("w1", "lost", "no answer", NOW - 3)
    assert len(lines(fleet, work)) == 1


def test_each_kind_of_finding_goes_to_its_rule() -> None:
    told = [alert("driver", "node.driver.blocked"), alert("disk", "mount.space.critical", entities=["w1:/data"]),
            alert("clock", "node.clock"), alert("gpus", "node.gpus_missing"),
            alert("run", "run.retries_spent", nodes=[], entities=["lm-a"], run="lm-a"),
            alert("ray", "cluster.ray", nodes=[], entities=["cluster"])]  # fmt: skip
    fleet, work = cluster("w1", alerts=told)
    fleet.nodes["w1"].expected_gpus = 4
    fleet.take_facts("w1", Facts(), NOW)
    full = Host(disks=[Disk("/data", 99, 100)])
    fleet.take_sample("w1", Sample(driver=Driver("ok"), host=full), NOW)
    fleet.take_clock("w1", 3.0, 1.0)
    fleet.ray_answers("down", "no answer", NOW)
    failed = a_run("lm-a", state="failed", ended_at=WALL - 5, reason="exit 1")  # type: ignore[arg-type]
    work.run_changed(failed, NOW)
    found = {line.key: line for line in lines(fleet, work)}
    assert set(found) == {"driver", "disk", "clock", "gpus", "run", "ray"}
    for key in ("disk", "clock", "gpus", "ray"):
        assert len(found[key].here) == 1, key
        assert found[key].short == "seen from here too"
    assert found["run"].here == (), "the controller's own word of a run is not what is seen from here"
    assert found["driver"].here == ()
    fleet.take_sample("w1", Sample(driver=Driver("blocked", "nvmlInit", 50)), NOW)
    assert {line.key: line for line in lines(fleet, work)}["driver"].here


def test_an_alert_that_is_over_hides_nothing() -> None:
    fleet, work = cluster(alerts=[alert(state="cleared", ended_at=WALL - 5)])
    fleet.ssh_state("w1", "lost", "no answer", NOW - 12)
    found = lines(fleet, work)
    assert [line.ended for line in found] == [False, True]


def test_a_silenced_alert_takes_what_is_seen_of_it_into_the_silence() -> None:
    fleet, work = cluster(alerts=[alert(silenced_by="s1")])
    fleet.ssh_state("w1", "lost", "no answer", NOW - 12)
    assert counted(lines(fleet, work)) == Counts(silenced=1)


def test_without_a_controller_all_that_this_console_sees_is_there() -> None:
    fleet, work = cluster()
    work.controller_state("absent", "nobody answers", NOW)
    fleet.ssh_state("w1", "lost", "no answer", NOW - 12)
    assert [line.text for line in lines(fleet, work)] == [
        "w1 is lost for 12 s; Ray still holds it alive",
        "no controller on this cluster: nothing can be changed (O starts one)",
    ]


# --- what this console's rules find -----------------------------------------------------------------------------------


def own(identity: str, rule: str, **more: Any) -> Alert:
    return alert(identity, rule, source="console", **more)


def test_what_both_judges_find_is_told_by_the_controller() -> None:
    state = AlertsState()
    state.take(AlertsView(alerts=[alert("a", "gpu.lost", family="gpu.lost", entities=["w1/3"], nodes=["w1"])]))
    state.take_own([own("b", "gpu.lost", family="gpu.lost", entities=["w1/3"]),
                    own("c", "gpu.lost", family="gpu.lost", entities=["w2/0"], nodes=["w2"])])  # fmt: skip
    assert [(line.key, line.own) for line in state.lines] == [("a", False), ("c", True)]
    assert state.lines[1].told is None, "nobody can acknowledge what the controller does not know"


def test_a_node_that_ssh_lost_and_ray_too_is_the_controllers_line() -> None:
    fleet, work = cluster(alerts=[alert(family="node.lost")])
    work.alerts.take_own([own("b", "node.ssh_lost", family="node.lost")])
    fleet.ssh_state("w1", "lost", "no answer", NOW - 12)
    found = lines(fleet, work)
    assert [line.key for line in found] == ["alert-1"]
    assert found[0].short == "SSH from here: lost for 12 s"


def test_a_node_that_only_ssh_has_lost_tells_what_it_is_for_ray() -> None:
    fleet, work = cluster(alerts=[])
    work.alerts.take_own([own("b", "node.ssh_lost", family="node.lost")])
    fleet.ssh_state("w1", "lost", "no answer", NOW - 12)
    found = lines(fleet, work)
    assert [(line.key, line.short, line.own) for line in found] == [("b", "Ray: alive", True)]
    assert found[0].here == ("w1 is lost for 12 s; Ray still holds it alive",)


def test_what_the_stream_brings_is_known() -> None:
    work = WorkStore()
    watcher = ControllerWatcher(lambda: pytest.fail("nothing is asked"), work)
    watcher._take(Snapshot(status=status(), runs=[], alerts=AlertsView(alerts=[alert("a")])))
    assert [line.key for line in work.alerts.lines] == ["a"]
    watcher._take(AlertsChanged(alerts=AlertsView(alerts=[alert("b")])))
    assert [line.key for line in work.alerts.lines] == ["b"]
    watcher._take(Snapshot(status=status(), runs=[]))
    assert work.alerts.view is None, "this controller tells of none"


def test_changes_are_told_once() -> None:
    state = AlertsState()
    view = AlertsView(alerts=[alert()])
    state.take(view)
    assert state.take_changed()
    state.take(view.model_copy())
    assert not state.take_changed()
    state.take_own([own("b", "gpu.lost")], 3)
    assert state.take_changed()
    assert state.judged == 3
    state.take_own([own("b", "gpu.lost")], 3)
    assert not state.take_changed()
    state.take(None)
    assert state.take_changed()
    assert [line.key for line in state.lines] == ["b"]


def test_which_nodes_the_controller_watches() -> None:
    fleet, work = cluster(alerts=[], unwatched={"w2": "its probe ended"})
    assert work.alerts.watches(fleet.nodes["w1"])
    assert not work.alerts.watches(fleet.nodes["w2"])
    fleet.nodes["w1"].ray.move("dead", "", NOW)
    assert not work.alerts.watches(fleet.nodes["w1"]), "it watches from inside Ray"
    work.alerts.take(None)
    assert not work.alerts.watches(fleet.nodes["w2"])


def test_a_silence_is_found_by_its_id() -> None:
    state = AlertsState()
    assert state.silence("s1") is None
    silence = Silence(id="s1", matcher=Matcher(rule="r"), user="bob", at=1.0, until=2.0)
    state.take(AlertsView(silences=[silence]))
    assert state.silence("s1") == silence


# --- order and counts -------------------------------------------------------------------------------------------------


def _any_alert(number: int, level: Any, ago: float, aside: int, ended: bool) -> Alert:
    return alert(
        f"a{number}",
        f"r{number}",
        level,
        since=WALL - ago,
        acknowledged=Acknowledged(user="u", at=WALL) if aside == 1 else None,
        silenced_by="s" if aside == 2 else "",
        state="cleared" if ended else "firing",
        ended_at=WALL if ended else None,
    )


ALERTS = st.builds(
    _any_alert, st.integers(0, 10_000), st.sampled_from(LEVELS), st.floats(0, 1e6), st.integers(0, 2), st.booleans()
)


@given(st.lists(ALERTS, max_size=20, unique_by=lambda each: each.id))
def test_what_needs_someone_comes_first_and_every_alert_is_counted_once(told: list[Alert]) -> None:
    fleet, work = cluster("w1", alerts=told)
    found = lines(fleet, work)
    assert sorted(line.key for line in found) == sorted(each.id for each in told)
    groups = [3 if line.ended else {"": 0, "acknowledged": 1, "silenced": 2}[line.aside] for line in found]
    assert groups == sorted(groups)
    wanted = [LEVELS.index(line.level) for line in found if not line.ended and not line.aside]
    assert wanted == sorted(wanted)
    counts = counted(found)
    assert counts.all == sum(not line.ended for line in found)
    assert counts.open == len(wanted)


def test_ssh_words() -> None:
    def node(state: str) -> Node:
        made = Node("n", "a")
        made.ssh.move(state, "", NOW - 5)
        return made

    assert ssh_words([node("none")], NOW) == ""
    assert ssh_words([node("up")], NOW) == "answers"
    assert ssh_words([node("silent")], NOW) == "silent for 5 s"
    assert ssh_words([node("lost"), node("up"), node("lost")], NOW) == "2 lost, 1 up"
