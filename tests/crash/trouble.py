"""What may happen to a request on its way: slow, failed, its answer lost, or its sender killed in the middle of it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler


@dataclass(slots=True)
class Trap:
    """Whom to kill in the middle of which request, before or after it is carried out."""

    request: str
    """The name of a route."""
    after: bool
    skip: int
    """So many of them pass before it."""
    pid: int


@dataclass(slots=True)
class Mischief:
    """How often (0 to 1) a request is slow, is answered with an error, or is carried out and its answer lost."""

    slow: float = 0.0
    fails: float = 0.0
    lost: float = 0.0


class Trouble:
    """Stands before the routes that have a name."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"{seed} mischief")
        self.mischief = Mischief()
        self.trap: Trap | None = None
        self.down = False
        """Every request is cut off."""

    async def __call__(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through, or not."""
        name = request.match_info.route.name
        if name is None:
            return await handler(request)
        if self.down:
            return _cut(request)
        trap = self._sprung(name)
        if trap is not None and not trap.after:
            return _kill(trap, request)
        dice = self._chance.random()
        if dice < self.mischief.slow:
            await asyncio.sleep(self._chance.uniform(0.0, 1.0))
        elif dice < self.mischief.slow + self.mischief.fails:
            return web.Response(text="Internal Server Error", status=500)
        try:
            answer = await handler(request)
        except ConnectionResetError:
            return _cut(request)  # the controller was killed while it sent this
        if trap is not None:
            return _kill(trap, request)
        return _cut(request) if dice > 1.0 - self.mischief.lost else answer

    def _sprung(self, name: str) -> Trap | None:
        trap = self.trap
        if trap is None or trap.request != name:
            return None
        trap.skip -= 1
        if trap.skip >= 0:
            return None
        self.trap = None
        return trap

    async def set_mischief(self, request: web.Request) -> web.Response:
        """The test's route for `Mischief`, as JSON."""
        self.mischief = Mischief(**await request.json())
        return web.json_response({})

    async def set_trap(self, request: web.Request) -> web.Response:
        """The test's route for `Trap`, as JSON."""
        asked: dict[str, Any] = await request.json()
        self.trap = Trap(**asked)
        return web.json_response({})


def _cut(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def _kill(trap: Trap, request: web.Request) -> web.Response:
    with suppress(ProcessLookupError):
        os.kill(trap.pid, signal.SIGKILL)
    return _cut(request)
