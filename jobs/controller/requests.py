"""What people ask of a run beyond its end: try again from a checkpoint, wait otherwise. Checks, then has it written."""

from __future__ import annotations

import time

from jobs.controller import wishes
from jobs.controller.access import Access, Caller, Role
from jobs.controller.admission import Admission, demand
from jobs.controller.begin import Begin, begin
from jobs.controller.files import RunFiles
from jobs.controller.journal import Act
from jobs.controller.record import Record, Resume
from jobs.controller.runs import Runs, own
from jobs.controller.schedule import fits, order
from jobs.controller.schedule.types import Situation
from jobs.errors import Refused, Usage
from jobs.model import Run
from jobs.spec import Scheduler
from jobs.values import PRIORITIES, priority_text, priority_value
from jobs.wire import ArrangeRequest, Restarted, RestartRequest

SUBMITTERS_MOST = PRIORITIES["high"]
"""A priority above this takes an operator."""


class Requests:
    """Restarts and arrangements."""

    def __init__(self, rules: Scheduler, runs: Runs, admission: Admission, files: RunFiles, access: Access) -> None:
        self._rules = rules
        self._runs = runs
        self._admission = admission
        self._files = files
        self._access = access

    async def restart(self, run: str, request: RestartRequest, caller: Caller) -> Restarted:
        """Have a run try again. Raises `NoSuch`, `NotAllowed`, `Refused` (no such checkpoint), or `Unreachable`.

        What it says is how the storage looks now; a run that still runs saves first, and begins from that.
        """
        record = await self._runs.find(run)
        own(record, caller, self._access, f"restart {run}")
        resume = Resume(step=request.from_step)
        if request.from_step is None and record.resume.run_directory:
            resume = record.resume
        probe = record.model_copy(update={"resume": resume})
        known = not request.dry_run and await self._runs.known(run, request, "restart")
        try:
            found = await self._files.apart(f"{record.run.run_directory}#begin", lambda: begin(probe))
        except Refused:
            if not known:
                raise
            found = Begin(request.from_step)  # it began there long ago; the checkpoint has gone since
        if known or request.dry_run:
            return _told(record.run, found)

        def wish(current: Record) -> tuple[Record, Act]:
            own(current, caller, self._access, f"restart {run}")
            after = wishes.restart(current, resume, caller.user, request.reason, time.time())
            where = "the newest checkpoint" if request.from_step is None else f"step {request.from_step}"
            reason = f"from {where}{f': {request.reason}' if request.reason else ''}"
            return after, Act(caller.user, "restart", run, True, reason)

        return _told(await self._runs.asked(run, request, caller, wish, "restart"), found)

    async def arrange(self, run: str, request: ArrangeRequest, caller: Caller) -> Run:
        """Change how a run waits. Raises `NoSuch`, `NotAllowed`, `Usage`, `WrongState` or `Refused`."""
        record = await self._runs.find(run)
        if await self._runs.known(run, request, "arrange"):
            return record.run  # whatever would be said to it today
        situation = await self._admission.situation()
        change = self._change(record, request, situation)

        def wish(current: Record) -> tuple[Record, Act]:
            self._allow(current, request, caller)
            after = wishes.arrange(current, change, caller.user, request.reason, time.time())
            return after, Act(caller.user, word_for(request), run, True, _detail(request))

        return await self._runs.asked(run, request, caller, wish, "arrange")

    def _allow(self, record: Record, request: ArrangeRequest, caller: Caller) -> None:
        run = record.run
        own(record, caller, self._access, f"arrange {run.id}")
        if request.place not in (None, "own"):
            self._access.require(caller, Role.OPERATOR, f"give {run.id} a place before others")
        if request.priority is not None and priority_value(_priority(request.priority)) > SUBMITTERS_MOST:
            self._access.require(caller, Role.OPERATOR, f"give {run.id} a priority above high")
        if request.hold is False and run.held is not None and run.held.user != caller.user:
            self._access.require(caller, Role.OPERATOR, f"release {run.id}, which {run.held.user} holds")

    def _change(self, record: Record, request: ArrangeRequest, situation: Situation) -> wishes.Arrangement:
        priority = None if request.priority is None else _priority(request.priority)
        queue = None
        if request.queue is not None:
            found = self._rules.queue(request.queue)
            if found is None:
                there = ", ".join(each.name for each in self._rules.queues) or "none but the default one"
                raise Refused(f"there is no queue {request.queue}", f"The cluster file has {there}")
            queue = found.name
            never = fits.never(demand(record), self._rules, queue, record.run.user, situation.rooms)
            if never:
                raise Refused(f"in queue {queue} run {record.id} could never start: {never}")
        if priority is queue is request.hold is request.place is None:
            raise Usage("nothing is to be changed", "Name a priority, a queue, a place, or hold or release it")
        return wishes.Arrangement(
            priority=priority,
            queue=queue,
            hold=request.hold,
            place=self._place(record, request, situation),
            own_place=request.place == "own",
        )

    def _place(self, record: Record, request: ArrangeRequest, situation: Situation) -> float | None:
        if request.place in (None, "own"):
            return None
        others = [waiter for waiter in situation.waiting if waiter.run != record.id]
        keys = sorted((order.key(waiter, self._rules), waiter.submitted_at, waiter.run) for waiter in others)
        if not keys:
            return None  # it is the only one: every place is its own
        try:
            return order.place([(name, key) for key, _, name in keys], request.place or "", request.other)
        except ValueError as error:
            raise Refused(f"run {record.id} cannot be put there: {error}") from error


def _told(run: Run, found: Begin) -> Restarted:
    return Restarted(
        run=run,
        from_step=found.step,
        skipped=list(found.skipped),
        set_aside=list(found.set_aside),
        warnings=list(found.warnings),
    )


def _priority(text: str) -> str:
    try:
        return priority_text(text)
    except ValueError as error:
        raise Usage(f"the priority {text!r} {error}") from error


def word_for(request: ArrangeRequest) -> str:
    """The word for what an arrangement does, as it stands in the audit."""
    if request.hold is not None:
        return "hold" if request.hold else "release"
    return "priority" if request.priority is not None else "move"


def _detail(request: ArrangeRequest) -> str:
    parts = [
        f"priority {request.priority}" if request.priority is not None else "",
        f"queue {request.queue}" if request.queue is not None else "",
        f"{request.place} {request.other}".strip() if request.place is not None else "",
        request.reason,
    ]
    return "; ".join(part for part in parts if part)
