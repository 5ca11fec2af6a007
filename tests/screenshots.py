"""Makes ``screenshots/`` from the real app on a real demo: ``python -m tests.screenshots``.

Keys are pressed as a person would; a picture is taken when what it is of is on the screen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.screen import Screen

from console.app import RaydeckApp
from console.demo.runner import Demo
from console.render.work import progress_of
from console.screens.alerts import AlertsScreen
from console.screens.dialogs import ConfirmDialog
from console.screens.drains import DrainsScreen
from console.screens.fleet import FleetScreen
from console.screens.logs import LogScreen
from console.screens.node import NodeScreen
from console.screens.nodeforms import CordonDialog, DrainDialog
from console.screens.queue import QueueScreen
from console.screens.run import RunScreen
from console.screens.triage import TriageScreen
from console.screens.uncordon import UncordonDialog
from console.screens.validation import ValidationsScreen
from console.screens.work import RunsScreen
from console.settings import Settings
from console.validating import ask_for, launch
from console.widgets.table import VirtualTable
from jobs.model import Progress, Rank, Run, RunState
from tests.screens.seen import text_of

FOLDER = Path(__file__).parent.parent / "screenshots"
SIZE = (132, 38)
SMALL = (80, 24)
WIDE = (200, 50)
NO_PROGRESS = Progress(step=0)
STEPS = 120
KNOWN_SECONDS = 45.0
"""An attempt that has gone on for so long is known well enough to be missed; one that was moved begins anew."""
"""How far the sample has come when pictures are taken."""


async def until(pilot: Pilot[Any], what: str, condition: Callable[[], bool], limit: float = 90.0) -> None:
    """Wait for a condition; raises `TimeoutError` with what it was."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {limit:.0f} s")
        await pilot.pause(0.05)


def newest_run(app: RaydeckApp) -> Run | None:
    """The run that was launched last."""
    runs = app.session.work.runs.values() if app.session else ()
    return max(runs, key=lambda run: run.submitted_at, default=None)


def step_of(app: RaydeckApp) -> int:
    """How far it has come."""
    run = newest_run(app)
    point = progress_of(run) if run else None
    return point.step if point else 0


@contextlib.asynccontextmanager
async def on_a_demo(size: tuple[int, int]) -> AsyncGenerator[tuple[Any, Pilot[Any]]]:
    """The app and its pilot on a demo that has just started; all gone afterwards."""
    demo = Demo()
    try:
        async for event in demo.events():
            print(event["event"], event.get("name", ""), event.get("state", ""), file=sys.stderr)
        app = RaydeckApp(Settings(theme="raydeck-dark"), dict(os.environ), demo.context)
        async with app.run_test(size=size, notifications=True) as pilot:
            await until(pilot, "the fleet", lambda: isinstance(app.screen, FleetScreen))
            try:
                yield app, pilot
            finally:
                await app.close_session()
    finally:
        await demo.close()


def camera(app: RaydeckApp, pilot: Pilot[Any]) -> Callable[..., Awaitable[None]]:
    """What takes a picture of the screen as it is, by a name, at a size."""

    async def shot(name: str, size: tuple[int, int] = SIZE) -> None:
        app.clear_notifications()
        await pilot.resize_terminal(*size)
        await pilot.pause(1.2)
        (FOLDER / f"{name}.svg").write_text(app.export_screenshot(title="raydeck"), encoding="utf-8")
        print(f"screenshots/{name}.svg")
        await pilot.resize_terminal(*SIZE)

    return shot


async def launched(app: RaydeckApp, pilot: Pilot[Any]) -> None:
    """The sample, launched, and well on its way."""
    await until(pilot, "the controller", lambda: app.session is not None and app.session.work.controller.state == "ok")
    await pilot.press("S", "enter")
    await until(pilot, "the preview", lambda: isinstance(app.screen, ConfirmDialog))
    await pilot.press("y")
    await until(pilot, "the runs", lambda: isinstance(app.screen, RunsScreen))
    await until(pilot, f"step {STEPS}", lambda: step_of(app) >= STEPS)


