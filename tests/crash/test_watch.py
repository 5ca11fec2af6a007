"""The crash test's own eyes: what must never happen is seen when it does happen."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from jobs.model import Attempt, Launch, Move, Run, RunState, job_id
from jobs.wire import AuditEntry
from tests.crash.clock import FastClock
from tests.crash.desk import Answer, Person
from tests.crash.invariants import Evidence, Limits, violations
from tests.crash.operations import Operation
from tests.crash.shelf import short_folder
from tests.crash.world import standin
from tests.unit.jobs.ray_stand_in import stand_in_node

SECONDS = 10.0


class Ray:
    """A stand-in Ray, and jobs that a controller in its right mind would not submit."""

    def __init__(self, http: aiohttp.ClientSession, folder: Path) -> None:
        self._http = http
        self._folder = folder

    async def submit(self, run: str, attempt: int, nodes: list[str], gpus: int = 1) -> None:
        launch = Launch(
            run=run,
            attempt=attempt,
            workflow="lm",
            script=["train.py"],
            nodes=len(nodes),
            processes_per_node=1,
            gpus_per_node=gpus,
            cpus_per_node=1,
            run_directory=str(self._folder / run),
            node_ids=[str(stand_in_node(name, 4)["node_id"]) for name in nodes],
        )
        environment = {"working_dir": "gcs://code.zip", "env_vars": {"RAYDECK_LAUNCH": launch.model_dump_json()}}
        body = {"submission_id": job_id(run, attempt), "runtime_env": environment, "metadata": {}}
        async with self._http.put("/api/packages/gcs/code.zip", data=b"") as answer:
            assert answer.status == 200
        async with self._http.post("/api/jobs/", json=body) as answer:
            assert answer.status == 200, await answer.text()

    async def control(self, what: str, body: Any = None) -> Any:
        method = self._http.get if body is None else self._http.post
        async with method(f"/control/{what}", json=body) as answer:
            return await answer.json()

    async def until(self, seen: Callable[[Any], bool]) -> None:
        """Wait until its record says so."""
        deadline = time.monotonic() + SECONDS
        while not seen(told := await self.control("record")):
            assert time.monotonic() < deadline, json.dumps(told, indent=1)
            await asyncio.sleep(0.02)

    async def sees(self, words: str) -> None:
        """Wait until it has noted this violation."""
        await self.until(lambda told: any(words in violation for violation in told["violations"]))

    async def started(self, count: int) -> None:
        """Wait until so many gangs have started."""
        await self.until(lambda told: sum(each["what"] == "started" for each in told["record"]) >= count)


@pytest.fixture
async def ray() -> AsyncGenerator[Ray]:
    with short_folder() as folder:
        async with standin(FastClock(time.time()), 7) as address, aiohttp.ClientSession(address) as http:
            yield Ray(http, folder)


async def test_two_attempts_of_one_run_at_once_are_seen(ray: Ray) -> None:
    await ray.submit("lm-1", 1, ["worker-1"])
    await ray.started(1)
    await ray.submit("lm-1", 2, ["worker-2"])
    await ray.sees("attempt 2 of lm-1 was started while attempt 1 was alive")


async def test_an_attempt_that_is_started_twice_is_seen(ray: Ray) -> None:
    await ray.submit("lm-1", 1, ["worker-1"])
    await ray.started(1)
    await ray.control("head", {"linger": False, "down_seconds": 0.0})
    await ray.submit("lm-1", 1, ["worker-1"])
    await ray.sees("attempt 1 of lm-1 was started 2 times")


async def test_two_gangs_on_one_accelerator_are_seen(ray: Ray) -> None:
    await ray.submit("lm-1", 1, ["worker-1"], gpus=3)
    await ray.started(1)
    await ray.submit("lm-2", 1, ["worker-1"], gpus=2)
    await ray.sees("attempt 1 of lm-2 was sent to nodes without room")


ALICE = Person("alice", 1001, "submitter")


def _move(before: RunState | None, after: RunState, at: float) -> Move:
    return Move(at=at, before=before, after=after)


def _sound() -> Evidence:
    """A run that alice launched and stopped."""
    run = Run(
        id="lm-1",
        workflow="lm",
        release="r",
        state=RunState.STOPPED,
        user="alice",
        nodes=1,
        gpus=4,
        submitted_at=1.0,
        attempts=[Attempt(number=1, job_id="raydeck-lm-1-a1", state=RunState.STOPPED)],
    )
    launch = Operation(1, ALICE, "launch", "/v1/runs", {}, "lm", answer=Answer(201, {"runs": [{"id": "lm-1"}]}))
    stop = Operation(2, ALICE, "stop", "/v1/runs/lm-1/stop", {}, "lm-1", answer=Answer(200, {}))
    states = [None, RunState.QUEUED, RunState.ADMITTED, RunState.STARTING, RunState.STOPPING, RunState.STOPPED]
    moves = [
        _move(before, after, float(number))
        for number, (before, after) in enumerate(itertools.pairwise(states), 1)
        if after is not None
    ]
    audit = [
        AuditEntry(seq=1, at=1.0, user="alice", action="launch", target="lm-1", allowed=True, reason="", hash=""),
        AuditEntry(seq=2, at=3.5, user="alice", action="stop", target="lm-1", allowed=True, reason=stop.mark, hash=""),
    ]
    record = [{"what": "started", "run": "lm-1", "attempt": 1}]
    return Evidence([launch, stop], {"lm-1": run}, {"lm-1": moves}, audit, "", [], record, Limits(1, 1, 4))


def _lost(evidence: Evidence) -> None:
    evidence.runs.clear()
    evidence.moves.clear()
    evidence.held.clear()


def _doubled(evidence: Evidence) -> None:
    evidence.runs["lm-2"] = evidence.runs["lm-1"].model_copy(update={"id": "lm-2"})
    evidence.moves["lm-2"] = evidence.moves["lm-1"]


def _going(evidence: Evidence) -> None:
    evidence.runs["lm-1"] = evidence.runs["lm-1"].model_copy(update={"state": RunState.STOPPING})
    evidence.moves["lm-1"].pop()


def _jumped(evidence: Evidence) -> None:
    evidence.moves["lm-1"][2:4] = [_move(RunState.ADMITTED, RunState.STOPPING, 3.0)]
    evidence.moves["lm-1"].insert(2, _move(RunState.ADMITTED, RunState.SAVING, 2.5))


def _unaudited(evidence: Evidence) -> None:
    evidence.audit.pop()


def _audited_twice(evidence: Evidence) -> None:
    evidence.audit.append(evidence.audit[-1])


def _ran_twice(evidence: Evidence) -> None:
    evidence.record *= 2


def _began_again(evidence: Evidence) -> None:
    evidence.moves["lm-1"] += [
        _move(RunState.STOPPED, RunState.QUEUED, 7.0),
        _move(RunState.QUEUED, RunState.ADMITTED, 8.0),
        _move(RunState.ADMITTED, RunState.STOPPED, 9.0),
    ]


def _too_many(evidence: Evidence) -> None:
    evidence.held["lm-1"].append((3.0, 4.0))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_lost, "lm-1 is lost"),
        (_doubled, "nobody asked for lm-2"),
        (_going, "lm-1 has not ended"),
        (_jumped, "lm-1 moved from"),
        (_unaudited, "the audit has it 0 times"),
        (_audited_twice, "the audit has it 2 times"),
        (_ran_twice, "attempt 1 of lm-1 was started 2 times"),
        (_began_again, "lm-1 was admitted again after alice had stopped it"),
        (_too_many, "2 runs were active"),
    ],
)
def test_what_does_not_hold_is_named(harm: Callable[[Evidence], None], words: str) -> None:
    assert violations(_sound()) == []
    evidence = _sound()
    harm(evidence)
    assert any(words in violation for violation in violations(evidence)), violations(evidence)
