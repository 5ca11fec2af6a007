"""What stands on a screen, and how to wait until something does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.pilot import Pilot

SIZES = [(80, 24), (200, 60)]


def text_of(app: App[Any]) -> str:
    """What stands on the screen."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    """A condition, within 20 s: a busy machine is no fault of the screen."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if condition():
            return
        await pilot.pause(0.02)
    raise AssertionError(f"not within 20 s; the screen shows:\n{text_of(pilot.app)}")
