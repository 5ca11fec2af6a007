"""What `M`, `X` and `n` ask on the screen of alerts: what is silenced, for how long; what was repaired; which node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from console.preview import Preview
from console.render.cells import safe
from console.screens.dialogs import ConfirmDialog
from console.screens.nodeforms import ends_in
from console.screens.plans import PlanDialog, row
from console.widgets.choice import Choice
from jobs.alertview import Alert, AlertsReply, Matcher

SPANS = {"1h": 3600.0, "4h": 14400.0, "24h": 86400.0}
REASON = "say what was repaired: it stands in the history"


@dataclass(frozen=True, slots=True)
class SilenceValues:
    """What is silenced, and for how long."""

    what: str
    """Which of the matchers that were offered."""
    span: str
    own: str = ""
    """As it was typed: a span, or ``until 06:00``; it comes before `span`."""

    def seconds(self, now: datetime) -> float:
        """How long it lasts from now. Raises `ValueError`."""
        return ends_in(self.own, now) or SPANS[self.span]


@dataclass(frozen=True, slots=True)
class SilencePlan:
    """What a silence would do, by the controller's dry run."""

    reply: AlertsReply
    changes: bool = True
    """It is put on also where it hides nothing yet."""


def matchers_of(alerts: Sequence[Alert]) -> dict[str, Matcher]:
    """What can be silenced of these alerts, the narrowest first: what they all have in common."""
    rules = {each.rule for each in alerts}
    runs = {each.run for each in alerts}
    nodes = {tuple(each.nodes) for each in alerts}
    rule = next(iter(rules)) if len(rules) == 1 else ""
    run = next(iter(runs)) if len(runs) == 1 else ""
    one = next(iter(nodes)) if len(nodes) == 1 else ()
    node = one[0] if len(one) == 1 else ""
    found: dict[str, Matcher] = {}
    if rule and node:
        found["rule on node"] = Matcher(rule=rule, node=node)
    if rule and run and not node:
        found["rule on run"] = Matcher(rule=rule, run=run)
    if rule:
        found["rule"] = Matcher(rule=rule)
    if node:
        found["node"] = Matcher(node=node)
    if run:
        found["run"] = Matcher(run=run)
    return found


class SilenceDialog(PlanDialog[SilenceValues, SilencePlan]):
    """Have alerts not told of for a while: what that hides stands above the choices."""

    LETTERS: ClassVar[dict[str, str]] = {"w": "what", "f": "span", "o": "own"}

    def __init__(
        self,
        matchers: Mapping[str, Matcher],
        ask: Callable[[SilenceValues, str], Awaitable[SilencePlan]],
        show: Callable[[SilencePlan, SilenceValues], Preview],
    ) -> None:
        """``matchers``: what may be silenced, by a few words, the one that is offered first."""
        super().__init__("Silence", ask, show)
        self._matchers = dict(matchers)

    def fields(self) -> ComposeResult:
        """What, and for how long."""
        yield row("w this", Choice([(name, name) for name in self._matchers], id="what"))
        yield row("f for", Choice([(name, name) for name in SPANS], id="span"))
        yield row("o or for", Input(placeholder="your own: 30m, 2d, until 06:00", id="own", compact=True))

    def values(self) -> SilenceValues:
        """What is chosen."""
        what, span = self.query_one("#what", Choice).value, self.query_one("#span", Choice).value
        values = SilenceValues(what, span, self.query_one("#own", Input).value.strip())
        values.seconds(datetime.now().astimezone())
        return values


class ClearDialog(ConfirmDialog):
    """Clears alerts after a repair: what was repaired has to be said."""

    REASON_LAST: ClassVar[bool] = True

    def accept(self, reason: str) -> None:
        """Yes, if there is a reason."""
        if not reason:
            self.notify(REASON, severity="warning", markup=False)
            self.query_one("#reason", Input).focus()
            return
        super().accept(reason)


class NamesDialog(ModalScreen[str | None]):
    """One of several names."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "cancel", "Cancel", show=False),
        Binding("j", "app.simulate_key('down')", show=False),
        Binding("k", "app.simulate_key('up')", show=False),
    ]
    AUTO_FOCUS = "OptionList"

    def __init__(self, title: str, names: Sequence[str]) -> None:
        super().__init__()
        self._title, self._names = title, list(names)

    def compose(self) -> ComposeResult:
        """The names."""
        with Vertical(classes="dialog"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield OptionList(
                *(Option(safe(name).replace("[", "\\["), id=str(at)) for at, name in enumerate(self._names)),
                compact=True,
            )
            yield Static("enter: open   esc: cancel", classes="dialog-hint")

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(self._names[int(event.option_id or 0)])

    def action_cancel(self) -> None:
        """None of them."""
        self.dismiss(None)
