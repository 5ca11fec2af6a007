"""Held nodes and drains as the controller tells them: what changed, whose they are, what needs someone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.sources.controller import ControllerWatcher
from console.state.fleet import FleetStore, Node
from console.state.nodes import NodesStore
from console.state.work import WorkStore
from jobs.nodeview import Drain, DrainNode, Hold, NodeRef, NodesView, NodeView, Other
from jobs.wire import ControllerStatus, Event, NodesChanged, Snapshot


def held(name: str, reason: str = "", **more: Any) -> NodeView:
    hold = Hold(id=f"h-{name}", node=name, user="bob", at=0.0, reason=reason)
    told: dict[str, Any] = {"state": "cordoned", "holds": [hold], **more}
    return NodeView(name=name, **told)


def drain(identity: str, *parts: DrainNode, at: float = 0.0, state: Any = "running") -> Drain:
    return Drain(id=identity, at=at, user="alice", nodes=list(parts), state=state)


def part(name: str, state: Any = "moving", **more: Any) -> DrainNode:
    return DrainNode(node=NodeRef(name=name), state=state, **more)


def test_only_what_changed_is_said_to_have_changed() -> None:
    store = NodesStore()
    store.take(NodesView(nodes=[held(f"n{number}") for number in range(1000)]))
    assert len(store.take_changed()) == 1000
    store.take(NodesView(nodes=[held(f"n{number}", "fan" if number == 7 else "") for number in range(999)]))
    assert store.take_changed() == {"n7", "n999"}, "the one with another reason, and the one that is gone"
    store.take(NodesView(nodes=[held(f"n{number}", "fan" if number == 7 else "") for number in range(999)]))
    assert store.take_changed() == set()


def test_a_step_of_a_drain_is_a_change_of_that_node_alone() -> None:
    store = NodesStore()
    view = NodesView(nodes=[held("a"), held("b")], drains=[drain("d", part("a"), part("b", "waiting"))])
    store.take(view)
    store.take_changed()
    assert store.take_drains_changed()
    assert not store.take_drains_changed()
    store.take(view.model_copy(update={"drains": [drain("d", part("a", note="waits"), part("b", "waiting"))]}))
    assert store.take_drains_changed()
    assert store.take_changed() == {"a"}


def test_a_node_is_found_by_name_else_by_rays_id_else_by_an_address_that_no_other_has() -> None:
    store = NodesStore()
    store.take(NodesView(nodes=[held("named", address="10.0.0.1"), held("x", node_id="ab", address="10.0.0.2"),
                                held("p", address="10.0.0.3"), held("q", address="10.0.0.3")]))  # fmt: skip
    assert store.of(Node("named", "whatever")) is store.named("named")
    assert store.of(Node("other", "", ray_node_id="ab")) is store.named("x")
    assert store.of(Node("other", "", ray_address="10.0.0.2")) is store.named("x")
    assert store.of(Node("other", "", ray_address="10.0.0.3")) is None, "it could be either"
    assert store.of(Node("other", "", ray_address="10.0.0.9")) is None
    assert store.of(Node("other", "")) is None


def test_of_several_drains_of_a_node_the_one_that_goes_on_counts() -> None:
    store = NodesStore()
    over = drain("old", part("a", "empty"), at=9.0, state="done")
    store.take(NodesView(nodes=[held("a")], drains=[over, drain("new", part("a"), at=5.0)]))
    found = store.part("a")
    assert found is not None
    assert found[0].id == "new"
    assert store.drain("old") is over
    assert store.drain("none") is None


def test_findings_are_overdue_drains_alerts_and_what_slipped_in_once() -> None:
    other = Other(kind="actor", id="abc", name="Tuner", slipped=True)
    store = NodesStore()
    store.take(
        NodesView(
            nodes=[held("a", others=[other]), held("b", others=[other])],
            drains=[drain("d", part("a", overdue=True))],
            alerts=[f"a is held, and {other.sentence} landed there all the same"],
        )
    )
    found = [(finding.severity, finding.target, finding.text) for finding in store.findings()]
    assert [(severity, target) for severity, target, _ in found] == [
        ("critical", "a"),
        ("warning", "b"),
        ("warning", "a"),
    ]
    assert "overdue" in found[0][2]


def test_a_retired_node_that_is_dead_to_ray_needs_nobody() -> None:
    fleet, work = FleetStore(), WorkStore()
    node = fleet.add(Node("a", "a"))
    node.ssh.move("up", "", 0.0)
    node.ray.move("dead", "drained", 0.0)
    assert any("dead to Ray" in finding.text for finding in fleet.findings(1.0))
    work.nodes.take(NodesView(nodes=[held("a", state="retired")]))
    assert fleet.findings(1.0, work.nodes.retired()) == []


def test_what_this_console_does_is_a_change_of_that_node() -> None:
    store = NodesStore()
    store.begin("a", "starting Ray")
    assert store.take_changed() == {"a"}
    store.finish("a")
    assert (store.take_changed(), store.doing) == ({"a"}, {})
    store.finish("a")
    assert store.take_changed() == set()


def test_only_a_worker_that_ssh_reaches_and_ray_has_not_can_rejoin() -> None:
    node = Node("a", "a")
    node.ssh.move("up", "", 0.0)
    for state, can in (("alive", False), ("dead", True), ("absent", True), ("unknown", False)):
        node.ray.move(state, "", 0.0)
        assert node.can_rejoin is can
    node.role = "head"
    node.ray.move("dead", "", 0.0)
    assert not node.can_rejoin


VIEWS = st.builds(
    NodesView,
    nodes=st.lists(st.builds(held, st.sampled_from("abcd"), st.sampled_from(["", "x"])), max_size=4,
                   unique_by=lambda each: each.name),
    drains=st.lists(st.builds(lambda name, state, note: drain("d", part(name, state, note=note)),
                              st.sampled_from("abcd"), st.sampled_from(["waiting", "moving", "empty"]),
                              st.sampled_from(["", "y"])), max_size=1),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(VIEWS, max_size=6))
def test_what_is_not_said_to_have_changed_is_as_it_was(views: list[NodesView]) -> None:
    store = NodesStore()
    seen: dict[str, Any] = {}
    for view in views:
        store.take(view)
        for name in store.take_changed():
            seen[name] = (store.named(name), store.part(name))
        for name in "abcd":
            now = (store.named(name), store.part(name))
            before_drain, now_drain = seen.get(name, (None, None))[1], now[1]
            assert seen.get(name, (None, None))[0] == now[0]
            assert (before_drain and before_drain[1]) == (now_drain and now_drain[1])


async def test_the_watcher_hands_it_on_from_the_snapshot_and_from_each_event() -> None:
    status = ControllerStatus(
        version="0", code_digest="", pid=1, user="", host="", python="", started_at=0.0, dashboard="", ray="ok",
        metadata_store="", supervised_by="", you="alice", role="operator",
    )  # fmt: skip
    work = WorkStore()
    told: list[Any] = []

    class Client:
        async def events(self) -> AsyncIterator[Event]:
            yield Snapshot(status=status, runs=[], nodes=NodesView(nodes=[held("a")]))
            told.append(work.nodes.named("a"))
            yield NodesChanged(nodes=NodesView(nodes=[held("b")]))
            told.append((work.nodes.named("a"), work.nodes.named("b")))
            raise StopWatchingError

    class StopWatchingError(Exception):
        pass

    async def connect() -> Any:
        return Client()

    with pytest.raises(StopWatchingError):
        await ControllerWatcher(connect, work).run()
    assert told[0] is not None
    assert told[1][0] is None
    assert told[1][1].state == "cordoned"
