"""What covers a screen for a moment: the preview that asks, the launch form, text, help. The focus starts on Cancel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from console.actions import ACTIONS, key_label
from console.preview import SAMPLES, Preview

if TYPE_CHECKING:
    from console.sources.hostkeys import HostKeyQuestion

SCOPE_TITLES = {
    "everywhere": "Everywhere",
    "table": "In a table",
    "fleet": "Nodes",
    "node": "A node's processes",
    "upkeep": "The marked nodes, or the one under the cursor",
    "drains": "Drains, when their time is up",
    "alerts": "Alerts, the marked ones or the one under the cursor",
    "triage": "Triage, about the culprit of the finding under the cursor",
    "validations": "Validations",
    "validation": "In a validation",
    "runs": "Runs",
    "run": "In a run",
    "releases": "Releases",
    "log": "In a log",
}


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The person said yes, and why."""

    reason: str


BUTTON_KEYS: list[BindingType] = [
    Binding("left", "app.focus_previous", "", show=False),
    Binding("right", "app.focus_next", "", show=False),
]


class ConfirmDialog(ModalScreen[Confirmed | None]):
    """Shows what a change does and to whom, and takes what has to be typed. Escape and Cancel change nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel", show=False),
        Binding("down", "scroll(1)", show=False),
        Binding("up", "scroll(-1)", show=False),
        Binding("pagedown", "scroll(10)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        *BUTTON_KEYS,
    ]
    AUTO_FOCUS = "#cancel"
    REASON_LAST: ClassVar[bool] = False
    """``y`` asks for the reason, and enter there does it, rather than ``y`` alone."""
    SHAPE: ClassVar[str] = "dialog"

    def __init__(self, preview: Preview) -> None:
        super().__init__()
        self.preview = preview

    def compose(self) -> ComposeResult:
        """Title, blast radius, reason, what has to be typed, buttons."""
        preview = self.preview
        with Vertical(classes=self.SHAPE):
            yield Static(preview.title, classes="dialog-title", markup=False)
            with VerticalScroll(classes="dialog-body", can_focus=False):
                for line in preview.lines:
                    yield Static(line, markup=False)
                for line in preview.warnings:
                    yield Static(f"! {line}", classes="warning", markup=False)
                yield from self.detail()
            if preview.wants_reason:
                does = "; enter does it" if self.REASON_LAST and preview.ask == "y" else ""
                yield Input(placeholder=f"reason (goes to the audit log){does}", id="reason", compact=True)
            if preview.ask != "y":
                what = "the name" if preview.ask == "name" else "how many"
                yield Input(placeholder=f"type {what}: {preview.expected}", id="typed", compact=True)
            with Horizontal(classes="dialog-buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Yes (y)" if preview.ask == "y" else "Do it", id="yes", variant="error", compact=True)

    def detail(self) -> ComposeResult:
        """More to read before one says yes."""
        yield from ()

    def on_key(self, event: events.Key) -> None:
        """``y`` says yes, where one key is enough and no text is being typed."""
        if event.key == "y" and self.preview.ask == "y" and not isinstance(self.focused, Input):
            event.stop()
            event.prevent_default()
            if self.REASON_LAST and self.preview.wants_reason:
                self.query_one("#reason").focus()
            else:
                self._confirm()

    def action_scroll(self, lines: int) -> None:
        """Up or down, where there is more to read than has room."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def _confirm(self) -> None:
        if self.preview.ask != "y" and self.query_one("#typed", Input).value.strip() != self.preview.expected:
            self.notify(f"type {self.preview.expected!r} to go on", severity="warning")
            self.query_one("#typed", Input).focus()
            return
        reason = self.query_one("#reason", Input).value.strip() if self.preview.wants_reason else ""
        self.accept(reason)

    def accept(self, reason: str) -> None:
        """Yes, and all that had to be typed was."""
        self.dismiss(Confirmed(reason))

    @on(Button.Pressed, "#yes")
    def _yes(self) -> None:
        self._confirm()

    @on(Button.Pressed, "#cancel")
    def _no(self) -> None:
        self.dismiss(None)

    @on(Input.Submitted, "#reason")
    def _reason_given(self) -> None:
        if self.REASON_LAST and self.preview.ask == "y":
            self._confirm()
            return
        (self.query_one("#typed") if self.preview.ask != "y" else self.query_one("#yes")).focus()

    @on(Input.Submitted, "#typed")
    def _typed(self) -> None:
        self._confirm()

    def action_cancel(self) -> None:
        """Nothing happens."""
        self.dismiss(None)


