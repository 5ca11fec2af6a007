"""Gathers all that a triage looks at, in the order of its five steps, within one limit; what is not to be had is said.

Everything is asked for at once, as far as one thing does not need another; the steps are told of in their order, each
when what it rests on has come. What could not be read is a sentence in the evidence, never a failure of the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from console.sources.session import Session
from console.triage import nodes as asked_nodes
from console.triage import runs as asked_runs
from console.triage.asked import Answers, Nodes, Task, sentence
from console.triage.looking import look_at
from console.triage.nodes import Machine, Way
from console.triage.recorded import marks_of, times_lost
from console.triage.runs import Ranked
from console.triage.services import time_services
from console.triage.serving import serve_evidence
from console.triage.targets import dataset_path, promised_milliseconds, well
from jobs.client import ControllerClient
from jobs.errors import RaydeckError, Refused, Unreachable
from jobs.model import Run
from jobs.rayapi import RayApi
from jobs.triage.evidence import Evidence, RunEvidence, Target, Truth
from jobs.triage.findings import STEP_NAMES, StepName
from jobs.within import within

LIMIT_SECONDS = 30.0
NODE_SECONDS = 8.0
"""How long a node may take for one round of questions; what hangs there is left behind."""
NODES_AT_MOST = 64
"""So many nodes are asked over SSH, those that are not well first; of the others is taken what is known already."""
CONFIGURATION_SECONDS = 4.0
"""How long the question where a run's data lies waits for the controller's word."""
LATELY_SECONDS = 3600.0
BETWEEN_AT_MOST = 8
"""So many nodes of a run try each other's ports."""

T = TypeVar("T")

Tell = Callable[[StepName, str, Evidence | None], None]
"""The step; what is being done for it, in words; with evidence: it is done, and this is what it rests on."""


def quiet(step: StepName, words: str, evidence: Evidence | None) -> None:
    """Nobody wants to know how far it is."""
    del step, words, evidence


async def gather(
    session: Session, target: Target, tell: Tell = quiet, *, attempt: int | None = None, limit: float = LIMIT_SECONDS
) -> Evidence:
    """All that could be had within ``limit`` seconds. ``attempt``: of a run, instead of the newest.

    Raises `Refused` where the target is none that anybody knows, `Unreachable` where nobody can be asked for it.
    """
    gathering = _Gathering(session, target, tell, asyncio.get_running_loop().time() + limit)
    try:
        return await gathering.run(attempt)
    finally:
        await gathering.close()


