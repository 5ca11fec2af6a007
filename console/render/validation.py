"""A validation as a ladder of stages, a matrix of nodes and checks, and the page of a row. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from console.render.cells import Cell, Column, Spans, bar, glyph, safe, seconds_text, sparkline
from console.render.prose import facts, heading, listed, moment, paragraph, some
from jobs.model import Run
from jobs.validationreport import WORDS, where
from jobs.validationview import STAGE_TITLES, VERDICTS, CheckResult, Figure, Report, StageResult, Verdict, worst

TOGETHER = ""
"""The row of what is said of all nodes together."""
SHORT: Mapping[str, str] = {
    "inventory": "invent", "versions": "versn", "limits": "limits", "foreign": "foreign", "context": "first",
    "gemm_exact": "exact", "memory_bandwidth": "memory", "memory_pattern": "pattrn", "transfers": "transf",
    "determinism": "determ", "collectives": "collct", "all_reduce": "allred", "straggler": "stragl",
    "stability": "stabil",
}  # fmt: skip
"""Checks in the heading of a column."""
COLUMN = 6
NODE_WIDTH = 12
HISTORY_SHOWN = 12
_STYLES: Mapping[Verdict, str] = {"pass": "ok", "warn": "warn", "fail": "bad", "skipped": "muted", "unknown": "warn"}
_SIGNS: Mapping[Verdict, tuple[str, str]] = {
    "pass": ("✓", "+"), "warn": ("▲", "!"), "fail": ("✗", "x"), "skipped": ("○", "o"), "unknown": ("?", "?"),
}  # fmt: skip


def verdict_cell(verdict: Verdict, more: str = "") -> Cell:
    """A verdict: its sign and its word, told apart without colour."""
    return Cell(f"{glyph(*_SIGNS[verdict])} {WORDS[verdict]}{more}", _STYLES[verdict])


# --- the list of validations ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """One validation in the list; its report comes later than its run."""

    run: Run
    report: Report | None
    trouble: str
    now_wall: float


def _list_verdict(row: ValidationRow) -> Cell:
    if row.report is None:
        return Cell(row.run.state.value, "muted")
    if not row.report.done:
        return Cell(f"{glyph('◔', 'o')} running", "info")
    return verdict_cell(row.report.verdict)


def _list_sentence(row: ValidationRow) -> Cell:
    if row.report is None:
        return Cell(safe(row.trouble or row.run.reason), "muted")
    if not row.report.done:
        return Cell(doing_text(row.report), "info")
    return Cell(safe(row.report.sentence))


LIST_COLUMNS: tuple[Column[ValidationRow], ...] = (
    Column("run", "VALIDATION", 17, lambda row: Cell(safe(row.run.id), "accent"), sort=lambda row: row.run.id),
    Column(
        "at", "WHEN", 11, lambda row: Cell(moment(row.run.submitted_at, row.now_wall)),
        sort=lambda row: row.run.submitted_at,
    ),
    Column("verdict", "VERDICT", 9, _list_verdict),
    Column("profile", "PROFILE", 8, lambda row: Cell(row.report.profile if row.report else "-", "muted"), drop=2),
    Column("by", "BY", 8, lambda row: Cell(safe(row.run.user), "muted"), drop=3),
    Column("nodes", "NODES", 5, lambda row: Cell(str(len(row.report.nodes)) if row.report else "-"), align="right",
           drop=1),
    Column("found", "FOUND", 20, _list_sentence, grow=True),
)  # fmt: skip


# --- the ladder -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rung:
    """One stage, at a moment."""

    stage: StageResult
    now_wall: float

    @property
    def elapsed(self) -> float:
        """How long it has taken, or took."""
        stage = self.stage
        if stage.state != "running" or stage.began_at is None:
            return stage.seconds
        return max(0.0, self.now_wall - stage.began_at)


def _rung_verdict(rung: Rung) -> Cell:
    state = rung.stage.state
    if state == "running":
        return Cell(f"{glyph('◔', 'o')} running", "info")
    if state == "waiting":
        return Cell(f"{glyph('·', '.')} waiting", "muted")
    return verdict_cell(rung.stage.verdict)


def _rung_time(rung: Rung) -> Spans:
    stage = rung.stage
    if stage.state == "waiting" or (stage.state == "done" and not stage.seconds):
        return (Cell("-", "muted"),)
    if stage.state == "done":
        return (Cell(seconds_text(stage.seconds)),)
    share = rung.elapsed / stage.budget_seconds if stage.budget_seconds else None
    left = max(0.0, stage.budget_seconds - rung.elapsed)
    return (Cell(bar(share, 4), "info"), Cell(f" {rung.elapsed:.0f}s, {left:.0f}s left"))


def _rung_sentence(rung: Rung) -> Cell:
    stage = rung.stage
    if stage.state == "running":
        return Cell(_doing(stage), "info")
    return Cell(safe(stage.sentence), "" if stage.verdict in ("fail", "warn", "unknown") else "muted")


def _doing(stage: StageResult) -> str:
    by_doing: dict[str, list[str]] = {}
    for node, doing in stage.doing.items():
        by_doing.setdefault(doing, []).append(node)
    return "; ".join(f"{safe(doing)} on {listed(nodes, 2)}" for doing, nodes in by_doing.items())


RUNG_COLUMNS: tuple[Column[Rung], ...] = (
    Column("stage", "STAGE", 13, lambda rung: Cell(STAGE_TITLES[rung.stage.stage], "title")),
    Column("verdict", "VERDICT", 9, _rung_verdict),
    Column("nodes", "NODES", 5, lambda rung: Cell(str(len(rung.stage.nodes)) if rung.stage.nodes else "-"),
           align="right", drop=2),
    Column("out", "OUT", 3, lambda rung: Cell(str(len(rung.stage.left_out) or "-"),
                                             "warn" if rung.stage.left_out else "muted"), align="right", drop=1),
    Column("time", "TIME, AT MOST", 20, _rung_time),
    Column("found", "FOUND", 12, _rung_sentence, grow=True),
)  # fmt: skip


def doing_text(report: Report) -> str:
    """Where a validation is, in a few words."""
    stage = next((stage for stage in report.stages if stage.state == "running"), None)
    if stage is None:
        return "between two stages"
    return f"{STAGE_TITLES[stage.stage]}: {_doing(stage) or some(len(stage.nodes), 'node')}"


def head_lines(run: str, report: Report | None, trouble: str, width: int) -> list[Spans]:
    """What it comes to, and who is to blame."""
    lead = Cell(f" {safe(run)}  ", "muted")
    if report is None:
        return paragraph(trouble or "asking the controller …", width, style="bad" if trouble else "muted", lead=(lead,))
    if not report.done:
        lead = (lead, Cell(f"{glyph('◔', 'o')} running  ", "info"))
        return paragraph(doing_text(report), width, lead=lead, indent=3)
    lines = paragraph(
        report.sentence, width, lead=(lead, verdict_cell(report.verdict), Cell("  ")), indent=3,
        style="bad" if report.verdict == "fail" else "",
    )  # fmt: skip
    if report.simulated:
        lines.append((Cell("   SIMULATED", "simulated"), Cell("  no GPU took part: the CPU stood in", "muted")))
    return lines


# --- the matrix -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One node of a stage, or all of them together."""

    node: str
    checks: tuple[CheckResult, ...]
    """Those that are about it."""
    left_out: str = ""
    doing: str = ""

    def verdict(self, check: str) -> Verdict | None:
        """What it comes to: of several GPUs the worst."""
        told = [each for each in self.checks if each.check == check]
        return worst(_for(each, self.node) for each in told) if told else None

    @property
    def worst(self) -> Verdict:
        """Of all its checks."""
        return worst(_for(each, self.node) for each in self.checks)


