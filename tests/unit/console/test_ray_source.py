"""What the console makes of Ray's dashboard: recorded answers, and every way in which it may not answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console.sources.ray import RayWatcher
from console.state.fleet import FleetStore
from console.state.work import WorkStore
from jobs.rayapi import RayApi
from jobs.transport import Response

DATA = Path(__file__).parents[2] / "data" / "ray"
FILES = {
    "/api/version": "version.json",
    "/api/v0/nodes": "nodes.json",
    "/api/cluster_status": "cluster_status.json",
    "/api/jobs/": "jobs.json",
}


class Recorded:
    """Answers as a real dashboard did, unless ``instead`` says otherwise."""

    where = "http://127.0.0.1:8265"

    def __init__(self) -> None:
        self.instead: Callable[[str], Response | None] = lambda path: None
        self.asked: list[str] = []

    async def request(self, method: str, path: str, **_: Any) -> Response:
        self.asked.append(path)
        recorded = json.loads((DATA / FILES[path]).read_text())
        body = recorded.get("body", recorded) if isinstance(recorded, dict) else recorded
        text = body if isinstance(body, str) else json.dumps(body)
        return self.instead(path) or Response(200, text.encode())

    def stream(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is streamed from Ray")


async def until(condition: Callable[[], bool]) -> None:
    """A condition, within 5 s."""
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within 5 s")


async def watch(recorded: Recorded, known: Callable[[FleetStore, WorkStore], bool]) -> tuple[FleetStore, WorkStore]:
    """Watch until something is known, within 5 s."""
    fleet, work = FleetStore(), WorkStore()

    async def connect() -> RayApi:
        return RayApi(recorded, lambda: "")

    task = asyncio.create_task(RayWatcher(connect, fleet, work).run())
    try:
        await until(lambda: task.done() or known(fleet, work))
        assert not task.done(), task.exception()
        return fleet, work
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_recorded_answers_become_nodes_and_jobs() -> None:
    recorded = Recorded()
    fleet, work = await watch(recorded, lambda fleet, work: fleet.ray.state == "ok")
    assert fleet.nodes
    assert all(node.ray_node_id for node in fleet.nodes.values())
    assert work.keys
    assert recorded.asked.count("/api/v0/nodes") == 1, "one question in flight, then a pause"
    assert fleet.findings(0.0) == [] or all("Ray:" not in finding.text for finding in fleet.findings(0.0))


def _down(path: str) -> Response | None:
    raise ConnectionError("connection refused")


def _slow(path: str) -> Response | None:
    raise TimeoutError


@pytest.mark.parametrize(
    ("instead", "state", "words"),
    [
        (_down, "down", "does not answer"),
        (_slow, "down", "within"),
        (lambda path: Response(401, b"Unauthorized: Missing authentication token"), "unauthorised", "token"),
        (lambda path: Response(403, b"Forbidden"), "unauthorised", "token"),
        (lambda path: Response(500, b"Traceback (most recent call last):\nKeyError: 'x'"), "down", "KeyError"),
        (lambda path: Response(200, b"<html>"), "down", ""),
    ],
)
async def test_what_goes_wrong_is_said_in_words(instead: Any, state: str, words: str) -> None:
    recorded = Recorded()
    recorded.instead = instead
    fleet, _ = await watch(recorded, lambda fleet, work: fleet.ray.state != "unknown")
    assert fleet.ray.state == state, fleet.ray
    assert words in fleet.ray.reason
    assert "Traceback" not in fleet.ray.reason
    assert any(finding.text.startswith("Ray:") for finding in fleet.findings(1.0))


async def test_an_unknown_ray_is_said_and_read_all_the_same() -> None:
    recorded = Recorded()
    recorded.instead = lambda path: (
        Response(200, b'{"version": "4", "ray_version": "1.9.0"}') if path == "/api/version" else None
    )
    fleet, _ = await watch(recorded, lambda fleet, work: fleet.ray.state == "unsupported")
    assert "1.9.0" in fleet.ray.reason
    assert fleet.nodes


async def test_what_was_known_stays_with_its_age_when_ray_goes_away() -> None:
    recorded = Recorded()
    fleet, work = FleetStore(), WorkStore()

    async def connect() -> RayApi:
        return RayApi(recorded, lambda: "")

    watcher = RayWatcher(connect, fleet, work)
    task = asyncio.create_task(watcher.run())
    try:
        await until(lambda: fleet.ray.state == "ok")
        nodes = dict(fleet.nodes)
        recorded.instead = _down
        watcher.refresh()
        await until(lambda: fleet.ray.state == "down")
        assert fleet.nodes == nodes
        assert fleet.ray_read_at is not None
        assert "what is shown of Ray is 30 s old" in fleet.findings(fleet.ray_read_at + 30)[-1].text
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
