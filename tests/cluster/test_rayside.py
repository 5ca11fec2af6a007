"""The controller's hand in a real Ray: idle GPUs are held and given back, a node is drained, others' work is seen."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobs.controller.engine import Engine
from jobs.controller.http import AiohttpTransport
from jobs.controller.occupants import end, occupants
from jobs.controller.rayside import RaySide
from jobs.errors import Refused
from jobs.gang.processes import tree
from jobs.nodeview import Other
from jobs.rayside.values import HoldSeen
from tests.cluster.conftest import NODES, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

MACHINE = Path("/etc/machine-id").read_text().strip()
FOREIGN = """
import json, os, sys
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
import ray
from ray.util import placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init(address=sys.argv[1], namespace="theirs", log_to_driver=False, configure_logging=False)

@ray.remote(num_cpus=0, max_restarts=-1)
class Trainer:
    pass

kept = {}
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    name, node = asked["name"], asked.get("node")
    if asked["do"] == "actor":
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        named = {"name": name} if asked["named"] else {}
        kept[name] = Trainer.options(num_gpus=asked["gpus"], scheduling_strategy=there, **named).remote()
    elif asked["do"] == "group":
        where = [{"ray.io/node-id": node}]
        kept[name] = placement_group([{"GPU": 1}], name=name, bundle_label_selector=where)
    else:
        ray.kill(kept.pop(name))
    print("done", flush=True)
"""


@dataclass(frozen=True, slots=True)
class OwnRay:
    """A Ray of this module's own, since a drain is for good, and somebody else's driver in it."""

    dashboard: str
    nodes: dict[str, dict[str, Any]]
    foreign: subprocess.Popen[str]

    def id_of(self, name: str) -> str:
        return str(self.nodes[name]["node_id"])

    def others(self, do: str, name: str, node: str = "", gpus: float = 0, named: bool = True) -> None:
        """Have somebody else start an actor or a group, or end it (``end``)."""
        asked = {"do": do, "name": name, "node": node, "gpus": gpus, "named": named}
        assert self.foreign.stdin is not None
        assert self.foreign.stdout is not None
        self.foreign.stdin.write(json.dumps(asked) + "\n")
        self.foreign.stdin.flush()
        assert self.foreign.stdout.readline() == "done\n"

    def workers(self, name: str) -> list[str]:
        """The worker processes on a node."""
        found: list[str] = []
        for process in tree(int(self.nodes[name]["raylet_pid"])):
            try:
                title = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            except OSError:
                continue  # it has just ended
            if title.startswith("ray::") and "Agent" not in title:
                found.append(title)
        return found


@pytest.fixture(scope="module")
def own() -> Generator[OwnRay]:
    folder = Path(tempfile.mkdtemp(prefix="rd-"))
    command = [sys.executable, "-m", "jobs.local", "--temp-dir", str(folder), "--nodes-json", json.dumps(NODES)]
    cluster = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    foreign: subprocess.Popen[str] | None = None
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    try:
        events = (json.loads(line) for line in cluster.stdout)
        ready = next((event for event in events if event["event"] in ("ready", "failed")), None)
        assert ready is not None, "the cluster ended before it was ready"
        assert ready["event"] == "ready", ready
        foreign = subprocess.Popen(
            [sys.executable, "-c", FOREIGN, ready["gcs"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert foreign.stdout is not None
        assert foreign.stdout.readline() == "ready\n"
        yield OwnRay(f"http://{ready['dashboard']}", {node["name"]: node for node in ready["nodes"]}, foreign)
    finally:
        if foreign is not None:
            foreign.kill()
            foreign.communicate()
        cluster.stdin.close()
        rest = [json.loads(line) for line in cluster.stdout]
        cluster.wait(30)
        cluster.stdout.close()
        shutil.rmtree(folder)
    assert rest[-1] == {"event": "stopped", "survivors": []}


@dataclass(frozen=True, slots=True)
class Desk:
    """The controller's parts that are used here, as it has them."""

    own: OwnRay
    engine: Engine
    rayside: RaySide

    async def hold(self, node_id: str, wanted: int, held: int) -> None:
        """Have so many held. Ray may take a moment for it: what was freed just now is placed at its next try."""
        seen = HoldSeen(wanted, held, wanted - held)

        async def as_it_should() -> bool:
            return await self.rayside.hold(node_id, wanted) == seen

        await until(f"{held} of {wanted} are held", as_it_should)
        assert (await self.rayside.holds())[node_id] == seen

    async def on(self, name: str) -> dict[str, Other]:
        """Others' work on a node, by its name."""
        node_id = self.own.id_of(name)
        return {each.name: each for each in (await occupants(self.engine.api, [node_id]))[node_id]}


@pytest.fixture
async def desk(own: OwnRay) -> AsyncGenerator[Desk]:
    transport = AiohttpTransport(own.dashboard)
    engine = Engine(transport)
    await engine.look(at_once=True)
    rayside = RaySide(engine.gcs)
    try:
        yield Desk(own, engine, rayside)
        await rayside.let_go_all_but([])
    finally:
        await rayside.close()
        await transport.close()


