"""The queue, the panes of a run, releases, audit and their dialogs as pictures, each screen in two sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.screen import Screen

from console.screens.audit import AuditScreen
from console.screens.queue import QueueScreen
from console.screens.releases import ReleasesScreen
from console.screens.run import PANES, RunScreen
from console.screens.sweep import SweepScreen
from tests.screens.frozen import FrozenApp, session, swept
from tests.screens.seen import SIZES, text_of, until

RUNNING = "lm-k3f9qz"
RETRIED = "lm-w0q7x2"


STILL_TRIES = 100


def shown(*texts: str, keys: Sequence[str] = ()) -> Callable[[Pilot[Any]], Any]:
    """Presses keys, and waits for each text before the next key; at the end until the picture stands still."""

    async def before(pilot: Pilot[Any]) -> None:
        for number, text in enumerate(texts):
            if number:
                await pilot.press(keys[number - 1])
            await until(pilot, lambda text=text: text in text_of(pilot.app))
        # A page that has just come is laid out once more, and its scroll bar with it.
        last = ""
        for _ in range(STILL_TRIES):
            await pilot.pause(0.05)
            last, before_it = pilot.app.export_screenshot(), last
            if last == before_it:
                return
        raise AssertionError("the picture does not stand still")

    return before


@pytest.mark.parametrize("size", SIZES)
class TestScreens:
    """Each in two sizes."""

    def test_queue(self, snap_compare: Any, size: tuple[int, int]) -> None:
        assert snap_compare(FrozenApp(session(), first=QueueScreen), terminal_size=size, run_before=shown("lm-w2q5x2"))

    def test_why(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown("lm-w1q6x2", "In its way", keys=["i"])
        assert snap_compare(FrozenApp(session(), first=QueueScreen), terminal_size=size, run_before=before)

    def test_releases(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown("last good")
        assert snap_compare(FrozenApp(session(), first=ReleasesScreen), terminal_size=size, run_before=before)

    def test_difference(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown("last good", "▸ lm-r-91b3d0", "0.001", keys=["space", "v"])
        assert snap_compare(FrozenApp(session(), first=ReleasesScreen), terminal_size=size, run_before=before)

    def test_audit(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown("holds")
        assert snap_compare(FrozenApp(session(), first=AuditScreen), terminal_size=size, run_before=before)

    def test_sweep(self, snap_compare: Any, size: tuple[int, int]) -> None:
        app = FrozenApp(swept(), first=lambda: SweepScreen("grid-7f3a"))
        assert snap_compare(app, terminal_size=size, run_before=shown("✓ best"))

    def test_restart(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown("tokens/s", "passed over", keys=["R"])
        app = FrozenApp(session(), first=lambda: RunScreen(RUNNING))
        assert snap_compare(app, terminal_size=size, run_before=before)

    def test_rollback(self, snap_compare: Any, size: tuple[int, int]) -> None:
        before = shown("tokens/s", "saves and is stopped", "training.learning_rate", keys=["B", "enter"])
        app = FrozenApp(session(), first=lambda: RunScreen(RUNNING))
        assert snap_compare(app, terminal_size=size, run_before=before)


PANE_TEXTS = {
    "overview": "worker-2 (2 times",
    "attempts": "rank 0: 1",
    "checkpoints": "rank-3.pt",
    "events": "all 4 ranks",
    "release": "batch_size",
}


@pytest.mark.parametrize(
    ("pane", "size"),
    [*((pane, SIZES[0]) for pane in PANE_TEXTS), *((pane, SIZES[1]) for pane in ("overview", "attempts", "release"))],
)
def test_a_run(snap_compare: Any, pane: str, size: tuple[int, int]) -> None:
    async def before(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "tokens/s" in text_of(pilot.app))
        await pilot.press(*(["tab"] * list(PANES).index(pane)))
        if pane == "release":
            await pilot.press("G")
        await until(pilot, lambda: PANE_TEXTS[pane] in text_of(pilot.app))

    app = FrozenApp(session(), first=lambda: RunScreen(RETRIED))
    assert snap_compare(app, terminal_size=size, run_before=before)


class TestDialogs:
    """Dialogs and states, in the size that is hard."""

    def test_arrange(self, snap_compare: Any) -> None:
        before = shown("lm-w1q6x2", "another queue", keys=["P"])
        assert snap_compare(FrozenApp(session(), first=QueueScreen), terminal_size=(80, 24), run_before=before)

    def test_which_release(self, snap_compare: Any) -> None:
        before = shown("tokens/s", "saves and is stopped", keys=["B"])
        app = FrozenApp(session(), first=lambda: RunScreen(RUNNING))
        assert snap_compare(app, terminal_size=(80, 24), run_before=before)

    def test_a_controller_that_refuses_is_a_sentence(self, snap_compare: Any) -> None:
        made = session()
        made.client.refuses = "the journal is damaged: nothing is answered until it is restored"
        app = FrozenApp(made, first=ReleasesScreen)
        assert snap_compare(app, terminal_size=(80, 24), run_before=shown("damaged"))

    @pytest.mark.parametrize("theme", ["raydeck-light", "raydeck-16", "raydeck-color-blind"])
    def test_queue_in_other_colours(self, snap_compare: Any, theme: str) -> None:
        first: Callable[[], Screen[Any]] = QueueScreen
        app = FrozenApp(session(), first=first)
        app.theme = theme
        assert snap_compare(app, terminal_size=(80, 24), run_before=shown("lm-w2q5x2"))
