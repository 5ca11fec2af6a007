"""The runs: those that have not ended in memory, all in the journal. A change is on disk before it is seen."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable

from jobs.controller import wishes
from jobs.controller.access import Access, Caller, Role
from jobs.controller.events import Hub
from jobs.controller.journal import Act, Answered, Journal, JournalThread
from jobs.controller.record import Record, StopWanted
from jobs.errors import Refused, Usage
from jobs.model import Run
from jobs.wire import ArrangeRequest, RestartRequest, StopRequest


class NoSuch(Refused):
    """There is no run, release or package of this name."""


Asked = StopRequest | RestartRequest | ArrangeRequest


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

    async def newest(self, limit: int, sweep: str = "") -> list[Run]:
        """The newest runs (of one sweep), newest first, each in its present form."""
        stored = await self._journal(Journal.newest, limit, sweep)
        return [(self._active.get(record.id) or record).run for record in stored]

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
            return self._keep(after)

    def _keep(self, record: Record) -> Record:
        if record.unwritten:
            record = record.model_copy(update={"unwritten": []})
        if record.run.state.ended:
            self._active.pop(record.id, None)
        else:
            self._active[record.id] = record
        self._hub.publish(record.run)
        return record

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

    async def known(self, run: str, request: Asked, word: str) -> bool:
        """Whether this very request was carried out before. Raises as `repeated` does."""
        digest = request_digest(word, run, request.model_dump_json())
        return await self.repeated(request.request_id, digest) is not None

    async def asked(
        self, run: str, request: Asked, caller: Caller, wish: Callable[[Record], tuple[Record, Act]], word: str
    ) -> Run:
        """Carry a request about one run out once: ``wish`` checks it and gives the run as it is wanted, and the act.

        Raises `NoSuch`, and what ``wish`` raises.
        """
        digest = request_digest(word, run, request.model_dump_json())
        async with self.lock:
            record = await self.find(run)
            if await self.repeated(request.request_id, digest) is not None:
                return record.run
            after, act = wish(record)
            await self._journal(
                Journal.accept, [after], act, time.time(), request=request.request_id, digest=digest, answer=run
            )
            self.keep_new(after)
            return after.run

    async def stop(self, run: str, request: StopRequest, caller: Caller, access: Access) -> Run:
        """Want a run stopped. Raises `NoSuch`, `WrongState`, or `NotAllowed`.

        The submitter of a run may stop it; for another's it takes an operator.
        """

        def wish(record: Record) -> tuple[Record, Act]:
            own(record, caller, access, f"stop {run}")
            wanted = StopWanted(at=time.time(), user=caller.user, reason=request.reason, now=request.now)
            return wishes.stop(record, wanted), Act(
                caller.user, "stop now" if request.now else "stop", run, True, request.reason
            )

        return await self.asked(run, request, caller, wish, "stop")


def own(record: Record, caller: Caller, access: Access, to_do: str) -> None:
    """Raises `NotAllowed` unless it is the caller's own run and the caller may launch, or the caller is an operator."""
    needed = Role.SUBMITTER if record.run.user == caller.user else Role.OPERATOR
    access.require(caller, needed, f"{to_do}, a run of {record.run.user}")


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
