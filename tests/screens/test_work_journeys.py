"""Keys that act on runs: why, priority and hold, restart, rollback and back out of it; and what is said when not."""

from __future__ import annotations

from typing import Any

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import Input

from console.actions import ACTIONS, BY_NAME, TOUCHING_KEYS
from console.screens.arrange import ArrangeDialog
from console.screens.audit import AuditScreen
from console.screens.dialogs import ConfirmDialog, TextDialog
from console.screens.pages import PageDialog
from console.screens.queue import QueueScreen
from console.screens.releases import ReleasesScreen
from console.screens.restart import RestartDialog
from console.screens.rollback import RollbackConfirm, RollbackDialog
from console.screens.run import RunScreen
from console.screens.sweep import SweepScreen
from console.screens.triage import TriageScreen
from console.screens.work import RunsScreen
from console.widgets.table import VirtualTable
from jobs.model import RunState
from tests.screens.answers import queue_view, waiting
from tests.screens.frozen import NOW, FrozenApp, session, swept
from tests.screens.seen import text_of, until

SIZE = (100, 30)


async def at(pilot: Pilot[Any], kind: type[Any], text: str = "") -> None:
    """Until this screen is in front, and says this."""
    await until(pilot, lambda: isinstance(pilot.app.screen, kind) and text in text_of(pilot.app))


def test_no_key_means_two_things_and_none_shadows_one_that_touches() -> None:
    for action in ACTIONS:
        twin = BY_NAME[action.name]
        assert (twin.keys, twin.touches) == (action.keys, action.touches), f"{action.name} stands twice, differently"
        if not action.touches:
            assert not TOUCHING_KEYS & set(action.keys), action.name
    for scopes in (("everywhere", "table", "runs", "run"), ("everywhere", "table", "releases"), ("everywhere", "log"),
                   ("everywhere", "table", "fleet", "node", "upkeep"),
                   ("everywhere", "table", "drains", "upkeep")):  # fmt: skip
        owner: dict[str, str] = {}
        for action in ACTIONS:
            for key in action.keys if action.scope in scopes else ():
                if {action.name, owner.get(key)} != {"next_pane", "pane_next"}:  # the same thing, more exactly
                    assert owner.setdefault(key, action.name) == action.name, f"{key} in {scopes}"


async def test_the_number_keys_lead_to_each_place() -> None:
    app = FrozenApp(session())
    async with app.run_test(size=SIZE) as pilot:
        for key, kind, text in (("3", QueueScreen, "8 of 8 · 2 wait for 12"), ("4", ReleasesScreen, "last good"),
                                ("5", AuditScreen, "REFUSED"), ("2", RunsScreen, "held")):  # fmt: skip
            await pilot.press(key)
            await at(pilot, kind, text)


# --- the queue --------------------------------------------------------------------------------------------------------


async def test_the_queue_has_its_order_the_held_last_and_says_why() -> None:
    app = FrozenApp(session(), first=QueueScreen)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "held by bob" in text_of(app))
        text = text_of(app)
        assert text.index("lm-w0q7x2") < text.index("lm-w1q6x2") < text.index("lm-w2q5x2") < text.index("lm-w3q4x2")
        await pilot.press("j")
        await until(pilot, lambda: "put there by hand" in text_of(app))
        await pilot.press("i")
        await at(pilot, PageDialog, "worker-2 is uncordoned")
        await pilot.press("G")
        await until(pilot, lambda: "an estimate, not a promise" in text_of(app))
        text = text_of(app)
        assert "4 of 4 GPUs free" in text
        assert "the time limit of lm-k3f9qz" in text
        await pilot.press("escape")
        await at(pilot, QueueScreen)


