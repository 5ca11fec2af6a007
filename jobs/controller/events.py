"""The event stream: what changed, to everyone who listens, and nobody slows another down.

A listener has no queue that could grow: of each run, and of the queues, only the newest version waits for it. One that
does not take what it is sent within a few seconds is dropped; it comes back and starts with a snapshot.

Ten thousand runs that wait are not told one by one: those on the first page of the queue are, the rest are counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass

from jobs.alertview import AlertsChanged, AlertsView
from jobs.model import Run
from jobs.nodeview import NodesView
from jobs.queueview import QueueView
from jobs.wire import Heartbeat, NodesChanged, QueueChanged, RunChanged
from jobs.within import within

HEARTBEAT_SECONDS = 1.5
LISTENERS_AT_MOST = 64
SHOWN_WAITING = 200
"""So many of the runs that wait are told of, in the order of the queue."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What is new since the last round; nothing for a round that only waited."""

    runs: list[Run]
    queue: QueueView | None = None
    nodes: NodesView | None = None
    alerts: AlertsView | None = None

    def lines(self) -> bytes:
        """As NDJSON."""
        told: list[RunChanged | QueueChanged | NodesChanged | AlertsChanged] = [
            RunChanged(run=run) for run in self.runs
        ]
        if self.queue is not None:
            told.append(QueueChanged(queue=self.queue))
        if self.nodes is not None:
            told.append(NodesChanged(nodes=self.nodes))
        if self.alerts is not None:
            told.append(AlertsChanged(alerts=self.alerts))
        return b"".join(event.model_dump_json().encode() + b"\n" for event in told)


class Listener:
    """One who listens. Iterate over `changes`."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._queue: QueueView | None = None
        self._nodes: NodesView | None = None
        self._alerts: AlertsView | None = None
        self._wake = asyncio.Event()
        self._closed = False

    def offer(self, run: Run) -> None:
        """A run as it is now; replaces an older version that was not sent yet."""
        self._runs[run.id] = run
        self._wake.set()

    def offer_queue(self, queue: QueueView) -> None:
        """The queues as they are now."""
        self._queue = queue
        self._wake.set()

    def offer_nodes(self, nodes: NodesView) -> None:
        """The held nodes as they are now."""
        self._nodes = nodes
        self._wake.set()

    def offer_alerts(self, alerts: AlertsView) -> None:
        """All that fires, as it is now."""
        self._alerts = alerts
        self._wake.set()

    def close(self) -> None:
        """No more will come."""
        self._closed = True
        self._wake.set()

    async def changes(self) -> AsyncIterator[Changes]:
        """What changed since the last round; nothing after `HEARTBEAT_SECONDS` without a change."""
        while not self._closed:
            try:
                await within(self._wake.wait(), HEARTBEAT_SECONDS)
            except asyncio.TimeoutError:
                yield Changes([])
                continue
            self._wake.clear()
            changed = Changes(list(self._runs.values()), self._queue, self._nodes, self._alerts)
            self._runs, self._queue, self._nodes, self._alerts = {}, None, None, None
            if changed != Changes([]):
                yield changed


class Hub:
    """All who listen."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._shown: set[str] = set()
        """Runs that wait and never held anything, and that are told of all the same."""
        self._told: QueueView | None = None
        self.taps: list[Callable[[Run], None]] = []
        """Parts of the controller that take each change of a run, whoever listens."""

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
        """Tell everybody, but of a run that waits far back. Never waits."""
        for tap in self.taps:
            tap(run)
        if not run.state.waiting or run.attempts:
            self._shown.discard(run.id)
        elif run.id not in self._shown:
            if len(self._shown) >= SHOWN_WAITING:
                return
            self._shown.add(run.id)
        for listener in self._listeners:
            listener.offer(run)

    def show(self, runs: Iterable[Run]) -> None:
        """A snapshot tells of these: from now on their changes are told too."""
        self._shown.update(run.id for run in runs if run.state.waiting and not run.attempts)

    def publish_queue(self, queue: QueueView, waiting: Mapping[str, Run]) -> None:
        """Tell everybody of the queues, if they changed. ``waiting`` are the runs on its page that are known."""
        fresh = [run for name, run in waiting.items() if name not in self._shown and not run.attempts]
        self._shown = {run.id for run in waiting.values() if not run.attempts}
        changed = self._told is None or _lasting(queue) != _lasting(self._told)
        if changed:
            self._told = queue
        for listener in self._listeners:
            for run in fresh:
                listener.offer(run)
            if changed:
                listener.offer_queue(queue)

    def publish_nodes(self, nodes: NodesView) -> None:
        """Tell everybody of the held nodes and the drains. Never waits."""
        for listener in self._listeners:
            listener.offer_nodes(nodes)

    def publish_alerts(self, alerts: AlertsView) -> None:
        """Tell everybody of all that fires. Never waits."""
        for listener in self._listeners:
            listener.offer_alerts(alerts)

    def close(self) -> None:
        """End all streams."""
        for listener in self._listeners:
            listener.close()


def _lasting(queue: QueueView) -> QueueView:
    """The queues without what is another in every pass: an estimate that moves by less than a minute is the same."""
    waiting = [
        each.model_copy(update={"estimated_start": each.estimated_start and each.estimated_start // 60})
        for each in queue.waiting
    ]
    return queue.model_copy(update={"at": 0.0, "pass_seconds": None, "waiting": waiting})


def heartbeat(at: float, ray: str) -> bytes:
    """The line that says: I live, and this is what I know of Ray."""
    return Heartbeat(at=at, ray=ray).model_dump_json().encode() + b"\n"
