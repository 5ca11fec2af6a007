"""Each screen on a frozen cluster: what it says, where its keys lead, and its picture in two sizes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from textual.pilot import Pilot

from console.screens.dialogs import ConfirmDialog, LaunchDialog, TextDialog
from console.screens.fleet import FleetScreen
from console.screens.logs import LogScreen
from console.screens.node import NodeScreen
from console.screens.run import RunScreen
from console.screens.triage import TriageScreen
from console.screens.work import RunsScreen
from console.widgets.heatmap import Heatmap
from console.widgets.table import VirtualTable
from tests.screens.frozen import FrozenApp, session
from tests.screens.seen import SIZES, text_of, until


class TestPictures:
    """Snapshots, each screen in two sizes."""

    @pytest.mark.parametrize("size", SIZES)
    def test_fleet(self, snap_compare: Any, size: tuple[int, int]) -> None:
        assert snap_compare(FrozenApp(session()), terminal_size=size)

    @pytest.mark.parametrize("size", SIZES)
    def test_fleet_in_trouble(self, snap_compare: Any, size: tuple[int, int]) -> None:
        assert snap_compare(FrozenApp(session(trouble=True)), terminal_size=size)

    @pytest.mark.parametrize("size", SIZES)
    def test_node(self, snap_compare: Any, size: tuple[int, int]) -> None:
        assert snap_compare(FrozenApp(session(), first=lambda: NodeScreen("worker-1")), terminal_size=size)

    @pytest.mark.parametrize("size", SIZES)
    def test_runs(self, snap_compare: Any, size: tuple[int, int]) -> None:
        assert snap_compare(FrozenApp(session(trouble=True), first=RunsScreen), terminal_size=size)

    @pytest.mark.parametrize("size", SIZES)
    def test_run(self, snap_compare: Any, size: tuple[int, int]) -> None:
        async def drawn(pilot: Pilot[Any]) -> None:
            await until(pilot, lambda: "tokens/s" in text_of(pilot.app) and "rank" not in pilot.app.title)  # pyright: ignore[reportArgumentType]

        assert snap_compare(
            FrozenApp(session(), first=lambda: RunScreen("lm-k3f9qz")), terminal_size=size, run_before=drawn
        )

    @pytest.mark.parametrize("size", SIZES)
    def test_log(self, snap_compare: Any, size: tuple[int, int]) -> None:
        async def written(pilot: Pilot[Any]) -> None:
            await until(pilot, lambda: "12 lines" in text_of(pilot.app))  # pyright: ignore[reportArgumentType]

        assert snap_compare(
            FrozenApp(session(), first=lambda: LogScreen("lm-k3f9qz")), terminal_size=size, run_before=written
        )

    def test_help(self, snap_compare: Any) -> None:
        assert snap_compare(FrozenApp(session()), terminal_size=(80, 24), press=["question_mark"])

    def test_confirm(self, snap_compare: Any) -> None:
        assert snap_compare(FrozenApp(session(), first=RunsScreen), terminal_size=(80, 24), press=["K"])

    def test_light(self, snap_compare: Any) -> None:
        app = FrozenApp(session(trouble=True))
        app.theme = "raydeck-light"
        assert snap_compare(app, terminal_size=(80, 24))

    def test_sixteen_colours(self, snap_compare: Any) -> None:
        app = FrozenApp(session(trouble=True))
        app.theme = "raydeck-16"
        assert snap_compare(app, terminal_size=(80, 24))


async def test_the_heatmap_points_out_exactly_the_gpus_that_the_run_holds() -> None:
    app = FrozenApp(session())
    async with app.run_test(size=(120, 30)) as pilot:
        app.run_in_focus = "lm-k3f9qz"
        await until(pilot, lambda: bool(app.screen.query_one(Heatmap)._held))
        assert app.screen.query_one(Heatmap)._held == {"worker-1": {0, 1}, "worker-2": {0, 1}}
        app.run_in_focus = "another"
        await until(pilot, lambda: not app.screen.query_one(Heatmap)._held)


async def test_trouble_is_said_first_and_in_words() -> None:
    app = FrozenApp(session(trouble=True))
    async with app.run_test(size=(160, 50)) as pilot:
        await until(pilot, lambda: "fell off the bus" in text_of(app))
        text = text_of(app)
        assert "worker-1 is silent for 2 s; Ray still holds it alive" in text
        assert "worker-2 is dead to Ray; SSH still answers" in text
        assert "head: clock is 4.2 s ahead" in text
        assert "failing-a2b3c4 failed (application error): rank 1 on worker-2" in text
        assert text.index("critical") < text.index("warning")
        assert "ok*" in text, "the driver of a silent node is what it was, not what it is"
        assert "SIMULATED" in text


async def test_keys_lead_where_the_table_of_actions_says() -> None:
    app = FrozenApp(session())
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: isinstance(app.screen, RunsScreen))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LogScreen))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, RunsScreen))
        await pilot.press("1")
        await until(pilot, lambda: isinstance(app.screen, FleetScreen))
        await pilot.press("j", "enter")
        await until(pilot, lambda: isinstance(app.screen, NodeScreen))
        assert "worker-1" in text_of(app)
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.screen, TriageScreen) and "NVML: Not Supported" in text_of(app))
        await pilot.press("escape", "y")
        await until(pilot, lambda: isinstance(app.screen, TextDialog) and '"ssh": "up"' in text_of(app))
        await pilot.press("escape", "question_mark")
        await until(pilot, lambda: "UPPER CASE touches" in text_of(app))
        await pilot.press("escape", "escape", "escape", "escape")
        await until(pilot, lambda: isinstance(app.screen, FleetScreen))
        assert app.return_code is None, "escape never quits"


async def test_the_filter_shows_only_rows_with_the_text_and_escape_takes_it_back() -> None:
    app = FrozenApp(session())
    async with app.run_test(size=(100, 30)) as pilot:
        table = app.screen.query_one(VirtualTable)
        await pilot.press("slash", *"worker")
        await until(pilot, lambda: table.visible_count == 2)
        await pilot.press("enter", "escape")
        await until(pilot, lambda: table.visible_count == 3)


@pytest.mark.parametrize("keys", [("enter",), ("escape",), ("q", "escape")])
async def test_stop_asks_and_what_is_not_yes_is_no(keys: Sequence[str]) -> None:
    made = session()
    app = FrozenApp(made, first=RunsScreen)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("K")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        assert "checkpoint at step 1,200" in text_of(app)
        await pilot.press(*keys)
        await until(pilot, lambda: isinstance(app.screen, RunsScreen))
        assert made.client.asked == []


async def test_stop_with_yes_and_a_reason() -> None:
    made = session()
    app = FrozenApp(made, first=RunsScreen)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("K")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.press("shift+tab", *"why")
        assert made.client.asked == [], "a y that is typed as text is no yes"
        await pilot.press("enter", "y")
        await until(pilot, lambda: bool(made.client.asked))
        verb, run, request = made.client.asked[0]
        assert (verb, run, request.reason) == ("stop", "lm-k3f9qz", "why")


async def test_a_pasted_text_fires_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from textual.events import Paste

    app = FrozenApp(session(), first=RunsScreen)
    async with app.run_test(size=(100, 30)) as pilot:
        app.post_message(Paste("K\ny\nSq"))
        await pilot.pause(0.2)
        assert isinstance(app.screen, RunsScreen)


async def test_read_only_turns_off_every_key_that_touches() -> None:
    app = FrozenApp(session(), first=RunsScreen, read_only=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("K", "S", "O")
        await pilot.pause(0.2)
        assert isinstance(app.screen, RunsScreen)
        assert "READ ONLY" in text_of(app)


async def test_a_workflow_with_mistakes_is_refused_with_line_and_column(tmp_path: Any) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("workflow:\n  name: x\n  resources:\n    nodez: 2\n")
    app = FrozenApp(session(), first=RunsScreen)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("S")
        await until(pilot, lambda: isinstance(app.screen, LaunchDialog))
        await pilot.press("tab", *str(path), "enter")
        await until(pilot, lambda: "line 4, column 5" in text_of(app))


async def test_text_from_the_cluster_never_acts_and_secrets_do_not_show() -> None:
    app = FrozenApp(session(), first=lambda: LogScreen("lm-k3f9qz"))
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: "12 lines" in text_of(app))
        text = text_of(app)
        assert "\x1b" not in text
        assert "hf_abcdefghijklmnopqrstuvwxyz012345" not in text


async def test_one_rank_alone_and_all_again() -> None:
    app = FrozenApp(session(), first=lambda: LogScreen("lm-k3f9qz"))
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: "12 lines" in text_of(app))
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: "rank 0 of 4" in text_of(app))
        for _ in range(4):
            await pilot.press("right_square_bracket")
        await until(pilot, lambda: "all ranks of 4" in text_of(app))
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: "rank 3 of 4" in text_of(app))


async def test_a_run_as_json_is_what_the_command_line_says() -> None:
    from console.render.documents import run_document

    made = session()
    body = run_document(made.work.runs["lm-k3f9qz"])
    assert {"id", "workflow", "release", "state", "step", "loss", "throughput", "checkpoint_step"} <= body.keys()
    assert json.loads(json.dumps(body))["step"] == 1250


async def test_a_frame_that_falls_due_before_a_screen_has_its_widgets_waits() -> None:
    app = FrozenApp(session())
    async with app.run_test(size=(100, 30)) as pilot:
        pushed = app.push_screen(RunsScreen())
        app._framed_at = 0.0
        app._frame()
        await pushed
        await until(pilot, lambda: "lm-k3f9qz" in text_of(app))