async def until(what: str, ask: Callable[[], Awaitable[Any]], seconds: float = 20.0) -> Any:
    """What it gives, once that is true."""
    deadline = time.monotonic() + seconds
    while not (value := await ask()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.05)
    return value


async def test_idle_gpus_are_held_and_given_back(desk: Desk) -> None:
    own, rayside = desk.own, desk.rayside
    one, two = own.id_of("worker-1"), own.id_of("worker-2")
    await desk.hold(one, 4, held=4)
    await desk.hold(two, 4, held=4)
    assert await desk.on("worker-1") == {}

    own.others("actor", "late", one, gpus=1)
    kept_waiting = {"state": "PENDING_CREATION", "name": "late"}
    await until("it waits", lambda: desk.engine.api.state("actors", kept_waiting))
    assert await rayside.let_go_all_but([one]) == 4
    # It still waits: nothing that it could have was given back.
    assert await desk.engine.api.state("actors", kept_waiting)
    assert await rayside.let_go([one]) == 4
    await until("it runs", lambda: desk.engine.api.state("actors", {"state": "ALIVE", "name": "late"}))

    # What is busy is pending, however often it is asked for, and is taken when it gets free.
    for _ in range(2):
        await desk.hold(one, 4, held=3)
    own.others("end", "late")

    async def all_held() -> bool:
        return await rayside.holds() == {one: HoldSeen(wanted=4, held=4)}

    await until("the freed GPU is held", all_held)
    assert await rayside.hold(one, 1) == HoldSeen(wanted=1, held=1)
    assert await rayside.hold(one, 0) == HoldSeen(wanted=0, held=0)


async def test_what_a_killed_process_left_is_found_again(desk: Desk) -> None:
    node_id = desk.own.id_of("worker-1")
    await desk.hold(node_id, 3, held=3)
    child = desk.rayside._child
    assert child is not None
    os.kill(child._process.pid, signal.SIGKILL)
    assert (await desk.rayside.holds())[node_id] == HoldSeen(wanted=3, held=3)
    await desk.hold(node_id, 4, held=4)
    assert desk.rayside._child is not child


async def test_the_machine_of_a_node_is_known_and_nothing_stays_there(desk: Desk) -> None:
    node_id = desk.own.id_of("worker-2")
    rayside = RaySide(desk.engine.gcs)
    try:
        assert await rayside.machine_ids([node_id, "0" * 56]) == {node_id: MACHINE}
    finally:
        await rayside.close()
    wait_for("its worker processes end", lambda: not desk.own.workers("worker-2"), 10)


async def test_what_others_run_is_seen_and_ended(desk: Desk) -> None:
    own, node_id = desk.own, desk.own.id_of("worker-1")
    own.others("actor", "sneak", node_id)
    own.others("actor", "nameless", node_id, named=False)
    own.others("group", "theirs", node_id)
    await desk.hold(node_id, 1, held=1)

    async def all_there() -> dict[str, Other] | None:
        seen = await desk.on("worker-1")
        return seen if len(seen) == 3 else None

    seen = await until("all of it is seen", all_there)
    assert {name: (each.kind, each.gpus) for name, each in seen.items()} == {
        "sneak": ("actor", 0.0),
        "Trainer": ("actor", 0.0),
        "theirs": ("placement group", 1.0),
    }
    for each in seen.values():
        await end(desk.engine.api, desk.rayside, each)

    async def nothing() -> bool:
        return await desk.on("worker-1") == {}

    await until("nothing of it is left", nothing)
    with pytest.raises(Refused, match="does not end the actor"):
        await desk.rayside.kill_actor("ab" * 16)
    with pytest.raises(Refused, match="no id of a Ray actor"):
        await desk.rayside.kill_actor("sneak")
    await desk.rayside.remove_group(seen["theirs"].id)


async def test_a_busy_node_is_drained_and_leaves_when_it_is_empty(desk: Desk) -> None:
    own, rayside, node_id = desk.own, desk.rayside, desk.own.id_of("worker-2")
    for nonsense in ("worker-2", "ff" * 28):
        with pytest.raises(Refused):
            await rayside.drain(nonsense, "a test", 60.0)
    assert await rayside.draining() == {}

    own.others("actor", "busy", node_id, gpus=1)
    await until("it runs", lambda: desk.engine.api.state("actors", {"state": "ALIVE", "name": "busy"}))
    await desk.hold(node_id, 4, held=3)
    began = time.time()
    seen = await rayside.drain(node_id, "a test", 60.0)
    assert (seen.draining, seen.dead) == (True, False)
    draining = await rayside.draining()
    assert draining.keys() == {node_id}
    assert began + 59 < draining[node_id] < time.time() + 61
    # What is held there would keep it from leaving.
    assert node_id not in await rayside.holds()
    assert await rayside.hold(node_id, 4) == HoldSeen(wanted=4, held=0)

    own.others("end", "busy")
    await until("it has left Ray", lambda: desk.engine.api.state("nodes", {"node_id": node_id, "state": "DEAD"}))
    with pytest.raises(Refused, match="no living node"):
        await rayside.drain(node_id, "a test", 60.0)
