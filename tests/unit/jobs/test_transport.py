"""Ray's dashboard and the console's HTTP against servers that answer badly, and against none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from console.sources.http import HttpTransport
from jobs.errors import RaydeckError, Unreachable
from jobs.rayapi import RayApi

TOKEN = "s3cr3t-t0ken"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """A real server for one handler; gives its address."""
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> str:
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def ask(address: str, **limits: Any) -> RaydeckError:
    """What goes wrong when the version is asked for there."""
    transport = HttpTransport.to_address(address)
    try:
        with pytest.raises(RaydeckError) as caught:
            await RayApi(transport, lambda: TOKEN, **limits).version()
    finally:
        await transport.close()
    assert TOKEN not in str(caught.value)
    return caught.value


async def test_nobody_there(unused_tcp_port: int) -> None:
    error = await ask(f"http://127.0.0.1:{unused_tcp_port}")
    assert isinstance(error, Unreachable)
    assert "does not answer" in error.sentence


async def test_a_server_that_is_slow(serve: Serve) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        """Sends a byte now and then: no single read takes long."""
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(200):
            await answer.write(b" ")
            await asyncio.sleep(0.05)
        return answer

    error = await ask(await serve(drip), read_seconds=0.2)
    assert error.sentence.endswith("did not answer within 0.2 s")


async def test_a_server_that_sends_too_much(serve: Serve) -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        while sent < 2**30:
            await answer.write(b" " * 2**16)
            sent += 2**16
        return answer

    error = await ask(await serve(flood), answer_bytes=2**20)
    assert "sent more than 1 MiB" in error.sentence
    assert sent < 2**25


async def test_a_server_that_hangs_up(serve: Serve) -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    error = await ask(await serve(hang_up))
    assert isinstance(error, Unreachable)


async def test_a_redirect_takes_no_token_along(serve: Serve) -> None:
    asked: list[str] = []

    async def note(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers.get("Authorization", ""))
        return web.Response(text="{}")

    elsewhere = await serve(note)

    async def redirect(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(f"{elsewhere}/api/version")

    error = await ask(await serve(redirect))
    assert "is not Ray's dashboard" in error.sentence
    assert asked == []


async def test_proxies_of_the_environment_are_not_used(
    serve: Serve, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def version(request: web.Request) -> web.StreamResponse:
        return web.json_response({"ray_version": "2.60.0"})

    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{unused_tcp_port}")
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{unused_tcp_port}")
    transport = HttpTransport.to_address(await serve(version))
    try:
        assert (await RayApi(transport, lambda: "").version()).ray_version == "2.60.0"
    finally:
        await transport.close()
