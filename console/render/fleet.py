"""Columns of nodes and of accelerators, and how one accelerator is shown in one sign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from console.render.cells import (
    Cell,
    Column,
    Level,
    Spans,
    age,
    bar,
    bytes_text,
    glyph,
    level_sign,
    level_style,
    reading,
    safe,
    state_cell,
    state_glyph,
)
from console.render.nodes import Standing, held_words, state_words
from console.state.fleet import STALE_AFTER_SECONDS, Node
from console.state.work import WorkStore
from probes.reading import DRIVER_BLOCKED, ERROR, DeviceFacts, Missing, Reading

HOT_CELSIUS = 85
BUSY_PERCENT = 5
THROTTLE_WORDS = (
    (0x08, "HW slowdown", "bad"),
    (0x40, "HW thermal", "bad"),
    (0x80, "power brake", "bad"),
    (0x20, "SW thermal", "warn"),
    (0x04, "power cap", "muted"),
    (0x10, "sync boost", "muted"),
    (0x02, "app clocks", "muted"),
    (0x01, "idle", "muted"),
)


@dataclass(frozen=True, slots=True)
class NodeRow:
    """What a row of nodes is painted from."""

    node: Node
    work: WorkStore
    now: float
    now_wall: float = 0.0
    """The head's clock, seconds since 1970: the times of holds are in it."""

    @property
    def standing(self) -> Standing:
        """What people want of the node."""
        return Standing(self.node, self.work, self.now_wall)

    @property
    def holders(self) -> dict[int, tuple[str, int]]:
        """Accelerator index to the run and rank that hold it."""
        return self.work.holders(self.node.ray_node_id)


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """What a row of accelerators is painted from."""

    node: Node
    index: int
    work: WorkStore
    now: float

    @property
    def facts(self) -> DeviceFacts | None:
        """What seldom changes of it."""
        return self.node.device(self.index)

    @property
    def holder(self) -> tuple[str, int | None] | None:
        """The run and rank that hold it, as the gang tells, or else the process that the probe saw."""
        held = self.work.holders(self.node.ray_node_id).get(self.index)
        if held is not None or self.node.sample is None:
            return held
        for process in self.node.sample.processes:
            if process.device == self.index and process.run:
                return process.run, process.rank
        return None


def celsius(value: float) -> str:
    """A temperature."""
    return f"{value:.0f}" + glyph("°C", "C")


def load_style(percent: float) -> str:
    """The style of a load."""
    return "idle" if percent < BUSY_PERCENT else "busy"


# --- nodes ------------------------------------------------------------------------------------------------------------


def _value(node: Node, index: int, column: str) -> float | None:
    found = node.reading(index, column)
    return None if isinstance(found, (Missing, str)) else float(found)


def _total(row: NodeRow, column: str) -> float | None:
    values = [_value(row.node, index, column) for index in row.node.gpu_indexes]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def gpu_level(node: Node, index: int) -> Level:
    """How loaded an accelerator is, in percent, or why that is not known."""
    found = node.reading(index, "utilization_percent")
    return Missing(ERROR, found) if isinstance(found, str) else found


def gpu_style(node: Node, index: int, now: float) -> tuple[Level, str]:
    """The load of an accelerator, and the style that says more: old, hot, its driver blocks; else ""."""
    level = gpu_level(node, index)
    if isinstance(level, Missing):
        # Without a single sample the node's own columns say why; `!` is for a device that fails while the rest answers.
        return (level, "") if node.sample else (None, "muted")
    if node.stale(now):
        return level, "bad" if node.driver.state == DRIVER_BLOCKED else "stale"
    temperature = _value(node, index, "temperature_celsius")
    return level, "warn" if temperature is not None and temperature >= HOT_CELSIUS else ""


def gpu_cell(node: Node, index: int, now: float) -> Cell:
    """One accelerator as one sign: its load, ``?`` unknown, ``!`` failing."""
    level, style = gpu_style(node, index, now)
    return Cell(level_sign(level), style or level_style(level))


def _ssh(row: NodeRow) -> Cell:
    """SSH's truth; a sign of its own where it answers and the probe does not run."""
    ssh = row.node.ssh
    return Cell(f"{state_glyph('warn')} up", "warn") if ssh.state == "up" and ssh.reason else state_cell(ssh.state)


def _driver(row: NodeRow) -> Cell:
    """The driver's truth, which only SSH can tell: what it was, where SSH has gone silent."""
    word = row.node.driver.state
    if row.node.sample is not None and (row.node.age_seconds(row.now) or 0.0) > STALE_AFTER_SECONDS:
        return Cell(f"{state_glyph(word)} {word}*", "stale")
    return state_cell(word)


def _bars(row: NodeRow) -> Spans:
    return tuple(gpu_cell(row.node, index, row.now) for index in row.node.gpu_indexes) or (Cell("none", "muted"),)


