"""Validations on the screen: the list, the ladder while it climbs and after, the way to the culprit, V."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from console.screens.dialogs import ConfirmDialog
from console.screens.fleet import FleetScreen
from console.screens.pages import PageDialog
from console.screens.validateform import ProfileDialog
from console.screens.validation import ValidationScreen, ValidationsScreen
from console.widgets.table import VirtualTable
from tests.screens.frozen import FrozenApp
from tests.screens.seen import text_of, until
from tests.screens.test_work_journeys import at
from tests.screens.validated import FOUND, GOING, PASSED, ValidatedClient, report, validated

SIZE = (160, 44)


async def test_the_list_leads_to_the_stage_that_failed_and_to_whom() -> None:
    app = FrozenApp(validated())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("8")
        await at(pilot, ValidationsScreen, "not to be trusted")
        assert "one node: all_reduce on worker-1, worker-2; training, DDP on worker-3" in text_of(app)
        await pilot.press("j", "enter")
        await at(pilot, ValidationScreen, "worker-2/1, the link worker-1 ↔ worker-3: not to be trusted")
        screen = app.screen
        assert isinstance(screen, ValidationScreen)
        assert screen.query_one("#ladder", VirtualTable).cursor_key == "gpu"
        # The node that failed stands first, and what is wrong with it first of all.
        await until(pilot, lambda: screen.row is not None and screen.row.node == "worker-2")
        text = text_of(app)
        assert "✗ 1" in text
        assert "✗ FAIL  exact matrix product worker-2/1  3 of 4096 rows are wrong" in text
        assert "digest 41ac…, most say 9f02…" in text
        # What can be done with it is a key away, and is about that node.
        assert list(screen.selected_nodes()) == ["worker-2"]
        await pilot.press("enter", "enter")
        await at(pilot, PageDialog, "Figures of worker-2")
        await until(pilot, lambda: "612, 612" in text_of(app))  # this one beside the one before
        await pilot.press("escape", "escape")
        await at(pilot, ValidationsScreen)


async def test_other_stages_show_who_was_left_out_and_who_a_link_is_of() -> None:
    app = FrozenApp(validated(), first=lambda: ValidationScreen(FOUND))
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, ValidationScreen, "digest 41ac")
        await pilot.press("j")
        await until(pilot, lambda: "left out: exact matrix product" in text_of(app))
        await pilot.press("j")
        screen = app.screen
        assert isinstance(screen, ValidationScreen)
        await until(pilot, lambda: screen.row is not None and screen.row.verdict("cluster.pairs") == "fail")
        assert screen.row is not None
        assert screen.row.node == "worker-1"
        await pilot.press("g")
        await until(pilot, lambda: "0.7 s behind the head" in text_of(app))


async def test_a_validation_that_climbs_shows_time_left_and_follows() -> None:
    made = validated()
    client = made.client
    assert isinstance(client, ValidatedClient)
    app = FrozenApp(made, first=lambda: ValidationScreen(GOING))
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, ValidationScreen, "40s, 260s left")
        assert "training, DDP …" in text_of(app)
        client.reports[GOING] = report(PASSED).model_copy(update={"id": GOING})
        await until(pilot, lambda: "3 nodes can be trusted" in text_of(app))
        assert app.screen.query_one("#ladder", VirtualTable).cursor_key == "cluster"


async def test_v_asks_how_much_then_shows_who_and_launches_it() -> None:
    made = validated()
    app = FrozenApp(made)
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, FleetScreen, "worker-2")
        await pilot.press("j", "space", "V")
        await at(pilot, ProfileDialog, "standard")
        await pilot.press("up", "enter")
        await at(pilot, ConfirmDialog, "4 GPUs, up to 3 ")
        assert made.client.asked == []
        await pilot.press("y")
        await at(pilot, ValidationScreen, GOING)
        ((verb, _, request),) = made.client.asked
        assert verb == "launch"
        asked = yaml.safe_load(request.workflow_text)["workflow"]["training"]["parameters"]
        assert (asked["profile"], asked["nodes"]) == ("quick", ["worker-1"])
        await pilot.press("escape")
        await at(pilot, ValidationsScreen)


async def test_two_are_compared_and_a_report_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = FrozenApp(validated(), first=ValidationsScreen)
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, ValidationsScreen, "can be trusted")
        await pilot.press("j", "space", "j", "v")
        await at(pilot, PageDialog, "exact matrix product worker-2/1: pass → FAIL")
        await pilot.press("escape", "k", "enter")
        await at(pilot, ValidationScreen, "digest 41ac")
        await pilot.press("e")
        await until(pilot, lambda: (tmp_path / f"{FOUND}.html").exists() and (tmp_path / f"{FOUND}.md").exists())


async def test_what_cannot_be_had_is_a_sentence() -> None:
    made = validated()
    app = FrozenApp(made, first=lambda: ValidationScreen("lm-k3f9qz"))
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, ValidationScreen, "running; no report yet")
        await pilot.press("h")
        assert isinstance(app.screen, ValidationScreen)
    made.client.refuses = "the disk is full"
    app = FrozenApp(made, first=ValidationsScreen)
    async with app.run_test(size=SIZE) as pilot:
        await at(pilot, ValidationsScreen, "the disk is full")


async def test_a_folder_that_takes_no_report_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{FOUND}.html").mkdir()
    app = FrozenApp(validated(), first=lambda: ValidationScreen(FOUND))
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await at(pilot, ValidationScreen, "digest 41ac")
        await pilot.press("e")
        await until(pilot, lambda: "the report cannot be written" in text_of(app))
