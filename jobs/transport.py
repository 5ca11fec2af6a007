"""What the clients of Ray and of the controller ask of HTTP, whichever library carries it.

The console brings httpx (`console.sources.http`), the controller on the head brings aiohttp, which Ray installs there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

MAX_ANSWER_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Response:
    """An answer, read to its end."""

    status: int
    body: bytes


class TooLarge(Exception):
    """The other side sends more than the limit; what follows was not read."""


class StreamedResponse(Protocol):
    """An answer that is read as it comes."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes, in pieces of any length. Raises as `Transport` does."""
        ...


class Transport(Protocol):
    """One place that requests go to.

    Raises `TimeoutError` when the time limit passes, `TooLarge`, and `ConnectionError` for everything else that keeps
    an answer from coming (nobody there, cut off, no HTTP); its text is one line for a person. It follows no redirect
    and puts no header of a proxy or of a netrc file in.
    """

    where: str
    """How the other side is called in a sentence, such as ``http://127.0.0.1:8265``."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float,
        limit: int = MAX_ANSWER_BYTES,
    ) -> Response:
        """One request and its whole answer, within ``timeout`` seconds in all and ``limit`` bytes."""
        ...

    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float,
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """One request whose answer is read as it comes. ``silence``: seconds without a byte before `TimeoutError`."""
        ...
