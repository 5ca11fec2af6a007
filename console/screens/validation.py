"""Validations: the list of those that there were, and one of them live, its ladder, its matrix and its figures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from console.render.cells import Spans
from console.render.prose import paragraph
from console.render.validation import (
    LIST_COLUMNS,
    RUNG_COLUMNS,
    MatrixRow,
    Rung,
    ValidationRow,
    figure_lines,
    head_lines,
    matrix,
    matrix_columns,
    row_lines,
)
from console.screens.base import AskingScreen, bindings_for
from console.screens.pages import PageDialog
from console.validating import validations
from console.widgets.lines import Lines, Source
from console.widgets.reading import Reading
from console.widgets.table import VirtualTable
from jobs.client import ControllerClient
from jobs.errors import Refused
from jobs.validationreport import compare, markdown
from jobs.validationview import Report, StageName, StageResult

LISTED = 30
"""So many of the newest are shown with their verdict."""
MATRIX_ROWS, MATRIX_TALL, TALL = 5, 14, 40


class ValidationsScreen(AskingScreen):
    """Those that there were, the newest first."""

    SCOPES = ("everywhere", "table", "validations")
    BINDINGS: ClassVar[list[BindingType]] = bindings_for(*SCOPES)
    PERIOD_SECONDS = 2.0

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[str, ValidationRow] = {}

    def body(self) -> ComposeResult:
        """The table."""
        yield VirtualTable(LIST_COLUMNS, id="validations", empty="no validation yet: V proves the nodes")

    @property
    def place(self) -> str:
        """Where one is."""
        return "validations"

    async def ask(self, client: ControllerClient) -> None:
        """All of them, and the reports that are not known to be done."""
        session = self.deck.session
        assert session is not None
        rows: dict[str, ValidationRow] = {}
        for run in (await validations(client))[:LISTED]:
            known = self._rows.get(run.id)
            if known is not None and known.run == run and run.state.ended:
                rows[run.id] = known
                continue
            try:
                rows[run.id] = ValidationRow(run, await client.validation(run.id), "", session.head_wall())
            except Refused as error:
                rows[run.id] = ValidationRow(run, None, error.sentence, session.head_wall())
        before, self._rows = self._rows, rows
        table = self.query_one(VirtualTable)
        if list(before) != list(rows):
            table.set_rows(list(rows), lambda key: self._rows[key])
        table.touch({key for key, row in rows.items() if before.get(key) != row})

    @on(VirtualTable.Opened)
    def _opened(self, event: VirtualTable.Opened) -> None:
        self.app.push_screen(ValidationScreen(event.key))

    def action_difference(self) -> None:
        """The two marked ones; with one marked, that one and the one under the cursor. The older one comes first."""
        table = self.query_one(VirtualTable)
        chosen = {key for key in table.marked if key in self._rows}
        if len(chosen) < 2 and table.cursor_key:
            chosen.add(table.cursor_key)
        reports = [row.report for key, row in reversed(self._rows.items()) if key in chosen and row.report is not None]
        if len(reports) != 2:
            self.notify("mark two validations that have a report (space)", severity="warning")
            return
        old, new = reports

        async def ask() -> Source:
            found = compare(old, new) or ["no difference: every verdict is the same, and no figure moved by 5 %"]
            return lambda width: [line for each in found for line in paragraph(each, width, indent=3)]

        self.app.push_screen(PageDialog(f"{old.id} → {new.id}", ask))

    def selected_runs(self) -> Iterable[str]:
        """The run of the validation under the cursor."""
        key = self.query_one(VirtualTable).cursor_key
        return (key,) if key else ()

    def action_log(self) -> None:
        """The log of the validation under the cursor."""
        _open_log(self)

    def copy_text(self) -> str:
        """The id."""
        return self.query_one(VirtualTable).cursor_key or ""

    def raw(self) -> Any:
        """The report as JSON."""
        row = self._rows.get(self.query_one(VirtualTable).cursor_key or "")
        return row.report.model_dump(mode="json") if row and row.report else None


class ValidationScreen(AskingScreen):
    """One validation, while it climbs and after: stages, then nodes × checks of a stage, then one node's checks."""

    SCOPES = ("everywhere", "table", "validation", "upkeep")
    BINDINGS: ClassVar[list[BindingType]] = bindings_for(*SCOPES)
    PERIOD_SECONDS = 1.0

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run
        self._report: Report | None = None
        self._trouble = ""
        self._rungs: dict[str, Rung] = {}
        self._rows: dict[str, MatrixRow] = {}
        self._shown: StageResult | None = None
        """The stage that the matrix shows."""
        self._follows = True
        """The cursor goes up the ladder with the validation, until a person has moved it."""

    def body(self) -> ComposeResult:
        """Outcome, ladder, matrix, the checks of the row under the cursor."""
        yield Lines(self._head, id="validation-head", most=3)
        yield VirtualTable(RUNG_COLUMNS, id="ladder", empty="waiting for its first word")
        yield VirtualTable((), id="matrix", empty="no check of this stage has ended yet")
        with Reading(id="validation-page"):
            yield Lines(self._page, id="validation-lines", most=2000)

    @property
    def place(self) -> str:
        """Where one is."""
        return f"validation {self.run}"

    async def ask(self, client: ControllerClient) -> None:
        """The report as it stands; once it is done it stays as it is."""
        if self._report is not None and self._report.done:
            return
        try:
            self._report = await client.validation(self.run)
        except Refused as error:
            run = await client.run(self.run)
            ended = f"it {run.state.value}: {run.reason}" if run.state.ended else f"{run.state.value}; no report yet"
            self._trouble = f"{error.sentence}; {ended}" if run.state.ended else ended
            self.query_one("#validation-head", Lines).touch()
            return
        self._show()

    def frame(self, nodes: set[str], runs: set[str]) -> None:
        """Time goes on: so does what is left of it."""
        super().frame(nodes, runs)
        if self._report is not None and not self._report.done:
            self._show_ladder()

    # --- what it shows ------------------------------------------------------------------------------------------------

    def _head(self, width: int) -> list[Spans]:
        return head_lines(self.run, self._report, self._trouble, width)

    def _show(self) -> None:
        self._show_ladder()
        self._show_matrix()
        self.query_one("#validation-head", Lines).touch()

    def _show_ladder(self) -> None:
        session, report = self.deck.session, self._report
        if session is None or report is None:
            return
        table = self.query_one("#ladder", VirtualTable)
        new = {stage.stage: Rung(stage, session.head_wall()) for stage in report.stages}
        renewed = list(new) != list(self._rungs)
        self._rungs = {str(name): rung for name, rung in new.items()}
        if renewed:
            table.set_rows(list(self._rungs), lambda key: self._rungs[key])
            table.styles.height = len(self._rungs) + 1
        table.repaint_rows()
        if self._follows and (at := _interesting(report)) is not None and table.cursor_key != at:
            table.move_to(at)

    def _show_matrix(self) -> None:
        report, table = self._report, self.query_one("#matrix", VirtualTable)
        name = self.query_one("#ladder", VirtualTable).cursor_key
        stage = next((each for each in report.stages if each.stage == name), None) if report else None
        if stage is None or stage == self._shown:
            return
        new = matrix(stage)
        other = self._shown is None or self._shown.stage != stage.stage
        self._shown, self._rows = stage, new
        table.set_columns(matrix_columns(stage))
        table.set_rows(list(new), lambda key: self._rows[key])
        if other and new:
            table.move_to(next(iter(new)))
        tall = MATRIX_TALL if self.size.height >= TALL else MATRIX_ROWS
        table.styles.height = min(max(len(new), 1), tall) + 1
        self._touch_page()

    def _touch_page(self) -> None:
        self.query_one("#validation-lines", Lines).touch()

    @property
    def row(self) -> MatrixRow | None:
        """The node under the cursor."""
        return self._rows.get(self.query_one("#matrix", VirtualTable).cursor_key or "")

    def _page(self, width: int) -> list[Spans]:
        if self._shown is None:
            return []
        return row_lines(self.row, self._shown, width)

    @on(VirtualTable.Highlighted, "#ladder")
    def _chosen_stage(self, event: VirtualTable.Highlighted) -> None:
        if event.table.has_focus and self._report is not None and event.table.cursor_key != _interesting(self._report):
            self._follows = False
        self._show_matrix()

    @on(VirtualTable.Highlighted, "#matrix")
    def _chosen_row(self) -> None:
        self._touch_page()
        self.query_one("#validation-page", Reading).scroll_home(animate=False)

    # --- keys ---------------------------------------------------------------------------------------------------------

    @on(VirtualTable.Opened)
    def _opened(self, event: VirtualTable.Opened) -> None:
        if event.table.id == "ladder":
            self.query_one("#matrix", VirtualTable).focus()
        else:
            self.action_figures()

    def action_figures(self) -> None:
        """The figures of the row under the cursor, beside what they were in earlier validations."""
        row, report, session = self.row, self._report, self.deck.session
        if row is None or report is None or session is None:
            self.notify("no node is under the cursor", severity="warning")
            return

        async def ask() -> Source:
            client = await session.controller()
            history = [report]
            for run in await validations(client):
                if run.id != report.id and run.submitted_at < report.started_at and len(history) < LISTED:
                    try:
                        history.insert(0, await client.validation(run.id))
                    except Refused:
                        continue  # it has no report, and so no figures
            return lambda width: figure_lines(row, history, width)

        self.app.push_screen(PageDialog(f"Figures of {row.node}", ask))

    def action_log(self) -> None:
        """The validation's own log."""
        _open_log(self)

    def action_export(self) -> None:
        """The report as one page of HTML and as Markdown, in this folder."""
        if self._report is None:
            self.notify("there is no report yet", severity="warning")
            return
        self.run_worker(self._export(self._report), name="export", exit_on_error=False)

    async def _export(self, report: Report) -> None:
        from console.validating import write_pages

        try:
            files = await asyncio.to_thread(write_pages, report)
        except OSError as error:
            self.notify(f"the report cannot be written: {error}", severity="error", markup=False)
        else:
            self.notify(", ".join(map(str, files)), timeout=12, markup=False)

    def selected_runs(self) -> Iterable[str]:
        """Its run."""
        return (self.run,)

    def selected_node(self) -> str | None:
        """The node under the cursor."""
        session = self.deck.session
        known = session.fleet.nodes if session is not None else {}
        return self.row.node if self.row is not None and self.row.node in known else None

    def marked_nodes(self) -> Iterable[str]:
        """The marked rows of the matrix."""
        return [key for key in self._rows if key in self.query_one("#matrix", VirtualTable).marked]

    def selected_nodes(self) -> Iterable[str]:
        """The marked nodes, else the one under the cursor."""
        return self.marked_nodes() or super().selected_nodes()

    def copy_text(self) -> str:
        """The report as Markdown, to paste."""
        return markdown(self._report) if self._report is not None else ""

    def raw(self) -> Any:
        """The report as JSON."""
        return self._report.model_dump(mode="json") if self._report is not None else None


def _open_log(screen: ValidationsScreen | ValidationScreen) -> None:
    run = next(iter(screen.selected_runs()), None)
    session = screen.deck.session
    if run is not None and session is not None and run in session.work.runs:
        screen.deck.open_log(run)
    else:
        screen.notify("its log is not known here", severity="warning")


def _interesting(report: Report) -> StageName | None:
    """The stage that one wants to see: the one that goes on, the first that failed, else the last that was done."""
    stages = report.stages
    running = [stage for stage in stages if stage.state == "running"]
    failed = [stage for stage in stages if stage.verdict == "fail"]
    done = [stage for stage in reversed(stages) if stage.state == "done" and stage.checks]
    wanted = [*running, *failed, *done]
    return wanted[0].stage if wanted else None
