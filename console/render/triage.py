"""A triage as a person reads it: headline, steps, findings ranked, their evidence, what was ruled out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from console.render.cells import Cell, Column, Spans, cell_len, fit, glyph, safe, state_glyph, state_style
from console.render.prose import heading, moment, paragraph, some, wrapped
from console.render.redact import redact
from jobs.triage.findings import CONFIDENCES, ROOT, STEP_NAMES, Finding, Item, StepName, StepState, Triage

STEP_CELLS = max(len(name) for name in STEP_NAMES) + 1
_STATES: dict[StepState | str, str] = {
    "ok": "pass", "suspect": "warn", "bad": "fail", "unknown": "unknown", "waiting": "waiting", "reading": "pending",
    "read": "pending",
}  # fmt: skip
"""A step's state to the state whose sign and style it has."""
_SURE = {"certain": "bad", "likely": "warn", "possible": "info"}
EVIDENCE_SHOWN = 5
CONSEQUENCES_SHOWN = 12


@dataclass(slots=True)
class StepView:
    """One of the five steps, as far as it has come."""

    name: StepName
    state: str = "waiting"
    """``waiting``, ``reading``, ``read`` (not judged yet), or as `StepState` has it."""
    words: str = ""


def steps_of(triage: Triage | None) -> list[StepView]:
    """The steps of a triage; all of them waiting where there is none yet."""
    done = {step.name: step for step in triage.steps} if triage is not None else {}
    return [
        StepView(name, done[name].state, done[name].sentence) if name in done else StepView(name) for name in STEP_NAMES
    ]


def step_lines(steps: Sequence[StepView], width: int, *, wrap: bool = False) -> list[Spans]:
    """One line each: sign and word, name, sentence; longer sentences go on below where there is room for that."""
    lines: list[Spans] = []
    for step in steps:
        look = _STATES.get(step.state, "unknown")
        lead = (
            Cell(f" {state_glyph(look)} ", state_style(look)),
            Cell(fit(step.state, 8), state_style(look)),
            Cell(fit(step.name, STEP_CELLS), "muted" if step.state == "waiting" else ""),
        )
        style = "muted" if step.state in ("ok", "waiting", "reading", "read") else ""
        words = redact(step.words)
        if wrap:
            lines += paragraph(words, width, style=style, lead=lead)
        else:
            lines.append((*lead, Cell(safe(words), style)))
    return lines


def head_lines(target: str, triage: Triage | None, width: int, *, asking: str = "") -> list[Spans]:
    """The culprit, or that nothing is wrong, or what is being asked for."""
    name = Cell(f" {safe(target)}  ", "muted")
    if triage is None:
        return [(name, Cell(safe(asking) or "looking …", "info"))]
    state = _verdict(triage)
    lead = (name, Cell(f"{state_glyph(state)} ", state_style(state)))
    return paragraph(redact(triage.headline), width, style="title", lead=lead, indent=3)


def _verdict(triage: Triage) -> str:
    """The state whose sign stands before the headline."""
    cause = triage.cause
    if cause is not None:
        return "fail" if cause.confidence == "certain" else "warn"
    states = {step.state for step in triage.steps}
    if triage.findings or states & {"bad", "suspect"}:
        return "warn"
    return "unknown" if states == {"unknown"} else "pass"


# --- findings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindingRow:
    """What a row of the findings is painted from."""

    number: int
    finding: Finding


def sure_cell(finding: Finding) -> Cell:
    """How sure it is, in a word with a sign; what is only true beside the question says so."""
    if finding.relevance != ROOT:
        return Cell(f"{glyph('·', '.')} beside", "muted")
    sign = {"certain": glyph("●", "*"), "likely": glyph("◐", "+"), "possible": glyph("○", "o")}[finding.confidence]
    return Cell(f"{sign} {finding.confidence}", _SURE[finding.confidence])


FINDING_COLUMNS: tuple[Column[FindingRow], ...] = (
    Column("number", "#", 2, lambda row: Cell(str(row.number), "muted"), align="right", sort=lambda row: row.number),
    Column("sure", "SURE", 10, lambda row: sure_cell(row.finding),
           sort=lambda row: (row.finding.relevance, CONFIDENCES.index(row.finding.confidence))),
    Column("who", "WHO", 22, lambda row: Cell(safe(row.finding.culprit.words) or "-", "title"),
           sort=lambda row: row.finding.culprit.words),
    Column("what", "WHAT", 24, lambda row: Cell(safe(redact(row.finding.title))), grow=True),
    Column("key", "KEY", 3, lambda row: Cell(row.finding.key, "key"), drop=2),
    Column("step", "STEP", 17, lambda row: Cell(row.finding.step, "muted"), drop=3),
)  # fmt: skip