def _for(check: CheckResult, node: str) -> Verdict:
    """What a check says of one node: where others are to blame, it came through."""
    blamed = {name for culprit in check.culprits for name in culprit.nodes}
    if check.node or not node or check.verdict not in ("fail", "warn") or not blamed or node in blamed:
        return check.verdict
    return "pass"


def matrix(stage: StageResult) -> dict[str, MatrixRow]:
    """A row for each node that took part or was left out, the worst first."""
    nodes = dict.fromkeys([*stage.nodes, *(check.node for check in stage.checks if check.node), *stage.left_out])
    rows = [
        MatrixRow(
            node,
            tuple(check for check in stage.checks if check.node == node or (not check.node and node in stage.nodes)),
            stage.left_out.get(node, ""),
            stage.doing.get(node, ""),
        )
        for node in nodes
    ]
    rows.sort(key=lambda row: VERDICTS.index(row.worst) if row.checks else len(VERDICTS))
    return {row.node: row for row in rows}


def matrix_columns(stage: StageResult) -> tuple[Column[MatrixRow], ...]:
    """The node, then one column for each check of this stage. Where room is short, those that all pass go first."""
    verdicts: dict[str, Verdict] = {}
    for check in stage.checks:
        verdicts[check.check] = worst([check.verdict, verdicts.get(check.check, check.verdict)])
    return (
        Column("node", "NODE", NODE_WIDTH, lambda row: Cell(safe(row.node), "title"), sort=lambda row: row.node),
        *(
            _check_column(check, drop=2 + at if verdict in ("pass", "skipped") else 1)
            for at, (check, verdict) in enumerate(verdicts.items())
        ),
        Column("note", "", 1, _note, grow=True, drop=2),
    )


def _check_column(check: str, drop: int) -> Column[MatrixRow]:
    name = check.partition(".")[2]

    def cell(row: MatrixRow) -> Cell:
        verdict = row.verdict(check)
        if verdict is None:
            return Cell("")
        bad = sum(each.check == check and each.gpu is not None and each.verdict == verdict for each in row.checks)
        more = f" {bad}" if bad and verdict in ("fail", "warn", "unknown") else ""
        return Cell(f"{glyph(*_SIGNS[verdict])}{more}", _STYLES[verdict])

    return Column(check, SHORT.get(name, name)[:COLUMN].upper(), COLUMN, cell, drop=drop)


