"""A probe's sample as a row of small whole numbers (lanes), rounded to what is shown; and back.

Figures change little from one second to the next: a lane that did not move costs a byte of the same value, which the
compression of a whole chunk then makes almost nothing of. What is no figure (processes, disks, reasons) is kept apart,
as a JSON value that seldom changes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from probes.reading import Sample, WireError, decode

MIB = 1024 * 1024

SCALES: dict[str, float] = {
    "utilization_percent": 1,
    "memory_utilization_percent": 1,
    "memory_used_bytes": 1 / MIB,
    "power_watts": 1,
    "temperature_celsius": 1,
    "sm_clock_mhz": 1,
    "memory_clock_mhz": 1,
    "throttle_reasons": 1,
}
"""What a column is multiplied by before it is rounded: as fine as any screen shows it."""
OTHER_SCALE = 100
"""For a column that a newer probe may bring."""

HOST_LANES = 7
HOST_MEMORY_BYTES = 16 * MIB
STEPS_PER_DOUBLING = 16
"""Network rates are kept to 2.2 %: they are never the same twice."""
CLOCK_SECONDS = 0.1
STEADY_SECONDS = 2.0
"""A moment that is worked out anew from an age each second moves by this much at most, and is then the same one."""
DISK_PARTS = 1000
"""Of a disk's fill level so many steps are kept."""

Lane = int | None
ESCAPE = 255


@dataclass(frozen=True, slots=True)
class Shape:
    """Which accelerators and columns a node's samples have: what its lanes stand for."""

    index: tuple[int, ...]
    columns: tuple[str, ...]

    @property
    def lanes(self) -> int:
        """How many figures a sample has."""
        return len(self.index) * len(self.columns) + HOST_LANES


def shape_of(sample: Sample) -> Shape:
    """What a sample's lanes stand for."""
    return Shape(tuple(sample.index), tuple(sample.columns))


def _whole(value: float | None, scale: float) -> Lane:
    return None if value is None else round(value * scale)


def _rate(value: float | None) -> Lane:
    return None if value is None else round(STEPS_PER_DOUBLING * math.log2(1 + max(0.0, value)))


def _rate_back(lane: Lane) -> float | None:
    return None if lane is None else 2.0 ** (min(lane, 1000) / STEPS_PER_DOUBLING) - 1


def lanes_of(sample: Sample, at: float) -> list[Lane]:
    """The figures of a sample that came at this moment (seconds since 1970, by the recorder's clock)."""
    out: list[Lane] = []
    for name, values in sample.columns.items():
        scale = SCALES.get(name, OTHER_SCALE)
        if scale == 1:
            out += [None if value is None else round(value) for value in values]
        else:
            out += [None if value is None else round(value * scale) for value in values]
    host = sample.host
    out += (
        _whole(host.cpu_percent, 1),
        _whole(host.load_1m, 10),
        _whole(host.memory_used_bytes, 1 / HOST_MEMORY_BYTES),
        _rate(host.network_receive_bytes_per_second),
        _rate(host.network_send_bytes_per_second),
        round(sample.devices_age_seconds * 10),
        round((sample.wall - at) / CLOCK_SECONDS) if sample.wall else None,
    )
    return out


def packed(lanes: Sequence[Lane], before: Sequence[int]) -> tuple[bytes, list[int]]:
    """Lanes as differences to what they were, a byte each; and what the next ones are told from.

    0 stands for no figure; a difference that has no room in a byte follows an escape.
    """
    if None in lanes:
        last = [old if value is None else value for value, old in zip(lanes, before, strict=True)]
        codes = [
            0 if value is None else ((value - old) << 1 ^ (value - old) >> 80) + 1
            for value, old in zip(lanes, before, strict=True)
        ]
    else:
        last = list(lanes)
        codes = [((value - old) << 1 ^ (value - old) >> 80) + 1 for value, old in zip(last, before, strict=True)]  # pyright: ignore[reportOptionalOperand]
    if max(codes, default=0) < ESCAPE:
        return bytes(codes), last  # pyright: ignore[reportReturnType]
    out = bytearray()
    for code in codes:
        if code < ESCAPE:
            out.append(code)
        else:
            out.append(ESCAPE)
            put_varint(out, code - ESCAPE)
    return bytes(out), last  # pyright: ignore[reportReturnType]


_MOVES = [0, *((code >> 1) ^ -(code & 1) for code in range(ESCAPE - 1))]
"""Byte to difference."""


def unpacked(row: bytes, before: Sequence[int]) -> tuple[list[int], frozenset[int]]:
    """What `packed` was given: the lanes, and which of them have no figure. Raises `ValueError` for another number."""
    codes: Sequence[int] = row
    if ESCAPE in row:
        codes, at = [], 0
        while at < len(row):
            code, at = row[at], at + 1
            if code == ESCAPE:
                more, at = varint(row, at)
                code += more
            codes.append(code)
        moves = [0 if code == 0 else ((code - 1) >> 1) ^ -((code - 1) & 1) for code in codes]
    else:
        moves = [_MOVES[code] for code in codes]
    if len(moves) != len(before):
        raise ValueError("a sample of another shape")
    blank = frozenset(at for at, code in enumerate(codes) if code == 0) if 0 in codes else frozenset[int]()
    return [old + move for old, move in zip(before, moves, strict=True)], blank


