"""The one door for writes: the controller's routes as typed calls, and its event stream.

Who is asking is not said here: the controller reads it from the socket. Every request that changes something carries an
id of its caller's, so that a repeat after a lost answer is the same request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from jobs.alertcalls import AlertCalls
from jobs.calls import STORAGE_SECONDS, Lenient
from jobs.errors import Unreachable
from jobs.looks import Look
from jobs.model import Move, Progress, Run
from jobs.nodecalls import NodeCalls
from jobs.queueview import Explanation, QueueView
from jobs.transport import Response, TooLarge
from jobs.validationview import Report
from jobs.wire import (
    ArrangeRequest,
    AuditEntry,
    CheckpointRow,
    ControllerStatus,
    Event,
    LaunchRequest,
    ReleaseRow,
    Restarted,
    RestartRequest,
    Rollback,
    RollbackRequest,
    StopRequest,
    UndoRequest,
)

LAUNCH_SECONDS = 60.0
"""A launch checks the file and stores the code before it answers."""
UPLOAD_SECONDS = 300.0

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


class _Runs(Lenient):
    runs: list[Run]


class _Points(Lenient):
    points: list[Progress]


class _Moves(Lenient):
    moves: list[Move]


class _Checkpoints(Lenient):
    checkpoints: list[CheckpointRow]


class _Releases(Lenient):
    releases: list[ReleaseRow]


class _Rollbacks(Lenient):
    rollbacks: list[Rollback]


class _Entries(Lenient):
    entries: list[AuditEntry]


class _Asked(Lenient):
    look: str


class _Verified(Lenient):
    broken: str


class ControllerClient(NodeCalls, AlertCalls):
    """One cluster's controller, through a transport that the caller owns.

    Raises `Refused` (with what the controller said; `jobs.load.FileMistakes` for mistakes in a file), `Busy`, `Usage`,
    and `Unreachable` when no controller answers or Ray does not answer it.
    """

    async def status(self) -> ControllerStatus:
        """Who serves this cluster, and who it says that you are."""
        return self._as(ControllerStatus, await self._answer("GET", "/v1/status"))

    async def runs(self, limit: int = 200, sweep: str = "") -> list[Run]:
        """The newest runs, newest first; with ``sweep`` those of that sweep."""
        params = {"limit": str(limit), **({"sweep": sweep} if sweep else {})}
        return self._as(_Runs, await self._answer("GET", "/v1/runs", params=params)).runs

    async def run(self, run: str) -> Run:
        """One run. Raises `Refused` if there is none of this id."""
        return self._as(Run, await self._answer("GET", _run_path(run)))

    async def series(self, run: str, points: int = 600) -> list[Progress]:
        """The course of a run, thinned to so many points."""
        answer = await self._answer("GET", f"{_run_path(run)}/series", params={"points": str(points)})
        return self._as(_Points, answer).points

    async def moves(self, run: str) -> list[Move]:
        """Each step that a run made from state to state, oldest first."""
        return self._as(_Moves, await self._answer("GET", f"{_run_path(run)}/moves")).moves

    async def explain(self, run: str) -> Explanation:
        """Why a run waits."""
        return self._as(Explanation, await self._answer("GET", f"{_run_path(run)}/explain"))

    async def checkpoints(self, run: str) -> list[CheckpointRow]:
        """A run's checkpoints, in the order of their steps."""
        answer = await self._answer("GET", f"{_run_path(run)}/checkpoints", timeout=STORAGE_SECONDS)
        return self._as(_Checkpoints, answer).checkpoints

    async def validation(self, run: str) -> Report:
        """What a validation has found so far."""
        answer = await self._answer("GET", f"{_run_path(run)}/validation", timeout=STORAGE_SECONDS)
        return self._as(Report, answer)

    async def ask_look(self, run: str) -> str:
        """Has all ranks of a run looked at: stacks, collectives, states. Gives the look's id."""
        answer = await self._answer("POST", f"{_run_path(run)}/look", timeout=STORAGE_SECONDS)
        return self._as(_Asked, answer).look

    async def look(self, run: str, look: str) -> Look:
        """What a look has brought so far."""
        path = f"{_run_path(run)}/looks/{quote(look, safe='')}"
        return self._as(Look, await self._answer("GET", path, timeout=STORAGE_SECONDS))

    async def queue(self, offset: int = 0, limit: int = 200) -> QueueView:
        """The queues, and so many of the runs that wait, in their order."""
        params = {"offset": str(offset), "limit": str(limit)}
        return self._as(QueueView, await self._answer("GET", "/v1/queue", params=params))

    async def releases(self, workflow: str = "") -> list[ReleaseRow]:
        """The releases of one workflow, or of all, newest first, and how they fared."""
        answer = await self._answer("GET", "/v1/releases", params=_of(workflow), timeout=STORAGE_SECONDS)
        return self._as(_Releases, answer).releases

    async def rollbacks(self, workflow: str = "") -> list[Rollback]:
        """The rollbacks of one workflow, or of all, newest first."""
        return self._as(_Rollbacks, await self._answer("GET", "/v1/rollbacks", params=_of(workflow))).rollbacks

    async def audit(self, limit: int = 200) -> list[AuditEntry]:
        """What was asked for, allowed or not, newest first."""
        return self._as(_Entries, await self._answer("GET", "/v1/audit", params={"limit": str(limit)})).entries

    async def audit_broken(self) -> str:
        """Where the audit log's chain of hashes does not hold, in words; empty if it holds."""
        answer = await self._answer("GET", "/v1/audit", params={"limit": "1", "verify": "1"})
        return self._as(_Verified, answer).broken

    async def put_package(self, digest: str, content: bytes) -> bool:
        """Sends the code that a launch refers to: True if it is new there."""
        path = f"/v1/packages/{quote(digest, safe='')}"
        return (await self._answer("PUT", path, content=content, timeout=UPLOAD_SECONDS)).status == 201

    async def launch(self, request: LaunchRequest) -> list[Run]:
        """Launches what a workflow file says: one run, or all of a sweep. The same request id again gives the same."""
        body = request.model_dump(mode="json")
        return self._as(_Runs, await self._answer("POST", "/v1/runs", body=body, timeout=LAUNCH_SECONDS)).runs

    async def stop(self, run: str, request: StopRequest) -> Run:
        """Ends a run. What comes back is the run as it is now: the end comes later."""
        return self._as(Run, await self._ask(f"{_run_path(run)}/stop", request))

    async def restart(self, run: str, request: RestartRequest) -> Restarted:
        """Has a run try again from one of its checkpoints; a dry run tells what that would do."""
        return self._as(Restarted, await self._ask(f"{_run_path(run)}/restart", request, STORAGE_SECONDS))

    async def arrange(self, run: str, request: ArrangeRequest) -> Run:
        """Changes how a run waits: its priority, queue or place, held or released."""
        return self._as(Run, await self._ask(f"{_run_path(run)}/arrange", request))

    async def rollback(self, workflow: str, request: RollbackRequest) -> Rollback:
        """Puts an earlier release in the place of what runs; a dry run tells what that would do."""
        path = f"/v1/workflows/{quote(workflow, safe='')}/rollback"
        return self._as(Rollback, await self._ask(path, request, STORAGE_SECONDS))

    async def undo(self, rollback_id: str, request: UndoRequest) -> Rollback:
        """Takes a rollback back; a dry run tells what that would do."""
        path = f"/v1/rollbacks/{quote(rollback_id, safe='')}/undo"
        return self._as(Rollback, await self._ask(path, request, STORAGE_SECONDS))

    async def events(self) -> AsyncIterator[Event]:
        """What is true, and then each change, for as long as it is read.

        Ends when the controller ends it. Raises `Unreachable` when the stream breaks, or is silent for 6 s.
        """
        try:
            async with self._transport.stream("GET", "/v1/events", silence=self._silence_seconds) as answer:
                if answer.status != 200:
                    body = bytearray()
                    async for chunk in answer.chunks():
                        body += chunk
                        if len(body) > self._line_bytes:
                            raise TooLarge
                    raise self._error(Response(answer.status, bytes(body)))
                rest = bytearray()
                async for chunk in answer.chunks():
                    start = len(rest)
                    rest += chunk
                    if b"\n" in chunk:
                        *lines, tail = bytes(rest).split(b"\n")
                        rest = bytearray(tail)
                        for line in lines:
                            if line.strip():
                                yield self._event(line)
                    elif start > self._line_bytes:
                        raise TooLarge
        except TimeoutError:
            raise Unreachable(f"the controller's event stream was silent for {self._silence_seconds:g} s") from None
        except TooLarge:
            raise self._too_large(self._line_bytes) from None
        except ConnectionError as error:
            raise self._gone(error) from None

    def _event(self, line: bytes) -> Event:
        try:
            return _EVENT.validate_json(line)
        except ValidationError:
            raise self._foreign() from None


def _run_path(run: str) -> str:
    return f"/v1/runs/{quote(run, safe='')}"


def _of(workflow: str) -> dict[str, str] | None:
    return {"workflow": workflow} if workflow else None
