"""The lines of the probe: there and back again, and whatever else may arrive in their place."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import plain
from probes.reading import (
    ERROR,
    STALE,
    UNSUPPORTED,
    WIRE_VERSION,
    DeviceFacts,
    Disk,
    Driver,
    Facts,
    Fault,
    Host,
    Line,
    Missing,
    Pong,
    Process,
    Sample,
    WireError,
    decode,
    encode,
)
from tests.unit.probes.live import few

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_missing = st.builds(Missing, st.sampled_from([ERROR, UNSUPPORTED, STALE]), st.text(max_size=20))
_reasons = st.dictionaries(st.text(max_size=8), _missing, max_size=3)
_whole = st.integers(0, 2**56)
_figure = st.none() | _whole | st.floats(-1e17, 1e17)


def _values(cls: Any, **special: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    by_type = {
        "str": st.text(max_size=12),
        "Optional[str]": st.none() | st.text(max_size=12),
        "int": _whole,
        "Optional[int]": st.none() | _whole,
        "float": st.floats(-1e17, 1e17),
        "Optional[float]": st.none() | st.floats(-1e17, 1e17),
    }
    kinds = {
        field.name: getattr(field.type, "__name__", str(field.type)).replace("typing.", "")
        if isinstance(field.type, type)
        else str(field.type).replace("typing.", "")
        for field in dataclasses.fields(cls)
    }
    return st.builds(cls, **{name: special.get(name, by_type.get(kind)) for name, kind in kinds.items()})  # type: ignore[arg-type]


_device_facts = _values(DeviceFacts, missing=_reasons, notes=st.dictionaries(st.text(max_size=8), st.text(max_size=8)))
_facts = _values(Facts, devices=st.lists(_device_facts, max_size=3))


def _samples(devices: int) -> st.SearchStrategy[Any]:
    """Samples of so many devices: every column is as long as the list of them."""
    return _values(
        Sample,
        driver=_values(Driver),
        index=st.lists(st.integers(0, 64), min_size=devices, max_size=devices),
        columns=st.dictionaries(st.text(max_size=8), st.lists(_figure, min_size=devices, max_size=devices), max_size=3),
        missing=st.dictionaries(st.integers(0, 64), _reasons, max_size=3),
        processes=st.lists(_values(Process), max_size=3),
        host=_values(Host, disks=st.lists(_values(Disk), max_size=2)),
    )


_sample = st.integers(0, 4).flatmap(_samples)
_pong = st.builds(Pong, st.text(max_size=12), st.floats(allow_nan=False, allow_infinity=False))
_line = st.one_of(_facts, _sample, _pong, st.builds(Fault, st.text(max_size=20)))


@few
@given(_line)
def test_what_is_encoded_is_decoded_as_it_was(line: Line) -> None:
    text = encode(line)
    assert "\n" not in text
    assert text.isascii()
    assert decode(text) == line
    assert decode(text.encode()) == line


@few
@given(st.binary(max_size=80))
def test_foreign_bytes_are_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data)


@few
@given(st.dictionaries(st.sampled_from([field.name for field in dataclasses.fields(Sample)]), _json, max_size=6))
def test_a_sample_with_anything_in_it_is_a_sample_or_a_wire_error(body: dict[str, Any]) -> None:
    text = json.dumps({"v": WIRE_VERSION, "kind": "sample", **body})
    try:
        assert isinstance(decode(text), Sample)
    except WireError:
        return


@few
@given(_json, st.sampled_from(["facts", "sample", "pong", "fault", "other"]), _json)
def test_any_json_is_a_line_or_a_wire_error(value: Any, kind: str, inner: Any) -> None:
    body: Any = {"v": WIRE_VERSION, "kind": kind, **inner} if isinstance(inner, dict) else inner
    for candidate in (value, body, {"v": value, "kind": kind}, {"v": WIRE_VERSION, "kind": kind, "devices": value}):
        try:
            decode(json.dumps(candidate))
        except WireError:
            continue


@few
@given(_sample, st.integers(0, 4000))
def test_half_a_line_is_a_wire_error(sample: Sample, length: int) -> None:
    text = encode(sample)
    with pytest.raises(WireError):
        decode(text[: min(length, len(text) - 1)])


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"v":1,"kind":"pong","id":"x","wall":1' + "0" * 400 + "}", '{"v":2,"kind":"sample"}', "null", ""],
)
def test_known_traps_are_wire_errors(text: str) -> None:
    with pytest.raises(WireError):
        decode(text)


def test_a_newer_probe_may_say_more() -> None:
    text = encode(Sample(seq=7)).replace('"seq":7', '"seq":7,"aura":"green"')
    assert decode(text) == Sample(seq=7)


def test_a_reading_is_a_value_or_its_reason() -> None:
    lost = Missing(ERROR, "GPU is lost: it fell off the bus")
    sample = Sample(index=[4, 6], columns={"power_watts": [70.5, None]}, missing={6: {"*": lost}})
    assert sample.reading(4, "power_watts") == 70.5
    assert sample.reading(6, "power_watts") == lost
    assert sample.reading(5, "power_watts") == Missing(ERROR, "not in the sample")
    assert sample.reading(4, "temperature_celsius") == Missing(ERROR, "not in the sample")


@few
@given(st.data())
def test_the_classes_of_a_node_construct_as_the_real_ones_do(data: st.DataObject) -> None:
    def body(cls: Any) -> Any:
        return type(
            "Made", (), {"__annotations__": {"index": int, "name": str, "held": list}, "name": "x", "held": cls}
        )

    real = dataclasses.dataclass(body(dataclasses.field(default_factory=list)))
    ours = plain.dataclass(body(plain.field(default_factory=list)))
    values = data.draw(st.lists(st.integers(), max_size=4))
    named = data.draw(st.dictionaries(st.sampled_from(["index", "name", "held", "other"]), st.integers(), max_size=3))
    try:
        expected = real(*values, **named).__dict__
    except TypeError:
        with pytest.raises(TypeError):
            ours(*values, **named)
        return
    assert list(ours(*values, **named).__dict__.items()) == list(expected.items())
    assert set(ours.__dataclass_fields__) == set(real.__dataclass_fields__)
    assert ours(1).held is not ours(1).held


@pytest.mark.parametrize(
    "body",
    [
        {"index": [0], "columns": {"power_watts": ["\u001b[2J"]}},
        {"index": [0], "columns": {"power_watts": [True]}},
        {"index": [0], "columns": {"power_watts": [1, 2]}},
        {"index": [0], "columns": {"power_watts": [1e300]}},
        {"index": ["x"], "columns": {}},
        {"processes": [{"device": 0, "pid": "12; rm"}]},
        {"processes": [{"device": 0, "pid": 1, "command": ["a"]}]},
        {"host": {"cpu_percent": "much"}},
        {"host": {"disks": [{"path": "/", "used_bytes": 1.5}]}},
        {"driver": {"state": 5}},
        {"wall": None},
    ],
)
def test_a_hostile_node_cannot_put_a_text_where_a_figure_belongs(body: dict[str, object]) -> None:
    with pytest.raises(WireError):
        decode(json.dumps({"v": 1, "kind": "sample", **body}))


def test_nan_is_no_figure() -> None:
    with pytest.raises(WireError):
        decode('{"v":1,"kind":"sample","index":[0],"columns":{"power_watts":[NaN]}}')
