"""Who is to blame: a node, a link, an uplink, a straggler; and nobody where there is only noise."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.validation.culprit import rounds, score, straggler


def names(count: int) -> list[str]:
    return [f"n{at:02}" for at in range(count)]


def edges(count: int, seed: int = 0, spread: float = 0.1) -> dict[tuple[str, str], float]:
    """Every link of so many nodes, each good."""
    random = Random(seed)
    return {pair: random.uniform(1 - spread, 1 + spread) for pair in itertools.combinations(names(count), 2)}


@given(st.integers(0, 20))
def test_in_a_tournament_every_two_meet_once_and_nobody_is_twice_in_a_round(count: int) -> None:
    members = names(count)
    played = rounds(members)
    met = [tuple(sorted(pair)) for each in played for pair in each]
    assert sorted(met) == sorted(itertools.combinations(members, 2))
    for each in played:
        there = [name for pair in each for name in pair]
        assert len(there) == len(set(there))
    if count > 1:
        assert len(played) == count - 1 + count % 2


@pytest.mark.parametrize("count", range(3, 17))
def test_every_single_bad_node_is_named(count: int) -> None:
    for seed, bad in enumerate(names(count)):
        told = {edge: rate * (0.2 if bad in edge else 1.0) for edge, rate in edges(count, seed).items()}
        assert [each.words for each in score(told)] == [bad]


@pytest.mark.parametrize("count", range(4, 11))
def test_every_single_bad_link_is_named_as_that_link(count: int) -> None:
    for seed, bad in enumerate(itertools.combinations(names(count), 2)):
        told = {edge: rate * (0.2 if edge == bad else 1.0) for edge, rate in edges(count, seed).items()}
        found = score(told)
        assert [(each.kind, tuple(each.nodes)) for each in found] == [("link", bad)]


def test_of_three_nodes_one_bad_link_is_that_link() -> None:
    assert [each.words for each in score({("a", "b"): 1.0, ("a", "c"): 0.2, ("b", "c"): 1.0})] == ["the link a ↔ c"]


def test_of_two_nodes_there_is_nothing_to_compare_with() -> None:
    assert score({("a", "b"): 0.01}) == []
    assert score({}) == []
    assert [each.words for each in score({("a", "b"): 0.01}, reference=1.0)] == ["the link a ↔ b"]
    assert score({("a", "b"): 0.8}, reference=1.0) == []


def test_where_every_link_is_bad_no_node_is() -> None:
    told = dict.fromkeys(itertools.combinations("abc", 2), 0.01)
    assert {each.kind for each in score(told, reference=1.0)} == {"link"}
    assert score(told) == []  # nothing tells that they are bad


@pytest.mark.parametrize("count", range(4, 12))
def test_two_nodes_that_are_equally_bad_are_both_named(count: int) -> None:
    for bad in itertools.combinations(names(count), 2):
        told = {edge: rate * (0.2 if set(bad) & set(edge) else 1.0) for edge, rate in edges(count).items()}
        assert [each.words for each in score(told)] == list(bad)


@pytest.mark.parametrize("count", [4, 6, 9])
def test_an_uplink_is_told_from_its_nodes(count: int) -> None:
    behind = set(names(count)[:2])
    told = {edge: rate * (0.2 if len(behind & set(edge)) == 1 else 1.0) for edge, rate in edges(count).items()}
    assert [(each.kind, each.nodes) for each in score(told)] == [("uplink", sorted(behind))]


def test_a_bad_node_and_a_bad_link_elsewhere_are_both_named() -> None:
    told = {edge: rate * (0.2 if "n01" in edge or edge == ("n04", "n05") else 1.0) for edge, rate in edges(8).items()}
    assert [each.words for each in score(told)] == ["n01", "the link n04 ↔ n05"]


@given(st.integers(2, 12), st.integers(0, 10_000))
def test_noise_blames_nobody(count: int, seed: int) -> None:
    assert score(edges(count, seed, 0.17)) == []


def test_the_straggler_works_longest_and_waits_least() -> None:
    compute = {"a": [0.010, 0.011], "b": [0.060, 0.061], "c": [0.010, 0.012]}
    waiting = {"a": [0.050, 0.052], "b": [0.001, 0.001], "c": [0.050, 0.049]}
    found = straggler(compute, waiting)
    assert found is not None
    assert found[0] == "b"
    assert "works 60.5 ms a turn, the others 10.8 ms" in found[1]


def test_nobody_is_a_straggler_without_a_reason() -> None:
    even = {name: [0.010, 0.011] for name in "abc"}
    waits = {name: [0.001] for name in "abc"}
    assert straggler(even, waits) is None
    # It works longer, and the others do not wait for it: something else holds them up.
    assert straggler({**even, "a": [0.060]}, {"a": [0.05], "b": [0.001], "c": [0.05]}) is None
    # Three times as long, and still nothing that anybody would notice.
    assert straggler({"a": [0.003], "b": [0.001]}, {"a": [0.0], "b": [0.002]}) is None
    assert straggler({"a": [9.0]}, {"a": [0.0]}) is None
    # Who told only one of both is not judged, and is no reason to judge nobody.
    assert straggler({**even, "d": [0.9]}, waits) is None
    assert straggler({"a": [0.060], "b": [0.010], "c": [0.010]}, {"a": [0.0], "b": [0.05]}) is not None