class LaunchDialog(ModalScreen[str | None]):
    """Which workflow: a sample that ships with raydeck, or a file."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", show=False)]
    AUTO_FOCUS = "OptionList"

    def compose(self) -> ComposeResult:
        """Samples, and a line for a path."""
        with Vertical(classes="dialog"):
            yield Static("Launch a workflow", classes="dialog-title")
            yield OptionList(
                *(Option(f"{name:<10} {sentence}", id=name) for name, sentence in SAMPLES.items()), compact=True
            )
            yield Input(placeholder="or the path of a workflow.yaml", id="path", compact=True)
            yield Static("enter: preview   tab: to the path   esc: cancel", classes="dialog-hint")

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    @on(Input.Submitted)
    def _named(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        """Nothing happens."""
        self.dismiss(None)


class TextDialog(ModalScreen[None]):
    """A text to read."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "close", "Close", show=False),
        Binding("j,down", "scroll(1)", show=False),
        Binding("k,up", "scroll(-1)", show=False),
        Binding("ctrl+d,pagedown", "scroll(10)", show=False),
        Binding("ctrl+u,pageup", "scroll(-10)", show=False),
        Binding("g,home", "scroll(-100000)", show=False),
        Binding("G,end", "scroll(100000)", show=False),
        Binding("c", "copy", show=False),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        """Title, text."""
        with Vertical(classes="dialog wide"):
            yield Static(self._title, classes="dialog-title", markup=False)
            with VerticalScroll(classes="dialog-body", can_focus=False):
                yield Static(self._text, markup=False)
            yield Static("esc: close   c: copy", classes="dialog-hint")

    def action_scroll(self, lines: int) -> None:
        """Up or down."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_copy(self) -> None:
        """To the clipboard, by OSC 52."""
        self.app.copy_to_clipboard(self._text)
        self.notify("copied")

    def action_close(self) -> None:
        """Back."""
        self.dismiss(None)


def help_text(scopes: Iterable[str], read_only: bool) -> str:
    """The keys of some scopes, made from the table of actions."""
    lines = ["lower case looks, UPPER CASE touches" + ("; touching is off: read-only" if read_only else ""), ""]
    for scope in scopes:
        actions = [action for action in ACTIONS if action.scope == scope]
        if not actions:
            continue
        lines.append(SCOPE_TITLES.get(scope, scope))
        for action in actions:
            keys = " ".join(key_label(key) for key in action.keys)
            lines.append(f"  {keys:<14} {action.sentence}" + (" (touches)" if action.touches else ""))
        lines.append("")
    return "\n".join(lines).rstrip()


class HostKeyDialog(ModalScreen[bool]):
    """An unknown host key: asked once, then stored."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "refuse", "No", show=False), *BUTTON_KEYS]
    AUTO_FOCUS = "#refuse"

    def __init__(self, question: HostKeyQuestion) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question, with the fingerprint."""
        with Vertical(classes="dialog"):
            yield Static("Unknown host key", classes="dialog-title")
            yield Static(self._question.sentence, markup=False)
            yield Static("Compare the fingerprint with one from a source that you trust.", classes="dialog-hint")
            with Horizontal(classes="dialog-buttons"):
                yield Button("No", id="refuse", compact=True)
                yield Button("It is right: store it", id="accept", variant="warning", compact=True)

    @on(Button.Pressed)
    def _answered(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "accept")

    def action_refuse(self) -> None:
        """Not now."""
        self.dismiss(False)
