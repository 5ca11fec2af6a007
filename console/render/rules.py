"""The rules of health as a table, in full and as JSON: when each fires, when it ends, and where that comes from."""

from __future__ import annotations

from typing import Any

from console.render.cells import Cell, Spans, age, state_glyph, state_style
from console.render.prose import facts, paragraph
from probes.health.figures import MEASURES
from probes.health.rule import Rule, Thresholds

_UNITS = {"s": " s", "%": " %", "°C": " °C", "W": " W"}


def _in_force(rule: Rule, changes: Thresholds | None) -> tuple[Rule, bool]:
    """The rule with what a cluster file changes, and whether it is turned off there."""
    return (rule, False) if changes is None else (changes.of(rule), rule.id in changes.off)


def _unit(rule: Rule) -> str:
    figure = MEASURES.get(rule.measure)
    return figure.unit if figure is not None else ""


def _condition(rule: Rule, condition: tuple[str, float]) -> str:
    comparison, figure = condition
    if _unit(rule) == "bytes":
        return f"{comparison} {figure / 2**20:g} MiB"
    return f"{comparison} {figure:g}{_UNITS.get(_unit(rule), '')}"


def _clears(rule: Rule) -> str:
    """When it ends."""
    if rule.latch:
        return "by hand"
    after = f" for {age(rule.clear_seconds)}" if rule.clear_seconds else ""
    if rule.clears is None:
        return f"no longer so{after}"
    return f"{_condition(rule, rule.clears)}{after}"


def rule_row(rule: Rule, changes: Thresholds | None = None) -> dict[str, Any]:
    """A row: ``rule, level, fires, for, clears, source``."""
    rule, off = _in_force(rule, changes)
    when = f" while {rule.when}" if rule.when else ""
    return {
        "rule": rule.id,
        "level": "off" if off else rule.level,
        "fires": f"{rule.measure} {_condition(rule, rule.fires)}{when}",
        "for": age(rule.for_seconds) if rule.for_seconds else "at once",
        "clears": _clears(rule),
        "source": rule.source or "field judgement",
    }


def rule_lines(rule: Rule, changes: Thresholds | None, width: int) -> list[Spans]:
    """All of one rule, to read."""
    rule, off = _in_force(rule, changes)
    figure = MEASURES.get(rule.measure)
    lead = (Cell(f" {state_glyph(rule.level)} ", state_style(rule.level)), Cell(f"{rule.level} "))
    lines = paragraph(f"{rule.id}: {rule.title}", width, style="title", lead=lead)
    meaning = f" ({figure.meaning})" if figure is not None else ""
    held = f", for {age(rule.for_seconds)}" if rule.for_seconds else ""
    when_figure = MEASURES.get(rule.when)
    return lines + facts(
        [
            ("off", "turned off by the cluster file" if off else "", "warn"),
            ("fires", f"{rule.measure} {_condition(rule, rule.fires)}{held}{meaning}", ""),
            ("while", when_figure.meaning if when_figure is not None else rule.when, ""),
            ("ends", _clears(rule), ""),
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
    written = rule
    rule, off = _in_force(rule, changes)
    return {
        "id": rule.id,
        "of": rule.of,
        "severity": rule.level,
        "off": off,
        "changed": rule != written,
        "measure": rule.measure,
        "unit": _unit(rule) or None,
        "fires": {"comparison": rule.fires[0], "figure": rule.fires[1]},
        "clears": None if rule.clears is None else {"comparison": rule.clears[0], "figure": rule.clears[1]},
        "for_seconds": rule.for_seconds,
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
