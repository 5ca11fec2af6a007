"""How the screens look back in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from console.app import RaydeckApp
from tests.screens.frozen import FrozenApp
from tests.screens.recorded import LOST_AT, recorded
from tests.screens.seen import SIZES, text_of, until


@pytest.mark.parametrize("size", SIZES)
def test_the_fleet_when_a_gpu_was_lost(snap_compare: Any, tmp_path: Path, size: tuple[int, int]) -> None:
    app = FrozenApp(recorded(tmp_path / "recording")[0])

    async def back(pilot: Pilot[Any]) -> None:
        deck = pilot.app
        assert isinstance(deck, RaydeckApp)
        await until(pilot, lambda: "worker-1" in text_of(deck))
        await pilot.press("left_curly_bracket")
        await until(pilot, lambda: deck.replay is not None and deck.replay.session.timeline.at >= LOST_AT)
        await until(pilot, lambda: "REPLAY" in text_of(deck) and "lost" in text_of(deck))
        await until(pilot, lambda: not [work for work in deck.workers if work.group == "replay history"])
        deck.clear_notifications()
        await pilot.pause(0.3)

    assert snap_compare(app, terminal_size=size, run_before=back)
