"""The dialog of `P`: how runs wait. One letter for each change; what it does is shown and asked for after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from console.dispatch import Change
from console.render.prose import listed, some
from console.screens.place import is_open
from jobs.model import Run
from jobs.queueview import QueueView

Field = Literal["before", "after", "queue", "priority"]
"""What is still to be named after the letter."""

MOST_OFFERED = 200


@dataclass(frozen=True, slots=True)
class Letter:
    """One change that one key asks for."""

    key: str
    words: str
    change: Change | None = None
    """What it is; None where something has to be named first."""
    asks: Field | None = None


LETTERS: tuple[Letter, ...] = (
    Letter("l", "priority low", Change(priority="low")),
    Letter("n", "priority normal", Change(priority="normal")),
    Letter("h", "priority high", Change(priority="high")),
    Letter("p", "priority by number …", asks="priority"),
    Letter("k", "keep it waiting (hold)", Change(hold=True)),
    Letter("r", "release it", Change(hold=False)),
    Letter("f", "first of all", Change(place="first")),
    Letter("e", "end of the line", Change(place="last")),
    Letter("b", "before another run …", asks="before"),
    Letter("a", "after another run …", asks="after"),
    Letter("o", "its own place, by priority and time", Change(place="own")),
    Letter("q", "another queue …", asks="queue"),
)


class ArrangeDialog(ModalScreen[Change | None]):
    """Which change. Escape goes back, and changes nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", show=False)]
    AUTO_FOCUS = "#letters"

    def __init__(self, runs: Sequence[Run], queue: QueueView | None) -> None:
        super().__init__()
        self._runs, self._queue = runs, queue
        self._asks: Field | None = None

    def compose(self) -> ComposeResult:
        """The letters; behind them the line and the list that name a thing."""
        names = listed([run.id for run in self._runs], 3)
        with Vertical(classes="dialog"):
            yield Static(f"Change how {names} waits" if len(self._runs) == 1 else
                         f"Change how {some(len(self._runs), 'run')} wait: {names}",
                         classes="dialog-title", markup=False)  # fmt: skip
            yield Static(self._now_text(), id="now", markup=False)
            yield OptionList(*(Option(f" {one.key}   {one.words}", id=one.key) for one in LETTERS), id="letters",
                             compact=True)  # fmt: skip
            yield Input(id="named", compact=True)
            yield OptionList(id="offered", compact=True, markup=False)
            yield Static("one letter: nothing is done before you say yes   esc: cancel",
                         classes="dialog-hint", id="arrange-hint")  # fmt: skip

    def _now_text(self) -> str:
        run = self._runs[0]
        held = f", held by {run.held.user}" if run.held else ""
        return f"now: queue {run.queue}, priority {run.priority}{held}" if len(self._runs) == 1 else ""

    def on_mount(self) -> None:
        """First the letters alone."""
        if is_open(self):
            self.query_one("#named").display = self.query_one("#offered").display = False
            self.query_one("#now").display = len(self._runs) == 1

    def on_key(self, event: events.Key) -> None:
        """A letter; and from the line down into the list."""
        if self._asks is None:
            letter = next((one for one in LETTERS if one.key == event.key), None)
            if letter is not None:
                event.stop()
                self._take(letter)
        elif event.key == "down" and isinstance(self.focused, Input) and self.query_one("#offered").display:
            event.stop()
            self.query_one("#offered").focus()

    def _take(self, letter: Letter) -> None:
        if letter.asks is None:
            self.dismiss(letter.change)
            return
        self._asks = letter.asks
        named = self.query_one("#named", Input)
        named.placeholder = {
            "priority": "a whole number; low is -100, normal 0, high 100",
            "queue": "which queue",
            "before": "before which run",
            "after": "after which run",
        }[letter.asks]
        self.query_one("#letters").display = False
        named.display = True
        self.query_one("#arrange-hint", Static).update("enter: go on   ↓: choose from the list   esc: back")
        self._offer("")
        named.focus()

    def _offer(self, text: str) -> None:
        """The names that have the text in them."""
        view, own = self._queue, {run.id for run in self._runs}
        names: list[tuple[str, str]] = []
        if view is not None and self._asks == "queue":
            names = [(use.name, f"{use.waiting} wait") for use in view.queues]
        elif view is not None and self._asks in ("before", "after"):
            names = [(one.run, f"{one.position or 'held'}  {one.user}") for one in view.waiting if one.run not in own]
        offered = self.query_one("#offered", OptionList)
        offered.clear_options()
        fitting = [(name, words) for name, words in names if text.casefold() in name.casefold()][:MOST_OFFERED]
        offered.add_options([Option(f" {name}   {words}", id=name) for name, words in fitting])
        offered.display = bool(names)

    @on(Input.Changed, "#named")
    def _typed(self, event: Input.Changed) -> None:
        if self._asks is not None:
            self._offer(event.value.strip())

    @on(Input.Submitted, "#named")
    def _named(self, event: Input.Submitted) -> None:
        offered = self.query_one("#offered", OptionList)
        text = event.value.strip()
        if offered.option_count == 1:
            text = offered.get_option_at_index(0).id or text
        if text:
            self._finish(text)

    @on(OptionList.OptionSelected, "#letters")
    def _letter_chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._take(LETTERS[event.option_index])

    @on(OptionList.OptionSelected, "#offered")
    def _offer_chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            self._finish(event.option_id)

    def _finish(self, text: str) -> None:
        if self._asks == "priority":
            if not text.removeprefix("-").isdigit() and text not in ("low", "normal", "high"):
                self.notify(f"{text!r} is no whole number", severity="warning", markup=False)
                return
            self.dismiss(Change(priority=text))
        elif self._asks == "queue":
            self.dismiss(Change(queue=text))
        elif self._asks is not None:
            self.dismiss(Change(place=self._asks, other=text))

    def action_cancel(self) -> None:
        """Back to the letters, or out."""
        if self._asks is None:
            self.dismiss(None)
            return
        self._asks = None
        self.query_one("#named").display = self.query_one("#offered").display = False
        letters = self.query_one("#letters")
        letters.display = True
        letters.focus()
