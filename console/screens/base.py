"""What every screen has: a status line above, the keys below, the input line, keys that mean the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Input
from textual.worker import Worker

from console.actions import ACTIONS, key_label
from console.render.cells import Spans
from console.screens.place import Place
from console.widgets.lines import Lines
from console.widgets.table import VirtualTable
from jobs.client import ControllerClient
from jobs.errors import RaydeckError

WIDGET_ACTIONS = frozenset({"move", "mark", "follow", "wrap", "next_pane"})
"""Bound by the table and the log themselves, or by Textual."""
APP_ACTIONS = frozenset(
    {
        "help", "command", "fleet", "runs", "queue", "releases", "audit", "refresh", "mouse", "copy", "raw", "shell",
        "controller", "launch", "stop", "restart", "rollback", "arrange", "drains", "alerts", "validations",
        "validate",
        "cordon", "uncordon", "drain", "retire", "rejoin", "end_process", "kill_process",
        "more_time", "end_rest", "give_up", "stop_drain",
        "earlier", "later", "minute_earlier", "minute_later", "mark_before", "mark_after", "play",
    }
)  # fmt: skip
"""The same on every screen, so that the app has them; what they are about, the screen in front says."""


def bindings_for(*scopes: str) -> list[BindingType]:
    """The keys of some scopes, from the table of actions."""
    return [
        Binding(
            ",".join(action.keys),
            f"app.{action.name}" if action.name in APP_ACTIONS else action.name,
            action.footer or action.sentence,
            show=bool(action.footer),
            key_display=key_label(action.keys[0]),
            id=action.name,
            priority=False,
        )
        for action in ACTIONS
        if action.scope in scopes and action.name not in WIDGET_ACTIONS
    ]


class PromptLine(Input):
    """The one input line, at the bottom; hidden until asked for."""

    DEFAULT_CSS = """
    PromptLine { dock: bottom; height: 1; border: none; padding: 0 1; display: none; }
    PromptLine:focus { border: none; }
    PromptLine.-open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel", show=False)]

    def open(self, label: str, value: str = "") -> None:
        """Show it, and take the keys."""
        self.placeholder = label
        self.value = value
        self.add_class("-open")
        self.focus()

    def close(self) -> None:
        """Hide it, and give the keys back."""
        self.remove_class("-open")
        self.screen.focus_next()

    def action_cancel(self) -> None:
        """Back to what it was."""
        self.value = ""
        self.close()


