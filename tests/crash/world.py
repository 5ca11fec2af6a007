"""A small cluster with its controller, which is killed again and again while users work, and what is known of both."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from jobs import package
from jobs.model import Move, Run
from jobs.nodeview import Drain, NodesView
from jobs.wire import AuditEntry, Rollback
from tests.crash.clock import FACTOR, FastClock
from tests.crash.desk import Answer, Person, ask, people
from tests.crash.invariants import Evidence, Limits, violations
from tests.crash.killpoint import KillPoint
from tests.crash.nest import ROOT, Hatched, Nest, nest
from tests.crash.operations import Operation, Users
from tests.crash.shelf import short_folder

START_SECONDS = 20.0
CALM_SECONDS = 60.0
"""How long everything may take to come to its end once nobody kills any more. Five times as much on the fast clock."""
REQUESTS = ("submit", "submit", "submit", "stop", "job", "package", "has-package", "nodes", "usage", "version")
SHOWN = 50

CLUSTER = """\
cluster:
  name: crash
  control_nodes: [{{host: localhost}}]
  storage: {{output_path: {folder}/output, dataset_path: {folder}/data}}
  scheduler:
    default_queue: general
    queues:
      - {{name: general, max_accelerators: 12}}
      - {{name: research, max_accelerators: 4, priority: low}}
      - {{name: urgent, max_accelerators: 8, priority: high}}
    limits: {{max_active_runs: 8, max_accelerators_per_user: 10, max_active_runs_per_user: 5}}
    ageing: 60s
    preemption: true
  roles:
{roles}
"""
QUOTAS = {"general": 12, "research": 4, "urgent": 8}
LIMITS = Limits(runs=8, runs_of_a_user=5, accelerators_of_a_user=10)
REPEATED = 40


class World:
    """Everything of one crash test."""

    def __init__(self, seed: int, folder: Path, store: Path, controllers: Nest, dashboard: str) -> None:
        self.chance = random.Random(seed)
        self.store = store
        self._cluster_file = folder / "cluster.yaml"
        self._log = folder / "said.log"
        self._nest = controllers
        self._dashboard = dashboard
        self.everybody = people()
        self.users: Users
        self.history: list[Operation] = []
        self.runs: list[Run] = []
        self.kills: collections.Counter[str] = collections.Counter()
        self.died_in: collections.Counter[str] = collections.Counter()
        """By what the kill was waiting for: how often it met it."""
        self.problems: list[str] = []
        self._write_cluster_file(folder)

    def _write_cluster_file(self, folder: Path) -> None:
        roles: dict[str, list[str]] = collections.defaultdict(list)
        for each in self.everybody:
            roles[f"{each.role}s"].append(each.name)
        lines = "\n".join(f"    {role}: [{', '.join(names)}]" for role, names in roles.items())
        self._cluster_file.write_text(CLUSTER.format(folder=folder, roles=lines))

    # --- asking -------------------------------------------------------------------------------------------------------

    @property
    def _socket(self) -> Path:
        return self.store / "controller.sock"

    async def ask(self, method: str, where: str, body: Any = None, who: Person | None = None) -> Answer | None:
        """One request, by the controller's own user if nobody is named."""
        answer = await ask(self._socket, os.getuid() if who is None else who.uid, method, where, body)
        if answer is not None and answer.status == 500:
            self.problems.append(f"{method} {where} made the controller stumble: {answer.body}")
        return answer

    async def read(self, where: str) -> Any:
        """What the controller says to a question that it must answer. Fails if it does not."""
        answer = await self.ask("GET", where)
        assert answer is not None, f"no answer to {where}"
        assert answer.fine, f"{where}: {answer.body}"
        return answer.body

    async def control(self, what: str, body: Any = None) -> Any:
        """Tell the stand-in Ray something, or ask it."""
        host, port = self._dashboard.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        content = b"" if body is None else json.dumps(body).encode()
        verb = "GET" if body is None else "POST"
        head = f"{verb} /control/{what} HTTP/1.0\r\nHost: ray\r\nContent-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        raw = await asyncio.wait_for(reader.read(-1), 10.0)
        writer.close()
        return json.loads(raw.partition(b"\r\n\r\n")[2])

    # --- the controller -----------------------------------------------------------------------------------------------

    async def start(self, point: KillPoint | None = None) -> Hatched:
        """Start a controller; it need not answer yet."""
        arguments = ["--store", str(self.store), "--dashboard", self._dashboard, "--cluster", str(self._cluster_file)]
        return await self._nest.start(arguments, self._log, point)

    async def command(self, *arguments: str) -> Hatched:
        """Start ``python -m jobs.controller`` with other arguments."""
        return await self._nest.start(arguments, self._log)

    async def answers(self, controller: Hatched) -> bool:
        """Wait until it does; False if it died before that."""
        deadline = time.monotonic() + START_SECONDS
        while controller.alive:
            answer = await self.ask("GET", "/v1/status")
            if answer is not None and answer.body.get("pid") == controller.pid:
                return True
            assert time.monotonic() < deadline, f"the controller does not answer: {self.said()}"
            await asyncio.sleep(0.002)
        return False

    async def end(self, controller: Hatched, number: int = signal.SIGKILL) -> None:
        """End it. Fails if it ends otherwise than it was told to."""
        controller.kill(number)
        code = await controller.wait()
        wanted = (0, -signal.SIGKILL) if number == signal.SIGTERM else (-signal.SIGKILL,)
        assert code in wanted, f"the controller ended with {code}: {self.said()}"

    async def end_in_order(self, controller: Hatched) -> None:
        """Ask it to leave, as a supervisor does."""
        await self.end(controller, signal.SIGTERM)

    def said(self) -> str:
        """The end of what controllers printed and logged."""
        log = self.store / "controller.log"
        return "\n".join(path.read_text()[-8000:] for path in (self._log, log) if path.exists())

    # --- one life -----------------------------------------------------------------------------------------------------

    async def life(self) -> None:
        """Start a controller, let users work, kill it at some moment."""
        chance = self.chance
        how = chance.choices(["moment", "start", "commit", "rename", "request", "term"], [30, 6, 32, 8, 22, 2])[0]
        self.kills[how] += 1
        point = None
        if how == "commit":
            point = KillPoint("commit", chance.choice([1, 1, 1, 2, 2, 3, 4, 5, 8, 13, 21]), chance.random() < 0.5)
        elif how == "rename":
            point = KillPoint("rename", chance.choice([1, 1, 2, 3]), chance.random() < 0.5)
        controller = await self.start(point)
        if how == "start":
            await asyncio.sleep(chance.uniform(0.0, 0.05))
            await self.end(controller)
            return
        if not await self.answers(controller):
            self.died_in[how] += 1
            await self.end(controller)
            return
        if how == "request":
            trap = {"request": chance.choice(REQUESTS), "after": chance.random() < 0.5, "pid": controller.pid}
            await self.control("trap", {**trap, "skip": chance.choice([0, 0, 0, 1, 2])})
        await self._look_around()
        if chance.random() < 0.02:
            linger, down = chance.random() < 0.5, chance.uniform(0.0, 3.0)
            await self.control("head", {"linger": linger, "down_seconds": down})
        repeated = [operation for operation in self.history if operation.answer is None]
        new = [self.users.next(self.runs) for _ in range(chance.choice([0, 1, 1, 2, 2, 3]))]
        self.history += new
        tasks = [asyncio.create_task(self.carry_out(operation)) for operation in [*repeated, *new]]
        if how in ("moment", "term"):
            await asyncio.sleep(chance.uniform(0.0, 0.15) if chance.random() < 0.85 else chance.uniform(0.15, 0.6))
        else:
            await asyncio.wait((controller.ended,), timeout=chance.uniform(0.15, 0.4))
            self.died_in[how] += not controller.alive
        await self.end(controller, signal.SIGTERM if how == "term" else signal.SIGKILL)
        await asyncio.gather(*tasks)

    async def _look_around(self) -> None:
        """What users see before they decide. The controller may die meanwhile: then they go by what they saw before."""
        answer = await self.ask("GET", "/v1/runs?limit=10000")
        if answer is None:
            return
        self.runs = [Run.model_validate(run) for run in answer.body["runs"]]
        for queue, quota in QUOTAS.items():
            holding = [run for run in self.runs if run.queue == queue and not run.state.waiting and not run.state.ended]
            if sum(run.gpus for run in holding) > quota:
                self.problems.append(f"queue {queue} holds more than {quota}: {[run.id for run in holding]}")
        if self.chance.random() < 0.5:
            await self._look_closer()

    async def _look_closer(self) -> None:
        """Releases, rollbacks, checkpoints and held nodes, from which users choose."""
        await self._look_at_nodes()
        if (answer := await self.ask("GET", "/v1/releases")) is not None:
            self.users.releases = {}
            for release in answer.body["releases"]:
                self.users.releases.setdefault(release["workflow"], []).append(release["id"])
        if (answer := await self.ask("GET", "/v1/rollbacks")) is not None:
            self.users.rollbacks = [rollback["id"] for rollback in answer.body["rollbacks"][:4]]
        for run in self.chance.sample(self.runs, min(2, len(self.runs))):
            if (answer := await self.ask("GET", f"/v1/runs/{run.id}/checkpoints")) is not None and answer.fine:
                steps = [row["step"] for row in answer.body["checkpoints"] if row["complete"]]
                self.users.checkpoints[run.id] = steps

    async def _look_at_nodes(self) -> NodesView | None:
        answer = await self.ask("GET", "/v1/nodes")
        if answer is None:
            return None
        view = NodesView.model_validate(answer.body)
        self.users.holds = sorted({(row.name, hold.user) for row in view.nodes for hold in row.holds})
        self.users.drains = [drain.id for drain in view.drains if drain.state == "running"]
        return view

    async def carry_out(self, operation: Operation) -> None:
        """Ask for it once."""
        answer = await self.ask("POST", operation.where, operation.body, operation.who)
        operation.tries.append("no answer" if answer is None else f"{answer.status}{_words(answer)}")
        if answer is not None and answer.status != 503:  # 503 says that it may be tried again
            operation.answer = answer

    async def done(self, operation: Operation) -> Answer:
        """Ask for it, and have it carried out. Fails if it is not."""
        self.history.append(operation)
        await self.carry_out(operation)
        assert operation.answer is not None, operation
        assert operation.answer.fine, operation
        return operation.answer

    async def until(self, run: str, so: Callable[[Run], bool]) -> Run:
        """The run, once it is so. Fails with the run as it is after the limit."""
        deadline = time.monotonic() + START_SECONDS
        while not so(found := Run.model_validate(await self.read(f"/v1/runs/{run}"))):
            assert time.monotonic() < deadline, f"{run} is still {found.state.value}: {found.reason}"
            await asyncio.sleep(0.02)
        return found

    async def ray_has_started(self, count: int) -> None:
        """Wait until so many gangs have started, whether the controller knows of them or not."""
        deadline = time.monotonic() + START_SECONDS
        while sum(each["what"] == "started" for each in (await self.control("record"))["record"]) < count:
            assert time.monotonic() < deadline, f"not {count} gangs have started"
            await asyncio.sleep(0.02)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Let everything that was begun come to its end, with a controller that nobody kills."""
        await self.control("mischief", {})
        controller = await self.start()
        assert await self.answers(controller), self.said()
        deadline = time.monotonic() + CALM_SECONDS
        while open_ones := [operation for operation in self.history if operation.answer is None]:
            assert time.monotonic() < deadline, "these get no answer:\n" + "\n".join(map(str, open_ones))
            for operation in open_ones:
                await self.carry_out(operation)
        while True:
            await self._look_around()
            view = await self._look_at_nodes()
            going = [run for run in self.runs if not run.state.ended]
            if not going and not self.users.drains:
                break
            for node, user in self.users.holds if view is not None else ():
                operation = self.users.uncordon(node, user)
                self.history.append(operation)
                await self.carry_out(operation)
            shown = "\n".join(f"{run.id}: {run.state.value}: {run.reason}" for run in going)
            assert time.monotonic() < deadline, f"these do not come to an end:\n{shown}"
            for run in going:
                if run.held is not None:
                    operation = self.users.arrange(run, {"hold": False})
                    self.history.append(operation)
                    await self.carry_out(operation)
            await asyncio.sleep(0.1)
        await self._repeat()
        await self.end_in_order(controller)

    async def _repeat(self) -> None:
        """What was carried out long ago gives the same answer to the same request, and has no second effect."""
        done = [operation for operation in self.history if operation.took_effect()]
        for operation in self.chance.sample(done, min(REPEATED, len(done))):
            answer = await self.ask("POST", operation.where, operation.body, operation.who)
            assert answer is not None, f"no answer to the repeated {operation}"
            if not answer.fine:
                self.problems.append(f"it was refused when it was repeated ({answer.sentence}): {operation}")
            elif operation.kind in ("launch", "sweep"):
                before = operation.answer
                assert before is not None
                if [run["id"] for run in answer.body["runs"]] != [run["id"] for run in before.body["runs"]]:
                    self.problems.append(f"it was answered with other runs when it was repeated: {operation}")

    async def evidence(self) -> Evidence:
        """All that is known, from a controller that was started anew."""
        controller = await self.start()
        assert await self.answers(controller), self.said()
        runs = [Run.model_validate(run) for run in (await self.read("/v1/runs?limit=10000"))["runs"]]
        audit = await self.read("/v1/audit?limit=100000&verify=1")
        found = Evidence(
            history=self.history,
            runs={run.id: run for run in runs},
            moves={
                run.id: [Move.model_validate(move) for move in (await self.read(f"/v1/runs/{run.id}/moves"))["moves"]]
                for run in runs
            },
            audit=[AuditEntry.model_validate(entry) for entry in reversed(audit["entries"])],
            broken=audit["broken"],
            rollbacks=[
                Rollback.model_validate(rollback) for rollback in (await self.read("/v1/rollbacks"))["rollbacks"]
            ],
            record=(await self.control("record"))["record"],
            limits=LIMITS,
            drains=[Drain.model_validate(drain) for drain in (await self.read("/v1/drains?limit=1000"))["drains"]],
        )
        await self.end_in_order(controller)
        return found

    async def check_now(self, allowed_errors: Sequence[str] = ()) -> None:
        """What can be told at any moment. Fails with it. Lines of the log with ``allowed_errors`` are expected."""
        told = await self.control("record")
        wrong = [*told["violations"], *self.problems]
        for line in self.said().splitlines():
            if ("Traceback" in line or " ERROR " in line) and not any(words in line for words in allowed_errors):
                wrong += [line, self.said()]
                break
        assert not wrong, "\n".join(wrong[:20])

    async def check(self, allowed_errors: Sequence[str] = ()) -> None:
        """All that must hold at the end, after `settle`. Fails with what does not."""
        wrong = violations(await self.evidence())
        await self.check_now(allowed_errors)
        assert not wrong, "\n".join(wrong[:20])


def _words(answer: Answer) -> str:
    return "" if answer.fine else f" {answer.sentence}"


@asynccontextmanager
async def standin(clock: FastClock, seed: int) -> AsyncGenerator[str]:
    """A stand-in Ray in a process of its own; its dashboard's address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.crash.standin",
        *clock.arguments,
        str(seed),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
        assert address, "the stand-in Ray did not start"
        yield address.decode().strip()
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), START_SECONDS)


@asynccontextmanager
async def world(seed: int, *, store: Path | None = None, factor: float = FACTOR) -> AsyncGenerator[World]:
    """A world in which nothing has happened yet. The controller's store lies in memory, if not in ``store``."""
    clock = FastClock(time.time(), factor)
    with short_folder() as folder:
        async with standin(clock, seed) as dashboard, nest(clock) as controllers:
            made = World(seed, folder, store or folder / "s", controllers, dashboard)
            code = folder / "code"
            code.mkdir()
            (code / "train.py").write_text("print('training')\n")
            built = package.build(code)
            controller = await made.start()
            assert await made.answers(controller), made.said()
            sent = await made.ask("PUT", f"/v1/packages/{built.digest}", built.content)
            assert sent is not None
            assert sent.status == 201, sent.body
            await made.end(controller)
            made.users = Users(made.chance, made.everybody, built.digest)
            yield made


def shown(history: Sequence[Operation]) -> str:
    """The last operations, for whoever has to find out what went wrong."""
    return "\n".join(str(operation) for operation in history[-SHOWN:])
