"""The screen of alerts as it is looked at: states, details, the strip, history, node and run. Any name is data."""

from __future__ import annotations

import pytest

from console.screens.alertforms import ClearDialog, NamesDialog, SilenceDialog
from console.screens.alerthistory import AlertHistoryScreen
from console.screens.alerts import AlertsScreen
from console.screens.dialogs import ConfirmDialog, TextDialog
from console.screens.fleet import FleetScreen
from console.screens.node import NodeScreen
from console.screens.pages import PageDialog
from console.screens.run import RunScreen
from console.widgets.table import VirtualTable
from tests.screens.alerted import alert, alerted, alerts, client_of, view
from tests.screens.frozen import NOW, FrozenApp
from tests.screens.seen import text_of, until
from tests.screens.test_alerts_journeys import SIZE, app_on, on, row_of, said
from tests.screens.test_work_journeys import at

# --- what is seen -----------------------------------------------------------------------------------------------------


async def test_each_state_is_a_sign_and_a_word_worst_first_and_what_is_set_aside_last() -> None:
    app = app_on()
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, lambda: "silence" in text_of(app))
        for text, state in (
            ("3 nodes behind switch", "≈ flapping"),
            ("worker-2 is dead for Ray; SSH from here: answers", "▸ firing"),
            ("XID 79", "▸ firing, latched"),
            ("96 % full", "? no data"),
            ("87 °C", "✓ ack bob"),
            ("its clock is off", "○ silenced until 21:56:40"),
            ("22 % below", "✓ cleared 2m00s ago"),
            ("run old-a1b2c3", "○ until 20:36:40"),
        ):
            assert state in row_of(app, text), text
        keys = list(app.screen.query_one(VirtualTable).view)
        assert keys == ["alert-nvlink", "alert-lost", "alert-xid", "alert-disk", *keys[4:]]
        assert keys[-4:] == ["alert-hot", "alert-clock", "alert-over", "silence silence-9aa"]
        assert "3 critical, 1 warning, 1 acknowledged, 1 silenced" in text_of(app).splitlines()[0], "on every screen"
        assert "cannot be seen: not watched by the controller: worker-2 (its probe has told" in text_of(app)


async def test_the_details_tell_cause_evidence_action_and_who_did_what() -> None:
    app = app_on()
    async with app.run_test(size=(200, 60)) as pilot:
        await on(pilot, "alert-xid")
        await until(pilot, lambda: "cause     The GPU no longer answers" in text_of(app))
        shown = text_of(app)
        for text in ("power-cycle it", "[C]", "NVRM: Xid", "✓ slack sent", "✗ mail failed", "no such mailbox",
                     "told again 1 time", "latched: stays", "lm-k3f9qz"):  # fmt: skip
            assert text in shown, text
        assert "hf_abc" not in shown
        assert "\x1b" not in shown
        await on(pilot, "alert-hot")
        await until(pilot, lambda: "bob has it, since 20:11:40: the fan is ordered" in text_of(app))
        await on(pilot, "alert-clock")
        await until(pilot, lambda: "silenced by bob until 21:56:40 (1h30 to go)" in text_of(app))


async def test_at_80_by_24_what_has_no_room_is_one_key_away() -> None:
    app = app_on()
    async with app.run_test(size=(80, 24)) as pilot:
        await on(pilot, "alert-xid")
        await until(pilot, lambda: "more lines: enter shows all" in text_of(app))
        await pilot.press("enter")
        await at(pilot, PageDialog, "stays until somebody")
        await pilot.press("G")
        await at(pilot, PageDialog, "no such mailbox")
        await pilot.press("escape")
        await at(pilot, AlertsScreen)
        await pilot.press("y")
        await at(pilot, TextDialog, '"severity": "critical"')


async def test_an_alert_that_begins_or_ends_is_seen_within_a_frame() -> None:
    made = alerted(trouble=False)
    app = FrozenApp(made, first=AlertsScreen)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "flapping" in text_of(app))
        made.work.take_alerts(view([alert("alert-new", "node.oom", "critical", "head: out of memory", 1)], []), NOW)
        await until(pilot, lambda: "head: out of memory" in text_of(app))
        assert "flapping" not in text_of(app)
        made.work.take_alerts(view([], []), NOW)
        await until(pilot, lambda: "● no alert; besides, 1 warning" in text_of(app))
        assert list(app.screen.query_one(VirtualTable).view) == ["here disk head 1"]


async def test_what_a_controller_that_is_away_told_is_said_to_be_old() -> None:
    made = alerted(trouble=False)
    made.work.controller_state("down", "the controller ended the stream", NOW)
    made.work.alerts.judged = 2
    app = FrozenApp(made, first=AlertsScreen)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "what it told before is shown; 2 nodes judged from here" in text_of(app))


