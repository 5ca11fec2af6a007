"""Keys about nodes: what is asked first, what is sent, what is told; and that nothing is sent on anything but a yes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from textual.command import CommandPalette
from textual.events import Paste
from textual.pilot import Pilot
from textual.widgets import Button, Input

from console.screens.dialogs import ConfirmDialog
from console.screens.drains import DrainsScreen
from console.screens.fleet import FleetScreen
from console.screens.nodeforms import CordonDialog, DrainDialog, RetireDialog
from console.screens.triage import TriageScreen
from console.screens.uncordon import UncordonDialog
from console.widgets.heatmap import Heatmap
from console.widgets.table import VirtualTable
from jobs.nodeview import NodesView
from tests.screens.frozen import NOW, FrozenApp
from tests.screens.kept import client_of, kept, view
from tests.screens.seen import text_of, until
from tests.screens.test_work_journeys import at

SIZE = (120, 40)


async def on(pilot: Pilot[Any], node: str) -> None:
    """The cursor on a node of the fleet."""
    await until(pilot, lambda: "STATE" in text_of(pilot.app))
    assert pilot.app.screen.query_one("#nodes", VirtualTable).move_to(node)
    await pilot.pause()


def line_of(app: FrozenApp, name: str) -> str:
    """The row of a node in the table."""
    return next(line for line in text_of(app).splitlines() if line.lstrip("▸● ").startswith(f"{name} ") and "●" in line)


# --- what is seen -----------------------------------------------------------------------------------------------------


async def test_each_state_is_a_sign_and_a_word_and_the_three_truths_stay_apart() -> None:
    app = FrozenApp(kept())
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, lambda: "out of Ray" in text_of(app))
        assert "⊘ cordoned +1" in line_of(app, "worker-2")
        assert "+1 other: actor Tuner" in line_of(app, "worker-2")
        draining = line_of(app, "worker-3")
        assert "↓ draining 2/3" in draining
        assert "2 of 3 have left, 12m04s to go" in draining
        assert "alice: swap the NVLink" in draining
        assert "waits for its turn" in line_of(app, "worker-4")
        assert "∅ drained" in line_of(app, "worker-5")
        lost = line_of(app, "worker-6")
        assert "SSH answers, Ray says dead: J rejoins" in lost
        assert "● up" in lost
        assert "✗ dead" in lost
        assert "● ok" in lost
        assert "worker-2 is held, and actor Tuner" in text_of(app)
        assert app.screen.query_one(Heatmap)._apart["worker-5"] == "drained"
        assert "∅ 1 drained" in text_of(app)


async def test_a_change_shows_within_a_frame_and_what_is_taken_back_is_open_again() -> None:
    made = kept()
    app = FrozenApp(made)
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, lambda: "∅ drained" in text_of(app))
        made.work.take_nodes(NodesView(), NOW)
        await until(pilot, lambda: "· open" in line_of(app, "worker-5"))
        assert "cordoned" not in text_of(app)
        made.work.take_nodes(view(overdue=True), NOW)
        await until(pilot, lambda: "! overdue 2/3" in line_of(app, "worker-3"))
        assert "worker-3: the drain by alice is overdue" in text_of(app)
        assert "overdue for 2m10s: choose" in line_of(app, "worker-3")


async def test_holds_of_a_controller_that_is_away_are_marked_as_old() -> None:
    made = kept()
    made.work.controller_state("down", "the controller ended the stream", NOW)
    app = FrozenApp(made)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "⊘ cordoned +1*" in text_of(app))


async def test_why_tells_all_of_a_held_node() -> None:
    app = FrozenApp(kept())
    async with app.run_test(size=SIZE) as pilot:
        await on(pilot, "worker-2")
        await pilot.press("i")
        await at(pilot, TriageScreen, "cordoned by bob 2h05 ago: NVLink errors")
        assert "cordoned by alice 5m00s ago: kernel update; until somebody takes it back" in text_of(app)
        assert "3 of 4 idle GPUs are held in Ray, best effort" in text_of(app)


# --- cordon -----------------------------------------------------------------------------------------------------------


async def test_cordon_in_three_keys_and_a_reason() -> None:
    made = kept()
    client = client_of(made)
    app = FrozenApp(made)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "worker-1")
        await pilot.press("C")
        await at(pilot, CordonDialog, "a cordon ends nothing")
        assert isinstance(app.focused, Button)
        assert app.focused.id == "cancel"
        await pilot.press("y")
        assert client.asked == [], "without a reason nothing is done"
        await pilot.press(*"bad fan", "enter")
        await until(pilot, lambda: bool(client.asked))
        verb, nodes, request = client.asked[0]
        assert (verb, nodes, request.reason, request.seconds, request.gpus) == (
            "cordon", "worker-1", "bad fan", None, False,
        )  # fmt: skip
        assert request.nodes[0].address == "10.0.0.2", "what else is known of it goes along"
        await at(pilot, FleetScreen)
        assert all(each.dry_run for each in client.planned)


async def test_an_end_and_the_gpus_are_sent_and_a_word_that_is_no_time_is_refused() -> None:
    made = kept()
    client = client_of(made)
    app = FrozenApp(made)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "worker-1")
        await pilot.press("C")
        await at(pilot, CordonDialog, "a cordon ends nothing")
        await pilot.press("g", "u", *"soon")
        await until(pilot, lambda: "'soon' must be a duration" in text_of(app))
        app.screen.query_one("#ends", Input).value = "2h"
        await until(pilot, lambda: bool(client.planned) and client.planned[-1].seconds == 7200.0)
        assert client.planned[-1].gpus
        app.screen.query_one("#reason", Input).value = "fan"
        await until(pilot, lambda: "what waits in Ray already goes first" in text_of(app))
        await pilot.press("enter")
        assert client.asked == [], "enter on a choice is no yes"
        assert app.focused is app.screen.query_one("#reason")
        await until(pilot, lambda: "what waits in Ray already goes first" in text_of(app))
        await pilot.press("enter")
        await until(pilot, lambda: bool(client.asked))
        assert (client.asked[0][2].seconds, client.asked[0][2].gpus) == (7200.0, True)


async def test_the_marked_nodes_are_meant_and_their_count_has_to_be_typed() -> None:
    made = kept()
    client = client_of(made)
    app = FrozenApp(made)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "worker-1")
        await pilot.press("space", "space", "C")
        await at(pilot, CordonDialog, "type how many: 2")
        await pilot.press("r", *"rack", "enter")
        assert client.asked == []
        await pilot.press("3", "enter")
        await pilot.pause(0.05)
        assert client.asked == [], "another number is no yes"
        await pilot.press("backspace", "2", "enter")
        await until(pilot, lambda: [nodes for _, nodes, _ in client.asked] == ["worker-1,worker-2"])


async def test_what_is_so_already_is_said_and_nothing_is_sent() -> None:
    made = kept()
    client = client_of(made)
    client.already = ["cordoned by alice: bad fan, since 12:00:00"]
    app = FrozenApp(made)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "worker-1")
        await pilot.press("C")
        await at(pilot, CordonDialog, "Nothing changes.")
        assert "cordoned by alice: bad fan" in text_of(app)
        assert not app.screen.query_one("#yes").display
        await pilot.press("y")
        await at(pilot, FleetScreen)
        assert client.asked == []


@pytest.mark.parametrize("key", ["C", "U", "D", "E", "J"])
@pytest.mark.parametrize("keys", [("escape",), ("enter",)])
async def test_what_is_not_yes_is_no(key: str, keys: Sequence[str]) -> None:
    made = kept()
    client = client_of(made)
    app = FrozenApp(made)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "worker-1" if key == "U" else "worker-6")
        await pilot.press(key)
        await until(pilot, lambda: app.screen.is_modal)
        if key == "U" and keys == ("enter",):
            keys = ("escape",)  # nothing is held there: enter has nothing to take
        await pilot.press(*keys)
        await at(pilot, FleetScreen)
        assert client.asked == []
        assert client.permits == []


async def test_a_pasted_text_answers_nothing() -> None:
    made = kept()
    client = client_of(made)
    app = FrozenApp(made)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "worker-1")
        app.post_message(Paste("C\ny\nD\nworker-1\n"))
        await pilot.pause(0.1)
        assert isinstance(app.screen, FleetScreen)
        await pilot.press("D")
        await at(pilot, DrainDialog, "type the name: worker-1")
        app.screen.post_message(Paste("y\nworker-1\n"))
        await pilot.pause(0.1)
        assert isinstance(app.screen, DrainDialog)
        await pilot.press("r")
        assert isinstance(app.focused, Input)
        app.focused.post_message(Paste("why\nworker-1\n"))
        await pilot.pause(0.1)
        assert isinstance(app.screen, DrainDialog)
        assert client.asked == []


async def test_read_only_offers_none_of_it() -> None:
    made = kept()
    client = client_of(made)
    app = FrozenApp(made, read_only=True)
    async with app.run_test(size=SIZE) as pilot:
        await on(pilot, "worker-6")
        await pilot.press("C", "U", "D", "E", "J")
        await pilot.pause(0.1)
        assert isinstance(app.screen, FleetScreen)
        await pilot.press("6")
        await at(pilot, DrainsScreen)
        await pilot.press("W", "H", "L", "X")
        await pilot.pause(0.1)
        assert isinstance(app.screen, DrainsScreen)
        assert (client.asked, client.planned) == ([], [])


async def test_a_refusal_stands_in_the_dialog() -> None:
    made = kept()
    client_of(made).refuses = "alice is a viewer and may not cordon"
    app = FrozenApp(made)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "worker-1")
        await pilot.press("C")
        await at(pilot, CordonDialog, "may not cordon")
        await pilot.press("r", *"x", "enter")
        await pilot.pause(0.1)
        assert isinstance(app.screen, CordonDialog)


# --- uncordon ---------------------------------------------------------------------------------------------------------


async def test_ones_own_hold_is_taken_back_with_a_key() -> None:
    made = kept()
    client = client_of(made)
    app = FrozenApp(made)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "worker-2")
        await pilot.press("U")
        await at(pilot, UncordonDialog, "▸ alice (you)")
        assert "NVLink errors on GPU 1" in text_of(app)
        await pilot.press("enter")
        await at(pilot, ConfirmDialog, "Uncordon worker-2")
        await pilot.press("y")
        await until(pilot, lambda: [(verb, one.of) for verb, _, one in client.asked] == [("uncordon", "")])


async def test_another_persons_hold_takes_their_name() -> None:
    made = kept()
    client = client_of(made)
    app = FrozenApp(made)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "worker-2")
        await pilot.press("U")
        await at(pilot, UncordonDialog, "New work may start")
        await pilot.press("j")
        await at(pilot, UncordonDialog, "▸ bob")
        await pilot.press("enter")
        await at(pilot, ConfirmDialog, "these are holds of bob, not yours")
        await pilot.press("y")
        assert client.asked == []
        await pilot.press("tab", "tab")
        app.screen.query_one("#typed", Input).value = "bob"
        app.screen.query_one("#typed", Input).focus()
        await pilot.press("enter")
        await until(pilot, lambda: [(verb, one.of) for verb, _, one in client.asked] == [("uncordon", "bob")])


# --- drain ------------------------------------------------------------------------------------------------------------


async def test_a_drain_says_what_becomes_of_each_run_and_asks_again_when_a_choice_changes() -> None:
    made = kept()
    client = client_of(made)
    app = FrozenApp(made)
    async with app.run_test(size=(120, 50), notifications=True) as pilot:
        await on(pilot, "worker-1")
        await pilot.press("space", "space", "space", "D")
        await at(pilot, DrainDialog, "it starts again on worker-5 and worker-6")
        assert "it needs 1 node with 2 free GPUs, and none has them" in text_of(app)
        await pilot.press("n", "1")
        await until(pilot, lambda: "In 3 rounds" in text_of(app))
        assert client.planned[-1].policy.most_nodes == 1
        await pilot.press("tab", "tab", "tab")
        app.screen.query_one("#cancel").focus()
        await pilot.press("t", "o")
        await until(pilot, lambda: client.planned[-1].policy.others == "stop")
        assert client.planned[-1].policy.at_deadline == "stop"
        await until(pilot, lambda: "steps since its last checkpoint are lost" in text_of(app))
        app.screen.query_one("#cancel").focus()
        await pilot.press("r", *"fw", "enter", "3", "enter")
        await until(pilot, lambda: bool(client.asked))
        verb, nodes, request = client.asked[0]
        assert (verb, nodes, request.reason) == ("drain", "worker-1,worker-2,worker-3", "fw")
        policy = request.policy
        assert (policy.deadline_seconds, policy.at_deadline, policy.others, policy.most_nodes, policy.gone) == (
            1800.0, "stop", "stop", 1, False,
        )  # fmt: skip
        await at(pilot, FleetScreen)


async def test_that_a_node_is_off_is_asked_only_where_it_does_not_answer() -> None:
    made = kept()
    client = client_of(made)
    app = FrozenApp(made)
    async with app.run_test(size=(120, 50), notifications=True) as pilot:
        await on(pilot, "worker-1")
        await pilot.press("D")
        await at(pilot, DrainDialog, "step 1,250")
        assert "it is off" not in text_of(app)
        await pilot.press("escape")
        made.fleet.ssh_state("worker-1", "lost", "no answer", NOW)
        await pilot.press("D")
        await at(pilot, DrainDialog, "it is off: nothing of it can still write")
        await pilot.press("b")
        await until(pilot, lambda: bool(client.planned) and client.planned[-1].policy.gone)
        await until(pilot, lambda: "You say that no process there can still write" in text_of(app))


async def test_what_was_not_shown_yet_cannot_be_agreed_to() -> None:
    made = kept()
    client = client_of(made)
    client.idle = True
    app = FrozenApp(made)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "worker-1")
        await pilot.press("D")
        await at(pilot, DrainDialog, "holds no run")
        app.screen.query_one("#reason", Input).value = "x"
        app.screen.query_one("#deadline", Input).value = "1h"
        await pilot.press("y")
        assert client.asked == []
        await until(pilot, lambda: client.planned[-1].policy.deadline_seconds == 3600.0)
        await until(pilot, lambda: "Each node has 1h00" in text_of(app))
        await pilot.press("y")
        await until(pilot, lambda: [request.policy.deadline_seconds for _, _, request in client.asked] == [3600.0])


async def test_retire_takes_a_name_where_work_is_left() -> None:
    made = kept()
    client = client_of(made)
    app = FrozenApp(made)
    async with app.run_test(size=(120, 50), notifications=True) as pilot:
        await on(pilot, "worker-1")
        await pilot.press("E")
        await at(pilot, RetireDialog, "one-way: an uncordon does not undo it")
        await pilot.press("r", *"old", "enter", *"worker-1", "enter")
        await until(
            pilot, lambda: [(verb, one.deadline_seconds) for verb, _, one in client.asked] == [("retire", 600.0)]
        )


# --- the palette ------------------------------------------------------------------------------------------------------


async def test_the_palette_has_the_verbs_by_name() -> None:
    app = FrozenApp(kept())
    async with app.run_test(size=SIZE) as pilot:
        for typed, kind, text in (
            ("cordon worker-1", CordonDialog, "Cordon worker-1"),
            ("drain worker-1", DrainDialog, "Drain worker-1"),
            ("uncordon worker-2", UncordonDialog, "alice (you)"),
            ("retire worker-1", RetireDialog, "Retire worker-1"),
            ("rejoin worker-6", ConfirmDialog, "Rejoin worker-6"),
            ("drains", DrainsScreen, "2 of 3 have left"),
        ):
            await pilot.press("colon")
            await at(pilot, CommandPalette)
            app.screen.query_one(Input).value = typed
            await pilot.pause(0.15)
            await pilot.press("enter")
            await at(pilot, kind, text)
            await pilot.press("escape")