def _note(row: MatrixRow) -> Cell:
    if row.left_out:
        return Cell(f"left out: {safe(row.left_out)}", "warn")
    return Cell(f"{safe(row.doing)} {glyph('…', '...')}" if row.doing else "", "info")


# --- the page of a row ------------------------------------------------------------------------------------------------


def row_lines(row: MatrixRow | None, stage: StageResult, width: int) -> list[Spans]:
    """Every check that is about a node: what is wrong first, then figures; nothing is left out."""
    if row is None:
        return paragraph(stage.sentence or "nothing of it is known yet", width, lead=(Cell(" "),), style="muted")
    lines: list[Spans] = []
    if row.left_out:
        lines += paragraph(f"left out: {row.left_out}", width, style="warn", lead=(Cell(" "),))
    order = sorted(row.checks, key=lambda check: VERDICTS.index(_for(check, row.node)))
    passed: dict[str, list[CheckResult]] = {}
    for check in order:
        verdict = _for(check, row.node)
        if verdict == "pass":
            passed.setdefault(check.check, []).append(check)
        else:
            lines += check_lines(check, verdict, width)
    for alike in passed.values():
        lines += check_lines(alike[0], "pass", width) if len(alike) == 1 else _passed_lines(alike, width)
    return lines


def _passed_lines(alike: Sequence[CheckResult], width: int) -> list[Spans]:
    """One check that several GPUs of a node came through, in one line."""
    first = alike[0]
    told: list[str] = []
    for name in dict.fromkeys(figure.name for check in alike for figure in check.figures):
        of_all = [figure for check in alike for figure in check.figures if figure.name == name]
        low, high = min(each.value for each in of_all), max(each.value for each in of_all)
        told.append(f"{low:.3g} to {high:.3g} {of_all[0].unit}")
    stand_in = " (CPU)" if first.stand_in else ""
    lead = (Cell(" "), verdict_cell("pass"), Cell("  "), Cell(f"{safe(first.title)}  ", "title"))
    words = f"{some(len(alike), 'GPU')}: {'; '.join(told) or first.sentence}{stand_in}"
    return paragraph(words, width, lead=lead, indent=12)


def check_lines(check: CheckResult, verdict: Verdict, width: int) -> list[Spans]:
    """One check: verdict, what was found, its evidence where it is bad, its figures."""
    place = f"{check.title} {where(check)}" if check.node else check.title
    marks = [word for word, on in (("CPU", check.stand_in), ("measured twice", check.again)) if on]
    lead = (Cell(" "), verdict_cell(verdict), Cell("  "), Cell(f"{safe(place)}  ", "title"))
    told = check.sentence + (f" ({', '.join(marks)})" if marks else "")
    lines = paragraph(told, width, lead=lead, indent=12)
    if verdict in ("fail", "warn", "unknown"):
        if check.criterion:
            lines += paragraph(f"judged by: {check.criterion}", width, style="muted", lead=(Cell(" " * 12),))
        for line in check.evidence:
            lines += paragraph(line, width, style="muted", lead=(Cell(" " * 12),))
    return lines


def figures_of(checks: Iterable[CheckResult]) -> list[tuple[CheckResult, Figure]]:
    """Every figure of some checks."""
    return [(check, figure) for check in checks for figure in check.figures]


def figure_lines(row: MatrixRow, history: Sequence[Report], width: int) -> list[Spans]:
    """Every figure of a node: samples, median, spread, what it is judged by, and how it was before.

    ``history``: earlier validations, the oldest first, with the one that is looked at as the last.
    """
    lines: list[Spans] = []
    for check, figure in figures_of(row.checks):
        place = f" {where(check)}" if check.node else ""
        lines += heading(f"{safe(check.title)}{safe(place)}: {safe(figure.name)}")
        samples = f"{len(figure.samples)} samples, " if len(figure.samples) > 1 else ""
        beside = [
            (name, value) for name, value in
            (("floor", figure.floor), ("baseline", figure.baseline), ("like it", figure.peers)) if value is not None
        ]  # fmt: skip
        pairs = [
            ("now", f"{figure.value:.4g} {safe(figure.unit)} ({samples}spread {figure.spread:.0%})", ""),
            *((name, f"{value:.4g} {safe(figure.unit)}", "muted") for name, value in beside),
        ]
        before = _before(check, figure.name, history)
        if len(before) > 1:
            values = [value for _, value in before]
            shown = ", ".join(f"{value:.3g}" for value in values[-HISTORY_SHOWN:])
            pairs.append(("before", f"{sparkline(values, 24).strip()}  {shown}", "muted"))
        lines += facts(pairs, width)
    return lines or [(Cell(" no check of this stage measured a figure here", "muted"),)]


def _before(check: CheckResult, name: str, history: Sequence[Report]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for report in history:
        for each in report.checks():
            if (each.check, each.node, each.gpu, each.peer) == (check.check, check.node, check.gpu, check.peer):
                found += [(report.id, figure.value) for figure in each.figures if figure.name == name]
    return found
