"""Puts an earlier release of a workflow in the place of what runs, and takes that back. One transaction each."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from jobs import catalogue
from jobs.controller import rundir, wishes
from jobs.controller.access import Access, Caller
from jobs.controller.admission import demand
from jobs.controller.engine import Engine
from jobs.controller.files import RunFiles
from jobs.controller.journal import Act, Journal, JournalThread
from jobs.controller.newrun import NewRun, record
from jobs.controller.packages import Packages
from jobs.controller.record import Record, Resume, StopWanted
from jobs.controller.releases import good_before
from jobs.controller.runs import NoSuch, Runs, own, request_digest
from jobs.controller.schedule import fits
from jobs.errors import Refused
from jobs.model import RunState
from jobs.spec import Cluster, Workflow
from jobs.wire import Release, Rollback, RollbackRequest, UndoRequest

log = logging.getLogger(__name__)

LOOKED_AT = 20
"""Of so many of a release's newest runs a checkpoint is looked for."""


@dataclass(frozen=True, slots=True)
class Source:
    """The checkpoint that the new run begins from."""

    step: int | None = None
    path: str = ""
    run: str = ""
    run_directory: str = ""
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a rollback does, worked out."""

    target: Release
    replaced: Record
    """The newest of the runs in the way; where none is, the workflow's newest run."""
    source: Source
    package: str
    """The archive that the release ran from before; empty where nothing has to be started."""


