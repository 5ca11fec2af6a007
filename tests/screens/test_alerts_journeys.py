"""Keys about alerts: what is asked first, what is sent, what is seen then; and that nothing is sent but on a yes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Input

from console.screens.alertforms import ClearDialog, SilenceDialog
from console.screens.alerts import AlertsScreen
from console.screens.dialogs import ConfirmDialog
from console.widgets.table import VirtualTable
from jobs.alertview import AlertsView
from tests.screens.alerted import alerted, client_of
from tests.screens.frozen import FrozenApp
from tests.screens.seen import text_of, until
from tests.screens.test_work_journeys import at

SIZE = (140, 40)


def app_on(told: AlertsView | None = None, trouble: bool = False, **settings: Any) -> FrozenApp:
    """The app on the screen of alerts."""
    return FrozenApp(alerted(told, trouble), first=AlertsScreen, **settings)


async def on(pilot: Pilot[Any], identity: str) -> None:
    """The cursor on an alert."""
    await until(pilot, lambda: "STATE" in text_of(pilot.app))
    assert pilot.app.screen.query_one("#alerts", VirtualTable).move_to(identity)
    await pilot.pause()


def row_of(app: FrozenApp, text: str, heading: str = "STATE") -> str:
    """The row with this text, of the table with this heading."""
    lines = text_of(app).splitlines()
    first = next(number for number, line in enumerate(lines) if heading in line)
    return next((line for line in lines[first + 1 :] if text in line), "")


def said(app: FrozenApp) -> str:
    """What was told in passing."""
    return " ".join(each.message for each in app._notifications)


# --- acknowledge ------------------------------------------------------------------------------------------------------


async def test_acknowledge_in_two_keys() -> None:
    made = alerted(trouble=False)
    client = client_of(made)
    app = FrozenApp(made, first=AlertsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "alert-lost")
        await pilot.press("A")
        await at(pilot, ConfirmDialog, "nobody is told of it again")
        assert isinstance(app.focused, Button)
        assert app.focused.id == "cancel"
        await pilot.press("y")
        await until(pilot, lambda: [(verb, name) for verb, name, _ in client.asked] == [("acknowledge", "alert-lost")])
        await until(pilot, lambda: "✓ ack alice" in row_of(app, "worker-2 is dead for Ray"))
        await pilot.press("A")
        await until(pilot, lambda: "alice has it already" in said(app))
        assert len(client.asked) == 1


async def test_acknowledge_with_a_reason_and_several_by_their_count() -> None:
    made = alerted(trouble=False)
    client = client_of(made)
    app = FrozenApp(made, first=AlertsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "alert-lost")
        await pilot.press("space", "space", "A")
        await at(pilot, ConfirmDialog, "type how many: 2")
        await pilot.press("y")
        assert client.asked == [], "one key is not enough for two"
        app.screen.query_one("#reason", Input).value = "power in rack 7"
        app.screen.query_one("#typed", Input).focus()
        await pilot.press("2", "enter")
        await until(pilot, lambda: bool(client.asked))
        _, names, request = client.asked[0]
        assert (names, request.reason) == ("alert-lost,alert-xid", "power in rack 7")


async def test_what_the_controller_does_not_know_is_refused_politely() -> None:
    made = alerted()
    client = client_of(made)
    app = FrozenApp(made, first=AlertsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "here gpu worker-1 1")
        await pilot.press("A")
        await until(pilot, lambda: "the controller has no alert about this" in said(app))
        await on(pilot, "alert-over")
        await pilot.press("A")
        await until(pilot, lambda: "there is nothing to acknowledge" in said(app))
        assert isinstance(app.screen, AlertsScreen)
        assert client.asked == []


# --- mute -------------------------------------------------------------------------------------------------------------


async def test_mute_shows_what_it_hides_anew_with_each_choice() -> None:
    made = alerted(trouble=False)
    client = client_of(made)
    app = FrozenApp(made, first=AlertsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "alert-xid")
        await pilot.press("M")
        await at(pilot, SilenceDialog, "Silence rule gpu.xid.critical, node worker-1")
        await until(pilot, lambda: "until 21:26:40 (1h00)" in text_of(app))
        assert "It hides 1 alert that fires now:" in text_of(app)
        await pilot.press("w", "space")
        await until(pilot, lambda: "Silence node worker-1" in text_of(app))
        await until(pilot, lambda: "It hides 3 alerts that fire now:" in text_of(app))
        assert "2 of them are critical" in text_of(app)
        assert "type how many: 3" in text_of(app)
        await pilot.press("f")
        await until(pilot, lambda: "(4h00)" in text_of(app))
        assert client.asked == [], "dry runs only"
        await pilot.press("r", *"rack 7", "enter", "3", "enter")
        await until(pilot, lambda: bool(client.asked))
        verb, words, request = client.asked[0]
        assert (verb, words, request.seconds, request.reason) == ("silence", "node worker-1", 14400.0, "rack 7")
        await until(pilot, lambda: "○ silenced until 00:26:40" in row_of(app, "XID 79"))
        assert "5 silenced" not in text_of(app)
        assert "4 silenced" in text_of(app), "what is hidden is counted"


async def test_a_time_of_ones_own_and_a_word_that_is_none() -> None:
    made = alerted(trouble=False)
    client = client_of(made)
    app = FrozenApp(made, first=AlertsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "alert-lost")
        await pilot.press("M")
        await at(pilot, SilenceDialog, "It hides 1 alert")
        await pilot.press("o", *"soon")
        await until(pilot, lambda: "'soon' must be a duration" in text_of(app))
        app.screen.query_one("#own", Input).value = "30m"
        await until(pilot, lambda: "(30m00s)" in text_of(app))
        app.screen.query_one("#cancel").focus()
        await pilot.press("y")
        assert client.asked == [], "a reason is wanted"
        await pilot.press(*"psu", "enter")
        await until(pilot, lambda: [one.seconds for _, _, one in client.asked] == [1800.0])


async def test_a_silence_of_the_marked_ones_is_of_what_they_have_in_common() -> None:
    app = app_on()
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "alert-nvlink")
        await pilot.press("space", "space", "M")
        await until(pilot, lambda: "neither a rule, nor a node, nor a run in common" in said(app))
        await pilot.press("a")
        await on(pilot, "alert-xid")
        await pilot.press("space")
        await on(pilot, "alert-hot")
        await pilot.press("space", "M")
        await at(pilot, SilenceDialog, "Silence node worker-1")


async def test_mute_on_what_is_silenced_ends_the_silence() -> None:
    made = alerted(trouble=False)
    client = client_of(made)
    app = FrozenApp(made, first=AlertsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "alert-clock")
        await pilot.press("M")
        await at(pilot, ConfirmDialog, "1 alert would be told of again")
        assert "of bob, not yours" in text_of(app)
        await pilot.press("y")
        await until(pilot, lambda: [name for _, name, _ in client.asked] == ["silence-5d2"])
        await until(pilot, lambda: "▸ firing" in row_of(app, "its clock is off"))
        await on(pilot, "silence silence-9aa")
        await pilot.press("M")
        await at(pilot, ConfirmDialog, "Nothing that it hides fires now.")
        await pilot.press("y")
        await until(pilot, lambda: "old-a1b2c3" not in text_of(app))


# --- clear ------------------------------------------------------------------------------------------------------------


async def test_clear_takes_a_reason() -> None:
    made = alerted(trouble=False)
    client = client_of(made)
    app = FrozenApp(made, first=AlertsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "alert-xid")
        await pilot.press("X")
        await at(pilot, ClearDialog, "Say what was repaired")
        await pilot.press("y", "enter")
        await until(pilot, lambda: "say what was repaired: it stands in the history" in said(app))
        assert client.asked == []
        await pilot.press(*"board swapped", "enter")
        await until(pilot, lambda: [one.reason for _, _, one in client.asked] == ["board swapped"])
        await until(pilot, lambda: "✓ cleared by alice" in row_of(app, "XID 79"))


async def test_what_ends_by_itself_is_not_cleared() -> None:
    made = alerted(trouble=False)
    client = client_of(made)
    app = FrozenApp(made, first=AlertsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "alert-lost")
        await pilot.press("X")
        await until(pilot, lambda: "it ends by itself when its cause is gone" in said(app))
        await on(pilot, "alert-nvlink")
        await pilot.press("X")
        await at(pilot, ClearDialog, "Clear 1 alert")  # it flaps
        await pilot.press("escape")
        assert client.asked == []


# --- nothing but a yes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["A", "M", "X"])
@pytest.mark.parametrize("keys", [("escape",), ("enter",)])
async def test_what_is_not_yes_is_no(key: str, keys: Sequence[str]) -> None:
    made = alerted(trouble=False)
    client = client_of(made)
    app = FrozenApp(made, first=AlertsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "alert-xid")
        await pilot.press(key)
        await until(pilot, lambda: app.screen.is_modal)
        await pilot.press(*keys)
        await at(pilot, AlertsScreen)
        assert client.asked == []


async def test_read_only_offers_none_of_it() -> None:
    made = alerted(trouble=False)
    client = client_of(made)
    app = FrozenApp(made, first=AlertsScreen, read_only=True)
    async with app.run_test(size=SIZE) as pilot:
        await on(pilot, "alert-xid")
        await pilot.press("A", "M", "X", "C", "K", "R")
        await pilot.pause(0.1)
        assert isinstance(app.screen, AlertsScreen)
        assert (client.asked, client.planned) == ([], [])


@pytest.mark.parametrize("key", ["A", "X"])
async def test_a_refusal_is_told(key: str) -> None:
    made = alerted(trouble=False)
    client_of(made).refuses = "alice is a viewer and may not"
    app = FrozenApp(made, first=AlertsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "alert-xid")
        await pilot.press(key)
        await until(pilot, lambda: app.screen.is_modal)
        await pilot.press("y", *(() if key == "A" else ("x", "enter")))
        await until(pilot, lambda: "alice is a viewer and may not" in said(app))
