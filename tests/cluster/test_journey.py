"""A person's first ten minutes, with real keys on a real demo: launch, watch, read, stop; then things break."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from console.app import RaydeckApp
from console.demo.processes import _marked
from console.screens.dialogs import ConfirmDialog
from console.screens.fleet import FleetScreen
from console.screens.logs import LogScreen
from console.screens.run import RunScreen
from console.screens.work import RunsScreen
from console.state.work import ranks
from console.widgets.heatmap import Heatmap
from console.widgets.log import LogView
from jobs.model import RunState
from tests.screenshots import newest_run, on_a_demo, step_of, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

BUSY_PERCENT = 50


def _held(app: RaydeckApp) -> dict[str, set[int]]:
    """Node to the accelerators that the gang itself says it holds."""
    assert app.session is not None
    run = newest_run(app)
    names = {node.ray_node_id: node.name for node in app.session.fleet.nodes.values()}
    held: dict[str, set[int]] = {}
    for rank in ranks(run) if run else []:
        held.setdefault(names[rank.node_id], set()).add(int(rank.gpu))
    return held


def _busy(app: RaydeckApp) -> dict[str, set[int]]:
    """Node to the accelerators that the probes see busy."""
    assert app.session is not None
    found: dict[str, set[int]] = {}
    for node in app.session.fleet.nodes.values():
        for index in node.gpu_indexes:
            load = node.reading(index, "utilization_percent")
            if isinstance(load, (int, float)) and load > BUSY_PERCENT:
                found.setdefault(node.name, set()).add(index)
    return found


def _of_run(demo: str, run: str) -> list[int]:
    """The living processes of a run."""
    found: list[int] = []
    for pid in _marked(demo):
        with contextlib.suppress(OSError):
            if f"RAYDECK_RUN={run}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def _pid_of(demo: str, *words: str) -> int:
    """The one process of a demo with these words on its command line."""
    found = [
        pid
        for pid in _marked(demo)
        if all(word in Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ") for word in words)
    ]
    assert len(found) == 1, (words, found)
    return found[0]


def _demo_of(app: RaydeckApp) -> str:
    assert app.context is not None
    folder = Path(app.context.metadata_store).parent
    pid = next(int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _runs_in(p, str(folder)))
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(part for part in environ if part.startswith(b"RAYDECK_DEMO=")).decode().partition("=")[2]


def _runs_in(process: Path, folder: str) -> bool:
    with contextlib.suppress(OSError):
        return b"console.demo.host" in (line := (process / "cmdline").read_bytes()) and folder.encode() in line
    return False


async def test_launch_watch_read_stop_and_then_things_break() -> None:
    async with on_a_demo((120, 36)) as (app, pilot):
        demo = _demo_of(app)
        fleet, work = app.session.fleet, app.session.work
        await until(pilot, "every node's sample", lambda: all(node.sample for node in fleet.nodes.values()))
        await until(pilot, "the controller", lambda: work.controller.state == "ok")
        assert [(node.ssh.state, node.ray.state) for node in fleet.nodes.values()] == [("up", "alive")] * 3
        assert sum(len(node.gpu_indexes) for node in fleet.nodes.values()) == 8

        run = await _launch(app, pilot)
        await _watch(app, pilot, run)
        await _read(app, pilot)
        await _stop(app, pilot, demo, run)
        await _a_raylet_dies(app, pilot, demo)
        await _a_host_goes_silent(app, pilot, demo)


async def _launch(app: RaydeckApp, pilot: Pilot[Any]) -> str:
    await pilot.press("S", "enter")
    await until(pilot, "the preview", lambda: isinstance(app.screen, ConfirmDialog))
    await pilot.press("y")
    await until(pilot, "the runs", lambda: isinstance(app.screen, RunsScreen))
    await until(pilot, "a run", lambda: newest_run(app) is not None)
    run = newest_run(app)
    assert run is not None
    return run.id


async def _watch(app: RaydeckApp, pilot: Pilot[Any], run: str) -> None:
    losses: list[float] = []

    def falls() -> bool:
        known = newest_run(app)
        point = known.attempt.status.progress if known and known.attempt and known.attempt.status else None
        if point is not None and point.loss is not None and (not losses or losses[-1] != point.loss):
            losses.append(point.loss)
        return len(losses) > 3 and losses[-1] < losses[0] - 0.5

    await until(pilot, "the loss falls", falls, 120.0)
    await pilot.press("1")
    await until(pilot, "the fleet", lambda: isinstance(app.screen, FleetScreen))
    heatmap = app.screen.query_one(Heatmap)
    await until(pilot, "the heatmap shows what the run holds", lambda: heatmap._held == _held(app) != {})
    assert sum(len(gpus) for gpus in _held(app).values()) == 4
    await until(pilot, "exactly the held accelerators are busy", lambda: _busy(app) == _held(app), 20.0)
    assert app.run_in_focus == run


async def _read(app: RaydeckApp, pilot: Pilot[Any]) -> None:
    await pilot.press("2", "enter")
    await until(pilot, "the run", lambda: isinstance(app.screen, RunScreen))
    await pilot.press("l")
    await until(pilot, "the log", lambda: isinstance(app.screen, LogScreen))
    view = app.screen.query_one(LogView)
    await until(
        pilot, "lines of every rank", lambda: {line.rank for line in view.source.lines(0, 10_000)} >= {0, 1, 2, 3}
    )
    before, step = view.source.count(), step_of(app)
    await until(pilot, "the log follows", lambda: view.source.count() > before and step_of(app) > step)
    assert view.follow


async def _stop(app: RaydeckApp, pilot: Pilot[Any], demo: str, run: str) -> None:
    assert len(_of_run(demo, run)) >= 4
    await pilot.press("2")
    await until(pilot, "the runs", lambda: isinstance(app.screen, RunsScreen))
    await pilot.press("K")
    await until(pilot, "the question", lambda: isinstance(app.screen, ConfirmDialog))
    await pilot.press("y")
    await until(pilot, "stopped", lambda: app.session.work.runs[run].state is RunState.STOPPED, 60.0)  # pyright: ignore
    assert _of_run(demo, run) == [], "no process of the gang is left"
    stopped = newest_run(app)
    assert stopped is not None
    assert stopped.attempt is not None
    assert stopped.attempt.outcome is not None
    assert (stopped.attempt.outcome.checkpoint_step or 0) >= step_of(app) - 1, "it saved before it left"
    await until(pilot, "the accelerators are idle", lambda: _busy(app) == {}, 20.0)


async def _a_raylet_dies(app: RaydeckApp, pilot: Pilot[Any], demo: str) -> None:
    assert app.session is not None
    node = app.session.fleet.nodes["worker-2"]
    os.kill(_pid_of(demo, "raylet/raylet", node.ray_node_id), signal.SIGKILL)
    await until(pilot, "dead to Ray", lambda: node.ray.state == "dead", 30.0)
    assert node.ssh.state == "up"
    assert not node.stale(app.session.now()), "SSH still tells of its accelerators"


async def _a_host_goes_silent(app: RaydeckApp, pilot: Pilot[Any], demo: str) -> None:
    assert app.session is not None
    node = app.session.fleet.nodes["worker-1"]
    host = _pid_of(demo, "console.demo.host", "home/worker-1")
    os.kill(host, signal.SIGSTOP)
    stopped_at = time.monotonic()
    try:
        await until(pilot, "silent", lambda: node.ssh.state == "silent", 5.0)
        assert time.monotonic() - stopped_at < 3.3, "within 3 s, and a frame"
        assert node.ray.state == "alive", "Ray still holds it alive"
        await until(pilot, "lost", lambda: node.ssh.state == "lost", 5.0)
        assert time.monotonic() - stopped_at < 6.5
    finally:
        os.kill(host, signal.SIGCONT)
    await until(pilot, "up again", lambda: node.ssh.state == "up", 30.0)
