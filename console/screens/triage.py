"""Triage of a run, a node, a GPU or the fleet: the five steps as they are done, then findings, the likeliest first."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.worker import Worker

from console.render.cells import Cell, Spans, safe
from console.render.course import attempt_lines, run_facts
from console.render.course import head_lines as run_head
from console.render.prose import heading, moment, paragraph
from console.render.queue import explanation_lines
from console.render.redact import redact
from console.render.triage import (
    EVIDENCE_SHOWN,
    FINDING_COLUMNS,
    FindingRow,
    finding_lines,
    head_lines,
    rest_lines,
    step_lines,
    steps_of,
)
from console.screens.base import DeckScreen, bindings_for
from console.screens.node import why_lines
from console.screens.pages import PageDialog
from console.sources.session import Session
from console.triage.judge import Judged, judge
from console.triage.paper import paint, paint_lines
from console.triage.places import excerpt
from console.widgets.lines import Lines, Source
from console.widgets.reading import Reading
from console.widgets.table import VirtualTable
from jobs.errors import RaydeckError
from jobs.model import Run
from jobs.queueview import Explanation
from jobs.triage.evidence import Target
from jobs.triage.findings import Culprit, Finding, StepName, StepResult, Triage
from jobs.triage.report import as_json, markdown

TALL = 40
SCOPES = ("everywhere", "triage", "upkeep")
ROWS, ROWS_TALL = 4, 10
EVIDENCE_TALL = 12
WORDS = {"fleet": "the fleet", "run": "run", "node": "node", "gpu": "GPU"}


class TriageScreen(DeckScreen):
    """What broke, whose fault it is, what to do."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for(*SCOPES)
    SCOPES = SCOPES
    AUTO_FOCUS = "#triage-page"

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self._steps = steps_of(None)
        self._judged: Judged | None = None
        self._explained: Explanation | None = None
        """Why the run waits, which comes long before the rest."""
        self._trouble = ""
        self._asking: Worker[None] | None = None
        self._rows: dict[str, FindingRow] = {}

    def body(self) -> ComposeResult:
        """Headline, steps, findings, the one under the cursor with all that was ruled out."""
        yield Lines(self._head, id="triage-head", most=4)
        yield Lines(self._step_lines, id="triage-steps", most=24)
        yield VirtualTable(FINDING_COLUMNS, id="findings", empty="nothing was found that is wrong")
        with Reading(id="triage-page"):
            yield Lines(self._page, id="triage-lines", most=2000)

    @property
    def place(self) -> str:
        """Where one is."""
        return f"triage {self.title_of_target}"

    @property
    def title_of_target(self) -> str:
        """What is asked about, in words."""
        return " ".join(part for part in (WORDS[self.target.kind], self.target.name) if part)

    @property
    def _session(self) -> Session:
        session = self.deck.session
        assert session is not None
        return session

    @property
    def _table(self) -> VirtualTable[FindingRow]:
        return self.query_one("#findings", VirtualTable)

    def begin(self) -> None:
        """Begin at once."""
        self.action_again()

    # --- asking -------------------------------------------------------------------------------------------------------

    def action_again(self) -> None:
        """From the beginning, unless it is being asked for already."""
        if self._asking is not None and not self._asking.is_finished:
            return
        self._steps, self._judged, self._trouble = steps_of(None), None, ""
        self._show()
        self._asking = self.run_worker(self._ask(), name="triage", exit_on_error=False)
        if self.target.kind == "run":
            self.run_worker(self._explain(), name="explain", group="explain", exclusive=True, exit_on_error=False)

    def ask_again(self) -> None:
        """From the beginning."""
        self.action_again()

    async def _ask(self) -> None:
        try:
            self._judged = await judge(self._session, self.target, self._told)
        except RaydeckError as error:
            self._trouble = str(error)
        else:
            self._steps = steps_of(self._judged.triage)
        self._show()

    async def _explain(self) -> None:
        run = self._session.work.runs.get(self.target.name)
        if run is not None and not run.state.waiting:
            return
        try:
            told = await (await self._session.controller()).explain(self.target.name)
        except RaydeckError:
            return  # the triage itself says so, with everything else that is not to be had
        self._explained = told if told.state.waiting else None
        self.query_one("#triage-lines", Lines).touch()

    def _told(self, name: StepName, words: str, result: StepResult | None) -> None:
        step = next(step for step in self._steps if step.name == name)
        if result is not None:
            step.state, step.words = result.state, result.sentence
        else:
            step.state, step.words = ("read", "") if words == "read" else ("reading", f"{words} …")
        self.query_one("#triage-steps", Lines).touch()
        self.query_one("#triage-head", Lines).touch()

    # --- what it shows ------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        """The findings, and the page of the first of them."""
        triage = self._triage
        findings = triage.findings if triage is not None else []
        self._rows = {str(at): FindingRow(at, finding) for at, finding in enumerate(findings, 1)}
        table = self._table
        table.set_rows(list(self._rows), lambda key: self._rows[key])
        table.display = bool(findings)
        self.fit()
        if findings:
            table.focus()
        for name in ("#triage-head", "#triage-steps", "#triage-lines"):
            self.query_one(name, Lines).touch()

    def fit(self) -> None:
        """As many findings as there is room for."""
        tall = self.size.height >= TALL
        self.set_class(tall, "-tall")
        self._table.styles.height = min(max(len(self._rows), 1), ROWS_TALL if tall else ROWS) + 1

    @property
    def _triage(self) -> Triage | None:
        return self._judged.triage if self._judged is not None else None

    @property
    def finding(self) -> Finding | None:
        """The one under the cursor."""
        row = self._rows.get(self._table.cursor_key or "")
        return row.finding if row is not None else None

    def _head(self, width: int) -> list[Spans]:
        if self._trouble:
            lead = (Cell(f" {safe(self.title_of_target)}  ", "muted"),)
            return paragraph(self._trouble, width, style="bad", lead=lead, indent=3)
        doing = next((step for step in self._steps if step.state == "reading"), None)
        return head_lines(self.title_of_target, self._triage, width, asking=f"{doing.name} …" if doing else "")

    def _step_lines(self, width: int) -> list[Spans]:
        return step_lines(self._steps, width, wrap=self.size.height >= TALL)

    def _page(self, width: int) -> list[Spans]:
        judged = self._judged
        if judged is None:
            run = self._session.work.runs.get(self.target.name)
            return known_lines(self._session, self.target, run, self._explained, width)
        lines: list[Spans] = []
        tall = self.size.height >= TALL
        if self.finding is not None:
            lines += finding_lines(
                self.finding, width, judged.evidence.now, most=EVIDENCE_TALL if tall else EVIDENCE_SHOWN
            )
        found = judged.evidence.run
        told = (found.explanation or self._explained) if found is not None else None
        lines += known_lines(self._session, self.target, found.run if found is not None else None, told, width)
        lines += rest_lines(judged.triage, width)
        at = moment(judged.evidence.now, judged.evidence.now)
        return [*lines, (), (Cell(f" as of {at}; r again, e export, c copy as Markdown", "muted"),)]

    @on(VirtualTable.Highlighted)
    def _chosen(self) -> None:
        self.query_one("#triage-lines", Lines).touch()
        self.query_one("#triage-page", Reading).scroll_home(animate=False)

    # --- keys that look -----------------------------------------------------------------------------------------------

    @on(VirtualTable.Opened)
    def _opened(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        """The finding under the cursor, all of it."""
        finding, judged = self.finding, self._judged
        if finding is None or judged is None:
            return

        async def ask() -> Source:
            return lambda width: finding_lines(finding, width, judged.evidence.now, whole=True)

        self.app.push_screen(PageDialog(f"Finding: {finding.culprit.words or finding.id}", ask))

    def action_log(self) -> None:
        """The lines around what shows it, else the log of the run."""
        finding, judged = self.finding, self._judged
        found = excerpt(judged.evidence, finding) if judged is not None and finding is not None else None
        if found is None or judged is None:
            run = next(iter(self.selected_runs()), None)
            if run is not None and run in self._session.work.runs:
                self.deck.open_log(run)
            else:
                self.notify("no log line shows this one", severity="warning")
            return

        async def ask() -> Source:
            def lines(width: int) -> list[Spans]:
                out: list[Spans] = []
                for at, line in enumerate(found.lines):
                    here = at == found.at
                    number = f"{line.number:>7}  " if line.number is not None else "  "
                    clock = f"{moment(line.wall, judged.evidence.now)}  " if line.wall else ""
                    style = "title" if here else ""
                    lead = (Cell(">" if here else " ", "bad"), Cell(number, "muted"), Cell(clock, "muted"))
                    out += paragraph(redact(line.text), width, style=style, lead=lead, indent=4)
                return out

            return lines

        self.app.push_screen(PageDialog(found.title, ask))

    def action_export(self) -> None:
        """Everything in one archive, to hand on."""
        if self._judged is None:
            self.notify("the triage is not done yet", severity="warning")
            return
        self.run_worker(self._export(self._judged), name="bundle", exit_on_error=False)

    async def _export(self, judged: Judged) -> None:
        from console.triage.bundle import free_path, write_bundle

        path = free_path(Path.cwd(), judged)
        made = await write_bundle(self._session, judged, path)
        self.notify(f"{made.path}: {made.files} files, {made.size_bytes / 1024:.0f} kB", timeout=12, markup=False)

    def copy_text(self) -> str:
        """The triage as Markdown, to paste."""
        return paint_lines(markdown(self._triage)) if self._triage is not None else ""

    def raw(self) -> Any:
        """The triage as JSON."""
        return paint(as_json(self._triage)) if self._triage is not None else None

    # --- what keys that touch are about -------------------------------------------------------------------------------

    @property
    def culprit(self) -> Culprit:
        """Of the finding under the cursor."""
        return self.finding.culprit if self.finding is not None else Culprit()

    def selected_runs(self) -> Iterable[str]:
        """The culprit's run, else the one that is asked about."""
        run = self.culprit.run or (self.target.name if self.target.kind == "run" else "")
        return (run,) if run else ()

    def selected_node(self) -> str | None:
        """The culprit's node, else the one that is asked about."""
        return next(iter(self.selected_nodes()), None)

    def selected_nodes(self) -> Iterable[str]:
        """The culprit's nodes, as far as they are nodes of this context; else the one that is asked about."""
        culprit = self.culprit
        named = [*culprit.nodes, *([culprit.node] if culprit.node else [])] or [self.target.node]
        return tuple(dict.fromkeys(name for name in named if name in self._session.fleet.nodes))


def known_lines(session: Session, target: Target, run: Run | None, told: Explanation | None, width: int) -> list[Spans]:
    """What is recorded of the thing itself: why a run waits, how its attempts went, what is known of a node."""
    now = session.head_wall()
    if told is not None:
        return [*heading("Why it waits"), *explanation_lines(told, width, now)]
    if run is not None:
        lines = [*heading("What is recorded"), *run_head(run, now), *run_facts(run, None, width, now)]
        for attempt in reversed(run.attempts):
            lines += heading(f"Attempt {attempt.number}: {attempt.state.value}") + attempt_lines(attempt, width)
        return lines
    node = session.fleet.nodes.get(target.node)
    if node is None:
        return []
    known = why_lines(node, session.work, session.now(), now)
    return [*heading(f"What is known of {safe(node.name)}"), *((Cell(f" {line}"),) for line in known)]
