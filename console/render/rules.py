"""The rules of health as a table, in full and as JSON: when each fires, when it ends, and where that comes from."""

from __future__ import annotations

from typing import Any

from console.render.cells import Cell, Spans, age, state_glyph, state_style
from console.render.prose import facts, paragraph
from probes.health.figures import MEASURES
from probes.health.rule import Rule, Thresholds

_UNITS = {"s": " s", "%": " %", "°C": " °C", "W": " W"}


def _figures(rule: Rule, changes: Thresholds | None) -> tuple[float, float | None, float, str]:
    """The figure from which it fires, the one from which it ends, seconds and level, as they are in force."""
    if changes is None:
        return rule.fires[1], rule.clears[1] if rule.clears else None, rule.for_seconds, rule.level
    fires = changes.fires.get(rule.id, rule.fires[1])
    clears = None if rule.clears is None else rule.clears[1] + (fires - rule.fires[1])
    return (
        fires,
        clears,
        changes.for_seconds.get(rule.id, rule.for_seconds),
        changes.levels.get(rule.id, rule.level),
    )


def _unit(rule: Rule) -> str:
    figure = MEASURES.get(rule.measure)
    return figure.unit if figure is not None else ""


def _condition(rule: Rule, comparison: str, figure: float) -> str:
    if _unit(rule) == "bytes":
        return f"{comparison} {figure / 2**20:g} MiB"
    return f"{comparison} {figure:g}{_UNITS.get(_unit(rule), '')}"


def _clears(rule: Rule, figure: float | None) -> str:
    """When it ends."""
    if rule.latch:
        return "by hand"
    after = f" for {age(rule.clear_seconds)}" if rule.clear_seconds else ""
    if rule.clears is None or figure is None:
        return f"no longer so{after}"
    return f"{_condition(rule, rule.clears[0], figure)}{after}"


def rule_row(rule: Rule, changes: Thresholds | None = None) -> dict[str, Any]:
    """A row: ``rule, level, fires, for, clears, source``."""
    fires, clears, seconds, level = _figures(rule, changes)
    off = changes is not None and rule.id in changes.off
    when = f" while {rule.when}" if rule.when else ""
    return {
        "rule": rule.id,
        "level": "off" if off else level,
        "fires": f"{rule.measure} {_condition(rule, rule.fires[0], fires)}{when}",
        "for": age(seconds) if seconds else "at once",
        "clears": _clears(rule, clears),
        "source": rule.source or "field judgement",
    }


def rule_lines(rule: Rule, changes: Thresholds | None, width: int) -> list[Spans]:
    """All of one rule, to read."""
    fires, clears, seconds, level = _figures(rule, changes)
    figure = MEASURES.get(rule.measure)
    off = "turned off by the cluster file" if changes is not None and rule.id in changes.off else ""
    lead = (Cell(f" {state_glyph(level)} ", state_style(level)), Cell(f"{level} "))
    lines = paragraph(f"{rule.id}: {rule.title}", width, style="title", lead=lead)
    meaning = f" ({figure.meaning})" if figure is not None else ""
    held = f", for {age(seconds)}" if seconds else ""
    when_figure = MEASURES.get(rule.when)
    return lines + facts(
        [
            ("off", off, "warn"),
            ("fires", f"{rule.measure} {_condition(rule, rule.fires[0], fires)}{held}{meaning}", ""),
            ("while", when_figure.meaning if when_figure is not None else rule.when, ""),
            ("ends", _clears(rule, clears), ""),
            ("cause", rule.cause, ""),
            ("do", rule.action + (f"  [{rule.key}]" if rule.key else ""), "accent"),
            ("family", rule.family or rule.id, "muted"),
            ("follows", ", ".join(rule.hidden_by), "muted"),
            ("source", rule.source or "field judgement", "muted"),
        ],
        width,
    )


def rule_document(rule: Rule, changes: Thresholds | None = None) -> dict[str, Any]:
    """One rule as JSON, with the figures that are in force."""
    fires, clears, seconds, level = _figures(rule, changes)
    return {
        "id": rule.id,
        "of": rule.of,
        "severity": level,
        "off": changes is not None and rule.id in changes.off,
        "changed": changes is not None and (fires, seconds, level) != (rule.fires[1], rule.for_seconds, rule.level),
        "measure": rule.measure,
        "unit": _unit(rule) or None,
        "fires": {"comparison": rule.fires[0], "figure": fires},
        "clears": None if rule.clears is None else {"comparison": rule.clears[0], "figure": clears},
        "for_seconds": seconds,
        "clear_seconds": rule.clear_seconds,
        "while": rule.when or None,
        "latched": rule.latch,
        "title": rule.title,
        "cause": rule.cause,
        "action": rule.action,
        "key": rule.key or None,
        "family": rule.family or rule.id,
        "hidden_by": list(rule.hidden_by),
        "source": rule.source or None,
    }
