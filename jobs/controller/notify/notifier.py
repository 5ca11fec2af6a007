"""Tells people of alerts, out of the console: what is to be told, through which sinks, and how it went.

It keeps nothing itself: `Notifier.dump` is what has to outlive the controller, whenever ``changed`` is called.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from jobs.alertspec import Sink
from jobs.alertview import Alert, AlertsView, Delivery, Level, TestReply
from jobs.controller.notify.book import Book, Entry
from jobs.controller.notify.command import CommandWay
from jobs.controller.notify.lane import Lane, LaneState
from jobs.controller.notify.mail import Mail
from jobs.controller.notify.notice import Notice, Way
from jobs.controller.notify.web import Web
from jobs.errors import Refused
from jobs.spec import Cluster
from jobs.wording import nearest

log = logging.getLogger(__name__)

FAILURE_RULES = ("run.failed",)
"""Not told where the cluster file says ``observability.alert_on_failure: false``."""
REMEMBERED_AT_MOST = 1000
"""Alerts of which it is known how telling of them went."""


class _Saved(BaseModel):
    version: Literal[1] = 1
    book: dict[str, Entry] = Field(default_factory=dict)
    lanes: dict[str, LaneState] = Field(default_factory=dict)
    deliveries: dict[str, dict[str, Delivery]] = Field(default_factory=dict)


def _nothing() -> None:
    """Nobody wants to know."""


class Notifier:
    """All ways out of one cluster. Use it inside one event loop, and close it."""

    def __init__(
        self,
        cluster: Cluster,
        wall: Callable[[], float] = time.time,
        changed: Callable[[], None] = _nothing,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """``changed`` is called when `dump`, `deliveries` or `escalated` tell something else; it must not wait."""
        self._config = cluster.alerting
        self._cluster = cluster.name
        self._wall = wall
        self._changed = changed
        quiet = () if cluster.observability.alert_on_failure else FAILURE_RULES
        self._book = Book(self._config, quiet)
        self._deliveries: dict[str, dict[str, Delivery]] = {}
        self._lanes = {
            sink.name: Lane(sink.name, self._way(sink, environ), self._config.rate, wall, self._report)
            for sink in self._config.sinks
        }

    @property
    def sinks(self) -> list[str]:
        """The ways out that are set up, by name."""
        return list(self._lanes)

    def take(self, view: AlertsView) -> None:
        """All that fires now, silences and acknowledgements in it. To be called at each change, and each second.

        What it told of and what is no longer there has ended: call it only once the view is whole.
        """
        due = self._book.step(view.alerts, self._wall())
        for each in due:
            for name in each.sinks:
                lane = self._lanes.get(name)
                if lane is not None:
                    lane.offer(each.notice)
        if due:
            self._changed()
        for lane in self._lanes.values():
            lane.poke()

    def deliveries(self, alert: str) -> list[Delivery]:
        """How the newest try through each sink went."""
        return list(self._deliveries.get(alert, {}).values())

    def escalated(self, alert: str) -> int:
        """How often it was told to those who are told when nobody has it."""
        entry = self._book.entries.get(alert)
        return entry.escalated if entry is not None else 0

    def waiting(self) -> dict[str, int]:
        """Sink to how many notices have not gone out yet."""
        return {name: lane.waiting for name, lane in self._lanes.items()}

    async def test(self, level: Level, sink: str = "", user: str = "") -> TestReply:
        """Sends one alert, marked as a test, through one sink, or through all that take the level; one try each.

        Raises `Refused` where there is no such sink, or none at all.
        """
        if sink and sink not in self._lanes:
            near = nearest(sink, self._lanes)
            hint = f"Did you mean {near}?" if near else f"There {_there(self.sinks)}"
            raise Refused(f"there is no way out called {sink}", hint)
        chosen = [
            each.name for each in self._config.sinks if sink in ("", each.name) and (sink or level in each.levels)
        ]
        if not chosen:
            raise Refused(
                f"no way out takes {level} alerts",
                "Name one, or add its level under alerting.sinks in the cluster file",
            )
        now = self._wall()
        alert = Alert(
            id=f"test-{secrets.token_hex(4)}",
            rule="test",
            level=level,
            title=f"A test of the ways out{f' by {user}' if user else ''}",
            entities=["cluster"],
            since=now,
            cause="Somebody wants to know whether this arrives",
            action="Nothing has to be done",
            test=True,
        )
        notice = Notice(key=f"{alert.id}.1", kind="test", alert=alert, at=now)
        tried = await asyncio.gather(*(self._lanes[name].test(notice) for name in chosen))
        return TestReply(deliveries=list(tried), alert=alert.model_copy(update={"deliveries": list(tried)}))

    def dump(self) -> dict[str, Any]:
        """What must outlive the controller, as JSON."""
        book = {
            name: entry.model_copy(update={"alert": entry.alert.model_copy(update={"deliveries": []})})
            for name, entry in self._book.entries.items()
        }
        lanes = {name: lane.state() for name, lane in self._lanes.items()}
        return _Saved(book=book, lanes=lanes, deliveries=self._deliveries).model_dump(mode="json")

    def load(self, saved: Mapping[str, Any] | None) -> None:
        """Goes on where an earlier controller was; before the first `take`."""
        if not saved:
            return
        try:
            known = _Saved.model_validate(saved)
        except ValidationError as error:
            log.error("what was told of alerts is not known any more, so they are told again: %s", error.title)
            return
        self._book.entries = dict(known.book)
        self._deliveries = dict(known.deliveries)
        for name, state in known.lanes.items():
            if name in self._lanes:
                self._lanes[name].restore(state)

    async def close(self) -> None:
        """Tries that were begun may end within a few seconds. What still waits is in `dump`."""
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()))

    def _way(self, sink: Sink, environ: Mapping[str, str]) -> Way:
        if sink.kind == "email":
            return Mail(sink, self._cluster, environ)
        if sink.kind == "command":
            return CommandWay(sink, self._cluster, environ)
        return Web(sink, self._cluster, self._wall, environ)

    def _report(self, alert: str, delivery: Delivery) -> None:
        known = self._deliveries.pop(alert, {})
        self._deliveries[alert] = {**known, delivery.sink: delivery}
        while len(self._deliveries) > REMEMBERED_AT_MOST:
            oldest = next((name for name in self._deliveries if name not in self._book.entries), None)
            del self._deliveries[oldest if oldest is not None else next(iter(self._deliveries))]
        self._changed()


def _there(names: list[str]) -> str:
    return f"{'is' if len(names) == 1 else 'are'} {', '.join(names)}" if names else "are none: see alerting.sinks"