async def test_priority_in_three_keys_and_a_reason_with_a_hold() -> None:
    made = session()
    app = FrozenApp(made, first=QueueScreen)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("j", "P")
        await at(pilot, ArrangeDialog, "Change how lm-w1q6x2 waits")
        await pilot.press("l")
        await at(pilot, ConfirmDialog, "priority low")
        assert made.client.asked == [], "nothing is done before somebody says yes"
        await pilot.press("escape")
        await at(pilot, QueueScreen)
        assert made.client.asked == []
        await pilot.press("k", "P", "k")
        await at(pilot, ConfirmDialog, "is held")
        await pilot.press("shift+tab", *"later", "enter", "y")
        await until(pilot, lambda: len(made.client.asked) == 1)
        verb, run, request = made.client.asked[0]
        assert (verb, run, request.hold, request.priority, request.reason) == (
            "arrange", "lm-w0q7x2", True, None, "later",
        )  # fmt: skip


async def test_a_place_before_another_run_is_named_from_the_list() -> None:
    made = session()
    app = FrozenApp(made, first=QueueScreen)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("j", "j", "P", "b")
        await until(pilot, lambda: "before which run" in text_of(app))
        await pilot.press(*"w0", "enter")
        await at(pilot, ConfirmDialog, "lm-w0q7x2 is number 1 now")
        # It is carol's, and alice asks: her name for it, not one key.
        await pilot.press("shift+tab", *"lm-w2q5x2", "enter")
        await until(pilot, lambda: len(made.client.asked) == 1)
        request = made.client.asked[0][2]
        assert (request.place, request.other) == ("before", "lm-w0q7x2")


async def test_many_marked_ones_are_arranged_together_by_their_count() -> None:
    made = session()
    app = FrozenApp(made, first=QueueScreen)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("space", "space", "P")
        await at(pilot, ArrangeDialog, "2 runs")
        await pilot.press("q", *"inf", "enter")
        await at(pilot, ConfirmDialog, "Move 2 runs")
        await pilot.press("shift+tab", "2", "enter")
        await until(pilot, lambda: [run for _, run, _ in made.client.asked] == ["lm-w0q7x2", "lm-w1q6x2"])


async def test_what_has_ended_is_not_arranged() -> None:
    app = FrozenApp(session(trouble=True), first=RunsScreen)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        app.screen.query_one(VirtualTable).move_to("failing-a2b3c4")
        await pilot.press("P")
        await until(pilot, lambda: "has ended" in text_of(app))
        assert isinstance(app.screen, RunsScreen)


async def test_ten_thousand_wait_the_first_are_there_and_the_others_when_wanted() -> None:
    made = session()
    made.client.line = waiting(10_000)
    made.work.take_queue(queue_view(made.client.line[:200], 10_000), NOW)
    app = FrozenApp(made, first=QueueScreen)
    async with app.run_test(size=SIZE) as pilot:
        table = app.screen.query_one("#waiting", VirtualTable)
        await until(pilot, lambda: "the first 200 of 10,000" in text_of(app))
        await pilot.press("slash", *"lm-009123")
        await until(pilot, lambda: list(table.view) == ["lm-009123"])
        await pilot.press("enter", "i")
        await at(pilot, PageDialog, "Why: lm-009123")
        await pilot.press("escape", "escape", "G")
        await until(pilot, lambda: table.cursor_key == "lm-009999")
        assert table.total_count == 10_000


# --- restart ----------------------------------------------------------------------------------------------------------


async def test_restart_takes_the_newest_complete_checkpoint_and_says_what_it_passed_over() -> None:
    made = session()
    app = FrozenApp(made, first=RunsScreen)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("R")
        await at(pilot, RestartDialog, "begins from step 1200")
        assert "passed over: step 1250: rank-3.pt is 12 bytes short" in text_of(app)
        await pilot.press("enter")
        await at(pilot, ConfirmDialog, "from step 1,200")
        await pilot.press("y")
        await at(pilot, RunScreen)
        assert [(verb, run, request.from_step) for verb, run, request in made.client.asked] == [
            ("restart", "lm-k3f9qz", None)
        ]


@pytest.mark.parametrize(("keys", "text", "step"), [
    (("j", "j"), "set aside (renamed, not deleted): steps 1100, 1200", 1000), (("0",), "from the beginning", 0),
])  # fmt: skip
async def test_restart_from_a_chosen_one(keys: tuple[str, ...], text: str, step: int) -> None:
    made = session()
    app = FrozenApp(made, first=RunsScreen)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("R")
        await at(pilot, RestartDialog, "begins from step 1200")
        await pilot.press(*keys)
        if keys != ("0",):
            await until(pilot, lambda: text in text_of(app))
            await pilot.press("enter")
        await at(pilot, ConfirmDialog, "Restart lm-k3f9qz")
        await pilot.press("y")
        await until(pilot, lambda: [request.from_step for _, _, request in made.client.asked] == [step])


