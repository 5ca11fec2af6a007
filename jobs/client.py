"""The one door for writes: the controller's routes as typed calls, and its event stream.

Who is asking is not said here: the controller reads it from the socket. Every request that changes something carries an
id of its caller's, so that a repeat after a lost answer is the same request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from jobs.errors import Busy, RaydeckError, Refused, Unreachable, Usage
from jobs.model import Move, Progress, Run
from jobs.nodeview import Drain, NodesView
from jobs.queueview import Explanation, QueueView
from jobs.transport import MAX_ANSWER_BYTES, Response, TooLarge, Transport
from jobs.wire import (
    ArrangeRequest,
    AuditEntry,
    CheckpointRow,
    ControllerStatus,
    CordonRequest,
    DecideRequest,
    DrainRequest,
    Event,
    LaunchRequest,
    Mistake,
    NodesReply,
    Permit,
    PermitDone,
    PermitRequest,
    ReleaseRow,
    Restarted,
    RestartRequest,
    RetireRequest,
    Rollback,
    RollbackRequest,
    StopRequest,
    UncordonRequest,
    UndoRequest,
)

CALL_SECONDS = 10.0
LAUNCH_SECONDS = 60.0
"""A launch checks the file and stores the code before it answers."""
STORAGE_SECONDS = 30.0
"""For what the controller has to look at the shared storage for; it waits less long than this itself."""
UPLOAD_SECONDS = 300.0
SILENCE_SECONDS = 6.0
"""Three heartbeats: a stream that is silent for longer is dead, whatever its connection says."""
LINE_BYTES = MAX_ANSWER_BYTES

_Message = TypeVar("_Message", bound=BaseModel)
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Runs(_Lenient):
    runs: list[Run]


class _Points(_Lenient):
    points: list[Progress]


class _Moves(_Lenient):
    moves: list[Move]


class _Checkpoints(_Lenient):
    checkpoints: list[CheckpointRow]


class _Releases(_Lenient):
    releases: list[ReleaseRow]


class _Rollbacks(_Lenient):
    rollbacks: list[Rollback]


class _Drains(_Lenient):
    drains: list[Drain]


class _Entries(_Lenient):
    entries: list[AuditEntry]


class _Verified(_Lenient):
    broken: str


class _Told(_Lenient):
    sentence: str
    hint: str = ""
    mistakes: list[Mistake] = Field(default_factory=list)


class _Error(_Lenient):
    error: _Told


class ControllerClient:
    """One cluster's controller, through a transport that the caller owns.

    Raises `Refused` (with what the controller said; `jobs.load.FileMistakes` for mistakes in a file), `Busy`, `Usage`,
    and `Unreachable` when no controller answers or Ray does not answer it.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        call_seconds: float = CALL_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
        line_bytes: int = LINE_BYTES,
    ) -> None:
        self._transport = transport
        self._call_seconds = call_seconds
        self._silence_seconds = silence_seconds
        self._line_bytes = line_bytes

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

    async def nodes(self) -> NodesView:
        """The nodes that are held, the drains, and what an operator should know of them."""
        return self._as(NodesView, await self._answer("GET", "/v1/nodes"))

    async def drains(self, limit: int = 50) -> list[Drain]:
        """The newest drains, newest first, also those that ended."""
        return self._as(_Drains, await self._answer("GET", "/v1/drains", params={"limit": str(limit)})).drains

    async def cordon(self, request: CordonRequest) -> NodesReply:
        """Keeps new work off nodes; a dry run tells what that would do."""
        return self._as(NodesReply, await self._ask("/v1/nodes/cordon", request, STORAGE_SECONDS))

    async def uncordon(self, request: UncordonRequest) -> NodesReply:
        """Takes holds back; a dry run tells what that would do."""
        return self._as(NodesReply, await self._ask("/v1/nodes/uncordon", request, STORAGE_SECONDS))

    async def drain(self, request: DrainRequest) -> NodesReply:
        """Cordons nodes and moves the work off them, in the background; a dry run tells what that would do."""
        return self._as(NodesReply, await self._ask("/v1/nodes/drain", request, STORAGE_SECONDS))

    async def decide(self, drain: str, request: DecideRequest) -> Drain:
        """Stops a drain, or chooses what follows its deadline."""
        return self._as(Drain, await self._ask(f"/v1/drains/{quote(drain, safe='')}/decide", request))

    async def retire(self, request: RetireRequest) -> NodesReply:
        """Takes drained nodes out of Ray; a dry run tells what that would do."""
        return self._as(NodesReply, await self._ask("/v1/nodes/retire", request, STORAGE_SECONDS))

    async def permit(self, request: PermitRequest) -> Permit:
        """Asks whether something may be done to a node over SSH; that is in the audit before it is done."""
        return self._as(Permit, await self._ask("/v1/nodes/permit", request))

    async def permit_done(self, permit: str, done: PermitDone) -> Permit:
        """Tells what came of it."""
        return self._as(Permit, await self._ask(f"/v1/permits/{quote(permit, safe='')}/done", done))

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

    async def _answer(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content: bytes | None = None,
        timeout: float | None = None,
    ) -> Response:
        """The answer, if it is one of success."""
        timeout = self._call_seconds if timeout is None else timeout
        try:
            answer = await self._transport.request(
                method, path, params=params, json=body, content=content, timeout=timeout, limit=MAX_ANSWER_BYTES
            )
        except TimeoutError:
            raise Unreachable(
                f"the controller did not answer within {timeout:g} s",
                "What was asked for may still have happened; look before it is asked for again",
            ) from None
        except TooLarge:
            raise self._too_large(MAX_ANSWER_BYTES) from None
        except ConnectionError as error:
            raise self._gone(error) from None
        if 200 <= answer.status < 300:
            return answer
        raise self._error(answer)

    async def _ask(self, path: str, request: BaseModel, timeout: float | None = None) -> Response:
        return await self._answer("POST", path, body=request.model_dump(mode="json"), timeout=timeout)

    def _as(self, kind: type[_Message], answer: Response) -> _Message:
        try:
            return kind.model_validate_json(answer.body)
        except ValidationError:
            raise self._foreign() from None

    def _error(self, answer: Response) -> RaydeckError:
        """What the controller said against it, in our family."""
        try:
            told = _Error.model_validate_json(answer.body).error
        except ValidationError:
            return self._foreign()
        if told.mistakes:
            from jobs.load import FileMistakes  # costs the YAML library, which a console that only reads need not have

            return FileMistakes(told.mistakes)
        if answer.status == 503:
            return Unreachable(told.sentence, told.hint)
        if answer.status == 423:
            return Busy(told.sentence, told.hint)
        return (Usage if answer.status == 400 else Refused)(told.sentence, told.hint)

    def _gone(self, error: ConnectionError) -> Unreachable:
        reason = " ".join(str(error).split())
        return Unreachable(
            f"no controller answers at {self._transport.where}: {reason}", "Start one: raydeck controller start"
        )

    def _too_large(self, limit: int) -> Unreachable:
        return Unreachable(f"the controller sent more than {limit // 2**20} MiB; it was not read")

    def _foreign(self) -> Unreachable:
        return Unreachable(
            f"what answers at {self._transport.where} does not speak this version's language",
            "Console and controller may be of different versions: raydeck controller status",
        )


def _run_path(run: str) -> str:
    return f"/v1/runs/{quote(run, safe='')}"


def _of(workflow: str) -> dict[str, str] | None:
    return {"workflow": workflow} if workflow else None
