"""The vocabulary of what is painted: nothing foreign reaches the terminal, every width is exact, unknown is never 0."""

import math
import re
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.render.cells import (
    STATE_GLYPHS,
    STYLE_NAMES,
    Cell,
    age,
    bar,
    bytes_text,
    cell_len,
    count,
    fit,
    fit_spans,
    level_look,
    level_sign,
    level_style,
    mini_bars,
    percent,
    reading,
    safe,
    seconds_text,
    sparkline,
    state_cell,
    use_ascii,
)
from console.render.curve import curve, limits, thin
from console.render.redact import redact
from probes.reading import ERROR, STALE, UNSUPPORTED, Missing

patient = settings(deadline=None)
"""The machine that runs the tests may be busy with others."""

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)
NASTY = st.lists(
    st.sampled_from(
        [
            "\x1b[2J",
            "\x1b]0;t\x07",
            "\x9b31m",
            "\u202e",
            "\u200b",
            "\u200d",
            "\ufe0f",
            "\r",
            "\n",
            "\t",
            "é",
            "数",
            "☃",
            "a",
        ]
    )
).map("".join)


@pytest.fixture
def plain() -> Iterator[None]:
    """A terminal without UTF-8."""
    use_ascii(True)
    yield
    use_ascii(False)


def harmless(text: str) -> bool:
    return not any(unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for sign in text)


@patient
@given(st.one_of(ANY_TEXT, NASTY))
def test_safe_text_has_no_control_character_of_any_kind(text: str) -> None:
    assert harmless(safe(text))


@patient
@given(st.one_of(ANY_TEXT, NASTY))
def test_safe_twice_is_safe_once(text: str) -> None:
    assert safe(safe(text)) == safe(text)


@patient
@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert safe(text) == text


@patient
@given(st.one_of(ANY_TEXT, NASTY))
def test_without_utf8_only_ascii_is_left(text: str) -> None:
    use_ascii(True)
    try:
        shown = safe(text)
        assert shown.isascii()
        assert shown.isprintable()
        assert fit(text, 7).isascii()
    finally:
        use_ascii(False)


def test_control_characters_are_seen() -> None:
    assert safe("\x1b[31mred\x1b[0m") == "␛[31mred␛[0m"
    assert safe("two\nlines") == "two⏎lines"
    assert safe("a\tb") == "a       b"
    assert safe("evil\u202eexe.txt") == "evil\N{REPLACEMENT CHARACTER}exe.txt"
    assert safe("warn ⚠\ufe0f") == "warn ⚠"


def test_control_characters_are_seen_in_ascii(plain: None) -> None:
    assert safe("\x1b[31m数\n") == "?[31m? "


@patient
@given(st.one_of(ANY_TEXT, NASTY), st.integers(-2, 30), st.sampled_from(["left", "right"]))
def test_fit_has_exactly_the_width(text: str, width: int, align: str) -> None:
    shown = fit(text, width, align)  # type: ignore[arg-type]
    assert cell_len(shown) == max(0, width)
    assert harmless(shown)


@patient
@given(
    st.lists(st.one_of(ANY_TEXT, NASTY), min_size=1, max_size=5), st.integers(0, 30), st.sampled_from(["left", "right"])
)
def test_fit_spans_has_exactly_the_width(texts: list[str], width: int, align: str) -> None:
    spans = fit_spans(tuple(Cell(text, "ok") for text in texts), width, align)  # type: ignore[arg-type]
    assert sum(cell_len(span.text) for span in spans) == width


def test_fit_marks_what_is_cut() -> None:
    assert fit("abcdef", 4) == "abc…"
    assert fit("数字数字", 4) == "数…" + " "
    assert fit("42", 5, "right") == "   42"


