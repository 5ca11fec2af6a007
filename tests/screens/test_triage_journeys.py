"""Triage on screen: the steps as they are done, the culprit first, its evidence, its log, and keys that act on it."""

from __future__ import annotations

import asyncio
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.widgets import Input

from console.actions import ACTIONS
from console.screens.fleet import FleetScreen
from console.screens.node import NodeScreen
from console.screens.nodeforms import CordonDialog
from console.screens.pages import PageDialog
from console.screens.restart import RestartDialog
from console.screens.run import RunScreen
from console.screens.triage import TriageScreen
from console.screens.work import RunsScreen
from console.widgets.table import VirtualTable
from tests.screens.frozen import FrozenApp, session
from tests.screens.kept import kept
from tests.screens.seen import text_of, until
from tests.screens.test_work_journeys import at
from tests.screens.triaged import FAILED, Said, answering, failed

SIZE = (100, 40)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[Said]:
    with monkeypatch.context() as patched:
        yield answering(patched)


def test_no_key_means_two_things_here() -> None:
    owner: dict[str, str] = {}
    for action in ACTIONS:
        for key in action.keys if action.scope in TriageScreen.SCOPES else ():
            assert owner.setdefault(key, action.name) == action.name, key
    assert {owner[key] for key in "CDKRBPesrl"} == {
        "cordon", "drain", "stop", "restart", "rollback", "arrange", "export", "shell", "again", "log",
    }  # fmt: skip


async def test_the_palette_leads_to_the_triage_of_a_run_a_node_and_the_fleet(said: Said) -> None:
    app = FrozenApp(failed(session()))
    async with app.run_test(size=SIZE) as pilot:
        for typed, text in (("triage a2b3", f"triage run {FAILED}"), ("triage worker-2", "triage node worker-2"),
                            ("triage fleet", "triage the fleet")):  # fmt: skip
            await pilot.press("colon")
            await at(pilot, CommandPalette)
            app.screen.query_one(Input).value = typed
            await pilot.pause(0.1)
            await pilot.press("enter")
            await at(pilot, TriageScreen, text)
            await pilot.press("escape")
    assert {name for name, _ in said.asked} >= {"worker-1", "worker-2"}


async def test_i_on_a_failed_run_names_the_rank_that_failed_first(said: Said) -> None:
    app = FrozenApp(failed(session()), first=RunsScreen)
    async with app.run_test(size=SIZE) as pilot:
        app.screen.query_one(VirtualTable).move_to(FAILED)
        await pilot.press("i")
        await at(pilot, TriageScreen, "✗ bad     code and model")
        text = text_of(app)
        head = "\n".join(text.splitlines()[1:4])
        assert "Rank 1 (worker-1, GPU 1)" in head
        assert "loss is not a number" in head
        assert "✓ ok      infrastructure" in text
        assert "[10.0.0.2]:2793" not in text, "what only followed is folded"
        assert "rank-1.log:23 on worker-1" in text
        assert {name for name, _ in said.asked} == {"worker-1", "worker-2"}

        await pilot.press("enter")
        await at(pilot, PageDialog, "Connection closed by peer")
        assert "rank-0.log" in text_of(app)
        await pilot.press("escape")

        await pilot.press("l")
        await at(pilot, PageDialog, ">     23")
        text = text_of(app)
        assert "begins" in text
        assert "hf_abcdef" not in text, "a log is redacted"
        await pilot.press("escape")
        await at(pilot, TriageScreen)

        await pilot.press("c")
        assert "loss is not a number" in app.clipboard
        assert app.clipboard.startswith("## Triage of run failing-a2b3c4")
        await pilot.press("R")
        await at(pilot, RestartDialog)


async def test_keys_act_on_the_culprits_node(said: Said) -> None:
    made = failed(kept())
    app = FrozenApp(made, first=RunsScreen)
    async with app.run_test(size=SIZE) as pilot:
        app.triage(FAILED)
        await at(pilot, TriageScreen, "✗ bad     code and model")
        screen = app.screen
        assert isinstance(screen, TriageScreen)
        await until(pilot, lambda: list(screen.selected_nodes()) == ["worker-1"])  # the findings follow the last step
        assert list(screen.selected_runs()) == [FAILED]
        await pilot.press("C")
        await at(pilot, CordonDialog, "worker-1")
        await pilot.press("escape")
        await at(pilot, TriageScreen)


