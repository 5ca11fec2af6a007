"""Back in time on screen: the keys through a recording, what it shows, what it refuses, and the way back to now."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from console.app import RaydeckApp
from console.screens.fleet import FleetScreen
from console.screens.node import NodeScreen
from console.screens.work import RunsScreen
from console.settings import Settings
from console.sources.replay import recorded_context
from console.widgets.table import VirtualTable
from tests.screens.answers import WALL
from tests.screens.frozen import FrozenApp, FrozenSession
from tests.screens.recorded import BEGUN, FAILED_AT, LOST_AT, RUN, Head, recorded, unreachable
from tests.screens.seen import SIZES, text_of, until
from tests.screens.test_work_journeys import at

SIZE = (120, 40)


@pytest.fixture
def made(tmp_path: Path) -> tuple[FrozenSession, Head]:
    return recorded(tmp_path / "recording")


async def arrive(pilot: Pilot[Any], moment: float, within: float = 0.01) -> None:
    """Until this moment is shown; ``within``: seconds that it may be off."""
    app = pilot.app
    assert isinstance(app, RaydeckApp)

    def there() -> bool:
        replay = app.replay
        return replay is not None and not replay.loading and abs(replay.session.timeline.at - moment) < within

    await until(pilot, there)
    await until(pilot, lambda: "REPLAY" in text_of(app))


def told(app: FrozenApp | RaydeckApp) -> str:
    """All that was notified and still stands."""
    return "\n".join(each.message for each in app._notifications)


async def test_comma_goes_back_and_full_stop_comes_back_to_now(made: tuple[FrozenSession, Head]) -> None:
    live, _ = made
    app = FrozenApp(live)
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, FleetScreen, "worker-1")
        assert "REPLAY" not in text_of(app)
        await pilot.press("comma")
        await arrive(pilot, WALL - 10)
        assert "20:26:30, 10s ago" in text_of(app)
        assert "2m" not in text_of(app).splitlines()[0].split("before")[0]
        await pilot.press("comma")
        await arrive(pilot, WALL - 20)
        await pilot.press("left_parenthesis")
        await arrive(pilot, WALL - 80)
        await pilot.press("right_parenthesis", "full_stop")
        await arrive(pilot, WALL - 10)
        await pilot.press("full_stop")
        await until(pilot, lambda: app.replay is None and app.session is live)
        await until(pilot, lambda: "REPLAY" not in text_of(app))
        assert "now again" in told(app)


async def test_braces_go_to_what_happened_and_the_screens_show_what_was_so(made: tuple[FrozenSession, Head]) -> None:
    live, _ = made
    app = FrozenApp(live, first=RunsScreen)
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, RunsScreen, "lm-k3f9qz")
        await pilot.press("left_curly_bracket")
        await until(pilot, lambda: app.replay is not None)
        assert app.replay is not None
        assert LOST_AT <= app.replay.session.timeline.at < LOST_AT + 1
        await until(pilot, lambda: "worker-1/3" in text_of(app).splitlines()[0])
        await until(pilot, lambda: RUN in text_of(app) and "lm-k3f9qz" not in text_of(app))
        await pilot.press("left_curly_bracket")
        await until(pilot, lambda: "loss is not a number" in told(app))
        assert FAILED_AT <= app.replay.session.timeline.at < FAILED_AT + 1
        row = next(line for line in text_of(app).splitlines() if RUN in line and "REPLAY" not in line)
        assert "failed" in row
        await pilot.press("comma")
        await arrive(pilot, FAILED_AT - 10, within=1)
        row = next(line for line in text_of(app).splitlines() if RUN in line and "REPLAY" not in line)
        assert "running" in row
        await pilot.press("right_curly_bracket")
        await until(pilot, lambda: "failed" in text_of(app))
        await pilot.press("escape")
        await until(pilot, lambda: app.session is live)
        await at(pilot, RunsScreen, "lm-k3f9qz")


async def test_a_gpu_is_there_before_it_was_lost(made: tuple[FrozenSession, Head]) -> None:
    app = FrozenApp(made[0])
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, FleetScreen, "worker-1")
        await pilot.press("left_curly_bracket")
        await until(pilot, lambda: app.replay is not None and "lost" in text_of(app))
        assert app.session is not None
        assert "GPU is lost" in str(app.session.fleet.nodes["worker-1"].sample)
        await pilot.press("comma")
        await arrive(pilot, LOST_AT - 10, within=1)
        assert "GPU is lost" not in str(app.session.fleet.nodes["worker-1"].sample)


@pytest.mark.parametrize("key", ["C", "D", "S"])
async def test_nothing_is_changed_from_a_recording(made: tuple[FrozenSession, Head], key: str) -> None:
    live, head = made
    app = FrozenApp(live)
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, FleetScreen, "worker-1")
        await pilot.press("comma")
        await arrive(pilot, WALL - 10)
        app.screen.query_one(VirtualTable).move_to("worker-1")
        await pilot.press(key)
        await until(pilot, lambda: "a recording is shown: nothing is changed from here" in told(app))
        assert isinstance(app.screen, FleetScreen)
        assert live.client.asked == []
        assert set(head.asked) == {"/v1/recording/index", "/v1/recording"}


async def test_it_plays_faster_and_stands_still(made: tuple[FrozenSession, Head]) -> None:
    app = FrozenApp(made[0])
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, FleetScreen, "worker-1")
        await pilot.press("p")
        await until(pilot, lambda: "this is now" in told(app))
        for _ in range(3):
            await pilot.press("left_parenthesis")
        await arrive(pilot, WALL - 180)
        assert app.replay is not None
        await pilot.press("p")
        await until(pilot, lambda: "▶ 1×" in text_of(app))
        await pilot.press("p")
        await until(pilot, lambda: "▶ 10×" in text_of(app))
        replay = app.replay
        await until(pilot, lambda: replay.session.timeline.at > WALL - 170)
        await pilot.press("p")
        await until(pilot, lambda: "paused" in text_of(app))
        stood = replay.session.timeline.at
        assert stood < WALL - 60, "it plays ten times as fast, and no faster"


async def test_played_to_its_end_it_is_now(made: tuple[FrozenSession, Head]) -> None:
    live, _ = made
    app = FrozenApp(live)
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, FleetScreen, "worker-1")
        await pilot.press("comma")
        await arrive(pilot, WALL - 10)
        await pilot.press("p", "p")
        await until(pilot, lambda: app.replay is None and app.session is live)


async def test_before_the_beginning_there_is_nothing(made: tuple[FrozenSession, Head]) -> None:
    app = FrozenApp(made[0])
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, FleetScreen, "worker-1")
        for _ in range(12):
            await pilot.press("left_parenthesis")
        await arrive(pilot, BEGUN)
        await pilot.press("left_parenthesis")
        await until(pilot, lambda: "the recording begins here" in told(app))
        await pilot.press("left_curly_bracket")
        await until(pilot, lambda: "nothing happened before that" in told(app))


async def test_a_node_that_was_not_there_is_left(made: tuple[FrozenSession, Head]) -> None:
    live, _ = made
    app = FrozenApp(live)
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, FleetScreen, "worker-2")
        app.screen.query_one(VirtualTable).move_to("worker-2")
        await pilot.press("enter")
        await at(pilot, NodeScreen, "worker-2")
        await pilot.press("comma")
        await arrive(pilot, WALL - 10)
        assert isinstance(app.screen, NodeScreen), "it was there then, too"
        await pilot.press("escape")
        await until(pilot, lambda: app.session is live)


async def test_a_head_that_does_not_answer_leaves_one_in_the_present(made: tuple[FrozenSession, Head]) -> None:
    live, head = made
    app = FrozenApp(live)
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, FleetScreen, "worker-1")
        head.gone = True
        await pilot.press("comma")
        await until(pilot, lambda: "nobody answers" in told(app))
        assert app.replay is None
        assert app.session is live
        unreachable(live)
        await pilot.press("comma")
        await until(pilot, lambda: "the controller does not answer" in told(app))
        assert app.replay is None


async def test_a_head_that_is_lost_on_the_way_leaves_one_where_one_was(made: tuple[FrozenSession, Head]) -> None:
    live, head = made
    app = FrozenApp(live)
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, FleetScreen, "worker-1")
        await pilot.press("comma")
        await arrive(pilot, WALL - 10)
        await until(pilot, lambda: not [work for work in app.workers if work.group == "replay history"])
        head.gone = True
        assert app.replay is not None
        app.replay.source.forget(type(app.replay.session.timeline)())  # type: ignore[union-attr]
        for _ in range(3):
            await pilot.press("left_parenthesis")
        await until(pilot, lambda: "nobody answers" in told(app))
        await arrive(pilot, WALL - 10)
        await pilot.press("escape")
        await until(pilot, lambda: app.session is live)


async def test_only_what_is_looked_at_is_fetched(made: tuple[FrozenSession, Head]) -> None:
    live, head = made
    app = FrozenApp(live)
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, FleetScreen, "worker-1")
        await pilot.press("comma")
        await arrive(pilot, WALL - 10)
        await until(pilot, lambda: not [work for work in app.workers if work.group == "replay history"])
        fetched = len(head.asked)
        await pilot.press("comma", "comma", "left_parenthesis")
        await arrive(pilot, WALL - 90)
        assert len(head.asked) == fetched, "the ten minutes before came along with it"


@pytest.mark.parametrize("size", SIZES)
async def test_a_recording_in_a_file_needs_no_cluster(
    made: tuple[FrozenSession, Head], tmp_path: Path, size: tuple[int, int]
) -> None:
    _, head = made
    file = tmp_path / "night.rdrec"
    file.write_bytes(b"".join(head.writer.path(each.seq).read_bytes() for each in head.writer.index()))
    app = RaydeckApp(Settings(theme="raydeck-dark"), {"TERM": "xterm-256color"}, partial(recorded_context, file))
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "REPLAY" in text_of(app) and "worker-1" in text_of(app))
        assert "2026-05-28 20:26" in text_of(app)
        assert "q: close" in text_of(app)
        assert "lost" in text_of(app)
        await pilot.press("full_stop")
        await until(pilot, lambda: "the recording ends here" in told(app))
        await pilot.press("left_parenthesis")
        await until(pilot, lambda: app.replay is not None and app.replay.session.timeline.at < WALL - 50)
        await pilot.press("C")
        await until(pilot, lambda: "a recording is shown" in told(app))
        await pilot.press("escape")
        assert app.replay is not None, "there is no now to go back to"