class Rollbacks:
    """Rolls workflows back."""

    def __init__(
        self,
        cluster: Cluster,
        runs: Runs,
        journal: JournalThread,
        files: RunFiles,
        packages: Packages,
        engine: Engine,
        access: Access,
    ) -> None:
        self._cluster = cluster
        self._runs = runs
        self._journal = journal
        self._files = files
        self._packages = packages
        self._engine = engine
        self._access = access
        self._one = asyncio.Lock()
        """One after the other: each looks at what the one before left."""

    async def roll_back(self, workflow: str, request: RollbackRequest, caller: Caller) -> Rollback:
        """Stop the workflow's runs of other releases, and start the chosen one from its own newest checkpoint.

        A release that runs already goes on; then the others are stopped alone. Raises `NoSuch`, `NotAllowed`,
        `Refused`, `Usage` or `Unreachable`.
        """
        async with self._one:
            digest = request_digest("rollback", workflow, request.model_dump_json())
            rollback_id, run_id = _ids(request.request_id, workflow)
            if not request.dry_run:
                known = await self._runs.repeated(request.request_id, digest)
                if known is not None:
                    return await self._stored(known.answer)
            plan = await self._plan(workflow, request, caller)
            new = self._new_run(plan, run_id, rollback_id, request, caller) if plan.package else None
            if new is not None:
                await self._check_room(new)
            told = Rollback(
                id=rollback_id,
                workflow=workflow,
                at=time.time(),
                user=caller.user,
                reason=request.reason,
                from_release=plan.replaced.run.release,
                to_release=plan.target.id,
                stopped=[each.id for each in self._in_the_way(workflow, plan.target.id)],
                started=new.id if new is not None else "",
                from_step=plan.source.step,
                from_run=plan.source.run,
                skipped=list(plan.source.skipped),
            )
            if request.dry_run:
                return told
            if new is not None:
                new = await self._prepared(new, plan)
            return await self._accept(told, new, request, digest, caller)

    async def undo(self, rollback_id: str, request: UndoRequest, caller: Caller) -> Rollback:
        """Stop what a rollback started, and have what it stopped go on. Raises as `roll_back` does.

        What comes back of a dry run names as ``started`` and ``stopped`` only what would be touched.
        """
        async with self._one:
            digest = request_digest("undo", rollback_id, request.model_dump_json())
            if not request.dry_run and await self._runs.repeated(request.request_id, digest) is not None:
                return await self._stored(rollback_id)
            rollback = await self._stored(rollback_id)
            if rollback.undone_at is not None:
                raise Refused(f"rollback {rollback_id} was taken back already, by {rollback.undone_by}")
            async with self._runs.lock:
                at = time.time()
                ending = [each for each in await self._found([rollback.started]) if not each.run.state.ended]
                again = [each for each in await self._found(rollback.stopped) if _stays_down(each)]
                if not ending and not again:
                    raise Refused(f"rollback {rollback_id} left nothing that could be taken back")
                for each in (*ending, *again):
                    own(each, caller, self._access, f"take back rollback {rollback_id} and touch {each.id}")
                names = [each.id for each in ending]
                if request.dry_run:
                    return rollback.model_copy(
                        update={"started": "".join(names), "stopped": [each.id for each in again]}
                    )
                why = f"rollback {rollback_id} was taken back{_because(request.reason)}"
                wanted = StopWanted(at=at, user=caller.user, reason=why)
                records = [wishes.stop(each, wanted) for each in ending]
                records += [_goes_on(each, names, caller.user, why, at) for each in again]
                undone = rollback.model_copy(update={"undone_at": at, "undone_by": caller.user})
                act = Act(caller.user, "undo", rollback_id, True, request.reason)
                await self._journal(
                    Journal.accept,
                    records,
                    act,
                    at,
                    request=request.request_id,
                    digest=digest,
                    answer=rollback_id,
                    rollback=undone,
                )
                for each in records:
                    self._runs.keep_new(each)
                return undone

    async def _stored(self, rollback_id: str) -> Rollback:
        found = await self._journal(Journal.rollback, rollback_id)
        if found is None:
            raise NoSuch(f"there is no rollback {rollback_id}")
        return found

    async def _found(self, names: Sequence[str]) -> list[Record]:
        return [await self._runs.find(name) for name in names if name]

    # --- the plan -----------------------------------------------------------------------------------------------------

    async def _plan(self, workflow: str, request: RollbackRequest, caller: Caller) -> Plan:
        active = [each for each in self._runs.active() if each.run.workflow == workflow]
        target = await self._target(workflow, request.to, active)
        others = self._in_the_way(workflow, target.id)
        runs = await self._journal(Journal.runs_of_release, target.id, LOOKED_AT)
        goes_on = [each for each in active if each.run.release == target.id and each.stop is None]
        if goes_on and not others:
            raise Refused(f"release {target.id} runs already, as {goes_on[-1].id}, and nothing else of {workflow} does")
        replaced = others[-1] if others else await self._newest(workflow)
        for each in others or [replaced]:
            own(each, caller, self._access, f"roll back {each.id}")
        if goes_on:
            return Plan(target, replaced, Source(), "")
        package = next((each.package for each in runs if self._packages.has(each.package)), "")
        if not package:
            raise Refused(
                f"the code of release {target.id} is no longer kept by this controller",
                "Launch its workflow file again, with the code as it was",
            )
        return Plan(target, replaced, await self._source(runs), package)

    async def _target(self, workflow: str, wanted: str, active: Sequence[Record]) -> Release:
        standings = await self._journal(Journal.standings, workflow)
        if not standings:
            raise NoSuch(f"no run of a workflow {workflow} was ever launched here")
        newest = max((each.run for each in active), key=lambda run: run.submitted_at, default=None)
        name = wanted or good_before(standings, newest.release if newest is not None else "")
        if not name:
            raise Refused(
                f"{workflow} has no earlier release of which a run succeeded, so there is nothing to roll back to",
                f"Choose one yourself: raydeck releases lists them, raydeck rollback {workflow} --to RELEASE takes it",
            )
        target = await self._journal(Journal.release, name)
        if target is None or target.workflow != workflow:
            raise NoSuch(f"{workflow} has no release {name}", "raydeck releases lists them")
        return target

    def _in_the_way(self, workflow: str, target: str) -> list[Record]:
        """The workflow's runs of other releases that nobody has stopped yet, oldest first."""
        return [
            each
            for each in self._runs.active()
            if each.run.workflow == workflow and each.run.release != target and not _is_stopped(each)
        ]

    async def _newest(self, workflow: str) -> Record:
        standings = await self._journal(Journal.standings, workflow)
        return await self._runs.find(max(standings, key=lambda each: each.newest_at).newest)

    async def _source(self, runs: Sequence[Record]) -> Source:
        """The newest complete checkpoint of a release's runs, the newest run first. Raises `Unreachable`.

        Storage that does not answer is no storage without checkpoints: beginning from nothing would be a loss.
        """
        skipped: list[str] = []
        for each in runs:
            directory = each.run.run_directory
            choice = await self._files.apart(f"{directory}#choose", lambda at=directory: catalogue.choose(at, None))
            skipped += [f"{each.id}: {sentence}" for sentence in choice.skipped]
            if choice.step is not None:
                return Source(choice.step, choice.path, each.id, directory, tuple(skipped))
        return Source(skipped=tuple(skipped))

    def _new_run(self, plan: Plan, run_id: str, rollback_id: str, request: RollbackRequest, caller: Caller) -> Record:
        """The run of the chosen release, at the place of the one that it replaces."""
        target, replaced = plan.target, plan.replaced
        try:
            workflow = Workflow.model_validate(target.config)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise Refused(
                f"release {target.id} says what this version of raydeck does not understand: {where}: {first['msg']}",
                "Launch its workflow file again, in today's form",
            ) from error
        new = NewRun(
            id=run_id,
            release=target.id,
            package=plan.package,
            user=caller.user,
            queue=replaced.run.queue,
            priority=replaced.run.priority,
            at=time.time(),
            cause=f"rolled back to {target.id} by {caller.user}{_because(request.reason)}",
        )
        made = record(workflow, self._cluster, new)
        ended = replaced.run.state.ended
        changes = {
            "rollback": rollback_id,
            "resume_run": plan.source.run,
            "queued_at": None if ended else replaced.run.queued_at or replaced.run.submitted_at,
        }
        source = plan.source
        return made.model_copy(
            update={
                "run": made.run.model_copy(update=changes),
                "place": None if ended else replaced.place,
                "resume": Resume(step=source.step, run_directory=source.run_directory, run=source.run),
            }
        )

    async def _check_room(self, new: Record) -> None:
        """Refuse what could never start, before anything is stopped for it."""
        rooms, _ = await self._engine.rooms()
        why = fits.never(demand(new), self._cluster.scheduler, new.run.queue, new.run.user, rooms)
        if why:
            raise Refused(f"release {new.run.release} could never start: {why}", "Nothing was stopped")

    # --- carrying it out ----------------------------------------------------------------------------------------------

    async def _prepared(self, new: Record, plan: Plan) -> Record:
        """What takes time, before anything is written: code, directory, and the checkpoint kept from being pruned."""
        # The release's own code, driven by today's driver.
        package = await self._packages.renewed(plan.package)

        def make() -> None:
            rundir.make(new.run.run_directory, plan.target)
            if plan.source.path:
                _keep(plan.source.path, new.id)

        await self._files.apart(new.run.run_directory, make)
        return new.model_copy(update={"package": package})

    async def _accept(
        self, told: Rollback, new: Record | None, request: RollbackRequest, digest: str, caller: Caller
    ) -> Rollback:
        async with self._runs.lock:
            at = time.time()
            others = self._in_the_way(told.workflow, told.to_release)
            for each in others:
                own(each, caller, self._access, f"roll back {each.id}")
            wanted = StopWanted(
                at=at, user=caller.user, reason=f"rolled back to {told.to_release}{_because(request.reason)}"
            )
            records = [wishes.stop(each, wanted) for each in others]
            if new is not None:
                # Those that somebody else stops at this moment have to be gone as well.
                after = [
                    each.id
                    for each in self._runs.active()
                    if each.run.workflow == told.workflow and (each.run.release != told.to_release or _is_stopped(each))
                ]
                records.append(new.model_copy(update={"run": new.run.model_copy(update={"after": after})}))
            done = told.model_copy(update={"at": at, "stopped": [each.id for each in others]})
            words = f"from {told.from_release} to {told.to_release}{_because(request.reason)}"
            await self._journal(
                Journal.accept,
                records,
                Act(caller.user, "rollback", told.workflow, True, words),
                at,
                request=request.request_id,
                digest=digest,
                answer=told.id,
                rollback=done,
            )
            for each in records:
                self._runs.keep_new(each)
            return done


