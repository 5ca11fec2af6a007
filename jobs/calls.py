"""How any call to the controller goes: limits, refusals in our own words, answers that are understood or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobs.errors import Busy, RaydeckError, Refused, Unreachable, Usage
from jobs.transport import MAX_ANSWER_BYTES, Response, TooLarge, Transport
from jobs.wire import Mistake

CALL_SECONDS = 10.0
STORAGE_SECONDS = 30.0
"""For what the controller has to look at the shared storage for; it waits less long than this itself."""
SILENCE_SECONDS = 6.0
"""Three heartbeats: a stream that is silent for longer is dead, whatever its connection says."""
LINE_BYTES = MAX_ANSWER_BYTES

_Message = TypeVar("_Message", bound=BaseModel)


class Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Told(Lenient):
    sentence: str
    hint: str = ""
    mistakes: list[Mistake] = Field(default_factory=list)


class _Error(Lenient):
    error: _Told


class Calls:
    """Calls through a transport that the caller owns. What they raise stands at `jobs.client.ControllerClient`."""

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