async def test_a_refusal_stands_in_the_dialog_and_escape_leaves_it() -> None:
    made = session()
    app = FrozenApp(made, first=RunsScreen)
    async with app.run_test(size=SIZE) as pilot:
        made.client.refuses = "alice is a viewer and may not restart"
        await pilot.press("R")
        await at(pilot, RestartDialog, "may not restart")
        await pilot.press("enter", "escape")
        await at(pilot, RunsScreen)


# --- roll back --------------------------------------------------------------------------------------------------------


async def test_a_worse_release_is_rolled_back_in_four_keys_and_one_key_leads_back_out() -> None:
    made = session()
    app = FrozenApp(made, first=RunsScreen)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("B")
        await at(pilot, RollbackDialog, "▸ lm-r-91b3d0")
        await pilot.press("enter")
        await at(pilot, RollbackConfirm, "learning_rate")
        assert "lm-k3f9qz (running, alice)" in text_of(app), "what is stopped is said before it is"
        await pilot.press("y")
        assert isinstance(app.screen.focused, Input)
        await pilot.press("enter")
        await at(pilot, RunScreen, "lm-new4u5")
        verb, workflow, request = made.client.asked[0]
        assert (verb, workflow, request.to) == ("rollback", "lm", "lm-r-91b3d0")
        assert made.work.runs["lm-new4u5"].rollback == "rb-7d2f"

        await pilot.press("B")
        await at(pilot, RollbackDialog, "u: take back the rollback")
        await pilot.press("u")
        await at(pilot, ConfirmDialog, "restarts lm-k3f9qz")
        await pilot.press("y")
        await until(pilot, lambda: [verb for verb, _, _ in made.client.asked] == ["rollback", "undo"])


async def test_keys_that_are_typed_faster_than_the_controller_answers_are_not_lost() -> None:
    made = session()
    app = FrozenApp(made, first=RunsScreen)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("B", "enter")
        await at(pilot, RollbackConfirm)
        await pilot.press("y", *"loss", "enter")
        await until(pilot, lambda: bool(made.client.asked))
        assert made.client.asked[0][2].reason == "loss"


async def test_the_releases_screen_compares_two_and_rolls_back_to_the_one_under_the_cursor() -> None:
    made = session()
    app = FrozenApp(made, first=ReleasesScreen)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "out of memory on ra" in text_of(app))
        await pilot.press("space", "equals_sign")
        await at(pilot, PageDialog, "From lm-r-91b3d0 to lm-r-4f9c2a")
        assert "2.13.0" in text_of(app)
        assert "2.14.0" in text_of(app)
        await pilot.press("escape", "a", "G", "enter")
        await at(pilot, PageDialog, "Release lm-r-02de71")
        await pilot.press("escape", "B")
        await at(pilot, RollbackDialog, "▸ lm-r-02de71")
        await pilot.press("enter")
        await at(pilot, RollbackConfirm, "Roll lm back to lm-r-02de71")


# --- a run's panes ----------------------------------------------------------------------------------------------------


async def test_the_panes_are_fetched_when_they_open_and_again_when_the_run_moves() -> None:
    made = session()
    app = FrozenApp(made, first=lambda: RunScreen("lm-k3f9qz"))
    asked: list[str] = []
    moves = made.client.moves

    async def counted(run: str) -> Any:
        asked.append(run)
        return await moves(run)

    made.client.moves = counted  # pyright: ignore[reportAttributeAccessIssue]
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("tab", "tab", "tab")
        await until(pilot, lambda: "[attempts]" in text_of(app))
        assert asked == []
        await pilot.press("right", "right")
        await until(pilot, lambda: "attempt 1 failed: node lost" in text_of(app))
        assert len(asked) == 1
        run = made.work.runs["lm-k3f9qz"]
        made.work.run_changed(run.model_copy(update={"state": RunState.SAVING}), NOW)
        await until(pilot, lambda: len(asked) == 2)
        await pilot.press("left")
        await until(pilot, lambda: "rank-3.pt is 12 bytes short" in text_of(app))