def _hottest(row: NodeRow) -> float | None:
    values = [_value(row.node, index, "temperature_celsius") for index in row.node.gpu_indexes]
    return max((value for value in values if value is not None), default=None)


def _number(row: NodeRow, value: float | None, write: Callable[[float], str], style: str = "") -> Cell:
    if value is None:
        return Cell("-", "muted") if not row.node.gpu_indexes else Cell("?", "muted")
    return Cell(write(value) + "*", "stale") if row.node.stale(row.now) else Cell(write(value), style)


def _memory(row: NodeRow) -> Cell:
    used = _total(row, "memory_used_bytes")
    facts = row.node.facts
    total = sum(device.memory_total_bytes or 0 for device in facts.devices) if facts else 0
    return _number(
        row, used, lambda value: f"{bytes_text(int(value))}/{bytes_text(total)}" if total else bytes_text(int(value))
    )


def _runs(row: NodeRow) -> Cell:
    runs = sorted({run for run, _ in row.holders.values()})
    if runs:
        return Cell(safe(", ".join(runs)), "accent")
    used = row.node.ray_gpus_used
    return Cell(f"Ray holds {used:g} GPU", "info") if used else Cell("", "muted")


def _name(row: NodeRow) -> Cell:
    return Cell(safe(row.node.name), "title")


def _age(row: NodeRow) -> Cell:
    seconds = row.node.age_seconds(row.now)
    if seconds is None:
        return Cell("never", "muted")
    return Cell(age(seconds), "bad" if seconds > 10 else "warn" if seconds > 3 else "muted")


def _busy(row: NodeRow) -> int:
    levels = (gpu_level(row.node, index) for index in row.node.gpu_indexes)
    return sum(not isinstance(level, Missing) and (level or 0) >= BUSY_PERCENT for level in levels)


NODE_COLUMNS: tuple[Column[NodeRow], ...] = (
    Column("node", "NODE", 14, _name, sort=lambda row: row.node.name),
    Column("state", "STATE", 14, lambda row: state_words(row.standing), sort=lambda row: row.standing.state),
    Column("role", "ROLE", 6, lambda row: Cell(row.node.role, "muted"), sort=lambda row: row.node.role, drop=5),
    Column("ssh", "SSH", 12, _ssh, sort=lambda row: row.node.ssh.state),
    Column("ray", "RAY", 9, lambda row: state_cell(row.node.ray.state), sort=lambda row: row.node.ray.state),
    Column("driver", "DRIVER", 9, _driver, sort=lambda row: row.node.driver.state),
    Column("gpus", "GPUS", 8, _bars, sort=_busy),
    Column(
        "memory", "MEMORY", 12, _memory, align="right", sort=lambda row: _total(row, "memory_used_bytes") or -1, drop=3
    ),
    Column(
        "power",
        "POWER",
        7,
        lambda row: _number(row, _total(row, "power_watts"), lambda value: f"{value:.0f}W"),
        align="right",
        sort=lambda row: _total(row, "power_watts") or -1,
        drop=2,
    ),
    Column(
        "hottest",
        "TEMP",
        6,
        lambda row: _number(row, _hottest(row), celsius, "warn" if (_hottest(row) or 0) >= HOT_CELSIUS else ""),
        align="right",
        sort=lambda row: _hottest(row) or -1,
        drop=1,
    ),
    Column("cpu", "CPU", 5, lambda row: _cpu(row), align="right", sort=lambda row: _cpu_value(row) or -1, drop=6),
    Column("runs", "RUNS", 16, _runs, sort=lambda row: _runs(row).text, grow=True, drop=4),
    Column("held", "WHO KEEPS IT FREE, AND WHY", 54, lambda row: held_words(row.standing), grow=True, drop=7),
    Column("age", "AGE", 5, _age, align="right", sort=lambda row: row.node.age_seconds(row.now) or 1e9),
)


def _cpu_value(row: NodeRow) -> float | None:
    return row.node.sample.host.cpu_percent if row.node.sample else None


def _cpu(row: NodeRow) -> Cell:
    value = _cpu_value(row)
    return Cell("?", "muted") if value is None else Cell(f"{value:.0f}%", "stale" if row.node.stale(row.now) else "")


# --- accelerators -----------------------------------------------------------------------------------------------------


def _device(
    column: str, write: Callable[[Any], str], style: Callable[[float], str] | None = None
) -> Callable[[DeviceRow], Cell]:
    def cell(row: DeviceRow) -> Cell:
        found = row.node.reading(row.index, column)
        painted = style(float(found)) if style and isinstance(found, (int, float)) else ""
        return reading(found, write, style=painted, stale=row.node.stale(row.now))

    return cell


