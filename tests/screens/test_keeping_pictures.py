"""Nodes that are kept free, their dialogs, the drains and what is left over on a node, as pictures in two sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from console.render.cells import use_ascii
from console.screens.drains import DrainsScreen
from console.screens.node import NodeScreen
from tests.screens.frozen import FrozenApp
from tests.screens.kept import kept, leftover
from tests.screens.seen import SIZES
from tests.screens.test_work_pictures import shown

PLANNED = "step 1,250"


@pytest.mark.parametrize("size", SIZES)
class TestScreens:
    """Each in two sizes."""

    def test_fleet(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown("out of Ray", "▸ worker-1", "landed although", keys=["j", "j"])
        assert snap_compare(FrozenApp(kept()), terminal_size=size, run_before=before)

    def test_cordon(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown("out of Ray", "▸ worker-1", PLANNED, keys=["j", "C"])
        assert snap_compare(FrozenApp(kept()), terminal_size=size, run_before=before)

    def test_uncordon(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown("out of Ray", "▸ worker-1", "landed although", "New work may start", keys=["j", "j", "U"])
        assert snap_compare(FrozenApp(kept()), terminal_size=size, run_before=before)

    def test_drain(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown("out of Ray", "▸ worker-1", PLANNED, keys=["j", "D"])
        assert snap_compare(FrozenApp(kept()), terminal_size=size, run_before=before)

    def test_drains(self, snap_compare: Any, size: tuple[int, int]) -> None:
        app = FrozenApp(kept(), first=DrainsScreen)
        assert snap_compare(app, terminal_size=size, run_before=shown("2 of 3 have left"))

    def test_node(self, snap_compare: Any, size: tuple[int, int]) -> None:
        made = kept()
        leftover(made)
        app = FrozenApp(made, first=lambda: NodeScreen("worker-2"))
        assert snap_compare(app, terminal_size=size, run_before=shown("left over: old-a1b2c3"))


class TestHard:
    """What is hard: sixteen colours, a light ground, no UTF-8, time that is up."""

    @pytest.fixture
    def ascii_only(self) -> Iterator[None]:
        use_ascii(True)
        yield
        use_ascii(False)

    @pytest.mark.parametrize("theme", ["raydeck-light", "raydeck-16", "raydeck-color-blind"])
    def test_colours(self, snap_compare: Any, theme: str) -> None:
        app = FrozenApp(kept())
        app.theme = theme
        assert snap_compare(app, terminal_size=(80, 24), run_before=shown("out of Ray"))

    @pytest.mark.usefixtures("ascii_only")
    def test_ascii(self, snap_compare: Any) -> None:
        before = shown("out of Ray", "> worker-1", "landed although", keys=["j", "j"])
        assert snap_compare(FrozenApp(kept()), terminal_size=(80, 24), run_before=before)

    def test_overdue(self, snap_compare: Any) -> None:
        app = FrozenApp(kept(overdue=True), first=DrainsScreen)
        assert snap_compare(app, terminal_size=(80, 24), run_before=shown("choose: W wait on"))

    def test_another_persons_hold(self, snap_compare: Any) -> None:
        before = shown("out of Ray", "▸ worker-1", "landed although", "New work may start", "▸ bob", "not yours",
                       keys=["j", "j", "U", "j", "enter"])  # fmt: skip
        assert snap_compare(FrozenApp(kept()), terminal_size=(80, 24), run_before=before)

    def test_sweep(self, snap_compare: Any) -> None:
        made = kept()
        leftover(made)
        app = FrozenApp(made, first=lambda: NodeScreen("worker-2"))
        before = shown("left over: old-a1b2c3", "End process 3999", keys=["T"])
        assert snap_compare(app, terminal_size=(80, 24), run_before=before)