async def test_steps_show_as_they_are_done_and_r_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said = answering(monkeypatch)
    gate = asyncio.Event()
    answered = said.ask

    async def slowly(*arguments: object) -> object:
        await gate.wait()
        return await answered(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(said, "ask", slowly)
    app = FrozenApp(failed(session()), first=RunsScreen)
    async with app.run_test(size=SIZE) as pilot:
        app.triage(FAILED)
        await at(pilot, TriageScreen, "reading infrastructure")
        text = text_of(app)
        assert text.count("waiting ") >= 4
        assert "application error" in text, "what is known already stands there at once"
        await pilot.press("r")
        gate.set()
        await until(pilot, lambda: "✗ bad     code and model" in text_of(app) and "waiting " not in text_of(app))
        asked = len(said.asked)
        await pilot.press("r")
        await until(pilot, lambda: len(said.asked) > asked and "✗ bad     code and model" in text_of(app))


async def test_a_node_that_cannot_be_asked_is_said_to_be_so(said: Said) -> None:
    said.gone = {"worker-1"}
    app = FrozenApp(failed(session()), first=RunsScreen)
    async with app.run_test(size=(160, 60)) as pilot:
        app.triage(FAILED)
        await at(pilot, TriageScreen, "Not known")
        assert "rank 1: its log could not be read on worker-1: no SSH connection" in text_of(app)


async def test_a_waiting_run_has_its_explanation(said: Said) -> None:
    app = FrozenApp(session(), first=RunsScreen)
    async with app.run_test(size=(120, 60)) as pilot:
        app.triage("lm-w3q4x2")
        await at(pilot, TriageScreen, "an estimate, not a promise")
        assert "worker-2 is uncordoned" in text_of(app)


@pytest.mark.usefixtures("said")
async def test_the_fleet_a_node_and_a_gpu_are_targets_too() -> None:
    app = FrozenApp(session(trouble=True))
    async with app.run_test(size=(120, 50), notifications=True) as pilot:
        await until(pilot, lambda: "worker-1" in text_of(app))
        app.screen.query_one(VirtualTable).move_to("worker-1")
        await pilot.press("i")
        await at(pilot, TriageScreen, "fell off the bus")
        assert "node worker-1" in text_of(app)
        assert "What is known of worker-1" in text_of(app)
        await pilot.press("escape")
        await at(pilot, FleetScreen)
        app.open_node("worker-1")
        await at(pilot, NodeScreen, "last ten minutes")
        app.screen.query_one("#devices", VirtualTable).move_to("3")
        await pilot.press("i")
        await at(pilot, TriageScreen, "GPU worker-1/3")
        await until(pilot, lambda: "fell off the bus" in text_of(app))
        await pilot.press("escape")
        app.triage("worker-1/9")
        await until(pilot, lambda: "worker-1 has no GPU 9" in text_of(app))
        app.triage()
        await at(pilot, TriageScreen, "the fleet")
        await until(pilot, lambda: "dead in Ray" in text_of(app) or "is dead" in text_of(app))


async def test_a_run_that_nobody_knows_is_a_sentence(said: Said) -> None:
    app = FrozenApp(session(), first=RunsScreen)
    async with app.run_test(size=SIZE) as pilot:
        app.triage("nobody-a1b2c3")
        await at(pilot, TriageScreen, "there is no run 'nobody-a1b2c3'")
        assert said.asked == []


async def test_e_writes_a_bundle_and_never_over_another(
    said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    app = FrozenApp(failed(session()), first=lambda: RunScreen(FAILED))
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await pilot.press("i")
        await at(pilot, TriageScreen, "✗ bad     code and model")
        await pilot.press("e")
        await until(pilot, lambda: len(os.listdir(tmp_path)) == 1)
        await pilot.press("e")
        await until(pilot, lambda: len(os.listdir(tmp_path)) == 2)
    # The same moment on the frozen clock: the second one gets a number.
    name = f"raydeck-triage-{FAILED}-20260528-202640"
    assert sorted(os.listdir(tmp_path)) == [f"{name}-2.tar.gz", f"{name}.tar.gz"]
    first = tmp_path / f"{name}.tar.gz"
    with tarfile.open(first) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        assert {"manifest.json", "summary.md", "triage.json", "timeline.jsonl", "versions.json"} <= names
        log = archive.extractfile(next(member for member in archive if member.name.endswith("worker-1-rank-1.log")))
        assert log is not None
        text = log.read().decode()
        assert "loss is not a number" in text
        assert "hf_abcdef" not in text
        triage = archive.extractfile(next(member for member in archive if member.name.endswith("triage.json")))
        assert triage is not None
        assert json.loads(triage.read())["findings"][0]["culprit"]["rank"] == 1
