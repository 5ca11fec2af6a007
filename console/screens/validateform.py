"""How much is to be proven: the profiles, each with what it takes. The preview comes after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from console.render.prose import listed
from console.validating import TAKES
from jobs.validationview import PROFILES, Profile

SENTENCES: dict[Profile, str] = {
    "prolog": "that nothing is broken: before a run",
    "quick": "that it computes and communicates right",
    "standard": "with links, training and a checkpoint",
    "full": "all of it, larger and for longer",
}


class ProfileDialog(ModalScreen[str | None]):
    """Which profile."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", show=False)]
    AUTO_FOCUS = "OptionList"

    def __init__(self, nodes: Sequence[str]) -> None:
        """``nodes``: those that are marked; none: all."""
        super().__init__()
        self._chosen_nodes = nodes

    def compose(self) -> ComposeResult:
        """The profiles, the usual one under the cursor."""
        with Vertical(classes="dialog"):
            who = listed(self._chosen_nodes, 4) if self._chosen_nodes else "every node that has GPUs"
            yield Static(f"Validate {who}", classes="dialog-title", markup=False)
            options = OptionList(
                *(Option(f"{name:<9} {TAKES[name]:<14} {SENTENCES[name]}", id=name) for name in PROFILES), compact=True
            )
            options.highlighted = PROFILES.index("standard")
            yield options
            yield Static("enter: preview   esc: cancel", classes="dialog-hint")

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def action_cancel(self) -> None:
        """Nothing happens."""
        self.dismiss(None)