async def test_a_list_that_cannot_be_had_is_a_sentence_not_an_empty_table() -> None:
    made = session()
    app = FrozenApp(made, first=lambda: RunScreen("lm-k3f9qz"))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "tokens/s" in text_of(app))
        made.client.refuses = "the journal is damaged"
        for pane in ("checkpoints", "events", "release"):
            while f"[{pane}]" not in text_of(app):
                await pilot.press("tab")
            await until(pilot, lambda: "the journal is damaged" in text_of(app))
        made.client.refuses = ""
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "Environment" in text_of(app))


async def test_why_on_a_failed_run_has_kind_and_evidence_without_a_controller() -> None:
    made = session(trouble=True)
    made.client.refuses = "nobody is there"
    app = FrozenApp(made, first=RunsScreen)
    async with app.run_test(size=SIZE) as pilot:
        app.screen.query_one(VirtualTable).move_to("failing-a2b3c4")
        await pilot.press("i")
        await at(pilot, TriageScreen, "application error")
        assert "ValueError: loss is not a number" in text_of(app)


# --- audit, sweep, palette, read-only ---------------------------------------------------------------------------------


async def test_the_audit_log_words_a_refusal_and_shows_an_entry_whole() -> None:
    app = FrozenApp(session(), first=AuditScreen)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "its chain of hashes holds" in text_of(app))
        await pilot.press("slash", *"refused", "enter")
        await until(pilot, lambda: app.screen.query_one(VirtualTable).visible_count == 1)
        await until(pilot, lambda: "carol is a submitter and may only stop runs of carol" in text_of(app))
        await pilot.press("y")
        await at(pilot, TextDialog, '"allowed": false')


async def test_a_sweep_marks_its_best_point_and_leads_to_its_runs() -> None:
    app = FrozenApp(swept(), first=RunsScreen)
    async with app.run_test(size=(200, 30)) as pilot:
        await until(pilot, lambda: "learning_rate=0.01 width=128" in text_of(app))
        app.screen.query_one(VirtualTable).move_to("grid-p3x6k3")
        await pilot.press("w")
        await at(pilot, SweepScreen, "6 points")
        line = next(line for line in text_of(app).splitlines() if "✓ best" in line)
        assert "learning_rate=0.01 width=128" in line
        assert "1.1000" in line
        await pilot.press("enter")
        await at(pilot, RunScreen, "grid-7f3a")


async def test_the_palette_explains_restarts_and_rolls_back_by_name() -> None:
    app = FrozenApp(session())
    async with app.run_test(size=SIZE) as pilot:
        for typed, kind, text in (("explain w1", PageDialog, "Why: lm-w1"), ("restart k3f", RestartDialog, "step 1200"),
                                  ("rollback lm", RollbackDialog, "91b3d0"), ("audit", AuditScreen, "")):  # fmt: skip
            await pilot.press("colon")
            await at(pilot, CommandPalette)
            app.screen.query_one(Input).value = typed
            await pilot.pause(0.1)
            await pilot.press("enter")
            await at(pilot, kind, text)
            await pilot.press("escape")


async def test_read_only_offers_none_of_it() -> None:
    made = session()
    app = FrozenApp(made, first=QueueScreen, read_only=True)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("P", "R", "B", "K")
        await pilot.pause(0.1)
        assert isinstance(app.screen, QueueScreen)
        assert made.client.asked == []
        await pilot.press("i")
        await at(pilot, PageDialog)


async def test_a_run_that_is_not_listed_is_asked_for() -> None:
    made = session()
    app = FrozenApp(made, first=QueueScreen)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("j", "enter")
        await at(pilot, RunScreen, "queued  lm")
        assert "priority normal" in text_of(app)
    app = FrozenApp(session(), first=lambda: RunScreen("nobody-a1b2c3"))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "there is no run 'nobody-a1b2c3'" in text_of(app))