def test_fit_spans_marks_what_is_cut() -> None:
    assert fit_spans((Cell("abc", "ok"), Cell("def", "bad")), 5) == (Cell("abc", "ok"), Cell("d…", "bad"))
    assert fit_spans((Cell("abc", "ok"), Cell("def", "bad")), 3) == (Cell("ab…", "ok"),)
    assert fit_spans((Cell("abc", "ok"), Cell("def", "bad")), 8, "right")[0] == Cell("  ")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer •••"),
        ('{"authorization": "Basic dXNlcjpw"}', '{"authorization": "Basic •••"}'),
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuv", "HF_TOKEN=•••"),
        ("wandb: api_key: 0123456789abcdef0123", "wandb: api_key: •••"),
        ('"password": "two words"', '"password": "•••"'),
        ("train.py --password hunter2 --lr 3e-4", "train.py --password ••• --lr 3e-4"),
        ("postgres://mlflow:p@ss@db/runs", "postgres://mlflow:•••@db/runs"),
        ("clone https://ghp_abcdefghijklmnopqrstuvwx@github.com/a/b", "clone https://•••@github.com/a/b"),
        ("key AKIAIOSFODNN7EXAMPLE found", "key ••• found"),
        ("got eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM here", "got ••• here"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END", "-----BEGIN RSA PRIVATE KEY-----•••-----END"),
        ("MIIEowIBAAKCAQEAx" + "Ab1" * 16, "•••"),
    ],
)
def test_secrets_are_painted_over(line: str, shown: str) -> None:
    assert redact(line) == shown