class DeckScreen(Place):
    """A screen of the console. Subclasses say what is between the status line and the keys."""

    CSS_PATH = Path(__file__).parents[1] / "raydeck.tcss"
    PROMPT: ClassVar[str] = "show only rows with…   (! in front: without it)"
    AUTO_FOCUS = "VirtualTable, LogView"

    def body(self) -> ComposeResult:
        """What is between the status line and the keys."""
        yield from ()

    def compose(self) -> ComposeResult:
        """Status line, body, input line, keys."""
        self.set_class(self.deck.replay is not None, "-replay")
        yield Lines(self.status, id="status", most=1)
        yield from self.body()
        yield PromptLine(id="prompt")
        yield Footer(show_command_palette=False, compact=True)
        yield Lines(self._replay_keys, id="replay-keys", most=1)

    def _replay_keys(self, _: int) -> list[Spans]:
        replay = self.deck.replay
        return [] if replay is None else [replay.keys()]

    def status(self, width: int) -> list[Spans]:
        """The status line; of a recording, which moment of it is looked at."""
        replay = self.deck.replay
        return super().status(width) if replay is None else [replay.line(self.place, width)]

    def frame(self, nodes: set[str], runs: set[str]) -> None:
        """Something changed: the status line did."""
        # Below stands what one can do: in a recording that is to go through it.
        if (self.deck.replay is not None) != self.has_class("-replay"):
            self.toggle_class("-replay")
            self.query_one("#replay-keys", Lines).touch()
        self.query_one("#status", Lines).touch()

    # --- keys that mean the same everywhere ---------------------------------------------------------------------------

    @property
    def prompt(self) -> PromptLine:
        """The input line."""
        return self.query_one(PromptLine)

    def filter_text(self, text: str) -> None:
        """Show only what has this text; called at each key."""
        if self.table:
            self.table.set_filter(text)

    def action_filter(self) -> None:
        """Ask what to show only."""
        self.prompt.open(self.PROMPT, self.prompt.value)

    @on(Input.Changed, "#prompt")
    def _prompt_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.PROMPT == DeckScreen.PROMPT:
            self.filter_text(event.value)

    @on(Input.Submitted, "#prompt")
    def _prompt_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.prompt.remove_class("-open")
        self.filter_text(event.value)
        self.focus_body()

    def focus_body(self) -> None:
        """The keys go back to what is looked at."""
        for widget in self.query("VirtualTable, LogView"):
            if widget.display:
                widget.focus()
                return

    def action_back(self) -> None:
        """Clear the filter, else go back to now from a recording, else close this screen. Never quits."""
        if self.prompt.value:
            self.prompt.value = ""
            self.filter_text("")
        elif self.deck.leave_replay():
            return
        elif len(self.app.screen_stack) > 2:
            self.dismiss()

    def action_quit(self) -> None:
        """Back, or quit at the first screen."""
        if len(self.app.screen_stack) > 2:
            self.dismiss()
        else:
            self.app.exit()

    @property
    def table(self) -> VirtualTable[Any] | None:
        """The table that has the keys, or the first one."""
        if isinstance(self.focused, VirtualTable):
            return self.focused
        tables = [table for table in self.query(VirtualTable) if table.display]
        return tables[0] if tables else None

    def action_sort_next(self) -> None:
        """Sort by the column to the right."""
        if self.table:
            self.table.next_sort()

    def action_sort_previous(self) -> None:
        """Sort by the column to the left."""
        if self.table:
            self.table.previous_sort()

    def action_reverse(self) -> None:
        """Turn the order round."""
        if self.table:
            self.table.reverse_sort()

    def action_mark_all(self) -> None:
        """Mark all rows that are shown, or none."""
        if self.table and self.table.marked:
            self.table.clear_marks()
        elif self.table:
            self.table.mark_all()

    def action_open(self) -> None:
        """Open what is under the cursor."""
        if self.table:
            self.table.action_open()


class AskingScreen(DeckScreen):
    """A screen whose rows the controller has to be asked for: when it opens, and again while it is in front."""

    PERIOD_SECONDS: ClassVar[float] = 5.0
    _asking: Worker[None] | None = None

    async def ask(self, client: ControllerClient) -> None:
        """Ask, and show."""
        raise NotImplementedError

    def begin(self) -> None:
        """Ask at once, and then again and again."""
        self.ask_again()
        self.set_interval(self.PERIOD_SECONDS, self._due)

    def _due(self) -> None:
        if self.is_current:
            self.ask_again()

    def ask_again(self) -> None:
        """Ask, unless an answer is still on its way."""
        if self._asking is None or self._asking.is_finished:
            self._asking = self.run_worker(self._ask(), name="ask", exit_on_error=False)

    async def _ask(self) -> None:
        session = self.deck.session
        if session is None:
            return
        try:
            await self.ask(await session.controller())
        except RaydeckError as error:
            self.failed(str(error))
        else:
            self.failed("")

    def failed(self, text: str) -> None:
        """Why there is no answer; empty: there is. An empty table never stands for a failure."""
        if self.table:
            self.table.message_style = "bad"
            self.table.message = text


class OfRuns(DeckScreen):
    """A screen whose keys are about runs: those that are marked, or the one under the cursor."""

    def run_under_cursor(self) -> str | None:
        """The run that a key about one run is about."""
        return next(iter(self.selected_runs()), None)

    def action_why(self) -> None:
        """Why the run waits, failed, hangs or is slow."""
        if key := self.run_under_cursor():
            self.deck.triage(key)

    def action_log(self) -> None:
        """The log of the run."""
        key, session = self.run_under_cursor(), self.deck.session
        if key is not None and session is not None and key in session.work.runs:
            self.deck.open_log(key)

    def action_sweep(self) -> None:
        """The sweep that the run is of."""
        key, session = self.run_under_cursor(), self.deck.session
        run = session.work.runs.get(key) if session and key else None
        if run is not None and run.sweep:
            self.deck.open_sweep(run.sweep)
        else:
            self.notify(f"{key or 'nothing'} is of no sweep")
