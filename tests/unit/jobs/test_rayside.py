"""The process that speaks with Ray: what it is asked and answers, and how the controller keeps one."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jobs.controller.raychild import _environment
from jobs.controller.rayside import RaySide
from jobs.errors import Refused, Unreachable
from jobs.rayside.__main__ import answer, lines_until_end, serve
from jobs.rayside.values import AnotherHead, DrainSeen, HoldSeen, Mistake, RayFailed

STAND_IN = """
import json, os, signal, sys, time
folder, address = sys.argv[1], sys.argv[3]
with open(f"{folder}/started", "a") as file:
    file.write(f"{os.getpid()} {address}\\n")
how = open(f"{folder}/how").read()
sys.stderr.write("a word of Ray's\\n" + "x" * 9_000_000 + "\\n" if how == "wordy" else "")
if how == "silent":
    time.sleep(60)
if how == "refuses":
    print(json.dumps({"failed": "no connection to Ray: it is full"}), flush=True)
    sys.exit(1)
if how == "dies":
    sys.exit("Traceback of Ray")
print(json.dumps({"ready": {}}), flush=True)
late = []
for line in sys.stdin:
    asked = json.loads(line)
    number, what = asked["id"], asked.get("node_id")
    if what == "hang":
        continue
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "once" and not os.path.exists(f"{folder}/once"):
        open(f"{folder}/once", "w").close()
        os._exit(9)
    if what == "babble":
        print("no JSON", flush=True)
    if asked["do"] == "machine_ids" and asked["node_ids"] == ["later"]:
        late.append(number)
        continue
    told = {"ok": {"held": os.getpid(), "pending": asked.get("gpus")}}
    if asked["do"] == "let_go":
        told = {"ok": 1}
    if what == "nonsense":
        told = {"error": "'nonsense' is no id"}
    if what == "broken":
        told = {"failed": "RpcError"}
    if what == "stale" and not os.path.exists(f"{folder}/stale"):
        open(f"{folder}/stale", "w").close()
        told = {"stale": "another head"}
    print(json.dumps({"id": number, **told}), flush=True)
    for each in late:
        print(json.dumps({"id": each, "ok": {"later": "m"}}), flush=True)
    late.clear()
if how == "stays":
    time.sleep(60)
