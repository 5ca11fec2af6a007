"""When a log line was said: from what it carries, from the file, by the head's clock."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.triage.times import dated, stamp

NOW = 1_780_000_000.0
"""2026-05-28 20:26:40 UTC."""


@pytest.mark.parametrize(
    ("text", "offset", "wall"),
    [
        ("2026-05-28 20:26:40,500 INFO begins", 0, NOW + 0.5),
        ("2026-05-28T20:26:40Z x", 7200, NOW),
        ("[rank3] 2026-05-28T22:26:40.25+02:00 x", 0, NOW + 0.25),
        ("2026/05/28 13:26:40 x", -7 * 3600, NOW),
        ("[E528 20:26:40.125 ProcessGroupNCCL.cpp:632] x", 0, None),
        ("[E0528 20:26:40.125000 ProcessGroupNCCL.cpp:632] x", 0, NOW + 0.125),
        ("[2026-05-28 20:26:40,875 W 4021 4032] (raylet) x", 0, NOW + 0.875),
        ("step 1250 loss 1.6231", 0, None),
        ("2026-13-45 99:99:99 x", 0, None),
        ("/data/2026-05-28/shard", 0, None),
    ],
)
def test_a_line_tells_its_time(text: str, offset: float, wall: float | None) -> None:
    found = stamp(text, offset, NOW)
    assert found == (pytest.approx(wall, abs=1e-3) if wall is not None else None)


def test_december_is_last_year_in_january() -> None:
    january = 1_798_762_000.0
    assert time.gmtime(january).tm_year == 2027
    found = stamp("W1231 23:59:59.000000 x", 0, january)
    assert found is not None
    assert time.gmtime(found)[:3] == (2026, 12, 31)


@given(st.text(max_size=200), st.floats(-50_000, 50_000), st.floats(0, 4e9))
def test_no_line_makes_it_fail(text: str, offset: float, now: float) -> None:
    stamp(text, offset, now)


@given(st.floats(86_400, 4e9).map(float), st.sampled_from([0, 3600, -19_800, 45_900]))
def test_what_python_logs_is_read_back(wall: float, offset: int) -> None:
    local = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(wall + offset))
    assert stamp(f"{local},000 INFO x", offset, wall) == int(wall)


def test_a_traceback_at_the_end_was_written_with_the_file() -> None:
    texts = [
        "2026-05-28 20:26:00,000 begins",
        "step 1",
        "Traceback (most recent call last):",
        "  File x",
        "ValueError: y",
    ]
    lines = dated(texts, 17, NOW + 4.0, 0.0, 4.0, NOW + 4.0)
    assert [line.number for line in lines] == [17, 18, 19, 20, 21]
    assert lines[0].wall == NOW - 40.0 - 4.0, "the node's clock is 4 s ahead"
    assert lines[1].wall is None, "nobody knows when"
    assert [line.wall for line in lines[2:]] == [NOW] * 3


def test_a_log_that_ends_with_a_dated_line_has_no_other_times() -> None:
    lines = dated(["step 1", "2026-05-28 20:26:00,000 ends"], None, NOW, 0.0, 0.0, NOW)
    assert [line.wall for line in lines] == [None, NOW - 40.0]
    assert [line.number for line in lines] == [None, None]


def test_an_empty_log_has_no_lines() -> None:
    assert dated([], None, NOW, 0.0, 0.0, NOW) == []
    assert [line.wall for line in dated(["", " "], 1, NOW, 0.0, 0.0, NOW)] == [None, None]
