"""The dialog of what is done to nodes: choices, and what they would do, worked out anew whenever one changes.

What is shown is a dry run on the controller, by the code of the deed. Nothing is done here: it gives back what was
agreed to. The focus starts on Cancel, escape changes nothing, and what a person has not seen yet cannot be agreed to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from console.preview import Preview
from console.render.cells import Spans, glyph
from console.render.prose import paragraph
from console.screens.dialogs import BUTTON_KEYS
from console.screens.place import is_open
from console.widgets.choice import Choice
from console.widgets.lines import Lines
from jobs.errors import RaydeckError


class Planned(Protocol):
    """What a dry run gives: whether anything would change is all that the dialog has to know of it."""

    @property
    def changes(self) -> bool: ...


Values = TypeVar("Values")
Plan = TypeVar("Plan", bound=Planned)

TYPING_SECONDS = 0.3
"""So long after the last letter the controller is asked again."""
AROUND_LINES = 8
"""Border, title and buttons with what is between them, and a line of what is below."""


@dataclass(frozen=True, slots=True)
class Agreed(Generic[Values]):
    """What the person said yes to, and why."""

    reason: str
    values: Values


class PlanDialog(ModalScreen[Agreed[Values] | None], Generic[Values, Plan]):
    """Choices above, the deed below. A subclass has the choices (`fields`), and reads them (`values`)."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel", show=False),
        Binding("down", "scroll(1)", show=False),
        Binding("up", "scroll(-1)", show=False),
        Binding("pagedown", "scroll(10)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        *BUTTON_KEYS,
    ]
    AUTO_FOCUS = "#cancel"
    LETTERS: ClassVar[dict[str, str]] = {}
    """Letter to the id of the field that it goes to; ``r`` and ``y`` are taken."""

    def __init__(
        self,
        title: str,
        ask: Callable[[Values, str], Awaitable[Plan]],
        show: Callable[[Plan, Values], Preview],
    ) -> None:
        """A dialog.

        Args:
            title: Until the controller has said more.
            ask: What these choices, with this reason, would do.
            show: That in words.
        """
        super().__init__()
        self._title, self._ask, self._show = title, ask, show
        self._planned: tuple[Values, Plan, Preview] | None = None
        self._trouble = ""
        self._timer: Timer | None = None

    # What a subclass says

    def fields(self) -> ComposeResult:
        """The choices, each a row."""
        yield from ()

    def values(self) -> Values:
        """What is chosen. Raises `ValueError` with a sentence."""
        raise NotImplementedError

    def planned(self, plan: Plan) -> None:
        """Another plan is there."""

    # The dialog

    def compose(self) -> ComposeResult:
        """Title, what it does, choices, reason, what has to be typed, buttons."""
        with Vertical(classes="dialog plan"):
            yield Static(self._title, classes="dialog-title", id="plan-title", markup=False)
            with VerticalScroll(classes="dialog-body", id="plan-body", can_focus=False):
                yield Lines(self._lines, id="plan-lines", most=500)
            with Vertical(id="plan-fields"):
                yield row(
                    "r reason", Input(placeholder="others see it; goes to the audit log", id="reason", compact=True)
                )
                yield from self.fields()
                yield row("", Input(id="typed", compact=True), id="typed-row")
            with Horizontal(classes="dialog-buttons"):
                yield Static(
                    f"letter: choice   {glyph('↑ ↓', 'up down')}: read on", classes="dialog-hint", id="plan-hint"
                )
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Yes (y)", id="yes", variant="error", compact=True)

    def on_mount(self) -> None:
        """Ask."""
        if is_open(self):
            self.query_one("#typed-row").display = False
            self._fit()
            self.ask_again()

    def on_resize(self) -> None:
        """Another size."""
        if is_open(self):
            self._fit()

    def _fit(self) -> None:
        """As much room for what it does as the choices leave: they have to stay in sight."""
        rows = sum(bool(line.display) for line in self.query(".field"))
        self.query_one("#plan-body").styles.max_height = max(3, self.app.size.height - AROUND_LINES - rows)

    def _lines(self, width: int) -> list[Spans]:
        if self._trouble:
            return paragraph(self._trouble, width, style="bad")
        if self._planned is None:
            return paragraph("asking the controller what it would do …", width, style="muted")
        return list(_said(self._planned[2], width))

    def ask_again(self) -> None:
        """Ask what the choices of now would do. What was asked before is no longer wanted."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self.run_worker(self._fill, name="plan", group="plan", exclusive=True, exit_on_error=False)

    async def _fill(self) -> None:
        reason = self.query_one("#reason", Input).value.strip()
        try:
            values = self.values()
            plan = await self._ask(values, reason)
        except (RaydeckError, ValueError) as error:
            self._planned, self._trouble = None, str(error)
        else:
            self._planned, self._trouble = (values, plan, self._show(plan, values)), ""
            self.planned(plan)
        self._tell()

    def _tell(self) -> None:
        """The title, what it does, and what has to be typed for it."""
        preview = self._planned[2] if self._planned else None
        changes = self._planned is None or self._planned[1].changes
        yes, typed = self.query_one("#yes", Button), self.query_one("#typed-row")
        if preview is not None:
            self.query_one("#plan-title", Static).update(preview.title)
            yes.label = "Yes (y)" if preview.ask == "y" else "Do it"
            what = "the name" if preview.ask == "name" else "how many"
            self.query_one("#typed", Input).placeholder = f"type {what}: {preview.expected}"
        typed.display = preview is not None and preview.ask != "y" and changes
        yes.display = changes
        self._fit()
        self.query_one("#plan-lines", Lines).touch()

    # Keys

    def on_key(self, event: events.Key) -> None:
        """A letter goes to its choice, ``y`` says yes; not while text is being typed."""
        if isinstance(self.focused, Input):
            return
        if event.key == "y":
            event.stop()
            self._agree()
            return
        target = "reason" if event.key == "r" else self.LETTERS.get(event.key)
        found = self.query(f"#{target}") if target else None
        if found:
            event.stop()
            widget = found.first(Widget)
            widget.focus()
            if isinstance(widget, Choice):
                widget.action_step(1)

    @on(Choice.Changed)
    def _chosen(self) -> None:
        self.ask_again()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        """Other text in a choice. Another reason only matters where nothing else would change."""
        if event.input.id == "typed" or (event.input.id == "reason" and self._planned and self._planned[1].changes):
            return
        if event.input.id == "reason" and not event.value.strip():
            return
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(TYPING_SECONDS, self.ask_again)

    def action_scroll(self, lines: int) -> None:
        """Up or down, where there is more to read than has room."""
        self.query_one("#plan-body", VerticalScroll).scroll_relative(y=lines, animate=False)

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        """From the reason or what had to be typed: yes, or to what is missing. From a choice: what it would do."""
        event.stop()
        if event.input.id in ("reason", "typed"):
            self._agree()
        else:
            self.ask_again()
            self.query_one("#reason").focus()

    @on(Button.Pressed, "#yes")
    def _yes(self) -> None:
        self._agree()

    @on(Button.Pressed, "#cancel")
    def _no(self) -> None:
        self.dismiss(None)

    def action_cancel(self) -> None:
        """Nothing happens."""
        self.dismiss(None)

    def _agree(self) -> None:
        """Yes, if all that it takes is there; else to what is missing."""
        try:
            values = self.values()
        except ValueError as error:
            self.notify(str(error), severity="warning", markup=False)
            return
        reason = self.query_one("#reason", Input).value.strip()
        if not reason and (self._planned is None or self._planned[1].changes):
            self.query_one("#reason").focus()
            return
        if self._planned is None or self._planned[0] != values or self._timer is not None:
            self.notify(self._trouble or "what it would do is still being asked for", severity="warning", markup=False)
            return
        _, plan, preview = self._planned
        if not plan.changes:
            self.dismiss(None)
            return
        typed = self.query_one("#typed", Input)
        if preview.ask != "y" and typed.value.strip() != preview.expected:
            if self.focused is typed:
                self.notify(f"type {preview.expected!r} to go on", severity="warning", markup=False)
            typed.focus()
            return
        self.dismiss(Agreed(reason, values))


def row(label: str, *widgets: Widget, id: str | None = None) -> Horizontal:  # noqa: A002
    """One line of a form."""
    return Horizontal(Static(label, classes="field-label", markup=False), *widgets, classes="field", id=id)


def _said(preview: Preview, width: int) -> Iterator[Spans]:
    for line in preview.lines:
        yield from paragraph(line, width, indent=2)
    for line in preview.warnings:
        yield from paragraph(f"! {line}", width, style="warn", indent=2)
