"""The controller's side of the probes that Ray keeps on the nodes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jobs.controller.health import watchers
from jobs.controller.health.watchers import Watchers
from jobs.errors import Unreachable
from probes.reading import Line, Sample, encode

STAND_IN = """
import json, os, sys, time
folder = sys.argv[1]
with open(f"{folder}/pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
how = open(f"{folder}/how").read()
if how == "refuses":
    print(json.dumps({"failed": "no connection to Ray: it is full"}), flush=True)
    sys.exit(1)
if how == "silent":
    time.sleep(60)
print(json.dumps({"ready": {}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    with open(f"{folder}/asked", "a") as file:
        file.write(line)
    for node in asked["nodes"]:
        if node == "odd":
            print(json.dumps({"node": node, "lines": ["Welcome to the machine"]}), flush=True)
            continue
        print(json.dumps({"node": node, "lines": [open(f"{folder}/line").read()]}), flush=True)
        print(json.dumps({"node": node, "clock": [0.25, 1.5]}), flush=True)
        print(json.dumps({"node": node, "gone": "its probe has ended: exit code 1"}), flush=True)
    if how == "dies":
        sys.exit("Traceback of Ray")
"""


@dataclass
class Told:
    """Takes all that is told."""

    lines: list[tuple[str, Line]] = field(default_factory=list)
    clocks: list[tuple[str, float, float]] = field(default_factory=list)
    gones: list[tuple[str, str]] = field(default_factory=list)
    blinds: list[str] = field(default_factory=list)

    def line(self, node_id: str, line: Line, text: str) -> None:
        self.lines.append((node_id, line))

    def clock(self, node_id: str, offset_seconds: float, round_trip_ms: float) -> None:
        self.clocks.append((node_id, offset_seconds, round_trip_ms))

    def gone(self, node_id: str, why: str) -> None:
        self.gones.append((node_id, why))

    def blind(self, why: str) -> None:
        self.blinds.append(why)


class Bench:
    """`Watchers` over stand-ins."""

    def __init__(self, folder: Path, how: str) -> None:
        self.folder = folder
        self.told = Told()
        self.nodes: dict[str, list[str]] = {"node-a": ["/data"]}
        self.where: str | None = "127.0.0.1:6379"
        (folder / "how").write_text(how)
        (folder / "line").write_text(encode(Sample(seq=7)))

    async def address(self) -> str:
        if self.where is None:
            raise Unreachable("Ray does not say where its head is")
        return self.where

    def wanted(self) -> Mapping[str, Sequence[str]]:
        return self.nodes

    def pids(self) -> list[int]:
        file = self.folder / "pids"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def asked(self) -> list[dict[str, list[str]]]:
        file = self.folder / "asked"
        return [json.loads(line)["nodes"] for line in file.read_text().splitlines()] if file.exists() else []


@asynccontextmanager
async def bench(folder: Path, how: str = "well", start_seconds: float = 20.0) -> AsyncGenerator[Bench]:
    made = Bench(folder, how)
    command = (sys.executable, "-c", STAND_IN, str(folder))
    task = asyncio.create_task(
        Watchers(made.address, made.wanted, made.told, 2.0, command=command, start_seconds=start_seconds).run()
    )
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    for pid in made.pids():
        assert not _lives(pid), "a child was left behind"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "PAUSES", (0.05,))
    monkeypatch.setattr(watchers, "LOOK_SECONDS", 0.05)


async def test_what_the_nodes_tell_arrives(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        await until(lambda: made.told.gones)
        assert made.told.lines == [("node-a", Sample(seq=7))]
        assert made.told.clocks == [("node-a", 0.25, 1.5)]
        assert made.told.gones == [("node-a", "its probe has ended: exit code 1")]
        assert made.told.blinds == [""]
        assert made.asked() == [{"node-a": ["/data"]}]


async def test_what_is_wanted_is_told_whenever_it_is_something_else(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        await until(lambda: len(made.asked()) == 1)
        made.nodes = {"node-b": []}
        await until(lambda: len(made.asked()) == 2)
        assert made.asked()[-1] == {"node-b": []}
        assert len(made.pids()) == 1


async def test_no_node_no_child(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        await until(lambda: made.pids())
        before = len(made.pids())
        made.nodes = {}
        await until(lambda: made.asked()[-1:] == [{}])
        assert len(made.pids()) == before


async def test_it_is_started_again_after_its_end(tmp_path: Path) -> None:
    async with bench(tmp_path, "dies") as made:
        await until(lambda: len(made.pids()) >= 2)
        assert "what watches the nodes ended: Traceback of Ray" in made.told.blinds


async def test_one_that_is_killed_is_started_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        await until(lambda: made.told.lines)
        os.kill(made.pids()[0], signal.SIGKILL)
        await until(lambda: len(made.told.lines) >= 2)


async def test_another_head_gets_another_child(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        await until(lambda: made.told.lines)
        made.where = "127.0.0.1:7000"
        await until(lambda: len(made.pids()) >= 2)
        assert "Ray's head is another one" in made.told.blinds


async def test_while_ray_says_nothing_the_child_stays(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        await until(lambda: made.told.lines)
        made.where = None
        made.nodes = {"node-c": []}
        await until(lambda: made.asked()[-1] == {"node-c": []})
        assert len(made.pids()) == 1


async def test_a_refusal_is_told(tmp_path: Path) -> None:
    async with bench(tmp_path, "refuses") as made:
        await until(lambda: made.told.blinds)
        assert made.told.blinds[0] == "no connection to Ray: it is full"


async def test_one_that_never_answers_is_ended(tmp_path: Path) -> None:
    async with bench(tmp_path, "silent", start_seconds=0.5) as made:
        await until(lambda: made.told.blinds)
        assert made.told.blinds[0] == "no connection to Ray at 127.0.0.1:6379 within 0.5 s"


async def test_a_banner_is_no_sample(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        made.nodes = {"odd": []}
        await until(lambda: any(node == "odd" for node, _ in made.told.gones))
        assert any("cannot be understood" in why for node, why in made.told.gones if node == "odd")
        assert all(node != "odd" for node, _ in made.told.lines)