async def make() -> None:
    """Launch the sample, look at everything, take a picture of each screen; then the same where something breaks."""
    FOLDER.mkdir(exist_ok=True)
    async with on_a_demo(SIZE) as (app, pilot):
        shot = camera(app, pilot)
        await launched(app, pilot)
        await shot("runs")
        await pilot.press("enter")
        await until(pilot, "the run", lambda: isinstance(app.screen, RunScreen))
        await shot("run")
        await pilot.press("l")
        await until(pilot, "the log", lambda: isinstance(app.screen, LogScreen))
        await shot("log")
        await pilot.press("1")
        await until(pilot, "the fleet", lambda: isinstance(app.screen, FleetScreen))
        await pilot.press("j")
        await shot("fleet")
        await pilot.press("enter")
        await until(pilot, "the node", lambda: isinstance(app.screen, NodeScreen))
        await shot("node")
        await keep_free(app, pilot, shot)
        await more_than_fit(app, pilot)
        await pilot.press("3")
        await until(pilot, "the queue", lambda: isinstance(app.screen, QueueScreen))
        await until(pilot, "one that waits", lambda: bool(app.session.work.queue and app.session.work.queue.waiting))
        await shot("queue")
    async with on_a_demo(SIZE) as (app, pilot):
        await until(
            pilot, "the controller", lambda: app.session is not None and app.session.work.controller.state == "ok"
        )
        await proves(app, pilot, camera(app, pilot))
    # By itself: where more ranks than processors work, simulated GPUs draw too little for a hang to be seen in it.
    async with on_a_demo(SIZE) as (app, pilot):
        await launched(app, pilot)
        await goes_wrong(app, pilot, camera(app, pilot))


async def proves(app: RaydeckApp, pilot: Pilot[Any], shot: Callable[..., Awaitable[None]]) -> None:
    """Validate all nodes with a GPU that computes wrong, on the way up and at the end."""
    assert app.session is not None
    client = await app.session.controller()
    ask = ask_for(app.session, "standard")
    run = await launch(client, ask.model_copy(update={"fault": "gemm:1", "fault_node": "worker-2"}))
    app.open_validation(run.id)
    await until(
        pilot, "one node", lambda: "left out: exact matrix product" in text_of(app) and "running" in text_of(app)
    )
    await shot("validation-going")
    await until(pilot, "its end", lambda: "not to be trusted" in text_of(app))
    for name, size in (("validation", SIZE), ("validation-80", SMALL)):
        await shot(name, size)
    await pilot.press("8")
    await until(pilot, "the list", lambda: isinstance(app.screen, ValidationsScreen) and run.id in text_of(app))