def finding_lines(
    finding: Finding, width: int, now_wall: float, *, whole: bool = False, most: int = EVIDENCE_SHOWN
) -> list[Spans]:
    """One finding: what and who, cause, evidence with place and time, what to do, what only followed.

    Args:
        finding: Any.
        width: Terminal cells.
        now_wall: The head's clock, for times of day.
        whole: All of it; otherwise ``most`` pieces of evidence, and the consequences as a number.
        most: See there.
    """
    lines = _flow(redact(finding.sentence), width, "title", (Cell(" "), sure_cell(finding), Cell("  ")), 3)
    lines += _named("cause", finding.cause, width)
    shown = finding.evidence if whole else finding.evidence[:most]
    for at, item in enumerate(shown):
        lines += _item("seen" if at == 0 else "", item, width, now_wall)
    if len(finding.evidence) > len(shown):
        lines += _named("", f"and {len(finding.evidence) - len(shown)} more (d)", width, "muted")
    key = f"  [{finding.key}]" if finding.key else ""
    lines += _named("do", f"{finding.action}{key}", width, "ok")
    if finding.consequences and not whole:
        told = some(len(finding.consequences), "line that only followed", "lines that only followed")
        lines += _named("then", f"{told} (d)", width, "muted")
    for at, item in enumerate(finding.consequences[:CONSEQUENCES_SHOWN] if whole else ()):
        lines += _item("then" if at == 0 else "", item, width, now_wall, "muted")
    if whole and len(finding.consequences) > CONSEQUENCES_SHOWN:
        lines += _named("", f"and {len(finding.consequences) - CONSEQUENCES_SHOWN} more", width, "muted")
    if whole:
        lines += _named("rule", f"{finding.id}, {finding.step}", width, "muted")
    return lines


NAME_CELLS = 8
ROOM_CELLS = 16
"""With less room behind its lead a text begins on the next line."""


def _named(name: str, text: str, width: int, style: str = "") -> list[Spans]:
    return paragraph(redact(text), width, style=style, lead=(Cell(fit(f" {name}", NAME_CELLS), "muted"),))


def _item(name: str, item: Item, width: int, now_wall: float, style: str = "") -> list[Spans]:
    at = f"{moment(item.wall, now_wall)}  " if item.wall else ""
    lead = (
        Cell(fit(f" {name}", NAME_CELLS), "muted"),
        Cell(at, "muted"),
        Cell(f"{safe(redact(item.place))}  " if item.place else "", style or "accent"),
    )
    return _flow(redact(item.text), width, style, lead, NAME_CELLS + 2)


def _flow(text: str, width: int, style: str, lead: Spans, indent: int) -> list[Spans]:
    """A text that begins behind a long lead, and goes on below with the width that there is."""
    text = safe(text)
    room = width - sum(cell_len(cell.text) for cell in lead)
    first = wrapped(text, room)[0] if room >= ROOM_CELLS else ""
    rest = text[len(first) :].lstrip()
    return [(*lead, Cell(first, style))] + [
        (Cell(" " * indent), Cell(row, style)) for row in (wrapped(rest, width - indent) if rest else ())
    ]


def rest_lines(triage: Triage, width: int) -> list[Spans]:
    """What was ruled out, and what is not known."""
    lines: list[Spans] = []
    for title, sentences, sign, style in (
        ("Ruled out", triage.ruled_out, state_glyph("pass"), "muted"),
        ("Not known", triage.unknown, state_glyph("unknown"), "muted"),
    ):
        if sentences:
            lines += heading(title)
            for sentence in sentences:
                lines += paragraph(redact(sentence), width, style=style, lead=(Cell(f" {sign} ", style),))
    return lines


def page_lines(target: str, triage: Triage, width: int, now_wall: float, *, whole: bool = True) -> list[Spans]:
    """All of a triage, one below the other: what the command line prints."""
    lines = [*head_lines(target, triage, width), (), *step_lines(steps_of(triage), width, wrap=True)]
    for finding in triage.findings:
        lines += [(), *finding_lines(finding, width, now_wall, whole=whole)]
    return lines + rest_lines(triage, width)