"""


class Bench:
    """A `RaySide` whose children are stand-ins, and a clock that stands still."""

    def __init__(self, folder: Path, **limits: float) -> None:
        self.folder = folder
        self.address = "10.0.0.1:6379"
        self.now = 0.0
        script = folder / "child.py"
        script.write_text(STAND_IN)
        self.behave("well")
        command = (sys.executable, "-S", "-I", str(script), str(folder))
        self.rayside = RaySide(self._address, lambda: self.now, command=command, **limits)

    def behave(self, how: str) -> None:
        (self.folder / "how").write_text(how)

    async def _address(self) -> str:
        return self.address

    def started(self) -> list[tuple[int, str]]:
        """Process id and address of each child so far."""
        file = self.folder / "started"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(line.split()[0]), line.split()[1]) for line in lines]

    def alive(self) -> list[int]:
        return [pid for pid, _ in self.started() if os.path.exists(f"/proc/{pid}")]


@asynccontextmanager
async def bench(folder: Path, **limits: float) -> AsyncGenerator[Bench]:
    made = Bench(folder, **limits)
    try:
        yield made
    finally:
        await made.rayside.close()
        assert made.alive() == []


async def until(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.01)


# --- the controller's side --------------------------------------------------------------------------------------------


async def test_a_child_is_started_at_the_first_call_and_kept(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        assert desk.started() == []
        first = await desk.rayside.hold("a", 4)
        second = await desk.rayside.hold("b", 2)
    assert first == HoldSeen(4, desk.started()[0][0], 4)
    assert second.held == first.held
    assert [address for _, address in desk.started()] == ["10.0.0.1:6379"]


async def test_calls_at_the_same_time_start_one_child(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        seen = await asyncio.gather(*(desk.rayside.hold(str(number), 1) for number in range(8)))
    assert len({each.held for each in seen}) == len(desk.started()) == 1


async def test_a_later_answer_does_not_hold_up_another(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        machines = asyncio.create_task(desk.rayside.machine_ids(["later"]))
        await until(desk.started)
        await asyncio.sleep(0.05)
        assert (await desk.rayside.hold("a", 4)).wanted == 4
        assert await machines == {"later": "m"}


async def test_what_makes_no_sense_is_refused_and_what_ray_cannot_is_not(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        with pytest.raises(Refused, match="is no id"):
            await desk.rayside.hold("nonsense", 4)
        with pytest.raises(Unreachable, match="Ray failed: RpcError"):
            await desk.rayside.hold("broken", 4)
        await desk.rayside.hold("a", 4)
    assert len(desk.started()) == 1


async def test_one_that_was_killed_is_replaced_without_a_word(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        first = (await desk.rayside.hold("a", 4)).held
        os.kill(first, signal.SIGKILL)
        second = (await desk.rayside.hold("a", 4)).held
    assert second != first
    assert len(desk.started()) == 2


@pytest.mark.parametrize("how", ["once", "stale"])
async def test_what_was_asked_of_one_that_dies_or_is_stale_is_asked_again(tmp_path: Path, how: str) -> None:
    async with bench(tmp_path) as desk:
        first = (await desk.rayside.hold("a", 4)).held
        second = (await desk.rayside.hold(how, 4)).held
    assert second != first
    assert len(desk.started()) == 2


async def test_what_kills_each_that_is_asked_is_told_and_the_next_one_waits(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        for attempt in range(2):
            with pytest.raises(Unreachable, match="it ended by signal 9"):
                await desk.rayside.hold("die", 4)
            if not attempt:
                with pytest.raises(Unreachable, match=r"it ended by signal 9.*tried again in 2 s"):
                    await desk.rayside.hold("a", 4)
                desk.now += 2.5
        with pytest.raises(Unreachable, match="tried again in 5 s"):
            await desk.rayside.hold("a", 4)
        desk.now += 5.5
        await desk.rayside.hold("a", 4)
        with pytest.raises(Unreachable):
            await desk.rayside.hold("die", 4)
        # It went well in between, so it is tried again at once but for the first pause.
        with pytest.raises(Unreachable, match="tried again in 2 s"):
            await desk.rayside.hold("a", 4)


async def test_one_that_hangs_is_killed_and_all_who_wait_are_told(tmp_path: Path) -> None:
    async with bench(tmp_path, call_seconds=0.5) as desk:
        await desk.rayside.hold("a", 4)
        began = time.monotonic()
        told = await asyncio.gather(
            desk.rayside.hold("hang", 4), desk.rayside.machine_ids(["later"], 30.0), return_exceptions=True
        )
        assert time.monotonic() - began < 3.0
        await until(lambda: not desk.alive())
    assert [type(each) for each in told] == [Unreachable, Unreachable]
    assert "did not answer hold within 0.5 s" in str(told[0])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("refuses", "no connection to Ray: it is full"),
        ("dies", "it ended with code 1: Traceback of Ray"),
        ("silent", "no connection to Ray at 10.0.0.1:6379 within 0.5 s"),
    ],
)
async def test_one_that_does_not_reach_ray_is_told_with_its_words(tmp_path: Path, how: str, words: str) -> None:
    async with bench(tmp_path, start_seconds=0.5) as desk:
        desk.behave(how)
        with pytest.raises(Unreachable, match=words):
            await desk.rayside.holds()
        await until(lambda: not desk.alive())
        desk.behave("well")
        desk.now += 10.0
        assert await desk.rayside.let_go(["a"]) == 1


async def test_nonsense_for_an_answer_ends_it(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        with pytest.raises(Unreachable, match="makes no sense"):
            await desk.rayside.hold("babble", 4)


async def test_another_head_gets_another_child(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        await desk.rayside.hold("a", 4)
        desk.address = "10.0.0.1:7777"
        await desk.rayside.hold("a", 4)
        assert [address for _, address in desk.started()] == ["10.0.0.1:6379", "10.0.0.1:7777"]
        await until(lambda: len(desk.alive()) == 1)


async def test_much_that_ray_says_does_not_stop_it(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        desk.behave("wordy")
        assert (await desk.rayside.hold("a", 4)).wanted == 4


async def test_one_with_nothing_to_do_is_ended(tmp_path: Path) -> None:
    async with bench(tmp_path, idle_seconds=0.1) as desk:
        await desk.rayside.hold("a", 4)
        await until(lambda: not desk.alive())
        await desk.rayside.hold("a", 4)
    assert len(desk.started()) == 2


async def test_one_who_waits_keeps_it_from_being_ended(tmp_path: Path) -> None:
    async with bench(tmp_path, idle_seconds=0.05) as desk:
        await desk.rayside.hold("a", 4)
        machines = asyncio.create_task(desk.rayside.machine_ids(["later"]))
        await asyncio.sleep(0.2)
        await desk.rayside.hold("a", 4)
        assert await machines == {"later": "m"}
    assert len(desk.started()) == 1


async def test_a_caller_who_goes_away_leaves_the_child_as_it_is(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        await desk.rayside.hold("a", 4)
        gone = asyncio.create_task(desk.rayside.machine_ids(["later"]))
        await asyncio.sleep(0.05)
        gone.cancel()
        await asyncio.wait({gone})
        # The answer that comes late is nobody's.
        assert (await desk.rayside.hold("a", 4)).pending == 4
        assert (await desk.rayside.hold("a", 2)).pending == 2
    assert len(desk.started()) == 1


async def test_a_caller_who_goes_away_while_it_starts_takes_it_along(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        desk.behave("silent")
        gone = asyncio.create_task(desk.rayside.holds())
        await until(desk.started)
        gone.cancel()
        await asyncio.wait({gone})
        desk.behave("well")
        await desk.rayside.hold("a", 4)
        await until(lambda: len(desk.alive()) == 1)


async def test_close_ends_one_that_does_not_want_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.controller.raychild.END_SECONDS", 0.2)
    async with bench(tmp_path) as desk:
        desk.behave("stays")
        await desk.rayside.hold("a", 4)
        assert desk.alive()
    with pytest.raises(Unreachable, match="ending"):
        await desk.rayside.hold("a", 4)


async def test_close_does_not_wait_for_what_is_being_asked(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        await desk.rayside.hold("a", 4)
        waits = asyncio.create_task(desk.rayside.hold("hang", 4))
        await asyncio.sleep(0.05)
        await desk.rayside.close()
        with pytest.raises(Unreachable):
            await waits


async def test_one_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    async def address() -> str:
        return "10.0.0.1:6379"

    rayside = RaySide(address, command=(str(tmp_path / "nothing"),))
    with pytest.raises(Unreachable, match="cannot be started"):
        await rayside.holds()
    await rayside.close()


def test_the_child_is_led_to_no_other_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "another:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    here, there = _environment("127.0.0.1:6379"), _environment("10.0.0.1:6379")
    assert "RAY_ADDRESS" not in {**here, **there}
    assert there["RAY_AUTH_MODE"] == "token"
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in there
    assert here["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert (Path(here["PYTHONPATH"].split(os.pathsep)[0]) / "jobs" / "rayside" / "__main__.py").exists()


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (DrainSeen(draining=True, dead=False), "takes nothing new"),
        (DrainSeen(draining=False, dead=True), "has left Ray"),
        (DrainSeen(draining=False, dead=False), "does not show it"),
    ],
)
def test_a_drain_is_told_in_words(seen: DrainSeen, words: str) -> None:
    assert words in seen.sentence


# --- the child's side -------------------------------------------------------------------------------------------------


def fails(error: Exception) -> Callable[..., Any]:
    def call(**what: Any) -> Any:
        raise error

    return call


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda **what: what, {"ok": {"node_id": "a"}}),
        (fails(Mistake("no such node")), {"error": "no such node"}),
        (fails(AnotherHead("another")), {"stale": "another"}),
        (fails(RayFailed("no answer")), {"failed": "no answer"}),
        (fails(ValueError("first line\nsecond")), {"failed": "first line"}),
        (fails(KeyError()), {"failed": "KeyError"}),
    ],
)
def test_each_outcome_has_a_word_of_its_own(call: Callable[..., Any], told: Mapping[str, Any]) -> None:
    assert answer({"hold": call}, {"id": 7, "do": "hold", "node_id": "a"}) == {"id": 7, **told}


def test_an_unknown_request_is_a_mistake() -> None:
    assert "error" in answer({}, {"id": 1, "do": "format"})


def test_machine_ids_do_not_hold_up_what_comes_after() -> None:
    go_on, said = threading.Event(), list[int]()
    both = threading.Event()

    def say(told: Mapping[str, Any]) -> None:
        said.append(told["id"])
        if len(said) == 2:
            both.set()

    requests = [{"id": 1, "do": "machine_ids"}, {"id": 2, "do": "hold"}]
    lines = iter([*(json.dumps(each) for each in requests), None])
    serve({"machine_ids": lambda: go_on.wait(5.0), "hold": go_on.set}, lambda: next(lines), say)
    assert both.wait(5.0)
    assert said == [2, 1]


def test_lines_come_in_order_and_end_with_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr("jobs.rayside.__main__.END_SECONDS", 0.0)
    monkeypatch.setattr("os._exit", lambda code: ended.set())
    next_line = lines_until_end(io.StringIO("one\ntwo\n")).get
    assert [next_line(), next_line(), next_line()] == ["one\n", "two\n", None]
    assert ended.wait(5.0)


class _Head:
    """Of a head's own client what is asked of it: the name of its session, or what Ray raises instead."""

    def __init__(self, told: Any) -> None:
        self.told = told

    def internal_kv_get(self, key: bytes, namespace: bytes, timeout: float) -> Any:
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