@pytest.mark.parametrize(
    "line",
    [
        "step=12 loss=2.31 tokens_per_second=123456 max_tokens=2048",
        "eos_token: </s> pad_token=None bos_token_id=1",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "see https://docs.ray.io/en/latest and ssh://host:22/path",
        "password=${PASSWORD}",
        "KeyError: 'layers.0.key'",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert redact(line) == line


@patient
@given(st.one_of(ANY_TEXT, st.from_regex(r"(token|://|key)[ -~]{0,40}", fullmatch=True)))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    assert redact(redact(text)) == redact(text)


def test_numbers() -> None:
    assert [bytes_text(n) for n in (0, 812, 1000, 68e9, 1 << 30, 150 * 1024**2)] == [
        "0B", "812B", "1.0K", "63.3G", "1.0G", "150M",
    ]  # fmt: skip
    assert [count(n) for n in (0, 842, 12_345, 1_500_000, 999_999)] == ["0", "842", "12.3k", "1.5M", "1.0M"]
    assert [age(n) for n in (-3, 4.9, 192, 7530, 273_600, 34 * 86400)] == ["0s", "4s", "3m12s", "2h05", "3d4h", "34d"]
    assert [seconds_text(n) for n in (0, 0.08, 2.44, 65)] == ["0s", "80ms", "2.4s", "1m05s"]
    assert percent(96.6) == "97%"
    assert {bytes_text(math.nan), count(math.inf), age(math.nan), seconds_text(math.nan), percent(math.nan)} == {"?"}


@patient
@given(st.floats(0, 1e18))
def test_numbers_stay_narrow(value: float) -> None:
    assert len(bytes_text(value)) <= 5
    assert len(age(value / 1e9)) <= 6


def test_a_reading_that_is_missing_is_never_a_number() -> None:
    assert reading(0, percent) == Cell("0%")
    assert reading(None, percent) == Cell("-", "muted")
    assert reading(Missing(UNSUPPORTED, "no"), percent) == Cell("n/a", "muted")
    assert reading(Missing(ERROR, "no"), percent) == Cell("err", "bad")
    assert reading(Missing(STALE, "no"), percent) == Cell("stale", "stale")
    assert reading(97.0, percent, stale=True) == Cell("97%*", "stale")


def test_levels() -> None:
    signs = "".join(level_sign(level) for level in (0, 1, 12.5, 13, 50, 99, 100, 250))
    assert signs == "·▁▁▂▄███"
    assert level_sign(None) == level_sign(math.nan) == level_sign(Missing(STALE, "")) == "?"
    assert level_sign(Missing(ERROR, "")) == "!"
    assert mini_bars([10, 20, 90, None]) == (Cell("▁▂", "load1"), Cell("█", "load4"), Cell("?", "muted"))
    assert {level_style(level) for level in (0, 10, 30, 60, 90)} == {"idle", "load1", "load2", "load3", "load4"}


@patient
@given(st.one_of(st.none(), st.floats(), st.integers(-5, 105), st.just(Missing(STALE, ""))), st.booleans())
def test_the_quick_look_of_a_level_is_that_of_its_whole_percent(
    level: float | Missing | None, ascii_only: bool
) -> None:
    use_ascii(ascii_only)
    try:
        whole = int(level + 0.5) if isinstance(level, (int, float)) and 0 <= level <= 100 else level
        assert level_look(level) == (level_sign(whole), level_style(whole))
    finally:
        use_ascii(False)


def test_levels_in_ascii(plain: None) -> None:
    assert "".join(level_sign(level) for level in (0, 1, 55, 97, 100)) == ".159#"


@patient
@given(st.one_of(st.none(), st.floats()), st.integers(0, 20), st.booleans())
def test_a_bar_has_exactly_its_width(fraction: float | None, width: int, ascii_only: bool) -> None:
    use_ascii(ascii_only)
    try:
        assert cell_len(bar(fraction, width)) == width
    finally:
        use_ascii(False)


def test_bars() -> None:
    assert bar(0.53, 10) == "█████▎    "
    assert bar(None, 4) == "?   "


@patient
@given(st.lists(st.one_of(st.none(), st.floats())), st.integers(0, 20))
def test_a_sparkline_has_exactly_its_width(values: list[float | None], width: int) -> None:
    assert cell_len(sparkline(values, width)) == width


def test_sparkline_leaves_gaps() -> None:
    assert sparkline([1, None, 8], 5) == "  ▁ █"


def test_every_state_has_single_cell_signs_and_a_known_style() -> None:
    for sign, ascii_sign, style in STATE_GLYPHS.values():
        assert cell_len(sign) == 1
        assert len(ascii_sign) == 1
        assert ascii_sign.isascii()
        assert style in STYLE_NAMES
        assert safe(sign) == sign
    assert state_cell("running") == Cell("▶ running", "busy")
    assert state_cell("never heard of") == Cell("? never heard of", "muted")


# Curves


@patient
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.one_of(st.floats(-1e6, 1e6), st.just(math.nan))), max_size=60))
def test_a_curve_has_exactly_its_size(points: list[tuple[float, float]]) -> None:
    rows = curve(points, 12, 4, (-1e6, 1e6), (-1e6, 1e6))
    assert [cell_len(row) for row in rows] == [12] * 4


def test_a_curve_goes_from_corner_to_corner_and_leaves_gaps() -> None:
    rows = curve([(0, 0), (10, 10)], 10, 5, (0, 10), (0, 10))
    assert rows[0][-1] != " "
    assert rows[-1][0] != " "
    assert rows[0][0] == rows[-1][-1] == " "
    gap = curve([(0, 5), (4, 5), (5, math.nan), (6, 5), (10, 5)], 20, 1, (0, 10), (0, 10))
    assert re.fullmatch(r"\S+ +\S+", gap[0])


def test_a_curve_in_ascii(plain: None) -> None:
    assert curve([(0, 0), (2, 2)], 3, 3, (0, 2), (0, 2)) == ["  *", " * ", "*  "]


def test_thinning_keeps_spikes_and_gaps() -> None:
    points = [(float(i), 1.0) for i in range(10_000)]
    points[5000] = (5000.0, 99.0)
    points[7000] = (7000.0, math.nan)
    few = thin(points, 100)
    assert len(few) < 400
    assert (5000.0, 99.0) in few
    assert any(math.isnan(y) for _, y in few)
    assert limits([y for _, y in few]) == (1.0, 99.0)