async def test_the_strip_shows_what_needs_someone_and_counts_what_is_set_aside() -> None:
    app = FrozenApp(alerted())
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, lambda: "7 shows all" in text_of(app))
        shown = text_of(app)
        assert "1 acknowledged, 1 silenced, 7 shows all" in shown
        assert "worker-2 is dead for Ray; SSH from here: answers" in shown
        assert "worker-2 is dead to Ray" not in shown, "once"
        assert "fell off the bus; seen from this console" in shown
        assert "87 °C" not in shown
        await pilot.press("7")
        await at(pilot, AlertsScreen)
        await pilot.press("1")
        await at(pilot, FleetScreen)


async def test_a_strip_of_nothing_but_what_is_set_aside_says_so() -> None:
    aside = [each for each in alerts() if each.acknowledged or each.silenced_by]
    app = FrozenApp(alerted(view(aside), trouble=False))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "1 ack, 1 sil [7]" in text_of(app))
        assert "+2" in text_of(app).splitlines()[0]


# --- history, node, run -----------------------------------------------------------------------------------------------


async def test_the_history_has_those_that_ended_and_why() -> None:
    app = app_on()
    async with app.run_test(size=(200, 60)) as pilot:
        await on(pilot, "alert-xid")
        await pilot.press("h")
        await at(pilot, AlertHistoryScreen, "cleared by carol: board swapped, ticket 4711")
        assert "1h06" in row_of(app, "uncorrectable ECC", "LASTED")
        assert "ended by itself" in row_of(app, "22 % below", "LASTED")
        app.screen.query_one(VirtualTable).move_to("alert-old")
        await pilot.press("d")
        await at(pilot, PageDialog, "cleared by carol: board swapped")
        await pilot.press("escape", "escape")
        await at(pilot, AlertsScreen)


async def test_a_history_that_is_not_told_says_why() -> None:
    made = alerted(trouble=False)
    client_of(made).refuses = "alice is nobody here"
    app = FrozenApp(made, first=AlertsScreen)
    async with app.run_test(size=SIZE) as pilot:
        await on(pilot, "alert-xid")
        await pilot.press("h")
        await at(pilot, AlertHistoryScreen, "alice is nobody here")


async def test_node_and_run_are_a_key_away() -> None:
    app = app_on()
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "alert-xid")
        await pilot.press("n")
        await at(pilot, NodeScreen, "worker-1")
        await pilot.press("escape")
        await pilot.press("o")
        await at(pilot, RunScreen, "lm-k3f9qz")
        await pilot.press("escape")
        await on(pilot, "alert-nvlink")
        await pilot.press("n")
        await at(pilot, NamesDialog, "worker-2")
        await pilot.press("j", "enter")
        await at(pilot, NodeScreen, "worker-2")
        await pilot.press("escape")
        await pilot.press("o")
        await until(pilot, lambda: "it is about no run that is known here" in said(app))


async def test_the_key_that_the_action_names_is_about_the_node_of_the_alert() -> None:
    app = app_on()
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "alert-xid")
        screen = app.screen
        assert isinstance(screen, AlertsScreen)
        assert (screen.selected_node(), list(screen.selected_runs())) == ("worker-1", ["lm-k3f9qz"])
        await on(pilot, "alert-nvlink")
        assert (screen.selected_node(), list(screen.selected_nodes())) == (None, ["worker-1", "worker-2"])
        await on(pilot, "silence silence-9aa")
        assert (screen.selected_node(), list(screen.selected_runs())) == (None, [])
        keys = {active.binding.key for active in screen.active_bindings.values()}
        assert {"A", "M", "X", "C", "D", "J", "K", "R", "i", "l", "s"} <= keys, "every key that a rule names"


async def test_triage_is_about_the_run_else_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(FrozenApp, "triage", lambda self, name="": asked.append(name))  # pyright: ignore[reportUnknownLambdaType]
    app = app_on()
    async with app.run_test(size=SIZE) as pilot:
        for identity in ("alert-xid", "alert-lost", "silence silence-9aa"):
            await on(pilot, identity)
            await pilot.press("i")
        assert asked == ["lm-k3f9qz", "worker-2", ""]


# --- names ------------------------------------------------------------------------------------------------------------


async def test_names_from_the_cluster_are_data_everywhere() -> None:
    evil = alert("alert-evil", "gpu.lost", "critical", "[red]w\x1b[31m\u202e1[/]", 5,
                 entities=["[bold]\x1b]0;x\x07"], nodes=["worker-1", "wor\x1bker"],
                 cause="[link=x]c[/link]\x1b[2J", latched=True, key="[/]")  # fmt: skip
    told = view([evil], []).model_copy(update={"blind": ["\x1b[2J[b]"], "unwatched": {"\x1b": "\x1b"}})
    app = FrozenApp(alerted(told, trouble=False), first=AlertsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await on(pilot, "alert-evil")
        for key, kind in (("enter", PageDialog), ("A", ConfirmDialog), ("M", SilenceDialog), ("X", ClearDialog)):
            await pilot.press(key)
            await at(pilot, kind)
            await until(pilot, lambda: "[red]w" in text_of(app) or "gpu.lost" in text_of(app))
            assert "\x1b" not in text_of(app)
            assert "\u202e" not in text_of(app)
            await pilot.press("escape")
            await at(pilot, AlertsScreen)
        assert "[red]w" in text_of(app)