async def keep_free(app: RaydeckApp, pilot: Pilot[Any], shot: Callable[..., Awaitable[None]]) -> None:
    """Cordon one node and drain another, each with its preview, and take both back."""
    assert app.session is not None
    held = app.session.work.nodes

    async def form(key: str, node: str, kind: type[Screen[Any]], text: str) -> None:
        await pilot.press("1")
        await until(pilot, "the fleet", lambda: isinstance(app.screen, FleetScreen))
        await until(pilot, node, lambda: app.screen.query_one(VirtualTable).move_to(node))
        await pilot.press(key)
        await until(pilot, text, lambda: isinstance(app.screen, kind) and text in text_of(app))

    async def is_now(node: str, state: str) -> None:
        await until(pilot, f"{node} {state}", lambda: getattr(held.named(node), "state", "open") == state)

    await form("C", "worker-1", CordonDialog, "Open for new work")
    for name, size in (("cordon", SIZE), ("cordon-80", SMALL)):
        await shot(name, size)
    await pilot.press("r", *"fan 2 is loud", "enter")
    await is_now("worker-1", "cordoned")
    await form("D", "worker-2", DrainDialog, "is asked to save")
    for name, size in (("drain", WIDE), ("drain-80", SMALL)):
        await shot(name, size)
    await pilot.press("r", *"swap the NVLink bridge", "enter", *"worker-2", "enter")
    await until(pilot, "the drain", lambda: held.part("worker-2") is not None)
    await until(pilot, "the fleet", lambda: isinstance(app.screen, FleetScreen))
    for name, size in (("kept-free", WIDE), ("kept-free-80", SMALL)):
        await shot(name, size)
    await pilot.press("6")
    await until(pilot, "the drains", lambda: isinstance(app.screen, DrainsScreen))
    for name, size in (("drains", SIZE), ("drains-80", SMALL)):
        await shot(name, size)
    await is_now("worker-2", "drained")
    for node in ("worker-1", "worker-2"):
        await form("U", node, UncordonDialog, "may start again")
        await pilot.press("enter")
        await until(pilot, "the question", lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.press("y")
        await is_now(node, "open")


async def goes_wrong(app: RaydeckApp, pilot: Pilot[Any], shot: Callable[..., Awaitable[None]]) -> None:
    """Lose a GPU, stop one rank of a run as a debugger would; look at the alerts, ask what broke, go back in time."""
    assert app.session is not None
    work, folder = app.session.work, Path(app.session.context.disks[0])

    def goes_on() -> list[tuple[str, list[Rank]]]:
        """Runs of several ranks that have made some progress, and their ranks."""
        return [
            (run.id, status.ranks)
            for run in work.runs.values()
            if run.state is RunState.RUNNING and (progress_of(run) or NO_PROGRESS).step >= STEPS
            if (status := run.attempts[-1].status) is not None and len(status.ranks) > 1
            if all(rank.pid for rank in status.ranks)
            and status.wall - (run.attempts[-1].started_at or status.wall) > KNOWN_SECONDS
        ]

    await until(pilot, "a run that goes on", lambda: bool(goes_on()), 150)
    run, ranks = goes_on()[0]
    names = {node.ray_node_id: node.name for node in app.session.fleet.nodes.values()}
    nodes = {names[rank.node_id] for rank in ranks}
    held = {(names[rank.node_id], rank.gpu) for rank in ranks}
    # Another run's: a run is only said to hang while all of its own GPUs tell that they spin.
    lost = next((node, index) for node in sorted(nodes) for index in "3210" if (node, index) not in held)
    for node in nodes:
        # As GPUs do while ranks wait for one that does not come: full utilisation, little power.
        faults = {index: {"kind": "lost" if (node, index) == lost else "spin"} for index in "0123"}
        script = folder / f"simulated-{node}.json"
        new = script.with_suffix(".new")
        new.write_text(json.dumps({**json.loads(script.read_text()), "faults": faults}))
        os.replace(new, script)
    (pid,) = (rank.pid for rank in ranks if rank.rank == 1 and rank.pid is not None)
    os.kill(pid, signal.SIGSTOP)

    def named() -> bool:
        view = work.alerts.view
        return view is not None and any(
            alert.run == run and alert.rule in ("run.spinning", "run.stalled") for alert in view.alerts
        )

    await until(pilot, "the hang", named, 150)
    await pilot.press("7")
    await until(pilot, "the alerts", lambda: isinstance(app.screen, AlertsScreen) and run in text_of(app))
    for name, size in (("alerts", SIZE), ("alerts-80", SMALL)):
        await shot(name, size)
    app.triage(run)
    await until(pilot, "triage", lambda: isinstance(app.screen, TriageScreen) and " is behind: " in text_of(app))
    for name, size in (("triage", WIDE), ("triage-80", SMALL)):
        await shot(name, size)
    await pilot.press("1")
    await until(pilot, "the fleet", lambda: isinstance(app.screen, FleetScreen))
    await pilot.press("left_curly_bracket")
    await until(pilot, "back in time", lambda: app.replay is not None and "REPLAY" in text_of(app))
    await until(pilot, "that moment", lambda: app.replay is not None and not app.replay.loading)
    await shot("replay")
    await pilot.press("escape")


async def more_than_fit(app: RaydeckApp, pilot: Pilot[Any]) -> None:
    """Launch the sample until some have to wait."""
    assert app.session is not None
    work = app.session.work
    for _ in range(3):
        known = len(work.runs)
        await pilot.press("S", "enter")
        await until(pilot, "the preview", lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.press("y")
        await until(pilot, "one more run", lambda known=known: len(work.runs) > known)


if __name__ == "__main__":
    asyncio.run(make())