def put_varint(out: bytearray, value: int) -> None:
    """A whole number, seven bits a byte. Raises `ValueError` for one below 0."""
    if value < 0:
        raise ValueError("a number below 0")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at this place, and where it ends. Raises `ValueError` or `IndexError` if there is none."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 84:
            raise ValueError("a number without end")


# --- what is no figure ------------------------------------------------------------------------------------------------


def _moment(at: float, seconds: float | None, before: float | None) -> float | None:
    """When something began that has lasted so long; the same as before if it moved by less than rounding does."""
    if seconds is None:
        return None
    found = round(at - seconds)
    return before if before is not None and abs(found - before) <= STEADY_SECONDS else found


def rest_of(sample: Sample, at: float, before: dict[str, Any]) -> dict[str, Any]:
    """What a sample tells beside its figures, as JSON. ``before``: the same of the sample before it, or empty."""
    old = {(each["pid"], each["started"], each["device"]): each["since"] for each in before.get("processes", ())}
    driver = sample.driver
    since = _moment(at, driver.seconds if driver.seconds > 0 else None, before.get("driver_since"))
    return {
        "driver": [driver.state, driver.reason],
        "driver_since": since,
        "missing": {str(index): {name: list(why) for name, why in found.items()}
                    for index, found in sample.missing.items()},
        "memory_total_bytes": sample.host.memory_total_bytes,
        "processes": [
            {
                "device": each.device, "pid": each.pid, "started": each.started, "user": each.user,
                "command": each.command, "run": each.run, "attempt": each.attempt, "rank": each.rank,
                "memory_used_bytes": None if each.memory_used_bytes is None
                else round(each.memory_used_bytes / MIB) * MIB,
                "since": _moment(at, each.age_seconds, old.get((each.pid, each.started, each.device))),
            }
            for each in sample.processes
        ],
        "disks": [
            {
                "path": each.path, "total_bytes": each.total_bytes, "reason": each.reason,
                "used_bytes": parts_of(each.used_bytes, each.total_bytes),
            }
            for each in sample.host.disks
        ],
    }  # fmt: skip


def parts_of(amount: int | None, total: int | None) -> int | None:
    """An amount to a thousandth of the total: a disk that is written to does not change each second."""
    if amount is None or not total:
        return amount
    return round(round(amount / total * DISK_PARTS) * total / DISK_PARTS)


def template_of(rest: dict[str, Any]) -> Sample:
    """A sample without its figures. Raises `ValueError` for what no probe would have said."""
    since = rest["driver_since"]
    raw: dict[str, Any] = {
        "v": 1,
        "kind": "sample",
        "driver": {"state": rest["driver"][0], "reason": rest["driver"][1], "seconds": 0.0},
        "missing": rest["missing"],
        "processes": [
            {key: value for key, value in each.items() if key != "since"} | {"age_seconds": each["since"]}
            for each in rest["processes"]
        ],
        "host": {"memory_total_bytes": rest["memory_total_bytes"], "disks": rest["disks"]},
    }
    try:
        made = decode(json.dumps(raw))
    except WireError as error:
        raise ValueError(str(error)) from error
    assert isinstance(made, Sample)
    made.driver.seconds = 0.0 if since is None else float(since)
    return made


def sample_from(shape: Shape, lanes: Sequence[int], blank: frozenset[int], template: Sample, at: float) -> Sample:
    """A sample as it was at this moment, within what rounding took. Ages are those of that moment."""
    values: list[Any] = [None if place in blank else lane for place, lane in enumerate(lanes)] if blank else list(lanes)
    count = len(shape.index)
    columns: dict[str, list[Any]] = {}
    for number, name in enumerate(shape.columns):
        found = values[number * count : (number + 1) * count]
        scale = SCALES.get(name, OTHER_SCALE)
        if scale == 1 / MIB:
            found = [None if value is None else value * MIB for value in found]
        elif scale != 1:
            found = [None if value is None else value / scale for value in found]
        columns[name] = found
    cpu, load, memory, receive, send, devices_age, clock = values[count * len(shape.columns) :]
    began = template.driver.seconds
    return replace(
        template,
        wall=0.0 if clock is None else at + clock * CLOCK_SECONDS,
        driver=replace(template.driver, seconds=max(0.0, at - began) if began else 0.0),
        devices_age_seconds=(devices_age or 0) / 10,
        index=list(shape.index),
        columns=columns,
        processes=[
            each if each.age_seconds is None else replace(each, age_seconds=max(0.0, at - each.age_seconds))
            for each in template.processes
        ],
        host=replace(
            template.host,
            cpu_percent=None if cpu is None else float(cpu),
            load_1m=None if load is None else load / 10,
            memory_used_bytes=None if memory is None else memory * HOST_MEMORY_BYTES,
            network_receive_bytes_per_second=_rate_back(receive),
            network_send_bytes_per_second=_rate_back(send),
        ),
    )
