"""`jobs.transport.Transport` by aiohttp, which is on every head: ``ray[default]`` brings it."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiohttp

from jobs.transport import MAX_ANSWER_BYTES, Response, TooLarge

CONNECT_SECONDS = 5.0
CONNECTIONS = 16
"""At once; Ray's dashboard answers the rest of the world too."""
PIECE_BYTES = 64 * 1024


class AiohttpTransport:
    """One place that requests go to, over a few kept connections. Make it inside the event loop, and close it."""

    def __init__(self, where: str) -> None:
        """``where`` is the base address, such as ``http://127.0.0.1:8265``."""
        self.where = where.rstrip("/")
        connector = aiohttp.TCPConnector(limit=CONNECTIONS)
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False, auto_decompress=True)

    async def close(self) -> None:
        """Let the connections go."""
        await self._session.close()

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
        bounds = aiohttp.ClientTimeout(total=timeout, connect=min(timeout, CONNECT_SECONDS))
        with _translated():
            async with self._session.request(
                method,
                f"{self.where}{path}",
                params=params,
                json=json,
                # As a file it is sent in pieces, and the event loop is not held up by a large one.
                data=None if content is None else io.BytesIO(content),
                headers=headers,
                timeout=bounds,
                allow_redirects=False,
            ) as answer:
                body = bytearray()
                async for piece in answer.content.iter_chunked(PIECE_BYTES):
                    body += piece
                    if len(body) > limit:
                        raise TooLarge(f"more than {limit} bytes")
                return Response(answer.status, bytes(body))

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float,
    ) -> AsyncGenerator[_Streamed]:
        """One request whose answer is read as it comes. ``silence``: seconds without a byte before `TimeoutError`."""
        bounds = aiohttp.ClientTimeout(total=None, connect=min(silence, CONNECT_SECONDS), sock_read=silence)
        with _translated():
            answer = await self._session.request(
                method, f"{self.where}{path}", params=params, headers=headers, timeout=bounds, allow_redirects=False
            )
        try:
            yield _Streamed(answer)
        finally:
            answer.close()


class _Streamed:
    """An answer that is read as it comes."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._answer.status

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes, in pieces of any length."""
        with _translated():
            async for piece in self._answer.content.iter_any():
                yield piece


@contextmanager
def _translated() -> Generator[None]:
    """aiohttp's errors as those that a `Transport` raises."""
    try:
        yield
    except asyncio.TimeoutError as error:  # not the built-in one before Python 3.11
        raise TimeoutError("no answer in time") from error
    except aiohttp.ClientConnectorError as error:
        number = error.errno or 0
        raise ConnectionError(os.strerror(number) if number > 0 else str(error.os_error)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise ConnectionError(str(error) or type(error).__name__) from error
