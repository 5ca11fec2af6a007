"""The alerts: all that needs someone, each thing once, what to do about it, and what people said to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container

from console.actions import BY_NAME
from console.render.alertdocs import line_document, silence_document
from console.render.alerts import ALERT_COLUMNS, AlertRow, alert_lines, attention_rows
from console.render.attention import summary_lines
from console.render.cells import Cell, Spans
from console.render.prose import listed, some
from console.screens.alerthistory import AlertHistoryScreen, open_page
from console.screens.base import DeckScreen, bindings_for
from console.sources.session import Session
from console.state.alerts import real_names
from console.widgets.lines import Lines
from console.widgets.table import VirtualTable
from jobs.alertview import Alert, AlertsReply, Silence

WIDE = 150
SCOPES = ("everywhere", "table", "alerts", "upkeep")
HISTORY = 500
NAMED = 3


class AlertsScreen(DeckScreen):
    """A row for each thing that needs someone; what there is to say of the one under the cursor below, or beside."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for(*SCOPES)
    SCOPES = SCOPES

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[str, AlertRow] = {}
        self._second = 0

    def body(self) -> ComposeResult:
        """How many, which, and what of the one under the cursor."""
        yield Lines(self._summary, id="summary", most=3)
        with Container(id="alerts-top"):
            yield VirtualTable(ALERT_COLUMNS, id="alerts", empty="nothing fires, and nothing is silenced")
            yield Lines(self._detail, id="alert", most=100)

    @property
    def place(self) -> str:
        """Where one is."""
        return "alerts"

    def begin(self) -> None:
        """Show what is known already."""
        self.frame(set(), set())

    def fit(self) -> None:
        """More room, or less."""
        self.set_class(self.size.width >= WIDE, "-wide")
        self.query_one("#alert", Lines).touch()

    @property
    def _table(self) -> VirtualTable[AlertRow]:
        return self.query_one("#alerts", VirtualTable)

    @property
    def _row(self) -> AlertRow | None:
        return self._rows.get(self._table.cursor_key or "")

    def _summary(self, width: int) -> list[Spans]:
        session = self.deck.session
        if session is None:
            return []
        state = session.work.controller
        trouble = "" if state.state in ("ok", "unknown", "connecting") else f"controller {state.state}: {state.reason}"
        lines = [row.line for row in self._rows.values() if row.line is not None]
        alerts = session.work.alerts
        return summary_lines(lines, alerts.view, width, trouble=trouble, own_nodes=alerts.judged)

    def _detail(self, width: int) -> list[Spans]:
        row = self._row
        if row is None:
            return []
        lines = alert_lines(row, width)
        wide = self.size.width >= WIDE
        most = max(5, self.size.height - 6 if wide else self.size.height // 2 - 1)
        if len(lines) > most:
            lines = [*lines[: most - 1], (Cell(f"   {len(lines) - most + 1} more lines: enter shows all", "muted"),)]
        return lines

    def frame(self, nodes: set[str], runs: set[str]) -> None:
        """Something fires, ends or was said; or it is simply later."""
        super().frame(nodes, runs)
        session = self.deck.session
        if session is None:
            return
        found = attention_rows(session.fleet, session.work, session.now(), session.head_wall())
        rows = {row.key: row for row in found}
        table = self._table
        changed = {key for key, row in rows.items() if key not in self._rows or self._rows[key].line != row.line}
        renewed = list(rows) != list(self._rows)
        self._rows = rows
        if renewed or not table.total_count:
            table.set_rows(list(rows), lambda key: self._rows[key])
        table.touch(changed)
        second = int(session.now())
        if second != self._second:
            self._second = second
            table.repaint_rows()
        for name in ("#summary", "#alert"):
            self.query_one(name, Lines).touch()

    @on(VirtualTable.Highlighted)
    def _highlighted(self) -> None:
        self.query_one("#alert", Lines).touch()

    @on(VirtualTable.Opened)
    def _opened(self, event: VirtualTable.Opened) -> None:
        row = self._rows.get(event.key)
        if row is not None:
            open_page(self, row)

    # --- what keys are about ------------------------------------------------------------------------------------------

    def chosen(self) -> list[AlertRow]:
        """The marked rows in their order, else the one under the cursor."""
        table = self._table
        marked = [self._rows[key] for key in table.view if key in table.marked and key in self._rows]
        return marked or ([self._row] if self._row is not None else [])

    def selected_nodes(self) -> Iterable[str]:
        """The nodes that the chosen ones are on, by this console's names."""
        session = self.deck.session
        if session is None:
            return ()
        lines = [row.line for row in self.chosen() if row.line is not None]
        names = real_names(session.fleet, [name for line in lines for name in line.nodes])
        return [name for name in dict.fromkeys(names) if name in session.fleet.nodes]

    def selected_node(self) -> str | None:
        """The node of the one under the cursor, where it is one."""
        names = list(self.selected_nodes())
        return names[0] if len(names) == 1 else None

    def selected_runs(self) -> Iterable[str]:
        """The runs that the chosen ones are about."""
        session = self.deck.session
        lines = [row.line for row in self.chosen() if row.line is not None]
        found = [line.alert.run if line.alert is not None else line.target for line in lines]
        known = session.work.runs if session is not None else {}
        return [name for name in dict.fromkeys(found) if name in known]

    def copy_text(self) -> str:
        """What is under the cursor, in a line."""
        row = self._row
        return "" if row is None or row.line is None else row.line.text

    def raw(self) -> Any:
        """What is under the cursor as JSON."""
        row = self._row
        if row is None:
            return None
        if row.line is None:
            return silence_document(row.silence) if row.silence is not None else None
        return line_document(row.line, row.silence)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that touch are off in read-only mode."""
        known = BY_NAME.get(action)
        return None if known is not None and known.touches and self.deck.settings.read_only else True

    # --- keys that look -----------------------------------------------------------------------------------------------

    def action_alert_node(self) -> None:
        """The node that it is on; which, where there are several."""
        names = list(self.selected_nodes())
        if not names:
            self.notify("no node of this console is under the cursor", severity="warning")
        elif len(names) == 1:
            self.deck.open_node(names[0])
        else:
            from console.screens.alertforms import NamesDialog

            self.deck.push_screen(NamesDialog("Which node", names), self._open_named)

    def _open_named(self, name: str | None) -> None:
        if name is not None:
            self.deck.open_node(name)

    def action_alert_run(self) -> None:
        """The run that it is about."""
        run = next(iter(self.selected_runs()), None)
        if run is None:
            self.notify("it is about no run that is known here", severity="warning")
        else:
            self.deck.open_run(run)

    def action_log(self) -> None:
        """The log of that run."""
        run = next(iter(self.selected_runs()), None)
        if run is not None:
            self.deck.open_log(run)

    def action_alert_history(self) -> None:
        """Those that ended too."""
        self.deck.push_screen(AlertHistoryScreen())

    def action_why(self) -> None:
        """What broke, and whose fault it is: of the run that it is about, else of its node."""
        self.deck.triage(next(iter([*self.selected_runs(), *self.selected_nodes()]), ""))

    # --- keys that touch ----------------------------------------------------------------------------------------------

    def _told(self, verb: str) -> list[Alert]:
        """The alerts among the chosen ones that the controller knows; what is none is said to be none."""
        lines = [row.line for row in self.chosen() if row.line is not None and not row.line.ended]
        found = [line.told for line in lines if line.told is not None]
        others = [line for line in lines if line.told is None]
        if others:
            said = listed([line.text for line in others], NAMED)
            self.notify(f"the controller has no alert about this, so that there is nothing to {verb}: {said}",
                        severity="warning", markup=False)  # fmt: skip
        elif not found:
            self.notify(f"nothing that fires is under the cursor: there is nothing to {verb}", severity="warning")
        return found

    def action_acknowledge(self) -> None:
        """Say that one has them."""
        alerts = self._told("acknowledge")
        fresh = [each for each in alerts if each.acknowledged is None]
        if alerts and not fresh and (has := alerts[0].acknowledged) is not None:
            self.notify(f"{has.user} has it already", markup=False)
        elif fresh and self.deck.session is not None:
            self.deck.touch(self._acknowledge(self.deck.session, fresh), "acknowledge")

    async def _acknowledge(self, session: Session, alerts: list[Alert]) -> None:
        from console import alerting

        answer = await self.deck.confirmed(alerting.acknowledge_preview(alerts))
        if answer is not None:
            reply = await alerting.acknowledge(await session.controller(), [each.id for each in alerts], answer.reason)
            self._done(session, reply, f"{some(len(reply.changed), 'alert')} acknowledged: you have "
                                       f"{'it' if len(reply.changed) == 1 else 'them'}")  # fmt: skip

    def action_clear_alert(self) -> None:
        """Clear them after a repair."""
        from console import alerting

        alerts = self._told("clear")
        firm = [why for each in alerts if (why := alerting.why_not_clear(each))]
        if firm:
            self.notify("; ".join(firm[:NAMED]), severity="warning", markup=False, timeout=8)
        fresh = [each for each in alerts if alerting.clearable(each)]
        if fresh and self.deck.session is not None:
            self.deck.touch(self._clear(self.deck.session, fresh), "clear")

    async def _clear(self, session: Session, alerts: list[Alert]) -> None:
        from console import alerting
        from console.screens.alertforms import ClearDialog

        answer = await self.deck.push_screen_wait(ClearDialog(alerting.clear_preview(alerts)))
        if answer is not None:
            reply = await alerting.clear(await session.controller(), [each.id for each in alerts], answer.reason)
            self._done(session, reply, f"{some(len(reply.changed), 'alert')} cleared")

    def action_mute(self) -> None:
        """Silence them for a while; what is silenced already is told of again."""
        session, rows = self.deck.session, self.chosen()
        if session is None or not rows:
            return
        silences = list({row.silence.id: row.silence for row in rows if row.silence is not None}.values())
        if silences and all(row.silence is not None for row in rows):
            self.deck.touch(self._unmute(session, silences), "mute")
            return
        alerts = self._told("silence")
        if alerts:
            self._offer(session, alerts)

    def _offer(self, session: Session, alerts: list[Alert]) -> None:
        from console.screens.alertforms import matchers_of

        if matchers_of(alerts):
            self.deck.touch(self._mute(session, alerts), "mute")
        else:
            self.notify("these have neither a rule, nor a node, nor a run in common: silence them one by one",
                        severity="warning")  # fmt: skip

    async def _mute(self, session: Session, alerts: list[Alert]) -> None:
        from console import alerting
        from console.screens.alertforms import SilenceDialog, SilencePlan, SilenceValues, matchers_of

        matchers = matchers_of(alerts)

        async def ask(values: SilenceValues, reason: str, *, dry_run: bool = True) -> AlertsReply:
            seconds = values.seconds(datetime.now().astimezone())
            client = await session.controller()
            return await alerting.silence(client, matchers[values.what], seconds, reason, dry_run=dry_run)

        async def plan(values: SilenceValues, reason: str) -> SilencePlan:
            return SilencePlan(await ask(values, reason))

        agreed = await self.deck.push_screen_wait(
            SilenceDialog(
                matchers,
                plan,
                lambda told, values: alerting.silence_preview(
                    told.reply,
                    matchers[values.what],
                    values.seconds(datetime.now().astimezone()),
                    session.head_wall(),
                ),
            )
        )
        if agreed is not None:
            reply = await ask(agreed.values, agreed.reason, dry_run=False)
            self._done(session, reply, f"silenced: {matchers[agreed.values.what].words}")

    async def _unmute(self, session: Session, silences: Sequence[Silence]) -> None:
        from console import alerting

        names = {each.id for each in silences}
        view = session.work.alerts.view
        hidden = [each for each in (view.alerts if view else []) if each.silenced_by in names]
        preview = alerting.end_silence_preview(silences, hidden, self.deck.you, session.head_wall())
        answer = await self.deck.confirmed(preview)
        if answer is None:
            return
        client = await session.controller()
        for each in silences:
            self._done(session, await alerting.end_silence(client, each.id, answer.reason), "")
        self.deck.tell(f"{some(len(silences), 'silence')} ended")

    def _done(self, session: Session, reply: AlertsReply, said: str) -> None:
        """What was just done is seen at once, not with the next event."""
        session.work.alerts.take(reply.view)
        text = "\n".join([*([said] if said else []), *reply.already])
        if text:
            self.deck.tell(text)
