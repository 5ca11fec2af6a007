"""The drains' screen and what is done on nodes over SSH: what is seen, what a key asks for first, and what is sent."""

from __future__ import annotations

import pytest
from textual.widgets import Input

from console.screens.dialogs import ConfirmDialog
from console.screens.drains import DrainsScreen, WaitDialog
from console.screens.fleet import FleetScreen
from console.screens.node import NodeScreen
from console.widgets.table import VirtualTable
from tests.screens.frozen import NOW, FrozenApp
from tests.screens.kept import DRAIN, client_of, kept, leftover, view
from tests.screens.seen import text_of, until
from tests.screens.test_keeping_journeys import SIZE, line_of, on
from tests.screens.test_work_journeys import at

# --- the drains -------------------------------------------------------------------------------------------------------


async def test_the_drains_tell_each_run_and_lead_to_it() -> None:
    app = FrozenApp(kept())
    async with app.run_test(size=(160, 40)) as pilot:
        await on(pilot, "worker-5")
        await pilot.press("6")
        await at(pilot, DrainsScreen, "▸ worker-5")
        assert "empty since" in text_of(app)
        assert "stayed so for 30 s" in text_of(app)
        await pilot.press("g")
        await until(pilot, lambda: "runs again" in text_of(app))
        text = text_of(app)
        assert "1,250 → 1,200" in text
        assert "left 6.0s, back 45s" in text
        assert "worker-5, worker-6" in text
        assert "not raydeck's, left alone: actor Cache" in text
        await pilot.press("enter")
        await at(pilot, NodeScreen, "node worker-3")


async def test_an_empty_node_is_looked_at_and_the_seconds_count_down() -> None:
    made = kept()
    told = view()
    going = told.drains[0]
    part = going.nodes[0].model_copy(update={"state": "checking", "empty_since": going.at + 1076 - 8})
    told.drains[0] = going.model_copy(update={"nodes": [part, *going.nodes[1:]]})
    made.work.take_nodes(told, NOW)
    app = FrozenApp(made, first=DrainsScreen)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "empty; checked for 22s more" in text_of(app))


@pytest.mark.parametrize(
    ("key", "decision", "text", "typed"),
    [
        ("H", "stop", "done again", "lm-k3f9qz"),
        ("L", "give_up", "stay cordoned", ""),
        ("X", "cancel", "take work again.", ""),
    ],
)
async def test_what_follows_a_deadline_is_chosen_with_a_key(key: str, decision: str, text: str, typed: str) -> None:
    made = kept(overdue=True)
    client = client_of(made)
    app = FrozenApp(made, first=DrainsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await until(pilot, lambda: "overdue" in text_of(app))
        await pilot.press(key)
        await at(pilot, ConfirmDialog, text)
        await pilot.press("escape")
        await at(pilot, DrainsScreen)
        assert client.asked == []
        await pilot.press(key)
        await at(pilot, ConfirmDialog, text)
        if typed:
            await pilot.press("y")
            assert client.asked == []
            app.screen.query_one("#typed", Input).value = typed
            app.screen.query_one("#typed", Input).focus()
            await pilot.press("enter")
        else:
            await pilot.press("y")
        await until(pilot, lambda: [(who, one.decision) for _, who, one in client.asked] == [(DRAIN, decision)])


async def test_more_time_is_so_long_as_was_said() -> None:
    made = kept(overdue=True)
    client = client_of(made)
    app = FrozenApp(made, first=DrainsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await until(pilot, lambda: "overdue" in text_of(app))
        await pilot.press("W")
        await at(pilot, WaitDialog, "Nothing is ended")
        app.screen.query_one("#more-time", Input).value = "5"
        await pilot.press("y")
        await pilot.pause(0.05)
        assert client.asked == [], "five of what?"
        app.screen.query_one("#more-time", Input).value = "2h"
        await pilot.press("y")
        await until(pilot, lambda: [one.seconds for _, _, one in client.asked] == [7200.0])


async def test_a_drain_that_is_over_cannot_be_chosen_for() -> None:
    made = kept()
    app = FrozenApp(made, first=DrainsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await until(pilot, lambda: "worker-5" in text_of(app))
        await pilot.press("G", "X")
        await until(pilot, lambda: "is over already: done" in text_of(app))
        assert isinstance(app.screen, DrainsScreen)


# --- over SSH ---------------------------------------------------------------------------------------------------------


async def test_rejoin_shows_the_command_and_a_node_outside_the_context_is_said_to_be_none() -> None:
    made = kept()
    app = FrozenApp(made)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "worker-6")
        await pilot.press("J")
        await at(pilot, ConfirmDialog, "10.0.0.1:6379 --node-ip-address")
        await pilot.press("escape")
        await at(pilot, FleetScreen)
        app.keep("rejoin", ("nobody",))
        await until(pilot, lambda: "nobody: not in context lab" in text_of(app))


async def test_what_this_console_does_on_a_node_stands_in_its_row() -> None:
    made = kept()
    app = FrozenApp(made)
    async with app.run_test(size=(200, 40)) as pilot:
        await on(pilot, "worker-6")
        made.work.nodes.begin("worker-6", "starting Ray on worker-6: ray start")
        await until(pilot, lambda: "» rejoining" in line_of(app, "worker-6"))
        assert "starting Ray on worker-6" in line_of(app, "worker-6")
        made.work.nodes.finish("worker-6")
        await until(pilot, lambda: "✗ out of Ray" in line_of(app, "worker-6"))


async def test_left_over_processes_are_marked_and_those_of_a_living_run_are_spared() -> None:
    made = kept()
    leftover(made)
    client = client_of(made)
    app = FrozenApp(made, first=lambda: NodeScreen("worker-2"))
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await until(pilot, lambda: "▲ left over: old-a1b2c3" in text_of(app))
        assert "▲ left over: no run" in text_of(app)
        assert "not ours: actor Tuner" in text_of(app)
        await pilot.press("T")
        await at(pilot, ConfirmDialog, "End process 3999 on worker-2")
        assert "left over of old-a1b2c3" in text_of(app)
        await pilot.press("escape")
        await at(pilot, NodeScreen)
        table = app.screen.query_one("#processes", VirtualTable)
        table.focus()
        table.move_to("4000/0")
        await pilot.press("K")
        await until(pilot, lambda: "left alone: 4000 is of lm-k3f9qz, which lives" in text_of(app))
        assert isinstance(app.screen, NodeScreen)
        table.move_to("6120/990")
        await pilot.press("K")
        await at(pilot, ConfirmDialog, "6120 (dave: jupyter kernel)")
        assert "there after 5 s is killed" in text_of(app)
        assert "type the name: 6120" in text_of(app), "of no run: it may be somebody's notebook"
        await pilot.press("escape")
        assert (client.asked, client.permits) == ([], [])
