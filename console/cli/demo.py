"""A demo without a screen: one JSON line when all is ready, then until interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from console.cli import output
from console.demo.runner import Demo


async def run_headless(demo: Demo) -> int:
    """Start, say so, wait for SIGINT, SIGTERM or SIGHUP, end. Exit code 0, or 1 if the demo ended by itself."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        starting = asyncio.ensure_future(_until_ready(demo))
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            return 0
        starting.result()
        ended = asyncio.ensure_future(demo.wait())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not stop.is_set():
            output.note("raydeck: the demo ended by itself")
            return 1
        return 0
    finally:
        stopping.cancel()
        await demo.close()


async def _until_ready(demo: Demo) -> None:
    async for event in demo.events():
        if event["event"] == "ready":
            output.line(event)
        elif event["state"] != "start":
            output.note(
                f"{event['name']}: {event['state']} in {event['seconds']:.1f} s {event.get('detail', '')}".rstrip()
            )
