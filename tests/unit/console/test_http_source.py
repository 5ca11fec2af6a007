"""The HTTP transport on a Unix socket: a stream given up as its data comes is no error, and others still are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from console.sources.http import HttpTransport


async def test_a_read_cancelled_as_its_data_comes_is_not_reported(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: told.append(context))
    transport = HttpTransport.to_socket(str(tmp_path / "nobody.sock"))
    try:
        future: asyncio.Future[None] = loop.create_future()
        future.cancel()
        loop.call_soon(future.set_result, None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert told == []

        def fails() -> None:
            raise ValueError("a fault of ours")

        loop.call_soon(fails)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [str(context["exception"]) for context in told] == ["a fault of ours"]
    finally:
        await transport.close()
