"""Waiting with a limit that a cancellation gets through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(awaitable: Awaitable[T], seconds: float | None) -> T:
    """What it gives, if it does so in time; else it is cancelled. Raises `asyncio.TimeoutError`, and what it raises.

    `asyncio.wait_for` before Python 3.12 drops a cancellation that comes in the moment in which it ends
    (python/cpython#86296): a loop around it then goes on for ever, and so does whoever waits for its end.
    """
    future = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({future}, timeout=seconds)
    except asyncio.CancelledError:
        await _end(future)
        raise
    if not done:
        await _end(future)
        if future.cancelled():
            raise asyncio.TimeoutError
    return future.result()


async def _end(future: asyncio.Future[T]) -> None:
    """Cancel it, and let it clean up. What it raises meanwhile is not for whoever no longer waits for it."""
    future.cancel()
    await asyncio.wait({future})
    if not future.cancelled():
        future.exception()
