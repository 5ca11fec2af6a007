"""One thing at a time that may block, done in a thread that nobody waits for longer than a limit.

Not in asyncio's pool: a controller that stops would wait there for a mount that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from jobs.controller.notify.notice import Failed
from jobs.within import within

T = TypeVar("T")


class Aside:
    """Does one thing at a time. While one that was given up still hangs, no other is begun."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._turn = asyncio.Lock()
        self._ended = threading.Event()
        self._ended.set()

    async def do(self, work: Callable[[], T], seconds: float, give_up: Callable[[], None] | None = None) -> T:
        """What it gives. Raises what it raises, and `Failed` if it takes too long; then ``give_up`` is called."""
        async with self._turn:
            if not self._ended.is_set():
                raise Failed(f"{self._what}: an earlier try still hangs")
            return await self._do(work, seconds, give_up)

    async def _do(self, work: Callable[[], T], seconds: float, give_up: Callable[[], None] | None) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # pyright: ignore[reportArgumentType]

        ended = self._ended = threading.Event()

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as caught:
                error = caught  # for whoever waits
            ended.set()
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=run, name=self._what, daemon=True).start()
        try:
            return await within(done, seconds)
        except (asyncio.TimeoutError, asyncio.CancelledError) as error:
            if give_up is not None:
                give_up()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise Failed(f"{self._what}: no end within {seconds:g} s") from None
