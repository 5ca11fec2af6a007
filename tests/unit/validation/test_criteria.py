"""When a figure is good enough, and what most of several say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.validation.criteria import judge_rate, majority, peers_of
from jobs.validationview import Figure, Verdict, worst


def figure(value: float, **more: float | bool) -> Figure:
    return Figure(name="gemm", unit="TFLOP/s", samples=[value], **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "more", "cpu", "verdict"),
    [
        (100.0, {}, False, "pass"),
        (100.0, {"baseline": 100.0}, False, "pass"),
        (90.0, {"baseline": 100.0}, False, "pass"),
        (89.0, {"baseline": 100.0}, False, "warn"),
        (75.0, {"baseline": 100.0}, False, "warn"),
        (74.9, {"baseline": 100.0}, False, "fail"),
        (74.9, {"baseline": 100.0}, True, "warn"),
        (49.0, {"baseline": 100.0}, True, "fail"),
        (99.0, {"floor": 100.0, "baseline": 100.0}, False, "fail"),
        (100.0, {"floor": 100.0}, False, "pass"),
        (100.0, {"baseline": 90.0, "peers": 140.0}, False, "fail"),
        (100.0, {"baseline": 80.0, "higher_is_better": False}, False, "warn"),
        (100.0, {"floor": 99.0, "higher_is_better": False}, False, "fail"),
        (0.0, {"baseline": 10.0}, False, "fail"),
    ],
)
def test_a_figure_is_judged_by_its_floor_and_by_its_worst_share(
    value: float, more: dict[str, float | bool], cpu: bool, verdict: Verdict
) -> None:
    assert judge_rate(figure(value, **more), cpu)[0] == verdict


def test_what_it_was_judged_by_is_said() -> None:
    assert judge_rate(figure(1.0), False)[1] == "no reference"
    assert judge_rate(figure(1.0, floor=2.0), False)[1] == "at least 2 TFLOP/s"
    assert judge_rate(figure(80.0, peers=100.0), False)[1] == (
        "80% of its peers' median; warn below 90%, fail below 75%"
    )
    assert judge_rate(figure(74.9, peers=100.0), False)[1].startswith("74% of")
    assert judge_rate(figure(0.0, baseline=1.0, higher_is_better=False), False)[1].startswith("far more of")


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 3), max_size=9))
def test_a_majority_is_more_than_half(facts: dict[str, int]) -> None:
    common, odd = majority(facts)
    if common is None:
        assert odd == list(facts)
        assert all(list(facts.values()).count(value) * 2 <= len(facts) for value in facts.values())
    else:
        assert (len(facts) - len(odd)) * 2 > len(facts)
        assert all(facts[name] != common for name in odd)


def test_peers_are_the_others_and_there_must_be_enough() -> None:
    assert peers_of({"a": 1.0, "b": 2.0}) == {}
    assert peers_of({"a": 1.0, "b": 2.0, "c": 4.0}) == {"a": 3.0, "b": 2.5, "c": 1.5}


def test_the_worst_of_several_verdicts_and_skipped_is_never_green() -> None:
    assert worst(["pass", "warn", "fail"]) == "fail"
    assert worst(["pass", "unknown", "warn"]) == "unknown"
    assert worst(["pass", "skipped"]) == "pass"
    assert worst(["skipped"]) == "skipped"
    assert worst([]) == "unknown"
