"""What a script reports becomes points, and only that: half lines, foreign lines and odd figures are told apart."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.gang import progress
from jobs.gang.progress import Tail, end_of, parse
from jobs.model import Progress

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_a_whole_line_is_a_point() -> None:
    point = parse('{"step": 20, "loss": 1.5, "tokens_per_second": 900, "wall": 1000.25, "attempt": 2, "lr": 0.1}')
    assert point is not None
    assert point.progress == Progress(step=20, loss=1.5, throughput=900.0, throughput_unit="tokens", wall=1000.25)
    assert (point.attempt, point.rank, point.problem) == (2, None, "")


@pytest.mark.parametrize(
    ("rates", "unit", "value"),
    [
        ({"images_per_second": 3}, "images", 3.0),
        ({"steps_per_second": 1, "samples_per_second": 8}, "samples", 8.0),
        ({"samples_per_second": 8, "tokens_per_second": 800}, "tokens", 800.0),
        ({"b_per_second": 2, "a_per_second": 1}, "a", 1.0),
        ({"_per_second": 2}, "", None),
        ({"speed": 2}, "", None),
        ({"tokens_per_second": True}, "tokens", None),
    ],
)
def test_the_throughput_has_the_unit_that_the_script_gave_it(rates: dict[str, Any], unit: str, value: float) -> None:
    point = parse(json.dumps({"step": 1, **rates}))
    assert point is not None
    assert (point.progress.throughput_unit, point.progress.throughput) == (unit, value)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("NaN", "loss is not a number at step 7"),
        ('"nan"', "loss is not a number at step 7"),
        ("Infinity", "loss is infinite at step 7"),
        ('"-inf"', "loss is infinite at step 7"),
        ("1e400", "loss is infinite at step 7"),
    ],
)
def test_a_loss_that_is_no_number_is_missing_and_said(written: str, said: str) -> None:
    point = parse(f'{{"step": 7, "loss": {written}}}')
    assert point is not None
    assert (point.progress.loss, point.problem) == (None, said)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        '{"step": 1',
        "step 1 loss 2",
        "[1]",
        '"step"',
        "{}",
        '{"loss": 1}',
        "[" * 100_000,
        '{"step": "1"}',
        '{"step": 1.5}',
        '{"step": true}',
        '{"step": -1}',
        '{"step": null}',
        '{"step": 9223372036854775808}',
    ],
)
def test_what_is_no_point_is_none(line: str) -> None:
    assert parse(line) is None


@given(
    st.text()
    | ANY_JSON.map(json.dumps)
    | st.dictionaries(st.sampled_from(["step", "loss", "wall"]), ANY_JSON).map(json.dumps)
)
def test_no_line_breaks_it_and_no_figure_is_made_up(line: str) -> None:
    point = parse(line)
    if point is None:
        return
    given = json.loads(line)
    assert point.progress.step == given["step"]
    for figure in (point.progress.loss, point.progress.throughput):
        assert figure is None or math.isfinite(figure)
    assert (point.progress.loss is None) == (given.get("loss") is None or not _finite(given["loss"]))
    Progress.model_validate_json(point.progress.model_dump_json())


def _finite(value: Any) -> bool:
    try:
        return not isinstance(value, (bool, list, dict)) and math.isfinite(float(value))
    except (OverflowError, ValueError):
        return False


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20)), st.data())
def test_a_tail_gives_each_line_once_however_it_is_written(lines: list[str], data: st.DataObject) -> None:
    content = "".join(line + "\n" for line in lines).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        tail = Tail(path)
        seen: list[str] = tail.read()
        at = 0
        while at < len(content):
            size = data.draw(st.integers(1, len(content) - at))
            with path.open("ab") as file:
                file.write(content[at : at + size])
            at += size
            seen += tail.read()
        assert seen == lines
        assert tail.read(final=True) == []


def test_a_tail_gives_the_last_line_without_an_end_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo")
    tail = Tail(path)
    assert tail.read() == ["one"]
    assert tail.unread_bytes() == 3
    assert tail.read(final=True) == ["two"]
    assert tail.unread_bytes() == 0


def test_a_tail_can_skip_what_was_there_and_starts_again_in_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert Tail.from_end(path).read() == []
    path.write_bytes(b"old\n")
    tail = Tail.from_end(path)
    assert tail.read() == []
    path.write_bytes(b"a\n")
    assert tail.read() == ["a"]


def test_a_tail_reads_so_much_at_a_time_and_passes_a_line_that_has_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MAX_READ_BYTES", 8)
    path = tmp_path / "log"
    path.write_bytes(b"abc\ndefg\n" + b"x" * 20 + b"\n")
    tail = Tail(path)
    assert tail.read() == ["abc"]
    assert tail.read() == ["defg"]
    assert "".join(tail.read()[0] for _ in range(3)) == "x" * 20


def test_the_end_of_a_log_is_bounded_and_always_text(tmp_path: Path) -> None:
    assert end_of(tmp_path / "none") == ""
    (tmp_path / "log").write_bytes(b"\xff" * 10 + b"end")
    assert end_of(tmp_path / "log", 4) == "\ufffdend"
