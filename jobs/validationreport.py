"""A validation's report for people: as Markdown, and two of them compared."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.validationview import STAGE_TITLES, CheckResult, Figure, Report, StageResult

WORDS = {"pass": "pass", "warn": "WARN", "fail": "FAIL", "skipped": "skipped", "unknown": "UNKNOWN"}


def markdown(report: Report) -> str:
    """The whole report: what was proven, who is to blame, every check with its figure and criterion."""
    lines = [
        f"# Validation {report.id}: {WORDS[report.verdict]}",
        "",
        report.sentence,
        "",
        f"Profile {report.profile}, {len(report.nodes)} nodes ({', '.join(report.nodes)}), {report.seconds:.0f} s"
        f"{f', by {report.user}' if report.user else ''}.",
    ]
    if report.simulated:
        lines += ["", "**SIMULATED**: no GPU took part; what is marked “CPU” stood in for one."]
    if report.culprits:
        lines += ["", "## To blame", "", *(f"- {each.words}" for each in report.culprits)]
    if report.fingerprint:
        lines += ["", "## Runs on", "", "| | |", "| --- | --- |"]
        lines += [f"| {_cell(name)} | {_cell(value)} |" for name, value in report.fingerprint.items()]
    for stage in report.stages:
        lines += ["", f"## {heading_of(stage)}: {WORDS[stage.verdict]}", "", stage.sentence]
        lines += [f"- left out: {node}, {why}" for node, why in stage.left_out.items()]
        if stage.checks:
            lines += ["", "| verdict | check | where | found | judged by |", "| --- | --- | --- | --- | --- |"]
            lines += [_row(check) for check in stage.checks]
        for check in stage.checks:
            if check.verdict in ("fail", "unknown") and check.evidence:
                lines += ["", f"{check.title} {where(check)}:", "", *(f"    {line}" for line in check.evidence)]
    return "\n".join(lines) + "\n"


def heading_of(stage: StageResult) -> str:
    """A stage as a heading: ``One GPU``."""
    title = STAGE_TITLES[stage.stage]
    return title[0].upper() + title[1:]


def where(check: CheckResult) -> str:
    """What a check is about: a GPU, a node, a link, or all of them."""
    if check.peer:
        return f"{check.node} ↔ {check.peer}"
    if check.gpu is not None:
        return f"{check.node}/{check.gpu}"
    return check.node or "all"


def _row(check: CheckResult) -> str:
    marks = [word for word, on in (("CPU", check.stand_in), ("measured twice", check.again)) if on]
    found = check.sentence + (f" ({', '.join(marks)})" if marks else "")
    cells = (WORDS[check.verdict], check.title, where(check), found, check.criterion)
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def compare(old: Report, new: Report) -> list[str]:
    """What is different between two validations, a sentence each: verdicts first, then figures that moved by 5 %."""
    before, after = _by_place(old.checks()), _by_place(new.checks())
    found: list[str] = []
    figures: list[str] = []
    for place, check in after.items():
        was = before.get(place)
        if was is None:
            continue
        name = f"{check.title} {where(check)}"
        if was.verdict != check.verdict:
            found.append(f"{name}: {WORDS[was.verdict]} → {WORDS[check.verdict]} ({check.sentence})")
        figures += _moved(name, was.figures, check.figures)
    missing = [
        f"{before[place].title} {where(before[place])}: not in the newer one" for place in before.keys() - after.keys()
    ]
    more = [
        f"{after[place].title} {where(after[place])}: not in the older one" for place in after.keys() - before.keys()
    ]
    return [*found, *figures, *sorted(missing), *sorted(more)]


def _by_place(checks: Sequence[CheckResult]) -> dict[tuple[str, str], CheckResult]:
    return {(check.check, where(check)): check for check in checks}


def _moved(name: str, old: Sequence[Figure], new: Sequence[Figure]) -> list[str]:
    before = {figure.name: figure.value for figure in old}
    found: list[str] = []
    for figure in new:
        was = before.get(figure.name)
        if was and abs(figure.value / was - 1) >= 0.05:
            found.append(
                f"{name}: {figure.name} {was:.3g} → {figure.value:.3g} {figure.unit} ({figure.value / was - 1:+.0%})"
            )
    return found
