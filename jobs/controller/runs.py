"""The runs: those that have not ended in memory, all in the journal. A change is on disk before it is seen."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable

from jobs.controller.access import Access, Caller, Role
from jobs.controller.events import Hub
from jobs.controller.journal import Act, Answered, Journal, JournalThread
from jobs.controller.record import Record, StopWanted
from jobs.errors import Refused, Usage
from jobs.model import Run
from jobs.wire import StopRequest


class NoSuch(Refused):
    """There is no run, release or package of this name."""


class WrongState(Refused):
    """It cannot be done as things stand."""


class Runs:
    """The one place where a run changes."""

    def __init__(self, journal: JournalThread, hub: Hub) -> None:
        self._journal = journal
        self._hub = hub
        self._active: dict[str, Record] = {}
        self.lock = asyncio.Lock()
        """Held from reading a run to having written it. Never held while Ray or a shared file system is asked."""
        self.changed = asyncio.Event()
        """Set when somebody wants something, so that it need not wait for the next tick."""

    async def recover(self) -> int:
        """Take up all runs that had not ended when the last controller did; how many they are."""
        records = await self._journal(Journal.active)
        self._active = {record.id: record for record in records}
        return len(self._active)

    def active(self) -> list[Record]:
        """The runs that have not ended, oldest first."""
        return list(self._active.values())

    async def find(self, run: str) -> Record:
        """One run, whatever its state. Raises `NoSuch`."""
        record = self._active.get(run) or await self._journal(Journal.run, run)
        if record is None:
            raise NoSuch(f"there is no run {run}")
        return record

    async def newest(self, limit: int) -> list[Run]:
        """The newest runs, newest first, and every active one in its present form."""
        stored = await self._journal(Journal.newest, limit)
        return [(self._active.get(record.id) or record).run for record in stored]

    async def snapshot(self, limit: int) -> list[Run]:
        """All that are active and the newest of the others, newest first."""
        runs = {run.id: run for run in await self.newest(limit)}
        runs.update((record.id, record.run) for record in self._active.values())
        return sorted(runs.values(), key=lambda run: (-run.submitted_at, run.id))

    async def change(self, run: str, how: Callable[[Record], Record]) -> Record | None:
        """Put an active run through ``how``, write it, tell everybody. None if it has ended meanwhile.

        What its driver reports each second is not written: the run's own files tell it again after a restart.
        """
        async with self.lock:
            before = self._active.get(run)
            if before is None:
                return None
            after = how(before)
            if after is before:
                return after
            if _lasting(before) != _lasting(after):
                await self._journal(Journal.put_run, after)
            self._keep(after)
            return after

    def _keep(self, record: Record) -> None:
        if record.run.state.ended:
            self._active.pop(record.id, None)
        else:
            self._active[record.id] = record
        self._hub.publish(record.run)

    def keep_new(self, record: Record) -> None:
        """A run that was just written, under `lock`."""
        self._keep(record)
        self.changed.set()

    async def repeated(self, request: str, digest: str) -> Answered | None:
        """The earlier answer to the same request. Raises `Usage` if the id stood for something else."""
        answered = await self._journal(Journal.answered, request)
        if answered is not None and answered.digest != digest:
            raise Usage(f"the request id {request} was used for something else", "Each request needs an id of its own")
        return answered

    async def stop(self, run: str, request: StopRequest, caller: Caller, access: Access) -> Run:
        """Want a run stopped. Raises `NoSuch`, `WrongState`, or `NotAllowed`.

        The submitter of a run may stop it; for another's it takes an operator.
        """
        digest = request_digest("stop", run, request.model_dump_json())
        async with self.lock:
            record = await self.find(run)
            needed = Role.SUBMITTER if record.run.user == caller.user else Role.OPERATOR
            access.require(caller, needed, f"stop {run}, a run of {record.run.user}")
            if await self.repeated(request.request_id, digest) is not None:
                return record.run
            if record.run.state.ended:
                raise WrongState(f"run {run} has ended already: {record.run.state.value}")
            at = time.time()
            act = Act(caller.user, "stop now" if request.now else "stop", run, True, request.reason)
            before = record.stop
            if before is None:
                wanted = StopWanted(at=at, user=caller.user, reason=request.reason, now=request.now)
                run_now = record.run.model_copy(update={"reason": f"to be {wanted.sentence}"})
                record = record.model_copy(update={"stop": wanted, "run": run_now})
            elif request.now and not before.now:
                # Sent again, so that the driver learns that there is no more time.
                record = record.model_copy(update={"stop": before.model_copy(update={"now": True, "sent_at": None})})
            await self._journal(Journal.accept, record, act, at, request=request.request_id, digest=digest)
            self.keep_new(record)
            return record.run


def _lasting(record: Record) -> Record:
    """The record without its driver's newest report."""
    attempt = record.run.attempt
    if attempt is None or attempt.status is None:
        return record
    attempts = [*record.run.attempts[:-1], attempt.model_copy(update={"status": None})]
    return record.model_copy(update={"run": record.run.model_copy(update={"attempts": attempts})})


def request_digest(*parts: str) -> str:
    """What a request says, as a digest: the same id with another content is not the same request."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
