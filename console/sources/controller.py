"""Follows the controller's event stream, for as long as it is wanted; says in words why it does not answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from console.state.work import WorkStore
from jobs.alertview import AlertsChanged
from jobs.client import ControllerClient
from jobs.errors import RaydeckError, Refused
from jobs.wire import Event, NodesChanged, QueueChanged, RunChanged, Snapshot

PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)


class ControllerWatcher:
    """Keeps a `WorkStore` as the controller has it. Each new stream begins with all that is true: nothing is missed."""

    def __init__(self, connect: Callable[[], Awaitable[ControllerClient]], work: WorkStore) -> None:
        self._connect = connect
        self._work = work

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        client: ControllerClient | None = None
        self._work.controller_state("connecting", "", time.monotonic())
        while True:
            try:
                client = client or await self._connect()
                async for event in client.events():
                    failures = 0
                    self._take(event)
                self._work.controller_state("down", "the controller ended the stream", time.monotonic())
            except Refused as error:
                self._work.controller_state("refused", str(error), time.monotonic())
            except RaydeckError as error:
                # Nobody ever answered here: most likely none runs. One that did answer and is gone is another matter.
                state = "absent" if self._work.heard_at is None else "down"
                self._work.controller_state(state, error.sentence, time.monotonic())
            pause = PAUSES[min(failures, len(PAUSES) - 1)]
            failures += 1
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - spreads reconnects, guards nothing

    def _take(self, event: Event) -> None:
        now = time.monotonic()
        if isinstance(event, Snapshot):
            self._work.snapshot(event.status, event.runs, now, event.queue, event.nodes, event.alerts)
            self._work.controller_state("ok", "", now)
        elif isinstance(event, RunChanged):
            self._work.run_changed(event.run, now)
        elif isinstance(event, QueueChanged):
            self._work.take_queue(event.queue, now)
        elif isinstance(event, NodesChanged):
            self._work.take_nodes(event.nodes, now)
        elif isinstance(event, AlertsChanged):
            self._work.take_alerts(event.alerts, now)
        else:
            self._work.heartbeat(event.ray, now)
