"""Polls Ray's dashboard: its own truth about nodes, resources and jobs. One question in flight, answers bounded.

The pause between polls grows with the time an answer takes, so that a head under load is not made slower by it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from console.state.fleet import FleetStore
from console.state.work import WorkStore
from jobs.errors import RaydeckError, Refused
from jobs.rayapi import RayApi, Unauthorised
from jobs.raymodel import RayVersion
from jobs.within import within

PERIOD_SECONDS = 2.0
"""Ray caches its answers for 2 s: asking more often only costs."""
LONGEST_SECONDS = 30.0
SHARE = 0.1
"""At most this share of the time is spent waiting for an answer."""
JOBS_SHOWN = 100


class RayWatcher:
    """Keeps the stores as Ray's dashboard has it."""

    def __init__(self, connect: Callable[[], Awaitable[RayApi]], fleet: FleetStore, work: WorkStore) -> None:
        self._connect = connect
        self._fleet = fleet
        self._work = work
        self._now = asyncio.Event()
        self._version: RayVersion | None = None

    def refresh(self) -> None:
        """Ask now."""
        self._now.set()

    async def run(self) -> None:
        """Until cancelled."""
        api: RayApi | None = None
        while True:
            started = time.monotonic()
            try:
                api = api or await self._connect()
                await self._poll(api)
            except Unauthorised as error:
                self._failed("unauthorised", str(error))
            except Refused as error:
                self._failed("refused", str(error))
            except RaydeckError as error:
                self._failed("down", error.sentence)
            took = time.monotonic() - started
            pause = min(LONGEST_SECONDS, max(PERIOD_SECONDS, took / SHARE))
            self._now.clear()
            try:
                await within(self._now.wait(), pause)
            except asyncio.TimeoutError:
                continue

    def _failed(self, state: str, reason: str) -> None:
        # Whoever answers next may be another Ray.
        self._version = None
        self._fleet.ray_answers(state, reason, time.monotonic())

    async def _poll(self, api: RayApi) -> None:
        if self._version is None:
            self._version = await api.version()
            self._fleet.ray_version = self._version.ray_version
        self._fleet.take_ray_nodes(await api.nodes(), time.monotonic())
        self._fleet.take_ray_usage(await api.node_usage())
        self._work.take_ray_jobs(await api.jobs(JOBS_SHOWN))
        if self._version.supported:
            self._fleet.ray_answers("ok", "", time.monotonic())
        else:
            # It is read all the same, as far as it goes: what is shown may be wrong, and that is said.
            words = f"Ray {self._version.ray_version or 'of an unknown version'} is not one that raydeck knows"
            self._fleet.ray_answers("unsupported", words, time.monotonic())
