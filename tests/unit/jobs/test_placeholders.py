"""Names in braces in a command: which there are, what takes their place, and what is left alone."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.placeholders import NAMES, faults, filled

VALUES: dict[str, str | int | None] = {"head": "control-01", "host": "worker-01", "accelerators": 8}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ray start --address={head}:6379", "ray start --address=control-01:6379"),
        ("ray start --num-gpus={accelerators} --labels raydeck.io/node={host}",
         "ray start --num-gpus=8 --labels raydeck.io/node=worker-01"),
        ("""ray start --resources='{"custom": 1}' {head}""", """ray start --resources='{"custom": 1}' control-01"""),
        ("""x '{"a": {"b": {}}}'""", """x '{"a": {"b": {}}}'"""),
        ("awk '{{print}}' {a,b}", "awk '{print}' {a,b}"),
        ("", ""),
    ],
)  # fmt: skip
def test_what_takes_the_place(command: str, expected: str) -> None:
    assert list(faults(command)) == []
    assert filled(command, VALUES) == expected


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    ((sentence, suggestion),) = faults("ray start --address={haed}:6379 {host}")
    assert sentence == (
        "has a {haed} that stands for nothing; there are {head}, {host}, {accelerators} (and {{haed}} for the word "
        "itself)"
    )
    assert suggestion == "{head}"
    assert [near for _, near in faults("{zzz}")] == [""]


def test_a_name_without_a_value_is_not_made_up() -> None:
    with pytest.raises(KeyError, match="accelerators"):
        filled("--num-gpus={accelerators}", {**VALUES, "accelerators": None})


@given(st.sampled_from(NAMES), st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text))
def test_a_value_is_one_word_to_the_shell_whatever_is_in_it(name: str, value: str) -> None:
    assert shlex.split(filled(f"run {{{name}}} end", {**VALUES, name: value})) == ["run", value, "end"]