def _device_memory(row: DeviceRow) -> Cell:
    total = row.facts.memory_total_bytes if row.facts else None
    found = row.node.reading(row.index, "memory_used_bytes")
    return reading(
        found,
        lambda used: f"{bytes_text(used)}/{bytes_text(total)}" if total else bytes_text(used),
        stale=row.node.stale(row.now),
    )


def _power(row: DeviceRow) -> Cell:
    limit = row.facts.power_limit_watts if row.facts else None
    found = row.node.reading(row.index, "power_watts")
    return reading(
        found,
        lambda watts: f"{watts:.0f}/{limit:.0f}W" if limit else f"{watts:.0f}W",
        stale=row.node.stale(row.now),
    )


def throttle_cell(bits: Reading) -> Cell:
    """NVML's throttle mask as the gravest word in it."""
    if isinstance(bits, Missing):
        return reading(bits)
    for bit, word, style in THROTTLE_WORDS:
        if int(bits) & bit:
            return Cell(word, style)
    return Cell("none", "muted")


def _held(row: DeviceRow) -> Cell:
    holder = row.holder
    if holder is None:
        return Cell("free", "muted")
    run, rank = holder
    known = row.work.runs.get(run)
    if known is not None and known.state.ended:
        return Cell(f"left over: {safe(run)}", "bad")
    return Cell(safe(run) + ("" if rank is None else f" rank {rank}"), "accent")


def _model(row: DeviceRow) -> Cell:
    if row.facts is None or row.facts.name is None:
        return Cell("?", "muted")
    return Cell(safe(row.facts.name), "simulated" if row.node.simulated else "")


def _utilisation_bar(row: DeviceRow) -> Spans:
    found = row.node.reading(row.index, "utilization_percent")
    cell = reading(found, lambda value: f"{value:3.0f}%", stale=row.node.stale(row.now))
    if isinstance(found, Missing):
        return (cell,)
    return Cell(bar(float(found) / 100, 8), load_style(float(found))), Cell(" ", ""), cell


def _ecc(row: DeviceRow) -> Cell:
    facts = row.facts
    if facts is None:
        return Cell("?", "muted")
    if facts.ecc_uncorrected_count is None:
        return reading(facts.missing.get("ecc_uncorrected_count"))
    text = f"{facts.ecc_corrected_count or 0}/{facts.ecc_uncorrected_count}"
    return Cell(text, "bad" if facts.ecc_uncorrected_count else "muted")


def _link(row: DeviceRow) -> Cell:
    facts = row.facts
    if facts is None or facts.pcie_generation is None or facts.pcie_width is None:
        return reading(facts.missing.get("pcie_generation") if facts else None)
    return Cell(f"gen{facts.pcie_generation}x{facts.pcie_width}", "muted")


def _mig(row: DeviceRow) -> Cell:
    facts = row.facts
    if facts is None or facts.mig_mode is None:
        return reading(facts.missing.get("mig_mode") if facts else None)
    return Cell(facts.mig_mode, "muted" if facts.mig_mode == "off" else "info")


DEVICE_COLUMNS: tuple[Column[DeviceRow], ...] = (
    Column("index", "GPU", 3, lambda row: Cell(str(row.index), "title"), align="right", sort=lambda row: row.index),
    Column("name", "NAME", 20, _model, sort=lambda row: _model(row).text, grow=True, drop=6),
    Column(
        "utilisation",
        "UTIL",
        13,
        _utilisation_bar,
        sort=lambda row: _value(row.node, row.index, "utilization_percent") or -1,
    ),
    Column(
        "memory", "MEMORY", 12, _device_memory, align="right", sort=lambda row: row.node.memory_percent(row.index) or -1
    ),
    Column(
        "power", "POWER", 9, _power, align="right", sort=lambda row: _value(row.node, row.index, "power_watts") or -1
    ),
    Column(
        "temperature",
        "TEMP",
        5,
        _device("temperature_celsius", celsius, lambda v: "warn" if v >= HOT_CELSIUS else ""),
        align="right",
        sort=lambda row: _value(row.node, row.index, "temperature_celsius") or -1,
    ),
    Column("sm", "SM MHZ", 7, _device("sm_clock_mhz", lambda v: f"{v:.0f}"), align="right", drop=3),
    Column("mem", "MEM MHZ", 8, _device("memory_clock_mhz", lambda v: f"{v:.0f}"), align="right", drop=7),
    Column(
        "throttle", "THROTTLE", 11, lambda row: throttle_cell(row.node.reading(row.index, "throttle_reasons")), drop=2
    ),
    Column("ecc", "ECC C/U", 8, _ecc, align="right", drop=4),
    Column("link", "PCIE", 8, _link, align="right", drop=8),
    Column("mig", "MIG", 5, _mig, drop=9),
    Column("holder", "HELD BY", 16, _held, sort=lambda row: _held(row).text, grow=True),
)
