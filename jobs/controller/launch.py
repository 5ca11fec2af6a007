"""From a launch request to runs in the journal: check the file, find code and data, see that it fits, write down."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import posixpath
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jobs import package
from jobs.controller import rundir
from jobs.controller.access import Access, Caller, Role
from jobs.controller.admission import Admission, demand
from jobs.controller.engine import Engine
from jobs.controller.files import READ_SECONDS, RunFiles
from jobs.controller.fingerprint import file_digest, fingerprint
from jobs.controller.journal import Act, Journal, JournalThread
from jobs.controller.newrun import NewRun, record
from jobs.controller.packages import Packages
from jobs.controller.record import Record
from jobs.controller.requests import SUBMITTERS_MOST
from jobs.controller.runs import NoSuch, Runs, request_digest
from jobs.controller.schedule import fits
from jobs.controller.schedule.types import Waiter
from jobs.controller.schedule.why import explain
from jobs.controller.sweep import Point, expand, run_ids
from jobs.errors import Refused, Unreachable, Usage
from jobs.load import load_workflow
from jobs.model import Held, Run
from jobs.release import freeze
from jobs.spec import Cluster, Queue, Workflow, resolve_roots
from jobs.values import priority_text, priority_value
from jobs.wire import LaunchRequest, Release

ID_LETTERS = 6
_MORE_LETTERS = 4
"""Tried one longer each time that another request's run has the id already."""
EACH_SECONDS = 0.05
"""What the storage may take for each directory of a sweep, beyond what it may take for one."""
BETWEEN_POINTS_SECONDS = 1e-5
"""Each point counts as queued so much later than the one before: between any two there is a place for another run."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request comes down to, once its file is understood."""

    workflow: Workflow
    points: list[Point]
    """One, or those of its sweep."""
    queue: str
    priority: str
    package: str
    """The digest of the archive that goes to Ray."""


