"""From evidence to a report: what broke, whose fault it is, what to do; as values, as Markdown to paste, as JSON. Pure.

It hides no secrets: whoever hands a report on takes them out.
"""

from __future__ import annotations

import datetime
from dataclasses import asdict
from typing import Any

from jobs.triage.evidence import Evidence
from jobs.triage.findings import OTHER, STEP_NAMES, Finding, Item, Triage, plural
from jobs.triage.join import join, order
from jobs.triage.look import Look
from jobs.triage.rules_alerts import of_alerts
from jobs.triage.steps import result_of, sheets_of

MOST_FINDINGS = 5
MOST_ITEMS = 6
MOST_LINES = 8


def triage(evidence: Evidence) -> Triage:
    """What the evidence says. Never raises on what the cluster wrote; what was not given is said to be not known."""
    look = Look(evidence)
    sheets = sheets_of(look)
    found = [finding for sheet in sheets.values() for finding in sheet.findings]
    findings = join(look, found)
    findings = sorted([*findings, *of_alerts(look, findings)], key=order)
    steps = [result_of(sheets[step], findings, found) for step in STEP_NAMES]
    unknown = list(dict.fromkeys([*_unread(evidence), *(text for sheet in sheets.values() for text in sheet.unknown)]))
    ruled_out = list(dict.fromkeys(text for sheet in sheets.values() for text in sheet.ruled_out))
    return Triage(
        _target(evidence), evidence.now, _headline(look, findings, unknown), steps, findings, ruled_out, unknown
    )


def _target(evidence: Evidence) -> str:
    target = evidence.target
    return "the fleet" if target.kind == "fleet" else f"{'GPU' if target.kind == 'gpu' else target.kind} {target.name}"


def _unread(evidence: Evidence) -> list[str]:
    found = [*evidence.unread]
    for node in evidence.nodes.values():
        found += [f"{node.name}: {text}" for text in node.unread]
    for rank in evidence.ranks:
        found += [f"rank {rank.rank}: {text}" for text in rank.unread]
    return found


def _headline(look: Look, findings: list[Finding], unknown: list[str]) -> str:
    """The answer in one sentence."""
    target = _target(look.evidence)
    first = findings[0] if findings else None
    if first is None:
        seen = f"{plural(len(unknown), 'thing')} could not be looked at" if unknown else ""
        if not any((look.evidence.nodes, look.evidence.run, look.evidence.serve)):
            return f"Nothing is known of {target}" + (f": {seen}" if seen else "")
        return f"Nothing is wrong with {target}" + (f" as far as it could be looked at; {seen}" if seen else "")
    sentence = first.sentence
    followed = _followed(first)
    tail = f"; {followed}" if followed else ""
    if first.relevance == OTHER:
        return f"Nothing is wrong with {target} itself; beside it: {sentence}"
    if first.symptom and not first.culprit.words:
        return f"The culprit is not known: {sentence}{tail}"
    lead = "" if first.confidence == "certain" else "Probably " if first.confidence == "likely" else "Possibly "
    # The name of a machine stays as it is.
    if not lead and (first.culprit.rank is not None or not first.culprit.words):
        sentence = f"{sentence[:1].upper()}{sentence[1:]}"
    return f"{lead}{sentence}{tail}"


def _followed(finding: Finding) -> str:
    """``7 ranks followed``, where some did."""
    for item in finding.consequences:
        if item.text == "followed":
            return f"{item.place} followed"
    return ""


def markdown(triage: Triage) -> str:
    """A short summary in Markdown: headline, what was found, the five steps, what was ruled out and is not known."""
    lines = [f"## Triage of {_text(triage.target)}, {_time(triage.at)}", "", f"**{_text(triage.headline)}**", ""]
    for number, finding in enumerate(triage.findings[:MOST_FINDINGS], 1):
        lines += _finding(number, finding)
    rest = len(triage.findings) - MOST_FINDINGS
    if rest > 0:
        lines += [f"And {rest} more.", ""]
    lines += ["| step | state | |", "| --- | --- | --- |"]
    lines += [f"| {step.name} | {step.state} | {_cell(step.sentence)} |" for step in triage.steps]
    lines += _list("Ruled out", triage.ruled_out)
    lines += _list("Not known", triage.unknown)
    return "\n".join(lines).rstrip() + "\n"


def as_json(triage: Triage) -> dict[str, Any]:
    """All of it, as plain JSON values."""
    return {
        "target": triage.target,
        "at": triage.at,
        "headline": triage.headline,
        "steps": [asdict(step) for step in triage.steps],
        "findings": [_plain(finding) for finding in triage.findings],
        "ruled_out": list(triage.ruled_out),
        "unknown": list(triage.unknown),
    }


def _plain(finding: Finding) -> dict[str, Any]:
    culprit = finding.culprit
    return {
        "id": finding.id,
        "step": finding.step,
        "title": finding.title,
        "sentence": finding.sentence,
        "confidence": finding.confidence,
        "culprit": {**asdict(culprit), "nodes": list(culprit.nodes), "words": culprit.words},
        "cause": finding.cause,
        "action": finding.action,
        "key": finding.key,
        "at": finding.at,
        "beside": finding.relevance != 0,
        "evidence": [asdict(item) for item in finding.evidence],
        "consequences": [asdict(item) for item in finding.consequences],
    }


def _finding(number: int, finding: Finding) -> list[str]:
    key = f" (key `{finding.key}`)" if finding.key else ""
    lines = [
        f"{number}. **{_text(finding.sentence)}** ({finding.confidence}, {finding.id})",
        f"   - Cause: {_text(finding.cause)}",
        f"   - Do: {_text(finding.action)}{key}",
        *_items(finding.evidence),
    ]
    if finding.consequences:
        lines += ["   - What followed from it:", *_items(finding.consequences, "     ")]
    return [*lines, ""]


def _items(items: tuple[Item, ...], indent: str = "   ") -> list[str]:
    shown = [f"{indent}- {_when(item)}{_text(item.place)}: {_code(item.text)}" for item in items[:MOST_ITEMS]]
    return [*shown, f"{indent}- and {len(items) - MOST_ITEMS} more"] if len(items) > MOST_ITEMS else shown


def _list(title: str, sentences: list[str]) -> list[str]:
    if not sentences:
        return []
    shown = [f"- {_text(sentence)}" for sentence in sentences[:MOST_LINES]]
    rest = len(sentences) - MOST_LINES
    return ["", f"{title}:", "", *shown, *([f"- and {rest} more"] if rest > 0 else [])]


def _when(item: Item) -> str:
    return "" if item.wall is None else f"{_time(item.wall)[11:]} "


def _time(wall: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(wall, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "at a time not known   "


def _code(text: str) -> str:
    """A line of a log, whatever is in it, as code that Markdown leaves alone."""
    flat = " ".join(text.split())
    return f"`{flat.replace('`', chr(39))}`" if flat else "(nothing)"


def _text(text: str) -> str:
    """Text from the cluster in a sentence: one line, no markup of its own."""
    flat = " ".join(text.split())
    for sign in ("\\", "`", "*", "<", "[", "|"):
        flat = flat.replace(sign, f"\\{sign}")
    return flat


def _cell(text: str) -> str:
    return _text(text)
