"""Holds: whose they are, which node they mean, and how the queue treats it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.controller.nodes.holds import OPEN, HoldRecord, Kept, Table
from jobs.controller.nodes.identity import Known, newest, resolve, same, unique
from jobs.errors import Refused
from jobs.nodeview import Hold, NodeRef
from tests.unit.jobs.controller_nodes.parts import NOW, ray_node


def held(
    name: str, user: str = "ann", hold_id: str = "", address: str = "", machine: str = "", **rest: object
) -> HoldRecord:
    hold = Hold.model_validate({"id": hold_id or f"h-{name}-{user}", "node": name, "user": user, "at": NOW, **rest})
    return HoldRecord(hold=hold, ref=NodeRef(name=name, address=address, machine_id=machine))


def test_several_hold_one_node_and_it_is_open_when_all_are_gone() -> None:
    table = Table()
    table.put([held("w1", "ann", reason="fan"), held("w1", "bob", reason="disk")])
    assert table.kept("w1") == Kept("ann: fan")
    table.drop(["h-w1-ann"])
    assert table.kept("w1") == Kept("bob: disk")
    table.drop(["h-w1-bob", "h-w1-bob"])
    assert table.kept("w1") is OPEN


def test_a_node_whose_drain_has_not_come_to_it_is_avoided_and_not_closed() -> None:
    table = Table()
    table.put([held("w1", kind="drain", drain="d-1")])
    table.waiting = {("d-1", "w1")}
    assert table.kept("w1") == Kept(avoid=True)
    table.put([held("w1", "bob")])
    assert table.kept("w1") == Kept("bob")


@pytest.mark.parametrize(
    ("ref", "name", "address", "machine", "expected"),
    [
        (NodeRef(name="w1", address="10.0.0.1", machine_id="m1"), "w1", "10.0.0.1", "", True),
        (NodeRef(name="w1", address="10.0.0.1", machine_id="m1"), "w1", "10.0.0.9", "", True),
        (NodeRef(name="10.0.0.1", address="10.0.0.1", machine_id="m1"), "10.0.0.9", "10.0.0.9", "m1", True),
        (NodeRef(name="10.0.0.1", address="10.0.0.1", machine_id="m1"), "10.0.0.9", "10.0.0.9", "m2", False),
        (NodeRef(name="10.0.0.1", address="10.0.0.1"), "10.0.0.9", "10.0.0.9", "", False),
        # Several nodes of a test cluster are one machine at one address.
        (NodeRef(name="w1", address="127.0.0.1", machine_id="m1"), "w2", "127.0.0.1", "m1", False),
    ],
)
def test_which_node_is_the_one_that_was_meant(
    ref: NodeRef, name: str, address: str, machine: str, expected: bool
) -> None:
    assert same(ref, name, address, machine) is expected


def test_of_two_of_one_name_the_living_one_counts() -> None:
    nodes = [
        ray_node("w1", "old", alive=False, started_at=2.0),
        ray_node("w1", "new", started_at=1.0),
        ray_node("w2", "first", alive=False, started_at=1.0),
        ray_node("w2", "second", alive=False, started_at=2.0),
    ]
    found = newest(nodes, {"new": "m1"})
    assert {name: known.node_id for name, known in found.items()} == {"w1": "new", "w2": "second"}
    assert found["w1"].ref.machine_id == "m1"


def test_a_name_that_nobody_has_is_refused_with_the_nearest() -> None:
    known = newest([ray_node("worker-1", "abcdef0123", ip="10.0.0.7")], {})
    with pytest.raises(Refused) as caught:
        resolve([NodeRef(name="worker-11")], known, [], True)
    assert str(caught.value).startswith("there is no node worker-11")
    assert "worker-1?" in caught.value.hint
    for name in ("worker-1", "10.0.0.7", "abcdef"):
        assert [each.name for each in resolve([NodeRef(name=name)], known, [], True)] == ["worker-1"]
    # One that left Ray is known as long as it is held; and while Ray does not answer, a name is believed.
    assert resolve([NodeRef(name="w9")], known, [NodeRef(name="w9", address="a")], True)[0].ref.address == "a"
    assert resolve([NodeRef(name="w9")], known, [], False) == [Known(NodeRef(name="w9"))]
    assert resolve([NodeRef(name="w9", address="b")], known, [], True) == [Known(NodeRef(name="w9", address="b"))]


def test_a_node_that_is_named_twice_is_one() -> None:
    known = newest([ray_node("worker-1", "abcdef0123")], {})
    assert len(resolve([NodeRef(name="worker-1"), NodeRef(name="abcdef01")], known, [], True)) == 1


@given(st.lists(st.tuples(st.sampled_from(["put", "drop"]), st.integers(0, 3), st.integers(0, 2)), max_size=40))
def test_a_node_is_closed_exactly_as_long_as_somebody_holds_it(moves: list[tuple[str, int, int]]) -> None:
    table, model = Table(), set[tuple[str, str]]()
    for what, node, user in moves:
        record = held(f"w{node}", f"u{user}")
        if what == "put":
            table.put([record])
            model.add((f"w{node}", f"u{user}"))
        else:
            table.drop([record.hold.id])
            model.discard((f"w{node}", f"u{user}"))
        for each in range(4):
            assert bool(table.kept(f"w{each}").cordoned) == any(name == f"w{each}" for name, _ in model)
    assert {ref.name for ref in table.refs()} == {name for name, _ in model}


def test_the_id_of_a_copied_image_says_nothing() -> None:
    assert unique({"n1": "m1", "n2": "m2", "n3": "m2"}) == {"n1": "m1", "n2": "", "n3": ""}