class Launcher:
    """Takes launches in."""

    def __init__(
        self,
        cluster: Cluster,
        runs: Runs,
        journal: JournalThread,
        packages: Packages,
        engine: Engine,
        files: RunFiles,
        admission: Admission,
        access: Access,
    ) -> None:
        self._cluster = cluster
        self._runs = runs
        self._journal = journal
        self._packages = packages
        self._engine = engine
        self._files = files
        self._admission = admission
        self._access = access
        self._one = asyncio.Lock()
        """One launch after the other: two of the same must find each other."""

    async def launch(self, request: LaunchRequest, caller: Caller) -> tuple[list[Run], bool]:
        """The run (of a sweep: its runs), and whether they are new ones.

        With ``dry_run`` everything is checked and nothing is kept. Raises `FileMistakes`, `Refused`, `Usage` or
        `Unreachable`.
        """
        async with self._one:
            digest = request_digest("launch", request.model_dump_json(exclude={"request_id"}))
            if not request.dry_run:
                known = await self._runs.repeated(request.request_id, digest)
                if known is not None:
                    return await self._answered(known.answer), False
            if not self._engine.version:
                # Asked nothing yet, it would seem to have no nodes that a run could be too large for.
                await self._engine.look()
            asked = await self._understood(request, caller)
            records, releases = await self._records(request, asked, caller)
            await self._check_room(records)
            if request.dry_run:
                first = records[0].run.run_directory
                await self._files.apart(first, lambda: rundir.check(first))
                return await self._foreseen(records), True
            await self._make_directories(records, releases)
            await self._accept(request, digest, records, releases, caller)
            return [each.run for each in records], True

    async def _answered(self, answer: str) -> list[Run]:
        """What a request became that was carried out before."""
        try:
            return [(await self._runs.find(answer)).run]
        except NoSuch:
            return sorted(await self._runs.newest(10_000, answer), key=lambda run: run.id)

    # --- what is asked for --------------------------------------------------------------------------------------------

    async def _understood(self, request: LaunchRequest, caller: Caller) -> Asked:
        workflow = await asyncio.to_thread(load_workflow, request.workflow_text, request.workflow_file, request.overlay)
        queue = self._queue(request.queue or workflow.queue)
        priority = _priority(request.priority) if request.priority else workflow.priority or queue.priority
        if priority_value(priority) > SUBMITTERS_MOST:
            self._access.require(caller, Role.OPERATOR, f"launch with priority {priority}, which is above high")
        points = await asyncio.to_thread(expand, workflow)
        return Asked(workflow, points, queue.name, priority, await self._package(request.package))

    def _queue(self, name: str | None) -> Queue:
        queue = self._cluster.scheduler.queue(name)
        if queue is None:
            there = ", ".join(each.name for each in self._cluster.scheduler.queues) or "none but the default one"
            raise Refused(f"there is no queue {name}", f"The cluster file has {there}")
        return queue

    async def _package(self, digest: str) -> str:
        """The digest of a package that is in the store; the samples' if none is named."""
        if digest:
            if not self._packages.has(digest):
                raise Refused(f"the code {digest[:12]} was not sent to this controller", "Send the package first")
            return digest

        def pack_samples() -> str:
            built = package.build(package.sample_folder())
            self._packages.store(built.digest, built.content)
            return built.digest

        return await asyncio.to_thread(pack_samples)

    async def _records(
        self, request: LaunchRequest, asked: Asked, caller: Caller
    ) -> tuple[list[Record], dict[str, Release]]:
        """The runs as they would wait, and their releases by id."""
        at = time.time()
        name, sweep = asked.workflow.name, asked.workflow.sweep
        code_digest = await self._packages.code_digest(asked.package)
        environment = await asyncio.to_thread(fingerprint, self._engine.version)
        data_digest, note = await self._data(asked.workflow)
        base = await self._run_id(request.request_id, name)
        held = Held(user=caller.user, at=at) if request.hold else None
        releases: dict[str, Release] = {}
        records: list[Record] = []
        ids = run_ids(base, len(asked.points)) if sweep is not None else iter((base,))
        for number, point in enumerate(asked.points):
            release = freeze(
                point.workflow,
                code_digest=code_digest,
                user=caller.user,
                at=at,
                environment=environment,
                data_digest=data_digest,
            )
            releases[release.id] = release
            new = NewRun(
                id=next(ids),
                release=release.id,
                package=asked.package,
                user=caller.user,
                queue=asked.queue,
                priority=asked.priority,
                at=at,
                queued_at=at + number * BETWEEN_POINTS_SECONDS if number else None,
                cause=f"launched by {caller.user}",
                reason=note,
                held=held,
                sweep=base if sweep is not None else "",
                sweep_goal=sweep.goal if sweep is not None else "",
                sweep_parallel=sweep.parallel if sweep is not None else None,
                parameters=point.parameters,
            )
            records.append(record(point.workflow, self._cluster, new))
        return records, releases

    async def _data(self, workflow: Workflow) -> tuple[str, str]:
        """The digest of the data's manifest, and what keeps it from being known."""
        if not workflow.data.manifest:
            return "", ""
        path = posixpath.join(resolve_roots(workflow, self._cluster).data_root, workflow.data.manifest)
        try:
            return await self._files.apart(f"{path}#manifest", lambda: file_digest(Path(path))), ""
        except (Refused, Unreachable) as error:
            return "", f"its release does not tell the data's content: {error.sentence}"

    async def _run_id(self, request: str, workflow: str) -> str:
        """The same for the same request, so that a launch that was cut off halfway is taken up and not repeated."""
        letters = base64.b32encode(hashlib.sha256(f"{request}\0{workflow}".encode()).digest()).decode().lower()
        for length in range(ID_LETTERS, ID_LETTERS + _MORE_LETTERS):
            run_id = f"{workflow}-{letters[:length]}"
            try:
                await self._runs.find(run_id)
            except NoSuch:
                if not await self._runs.newest(1, run_id):
                    return run_id
        raise Refused("no free id was found for this run", "Launch it again, with another request id")

    # --- whether it can be --------------------------------------------------------------------------------------------

    async def _check_room(self, records: Sequence[Record]) -> None:
        """Refuse what can never start, and what the queue has no room for. What Ray does not tell is not held against
        it.
        """
        limits = self._cluster.scheduler.limits
        waiting = sum(each.run.state.waiting for each in self._runs.active())
        if waiting + len(records) > limits.max_queued_runs:
            raise Refused(
                f"{waiting:,} runs wait already, and {limits.max_queued_runs:,} are the most that may",
                "Wait until some have started, or raise scheduler.limits.max_queued_runs in the cluster file",
            )
        rooms, _ = await self._engine.rooms()
        run = records[0].run
        # No point of a sweep asks for other nodes than the first.
        why = fits.never(demand(records[0]), self._cluster.scheduler, run.queue, run.user, rooms)
        if why:
            raise Refused(f"it could never start: {why}", "Ask for less, or add nodes first")

    async def _foreseen(self, records: Sequence[Record]) -> list[Run]:
        """The runs of a dry run, each with what the queue would say of the first."""
        situation = await self._admission.situation()
        waiters = tuple(map(_waiter, records))
        seen = replace(situation, waiting=(*situation.waiting, *waiters))
        told = explain(records[0].id, records[0].run.state, seen)
        reasons = [f"a dry run: {told.sentence}", records[0].run.reason]
        reason = "; ".join(filter(None, reasons))
        return [each.run.model_copy(update={"reason": reason}) for each in records]

    # --- writing down -------------------------------------------------------------------------------------------------

    async def _make_directories(self, records: Sequence[Record], releases: dict[str, Release]) -> None:
        wanted = [(each.run.run_directory, releases[each.run.release]) for each in records]
        limit = READ_SECONDS + EACH_SECONDS * (len(wanted) - 1)
        await self._files.apart(wanted[0][0], lambda: rundir.make_all(wanted), limit)

    async def _accept(
        self,
        request: LaunchRequest,
        digest: str,
        records: Sequence[Record],
        releases: dict[str, Release],
        caller: Caller,
    ) -> None:
        first = records[0].run
        target = first.sweep or first.id
        what = f"a sweep of {len(records)} runs" if first.sweep else f"release {first.release}"
        act = Act(caller.user, "launch", target, True, f"{what}, held" if request.hold else what)
        async with self._runs.lock:
            await self._journal(
                Journal.accept,
                records,
                act,
                first.submitted_at,
                request=request.request_id,
                digest=digest,
                answer=target,
                releases=list(releases.values()),
            )
            for each in records:
                self._runs.keep_new(each)


def _waiter(new: Record) -> Waiter:
    """A run that nobody has kept yet, as the queue would see it."""
    run = new.run
    return Waiter(
        run=run.id,
        user=run.user,
        queue=run.queue,
        priority=priority_value(run.priority),
        submitted_at=run.submitted_at,
        demand=demand(new),
        held=run.held.user if run.held is not None else "",
        limit_seconds=run.max_duration_seconds,
        sweep=run.sweep,
        sweep_parallel=new.sweep_parallel,
    )


def _priority(text: str) -> str:
    try:
        return priority_text(text)
    except ValueError as error:
        raise Usage(f"the priority {text!r} {error}") from error
