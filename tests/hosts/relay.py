"""A relay that delays: what a link is like to a machine far away. This kernel need not be able to do it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

BLOCK = 64 * 1024


@asynccontextmanager
async def relay(address: str, port: int, seconds: float) -> AsyncGenerator[int]:
    """A port of 127.0.0.1 behind which the other one is, so many seconds away in each direction."""
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Each block is written ``seconds`` after it was read, and none waits for the one before."""
        loop = asyncio.get_running_loop()
        try:
            while block := await reader.read(BLOCK):
                loop.call_later(seconds, _write, writer, block)
            await asyncio.sleep(seconds)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(address, port)
        for pair in ((reader, ours), (theirs, writer)):
            task = asyncio.create_task(pump(*pair))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _write(writer: asyncio.StreamWriter, block: bytes) -> None:
    if not writer.is_closing():
        writer.write(block)
