"""An app around the widgets under test, with our themes and no clock of its own."""

from collections.abc import Callable
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget

from console.theme import THEMES


class Deck(App[None]):
    """Shows the widgets it is given, and keeps the messages that they post."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: $background; color: $foreground; }
    """

    def __init__(self, *shown: Widget, css: str = "", theme: str = "raydeck-dark") -> None:
        super().__init__()
        self.shown = shown
        self._theme_name = theme
        self._extra_css = css

    def on_load(self) -> None:
        if self._extra_css:
            self.stylesheet.add_source(self._extra_css, read_from=("the test", ""))

    def compose(self) -> ComposeResult:
        yield from self.shown

    def on_mount(self) -> None:
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = self._theme_name

    def lines(self) -> list[str]:
        """What stands on the screen, without trailing spaces."""
        return [strip.text.rstrip() for strip in self.screen._compositor.render_strips()]


@pytest.fixture
def deck() -> Callable[..., Deck]:
    """Makes an app around widgets: ``deck(widget, css=…, theme=…)``."""
    return Deck


@pytest.fixture
def until() -> Callable[[Pilot[Any], Callable[[], bool]], Any]:
    """Waits for a condition, three seconds at most: ``await until(pilot, lambda: …)``."""

    async def wait(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
        for _ in range(300):
            if condition():
                return
            await pilot.pause(0.01)
        raise AssertionError("the condition did not come true within 3 s")

    return wait
