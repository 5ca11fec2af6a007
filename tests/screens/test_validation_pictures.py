"""The validations, as pictures in two sizes."""

from __future__ import annotations

from typing import Any

import pytest

from console.screens.validation import ValidationScreen, ValidationsScreen
from tests.screens.frozen import FrozenApp
from tests.screens.seen import SIZES
from tests.screens.test_work_pictures import shown
from tests.screens.validated import FOUND, GOING, validated


@pytest.mark.parametrize("size", SIZES)
class TestScreens:
    """Each in two sizes."""

    def test_list(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown("FAIL")
        assert snap_compare(FrozenApp(validated(), first=ValidationsScreen), terminal_size=size, run_before=before)

    def test_found(self, snap_compare: Any, size: tuple[int, int]) -> None:
        app = FrozenApp(validated(), first=lambda: ValidationScreen(FOUND))
        assert snap_compare(app, terminal_size=size, run_before=shown("digest 41ac"))

    def test_links(self, snap_compare: Any, size: tuple[int, int]) -> None:
        app = FrozenApp(validated(), first=lambda: ValidationScreen(FOUND))
        assert snap_compare(app, terminal_size=size, run_before=shown("digest 41ac", "judged by: like", keys=["G"]))

    def test_going(self, snap_compare: Any, size: tuple[int, int]) -> None:
        app = FrozenApp(validated(), first=lambda: ValidationScreen(GOING))
        assert snap_compare(app, terminal_size=size, run_before=shown("left"))