def test_what_is_meant_for_one_head_is_not_done_by_another() -> None:
    exceptions = pytest.importorskip("ray.exceptions")
    from jobs.rayside.hand import Hand

    hand, done = object.__new__(Hand), list[str]()
    hand._address, hand.session, hand._gcs = "10.0.0.1:6379", "session_1", _Head(b"session_1")
    calls = {"hold": hand._on_the_same_head(lambda node_id: done.append(node_id))}
    request = {"id": 7, "do": "hold", "node_id": "a"}
    assert answer(calls, request) == {"id": 7, "ok": None}
    for other in (b"session_2", None, exceptions.AuthenticationError("WrongClusterID")):
        hand._gcs = _Head(other)
        assert answer(calls, request).keys() == {"id", "stale"}
    hand._gcs = _Head(exceptions.RpcError("Deadline\nExceeded"))
    assert answer(calls, request) == {"id": 7, "failed": "Deadline"}
    assert done == ["a"]


def test_where_nobody_listens_the_child_says_so_at_once() -> None:
    command = [sys.executable, "-m", "jobs.rayside", "--address", "127.0.0.1:1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        told = json.loads(child.stdout.readline())
        assert child.wait(10) == 1
    assert "no connection to Ray at 127.0.0.1:1" in told["failed"]
    assert "refused" in told["failed"]
