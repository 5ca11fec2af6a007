"""One line of a form that is chosen and not typed: one of a few words, or a box that is ticked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

from console.render.cells import cell_len


class Choice(Widget, can_focus=True):
    """One of several, all of them in sight. Space or right takes the next one, left the one before.

    What is chosen is told by its sign, not by colour alone.
    """

    DEFAULT_CSS = """
    Choice { height: 1; width: auto; }
    Choice:focus { background: $block-cursor-background; color: $block-cursor-foreground; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,right,enter", "step(1)", show=False),
        Binding("left", "step(-1)", show=False),
    ]

    class Changed(Message):
        """Another one is chosen."""

        def __init__(self, choice: Choice) -> None:
            self.choice = choice
            super().__init__()

        @property
        def control(self) -> Choice:
            return self.choice

    def __init__(self, options: Sequence[tuple[str, str]], *, id: str) -> None:  # noqa: A002
        """``options``: value and words of each; the first one is chosen."""
        super().__init__(id=id)
        self._options = list(options)
        self._at = 0

    @property
    def value(self) -> str:
        """The value of the one that is chosen."""
        return self._options[self._at][0]

    def action_step(self, by: int) -> None:
        """The next one, or the one before."""
        self._at = (self._at + by) % len(self._options)
        self.refresh()
        self.post_message(self.Changed(self))

    def _text(self) -> str:
        return "  ".join(
            f"({'*' if number == self._at else ' '}) {words}" for number, (_, words) in enumerate(self._options)
        )

    def get_content_width(self, container: object, viewport: object) -> int:
        """As wide as its words."""
        return cell_len(self._text())

    def render(self) -> Text:
        """All of them in one line."""
        return Text(self._text(), no_wrap=True, overflow="crop")


class Tick(Choice):
    """A box that is ticked or not."""

    def __init__(self, words: str, *, id: str) -> None:  # noqa: A002
        super().__init__([("", words), ("yes", words)], id=id)

    @property
    def ticked(self) -> bool:
        """Whether it is."""
        return self.value == "yes"

    def _text(self) -> str:
        return f"[{'x' if self.ticked else ' '}] {self._options[0][1]}"