class _Gathering:
    """One triage's questions, and the tasks that ask them."""

    def __init__(self, session: Session, target: Target, tell: Tell, deadline: float) -> None:
        self._session, self._tell, self._deadline = session, tell, deadline
        self._nodes = Nodes(session)
        self._evidence = Evidence(now=session.head_wall(), target=target)
        self._machines: dict[str, Machine] = {}
        self._ranked: Ranked | None = None
        self._client: ControllerClient | None = None
        self._serve: dict[str, Any] = {}
        """What Ray tells of its services."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._configured = asyncio.Event()
        """It is known what the run is made of, or that nobody tells."""

    @property
    def _left(self) -> float:
        return max(0.1, self._deadline - asyncio.get_running_loop().time())

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def close(self) -> None:
        """Nothing that was begun goes on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _had(self, asking: Awaitable[T], what: str) -> T | None:
        """What it gives within what is left of the limit; else None, and a sentence."""
        try:
            return await within(asking, self._left)
        except (RaydeckError, asyncio.TimeoutError, TimeoutError) as error:
            self._evidence.unread.append(f"{what}: {sentence(error)}")
            return None

    # --- in order -----------------------------------------------------------------------------------------------------

    async def run(self, attempt: int | None) -> Evidence:
        """All of it."""
        evidence, session = self._evidence, self._session
        first, second, third, fourth, fifth = STEP_NAMES
        self._tell(first, "what SSH, Ray and the drivers say of the nodes", None)
        self._from_stores()
        client = self._begin(self._controller())
        if evidence.target.kind == "run":
            await self._find_run(client, attempt)
        elif evidence.target.node and evidence.target.node not in session.fleet.nodes:
            raise Refused(f"there is no node {evidence.target.node!r} in context {session.context.name}")
        ray = self._begin(self._ray())
        asking = self._begin(self._controller_side(client))
        chosen = self._to_ask()
        rounds = {name: self._begin(self._first_round(name)) for name in chosen}
        await self._all_of(rounds)
        self._tell(first, "", evidence)

        self._tell(second, "memory, GPUs and processes", None)
        rest = {name: self._begin(self._second_round(name)) for name in chosen if name in self._machines}
        await self._had(ray, "Ray")
        services = self._begin(self._services())
        self._tell(second, "", evidence)

        self._tell(third, "paths, room, and the way between the nodes", None)
        await self._all_of(rest)
        await self._ports()
        self._tell(third, "", evidence)

        self._tell(fourth, "what the controller knows: the queue, the configuration, what changed", None)
        await self._had(asking, "the controller")
        self._tell(fourth, "", evidence)

        self._tell(fifth, "logs, figures and stacks", None)
        await self._look()
        await self._had(services, "how fast services answer")
        self._tell(fifth, "", evidence)
        evidence.now = session.head_wall()
        return evidence

    async def _all_of(self, rounds: dict[str, asyncio.Task[None]]) -> None:
        if rounds:
            await asyncio.wait(rounds.values(), timeout=self._left)
        for name, task in rounds.items():
            if not task.done():
                task.cancel()
                self._not_asked(name, "there was no time left for it")
            elif task.exception() is not None:
                self._not_asked(name, sentence(task.exception() or Refused("no reason")))

    def _not_asked(self, name: str, reason: str) -> None:
        self._evidence.nodes[name].unread.append(f"it could not be asked over SSH: {reason}")
        if self._ranked is not None:
            self._ranked.unread(name, reason)

    # --- what is known already ----------------------------------------------------------------------------------------

    def _from_stores(self) -> None:
        session, evidence = self._session, self._evidence
        evidence.nodes = {name: asked_nodes.from_store(session, node) for name, node in session.fleet.nodes.items()}
        work = session.work
        evidence.controller, evidence.queue = work.status, work.queue
        if work.controller.state not in ("ok", "unknown", "connecting"):
            evidence.controller_reason = work.controller.reason or work.controller.state
        evidence.alerts = [line.alert for line in work.alerts.lines if line.alert is not None and not line.ended]
        evidence.runs = [run for run in work.runs.values() if self._lately(run)]

    def _lately(self, run: Run) -> bool:
        target = self._evidence.target
        if target.kind == "run":
            return False
        if run.state.ended and self._evidence.now - (run.ended_at or run.submitted_at) > LATELY_SECONDS:
            return False
        return not target.node or target.node in Ranked(run, self._names(), {}).nodes

    def _names(self) -> dict[str, str]:
        """Ray's node ids, and addresses that one node alone has, to names."""
        names: dict[str, str] = {}
        addresses: dict[str, list[str]] = {}
        for node in self._session.fleet.nodes.values():
            if node.ray_node_id:
                names[node.ray_node_id] = node.name
            for address in {node.address, node.ray_address} - {""}:
                addresses.setdefault(address, []).append(node.name)
        return {**{address: found[0] for address, found in addresses.items() if len(found) == 1}, **names}

    # --- the run ------------------------------------------------------------------------------------------------------

    async def _controller(self) -> ControllerClient:
        self._client = await self._session.controller()
        return self._client

    async def _find_run(self, client: asyncio.Task[ControllerClient], attempt: int | None) -> None:
        evidence = self._evidence
        run = self._session.work.runs.get(evidence.target.name)
        if run is None:
            asking = await within(asyncio.shield(client), self._left)
            run = await within(asking.run(evidence.target.name), self._left)
        run = asked_runs.of_attempt(run, attempt)
        if attempt is not None and (run.attempt is None or run.attempt.number != attempt):
            raise Refused(f"{run.id} has no attempt {attempt}", f"It has {len(run.attempts)}")
        evidence.run = RunEvidence(run)
        self._ranked = Ranked(run, self._names(), evidence.nodes)
        evidence.ranks = self._ranked.ranks

    async def _controller_side(self, client: asyncio.Task[ControllerClient]) -> None:
        """What the controller knows of it."""
        evidence, run = self._evidence, self._evidence.run
        try:
            asking = await asyncio.shield(client)
            if run is not None:
                await asked_runs.configuration(asking, run, evidence.unread)
            self._configured.set()
            await self._times_lost(asking)
            if run is None:
                return
            await asked_runs.record(asking, self._session, run, evidence.unread)
        except RaydeckError as error:
            evidence.controller_reason = evidence.controller_reason or error.sentence
            return
        finally:
            self._configured.set()
        zero = next((rank.node for rank in evidence.ranks if rank.rank == 0), "")
        ahead = evidence.nodes[zero].clock_offset_seconds if zero in evidence.nodes else None
        run.course = asked_runs.without_offset(run.course, ahead or 0.0)
        asked_runs.share_out(evidence.ranks, run.course)

    async def _times_lost(self, client: ControllerClient) -> None:
        """How often nodes went away lately, where the head records that."""
        try:
            marks = await marks_of(client)
        except RaydeckError:
            return  # an older controller, or one that records nothing: the rest does not need it
        since = self._evidence.now - LATELY_SECONDS
        for name, node in self._evidence.nodes.items():
            node.times_lost = times_lost(marks, name, since)

    # --- Ray ----------------------------------------------------------------------------------------------------------

    async def _ray(self) -> None:
        evidence = self._evidence
        api = await self._session.ray_api()
        if evidence.run is not None and evidence.run.run.attempt is not None:
            evidence.job = await api.job(evidence.run.run.attempt.job_id)
        names = {node.ray_node_id: node.name for node in self._session.fleet.nodes.values() if node.ray_node_id}
        if evidence.target.kind != "run" or (evidence.run is not None and evidence.run.run.kind == "ray"):
            self._serve = await api.serve_applications()
            evidence.serve = serve_evidence(self._serve, names)
        await self._driver_log(api)

    async def _driver_log(self, api: RayApi) -> None:
        evidence = self._evidence
        if evidence.job is None or evidence.run is None:
            return
        try:
            await asked_runs.driver_log(api, evidence.run, evidence.job, 0.0, evidence.now)
        except RaydeckError as error:
            evidence.unread.append(f"the log of the Ray job {evidence.job.submission_id}: {error.sentence}")

    async def _services(self) -> None:
        evidence = self._evidence
        if evidence.serve is None:
            return
        names = {node.ray_node_id: node.name for node in self._session.fleet.nodes.values() if node.ray_node_id}
        promised = await asyncio.to_thread(promised_milliseconds, self._session)
        timed = await time_services(self._serve, names, self._machines, self._nodes, promised, evidence.unread)
        evidence.serve = serve_evidence(self._serve, names, timed, evidence.nodes)

    # --- nodes over SSH -----------------------------------------------------------------------------------------------

    def _to_ask(self) -> list[str]:
        """The nodes that are asked, and a sentence for those that are not."""
        evidence, fleet = self._evidence, self._session.fleet.nodes
        target = evidence.target
        wanted = list(fleet)
        if target.node:
            wanted = [target.node]
        elif target.kind == "run":
            wanted = [name for name in (self._ranked.nodes if self._ranked else []) if name in fleet]
        found: list[str] = []
        for name in wanted:
            ssh = fleet[name].ssh
            if ssh.state == "none" or not any(entry.name == name for entry in self._session.context.nodes):
                evidence.nodes[name].unread.append("it is not in this context, and so cannot be asked over SSH")
                self._unread_ranks(name, "it is not in this context")
            elif ssh.state in ("lost", "refused", "waiting"):
                self._not_asked(name, ssh.reason or f"SSH is {ssh.state}")
            else:
                found.append(name)
        found.sort(key=lambda name: well(fleet[name]))
        if len(found) > NODES_AT_MOST:
            evidence.unread.append(
                f"{len(found) - NODES_AT_MOST} of {len(found)} nodes were not asked over SSH: "
                "of them only what was known already is told"
            )
        return found[:NODES_AT_MOST]

    def _unread_ranks(self, name: str, reason: str) -> None:
        if self._ranked is not None:
            self._ranked.unread(name, reason)

    async def _ask(self, name: str, tasks: Sequence[Task]) -> Answers:
        return await self._nodes.ask(name, tasks, min(NODE_SECONDS, self._left))

    async def _first_round(self, name: str) -> None:
        evidence = self._evidence.nodes[name]
        try:
            answers = await self._ask(name, asked_nodes.questions(self._session.fleet.nodes[name]))
        except Unreachable as error:
            if evidence.ssh.state == "unknown":  # it was still connecting when this began
                evidence.ssh = Truth("silent", error.sentence)
            raise
        if evidence.ssh.state == "unknown":
            evidence.ssh = Truth("up")
        self._machines[name] = asked_nodes.take(evidence, answers)

    async def _second_round(self, name: str) -> None:
        machine, ranked = self._machines[name], self._ranked
        paths = await self._paths(name)
        tasks = asked_nodes.path_questions(paths, machine.uid)
        tasks += ranked.questions(name) if ranked is not None else []
        answers = (await self._ask(name, tasks)).answers
        self._evidence.files += asked_nodes.take_paths(name, paths, answers[: len(paths)])
        if ranked is not None:
            # Hundreds of logs are a second of work; nobody else writes to the ranks of this node.
            await asyncio.to_thread(ranked.take, name, machine, answers[len(paths) :])

    async def _paths(self, name: str) -> list[tuple[str, str]]:
        """The paths that matter on a node: the run's own, else those of the cluster file."""
        run = self._evidence.run
        if run is None:
            node = self._session.fleet.nodes[name]
            return [] if node.role == "head" else [(path, "") for path in self._session.context.disks]
        with suppress(asyncio.TimeoutError):
            await within(self._configured.wait(), min(CONFIGURATION_SECONDS, self._left))
        dataset = await asyncio.to_thread(dataset_path, self._session)
        return asked_runs.paths_of(run.run, run.config, dataset)

    async def _ports(self) -> None:
        """The way from each node to Ray's head, and among the nodes of a run."""
        context, target = self._session.context, self._evidence.target
        between = sorted(self._machines)[:BETWEEN_AT_MOST] if target.kind == "run" else []
        head = context.head.name if context.head is not None else "head"
        by_source: dict[str, list[Way]] = {}
        for way in asked_nodes.ways(self._machines, between, head):
            by_source.setdefault(way.source, []).append(way)

        async def tried(source: str) -> None:
            ways = by_source[source]
            answers = await self._ask(source, asked_nodes.way_questions(ways))
            self._evidence.ports += asked_nodes.take_ways(ways, answers.answers)

        rounds = {source: self._begin(tried(source)) for source in by_source}
        await self._all_of(rounds)

    # --- a look at ranks that stand still -----------------------------------------------------------------------------

    async def _look(self) -> None:
        """Stacks and collectives of a run that does not go on."""
        evidence, ranked = self._evidence, self._ranked
        if evidence.run is None or ranked is None or not ranked.folder:
            return
        if not asked_runs.stands_still(evidence.run.run, evidence.run.course, self._session.head_wall()):
            return
        self._tell(STEP_NAMES[4], "it does not go on: its ranks are asked where they stand", None)
        reason = await self._had(
            look_at(ranked, self._client, self._nodes, list(self._machines), self._left), "a look at its ranks"
        )
        if reason:
            evidence.unread.append(reason)
