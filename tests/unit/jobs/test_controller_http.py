"""The transport by aiohttp: what goes wrong on the way, as `jobs.transport` says it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from jobs.controller.http import AiohttpTransport
from jobs.transport import TooLarge, Transport


@asynccontextmanager
async def talking(handler: object) -> AsyncGenerator[Transport]:
    """A transport to a server with this one handler."""
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    transport = AiohttpTransport(f"http://127.0.0.1:{runner.addresses[0][1]}/")
    try:
        yield transport
    finally:
        await transport.close()
        await runner.cleanup()


async def echo(request: web.Request) -> web.Response:
    body = await request.text() if request.method != "PUT" else str(len(await request.read()))
    return web.Response(
        text=f"{request.method} {request.path_qs} {request.headers.get('X-Own', '')} {body}", status=201
    )


async def test_a_request_arrives_whole() -> None:
    async with talking(echo) as transport:
        answer = await transport.request("GET", "/a", params={"b": "c d"}, headers={"X-Own": "e"}, timeout=5)
        assert (answer.status, answer.body) == (201, b"GET /a?b=c+d e ")
        answer = await transport.request("POST", "/a", json={"b": 1}, timeout=5)
        assert answer.body == b'POST /a  {"b": 1}'
        answer = await transport.request("PUT", "/a", content=b"x" * 3_000_000, timeout=5)
        assert answer.body == b"PUT /a  3000000"


async def test_an_answer_that_is_too_large_is_not_read_on() -> None:
    async def large(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 300_000)

    async with talking(large) as transport:
        with pytest.raises(TooLarge):
            await transport.request("GET", "/", timeout=5, limit=200_000)


async def test_a_redirect_is_an_answer() -> None:
    async def elsewhere(request: web.Request) -> web.Response:
        raise web.HTTPFound("http://192.0.2.1/")

    async with talking(elsewhere) as transport:
        assert (await transport.request("GET", "/", timeout=5)).status == 302


async def test_silence_is_a_time_out() -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"a beginning")
        await asyncio.sleep(30)
        return response

    async with talking(silent) as transport:
        with pytest.raises(TimeoutError):
            await transport.request("GET", "/", timeout=0.2)
        async with transport.stream("GET", "/", silence=0.2) as answer:
            assert answer.status == 200
            chunks = answer.chunks()
            assert await anext(chunks) == b"a beginning"
            with pytest.raises(TimeoutError):
                await anext(chunks)


async def test_what_is_cut_off_or_not_there_is_a_connection_error() -> None:
    async def cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with talking(cut) as transport:
        with pytest.raises(ConnectionError):
            await transport.request("POST", "/", timeout=5)
        with pytest.raises(ConnectionError):
            async with transport.stream("GET", "/", silence=5):
                raise AssertionError("nothing came")
    nobody = AiohttpTransport("http://127.0.0.1:1")
    with pytest.raises(ConnectionError, match=r"^Connection refused$"):
        await nobody.request("GET", "/", timeout=5)
    await nobody.close()
