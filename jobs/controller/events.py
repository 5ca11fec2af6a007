"""The event stream: what changed, to everyone who listens, and nobody slows another down.

A listener has no queue that could grow: of each run only the newest version waits for it. One that does not take what
it is sent within a few seconds is dropped; it comes back and starts with a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from jobs.model import Run
from jobs.wire import Heartbeat, RunChanged

HEARTBEAT_SECONDS = 1.5
LISTENERS_AT_MOST = 64


class Listener:
    """One who listens. Iterate over `changes`."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def offer(self, run: Run) -> None:
        """A run as it is now; replaces an older version that was not sent yet."""
        self._runs[run.id] = run
        self._wake.set()

    def close(self) -> None:
        """No more will come."""
        self._closed = True
        self._wake.set()

    async def changes(self) -> AsyncIterator[list[Run]]:
        """The runs that changed since the last round; empty after `HEARTBEAT_SECONDS` without a change."""
        while not self._closed:
            try:
                await asyncio.wait_for(self._wake.wait(), HEARTBEAT_SECONDS)
            except asyncio.TimeoutError:
                yield []
                continue
            self._wake.clear()
            changed, self._runs = list(self._runs.values()), {}
            if changed:
                yield changed


class Hub:
    """All who listen."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()

    def __len__(self) -> int:
        return len(self._listeners)

    def join(self) -> Listener | None:
        """A new listener, or None if there are too many already."""
        if len(self._listeners) >= LISTENERS_AT_MOST:
            return None
        listener = Listener()
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """This one listens no longer."""
        self._listeners.discard(listener)

    def publish(self, run: Run) -> None:
        """Tell everybody. Never waits."""
        for listener in self._listeners:
            listener.offer(run)

    def close(self) -> None:
        """End all streams."""
        for listener in self._listeners:
            listener.close()


def lines(runs: Iterable[Run]) -> bytes:
    """Changed runs as NDJSON."""
    return b"".join(RunChanged(run=run).model_dump_json().encode() + b"\n" for run in runs)


def heartbeat(at: float, ray: str) -> bytes:
    """The line that says: I live, and this is what I know of Ray."""
    return Heartbeat(at=at, ray=ray).model_dump_json().encode() + b"\n"
