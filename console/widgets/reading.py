"""A stretch of text that scrolls with the keys of a table, and leaves all other keys to the screen."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll


class Reading(VerticalScroll, inherit_bindings=False):
    """Something to read that may be longer than its room."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "scroll_down", show=False, id="reading.down"),
        Binding("k,up", "scroll_up", show=False, id="reading.up"),
        Binding("g,home", "scroll_home", show=False, id="reading.first"),
        Binding("G,end", "scroll_end", show=False, id="reading.last"),
        Binding("ctrl+d,pagedown", "page_down", show=False, id="reading.page_down"),
        Binding("ctrl+u,pageup", "page_up", show=False, id="reading.page_up"),
    ]
