"""The calls about the recording on the head."""

from __future__ import annotations

from collections.abc import AsyncIterator

from jobs.calls import Calls
from jobs.errors import Unreachable
from jobs.recordview import RecordingIndex
from jobs.transport import Response, TooLarge

RECORDING_LIMIT_BYTES = 512 * 1024 * 1024
ERROR_LIMIT_BYTES = 1024 * 1024


class RecordCalls(Calls):
    """What `jobs.controller.recordroutes` answers."""

    @classmethod
    def beside(cls, client: Calls) -> RecordCalls:
        """The same controller, asked for its recording through the same transport."""
        return client if isinstance(client, RecordCalls) else cls(client._transport)

    async def recording_index(self) -> RecordingIndex:
        """Which minutes are recorded, and what happened in them."""
        return self._as(RecordingIndex, await self._answer("GET", "/v1/recording/index"))

    async def recording(self, since: float, until: float) -> AsyncIterator[bytes]:
        """The bytes of every segment that has something of this span (seconds since 1970, head's clock), as they come.

        Raises as every call does; `Unreachable` too where the stream stands still or ends early.
        """
        params = {"since": str(since), "until": str(until)}
        silence = self._silence_seconds
        try:
            async with self._transport.stream("GET", "/v1/recording", params=params, silence=silence) as answer:
                size, refused = 0, bytearray()
                async for piece in answer.chunks():
                    size += len(piece)
                    if size > (RECORDING_LIMIT_BYTES if answer.status == 200 else ERROR_LIMIT_BYTES):
                        raise TooLarge
                    if answer.status == 200:
                        yield piece
                    else:
                        refused += piece
                if answer.status != 200:
                    raise self._error(Response(answer.status, bytes(refused)))
        except TimeoutError:
            raise Unreachable(f"the recording stopped coming for {silence:g} s") from None
        except TooLarge:
            raise self._too_large(RECORDING_LIMIT_BYTES) from None
        except ConnectionError as error:
            raise self._gone(error) from None
