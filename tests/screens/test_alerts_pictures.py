"""The alerts, their dialogs and their history, and the strip that names them, as pictures in two sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from console.render.cells import use_ascii
from console.screens.alerthistory import AlertHistoryScreen
from console.screens.alerts import AlertsScreen
from tests.screens.alerted import alerted
from tests.screens.frozen import FrozenApp
from tests.screens.seen import SIZES
from tests.screens.test_work_pictures import shown

FIRST = "Look at the switch."
DOWN = ["j", "j"]


@pytest.mark.parametrize("size", SIZES)
class TestScreens:
    """Each in two sizes."""

    def test_alerts(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown(FIRST, "dead for Ray", "power-cycle it", keys=DOWN)
        assert snap_compare(FrozenApp(alerted(), first=AlertsScreen), terminal_size=size, run_before=before)

    def test_fleet(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown("3 nodes behind switch", "▸ worker-1", keys=["j"])
        assert snap_compare(FrozenApp(alerted()), terminal_size=size, run_before=before)

    def test_mute(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown(FIRST, "dead for Ray", "power-cycle it", "It hides 1 alert", keys=[*DOWN, "M"])
        assert snap_compare(FrozenApp(alerted(), first=AlertsScreen), terminal_size=size, run_before=before)

    def test_clear(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown(FIRST, "dead for Ray", "power-cycle it", "Say what was repaired", keys=[*DOWN, "X"])
        assert snap_compare(FrozenApp(alerted(), first=AlertsScreen), terminal_size=size, run_before=before)

    def test_history(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown("uncorrectable ECC")
        assert snap_compare(FrozenApp(alerted(), first=AlertHistoryScreen), terminal_size=size, run_before=before)

    def test_page(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown(FIRST, "dead for Ray", "power-cycle it", "esc: close", keys=[*DOWN, "enter"])
        assert snap_compare(FrozenApp(alerted(), first=AlertsScreen), terminal_size=size, run_before=before)


class TestHard:
    """What is hard: sixteen colours, a light ground, no UTF-8, no controller."""

    @pytest.fixture
    def ascii_only(self) -> Iterator[None]:
        use_ascii(True)
        yield
        use_ascii(False)

    @pytest.mark.parametrize("theme", ["raydeck-light", "raydeck-16", "raydeck-color-blind"])
    def test_colours(self, snap_compare: Any, theme: str) -> None:
        app = FrozenApp(alerted(), first=AlertsScreen)
        app.theme = theme
        assert snap_compare(app, terminal_size=(80, 24), run_before=shown(FIRST))

    @pytest.mark.usefixtures("ascii_only")
    def test_ascii(self, snap_compare: Any) -> None:
        app = FrozenApp(alerted(), first=AlertsScreen)
        assert snap_compare(app, terminal_size=(80, 24), run_before=shown(FIRST))

    def test_no_controller(self, snap_compare: Any) -> None:
        made = alerted()
        made.work.alerts.take(None)
        made.work.controller_state("absent", "no controller answers at /data/meta/controller.sock on head", 0.0)
        made.work.alerts.judged = 3
        app = FrozenApp(made, first=AlertsScreen)
        assert snap_compare(app, terminal_size=(80, 24), run_before=shown("3 nodes judged from here"))
