"""HTTP by httpx: to Ray's dashboard at an address, or to the controller through a Unix socket.

httpx is imported when the first transport opens, not with this file: it costs 170 ms that the first paint need not wait
for. Proxy settings and netrc files of the environment are not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from jobs.transport import MAX_ANSWER_BYTES, Response, TooLarge
from jobs.within import within

if TYPE_CHECKING:
    import httpx

MAX_CONNECTIONS = 8
CONNECT_SECONDS = 5.0


class HttpTransport:
    """A `jobs.transport.Transport` over a few kept connections; `close` gives them back."""

    def __init__(self, where: str, client: httpx.AsyncClient) -> None:
        self.where = where
        self._client = client

    @classmethod
    def to_address(cls, address: str) -> HttpTransport:
        """To an address such as ``http://127.0.0.1:8265``."""
        return cls(address.rstrip("/"), _client(address.rstrip("/"), None))

    @classmethod
    def to_socket(cls, path: str) -> HttpTransport:
        """To a server on a Unix socket of this machine. Needs a running loop."""
        import httpx

        _spare_cancelled_reads(asyncio.get_running_loop())

        pool = httpx.AsyncHTTPTransport(uds=path, limits=_limits(), trust_env=False)
        return cls(path, _client("http://controller", pool))

    async def close(self) -> None:
        """Closes every connection. Requests under way fail."""
        await self._client.aclose()

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

        async def whole() -> Response:
            request = self._client.build_request(
                method, path, params=params, json=json, content=content, headers=headers, timeout=timeout
            )
            answer = await self._client.send(request, stream=True)
            try:
                body = bytearray()
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > limit:
                        raise TooLarge
                return Response(answer.status_code, bytes(body))
            finally:
                await answer.aclose()

        with _told():
            return await within(whole(), timeout)

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
        """One request whose answer is read as it comes; see `jobs.transport.Transport.stream`."""
        with _told():
            request = self._client.build_request(method, path, params=params, headers=headers, timeout=silence)
            answer = await self._client.send(request, stream=True)
        try:
            yield _Streamed(answer)
        finally:
            await answer.aclose()


def _spare_cancelled_reads(loop: asyncio.AbstractEventLoop) -> None:
    """Say nothing of a read that was cancelled in the moment in which its data came.

    anyio, below httpx, waits for a Unix socket with ``add_reader(future.set_result)``. When a stream is given up just
    as bytes arrive, the loop finds that future cancelled already and reports a failed callback. Nothing has failed:
    nobody wants those bytes any more. Every other report goes where it went before.
    """
    before = loop.get_exception_handler()
    if before is not None and before.__name__ == "spare":
        return

    def spare(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        cancelled = isinstance(context.get("exception"), asyncio.InvalidStateError)
        if cancelled and "Future.set_result" in repr(context.get("handle")):
            return
        if before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(spare)


class _Streamed:
    """An answer under way."""

    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._answer.status_code

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come."""
        with _told():
            async for chunk in self._answer.aiter_bytes():
                yield chunk


def _limits() -> httpx.Limits:
    import httpx

    return httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)


def _client(address: str, pool: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
    import httpx

    return httpx.AsyncClient(
        base_url=address,
        transport=pool,
        limits=_limits(),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(30.0, connect=CONNECT_SECONDS),
    )


@contextmanager
def _told() -> Generator[None]:
    """httpx's errors as the ones that `jobs.transport.Transport` promises."""
    import httpx

    try:
        yield
    except asyncio.TimeoutError:  # its own class before Python 3.11
        raise TimeoutError from None
    except httpx.TimeoutException:
        raise TimeoutError from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
        raise ConnectionError(str(error) or type(error).__name__) from error