def _ids(request: str, workflow: str) -> tuple[str, str]:
    """The ids of a rollback and of its run: the same for the same request."""
    digest = hashlib.sha256(f"rollback\0{request}\0{workflow}".encode()).digest()
    letters = base64.b32encode(digest).decode().lower()[:8]
    return f"{workflow}-rb-{letters}", f"{workflow}-{letters}"


def _keep(checkpoint: str, run: str) -> None:
    """Have it stay until the run has one of its own. Where it cannot be marked, that is no reason not to begin."""
    try:
        catalogue.pin(checkpoint, run)
    except Refused as error:
        if not Path(checkpoint).exists():
            raise
        log.warning("%s may be pruned before %s begins from it: %s", checkpoint, run, error)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _is_stopped(each: Record) -> bool:
    """Somebody wants its end, and nothing more of it."""
    return each.stop is not None and each.stop.purpose == "stop"


def _stays_down(each: Record) -> bool:
    """It has ended, or is about to, and nobody has had it go on meanwhile."""
    return each.run.state.ended or _is_stopped(each)


def _goes_on(each: Record, after: list[str], user: str, reason: str, at: float) -> Record:
    """A run that a rollback stopped, back in the queue at the place that it had there."""
    place = each.run.queued_at or each.run.submitted_at
    resume = each.resume if each.resume.run_directory else Resume()
    if each.run.state.waiting:
        # It never left the queue.
        changes: dict[str, object] = {"reason": reason}
        back = each.model_copy(update={"stop": None})
    else:
        changes = {"queued_at": place}
        back = wishes.restart(each, resume, user, reason, at)
    if back.run.state in (RunState.QUEUED, RunState.PREEMPTED) or back.stop is not None:
        changes["after"] = after
    return back.model_copy(update={"run": back.run.model_copy(update=changes)})
