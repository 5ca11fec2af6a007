"""What was told of each alert, and so what is to be told next. Pure: no clock, no I/O.

A new alert is told once, after a moment in which its group becomes whole; then a change of its level, many new members,
reminders, an escalation while nobody has it, and its end, if its beginning was told. Nothing while it is silenced or
acknowledged, but that an acknowledged one is over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pydantic import BaseModel, Field

from jobs.alertspec import Alerting
from jobs.alertview import Alert, Level
from jobs.controller.notify.notice import Kind, Notice

SETTLE_SECONDS = 5.0
"""So long it must be as it is before it is told: groups become whole, and what comes and goes is not told at all."""
MANY_NEW = 3
MANY_NEW_PART = 0.5
"""So many new members, and so large a part of those that were told, are told again."""


class Entry(BaseModel):
    """What is known of one alert here."""

    alert: Alert
    seen_at: float
    told_at: float | None = None
    """When it was last told; None: not yet."""
    level: Level | None = None
    """As it was told."""
    entities: list[str] = Field(default_factory=list)
    """As they were told."""
    critical_at: float | None = None
    """Since when it is told as critical."""
    called: bool = False
    """It was escalated since."""
    escalated: int = 0
    differs_at: float | None = None
    """Since when it is not as it was told."""
    gone_at: float | None = None
    number: int = 0
    """Notices so far."""
    sinks: list[str] = Field(default_factory=list)
    """That were to tell of it."""


class Due(BaseModel):
    """A notice, and through which sinks."""

    notice: Notice
    sinks: list[str]


class Book:
    """The alerts that fire, and what was told of them."""

    def __init__(self, config: Alerting, quiet: Collection[str] = ()) -> None:
        """``quiet``: rules that are shown, and never told."""
        self._config = config
        self._quiet = frozenset(quiet)
        self.entries: dict[str, Entry] = {}

    def step(self, alerts: Iterable[Alert], now: float) -> list[Due]:
        """What is to be told, given all that fires now; those that end may be among them, or be gone."""
        firing: dict[str, Alert] = {}
        ended: dict[str, Alert] = {}
        for alert in alerts:
            if not alert.test and alert.rule not in self._quiet:
                (firing if alert.state == "firing" else ended)[alert.id] = alert
        due: list[Due] = []
        for name, alert in firing.items():
            entry = self.entries.get(name)
            if entry is None:
                entry = self.entries[name] = Entry(alert=alert, seen_at=now)
            entry.alert, entry.gone_at = alert, None
            due += self._of_firing(entry, now)
        for name in [name for name in self.entries if name not in firing]:
            entry = self.entries[name]
            entry.alert = ended.get(name, entry.alert)
            due += self._of_gone(name, entry, now)
        return due

    def _of_firing(self, entry: Entry, now: float) -> list[Due]:
        alert = entry.alert
        _not_ahead(entry, now)
        if alert.acknowledged is not None or alert.silenced_by:
            entry.differs_at = None
            return []
        if entry.told_at is None:
            return self._told(entry, "firing", now) if now - entry.seen_at >= SETTLE_SECONDS else []
        if alert.level != entry.level or _many_new(alert.entities, entry.entities):
            entry.differs_at = now if entry.differs_at is None else entry.differs_at
            if now - entry.differs_at >= SETTLE_SECONDS:
                return self._told(entry, "changed", now)
        else:
            entry.differs_at = None
        patience = self._config.escalate_after
        waits = alert.level == "critical" and not entry.called
        if waits and patience is not None and entry.critical_at is not None and now - entry.critical_at >= patience:
            return self._escalated(entry, now)
        every = self._config.repeat_after.of(alert.level)
        if every is not None and now - entry.told_at >= every:
            return self._told(entry, "reminder", now)
        return []

    def _told(self, entry: Entry, kind: Kind, now: float) -> list[Due]:
        level = entry.alert.level
        sinks = [sink.name for sink in self._config.sinks if level in sink.levels]
        if kind == "changed":
            sinks += [name for name in entry.sinks if name not in sinks]
        if kind == "reminder" and entry.called and level == "critical":
            sinks += [name for name in self._config.escalate_to if name not in sinks]
            entry.escalated += 1
        entry.told_at, entry.level, entry.differs_at = now, level, None
        entry.entities = list(entry.alert.entities)
        if level != "critical":
            entry.critical_at, entry.called = None, False
        elif entry.critical_at is None:
            entry.critical_at = now
        return self._due(entry, kind, sinks, now)

    def _escalated(self, entry: Entry, now: float) -> list[Due]:
        entry.called = True
        entry.escalated += 1
        if not self._config.escalate_to:
            entry.told_at = now
        sinks = self._config.escalate_to or [sink.name for sink in self._config.sinks if "critical" in sink.levels]
        return self._due(entry, "escalated", list(sinks), now)

    def _of_gone(self, name: str, entry: Entry, now: float) -> list[Due]:
        if entry.told_at is None:
            del self.entries[name]
            return []
        if entry.gone_at is None or entry.gone_at > now:
            entry.gone_at = now
        if now - entry.gone_at < SETTLE_SECONDS:
            return []
        del self.entries[name]
        if entry.alert.silenced_by:
            return []
        ended_at = entry.alert.ended_at if entry.alert.ended_at is not None else entry.gone_at
        entry.alert = entry.alert.model_copy(update={"state": "cleared", "ended_at": ended_at})
        return self._due(entry, "cleared", entry.sinks, now)

    def _due(self, entry: Entry, kind: Kind, sinks: list[str], now: float) -> list[Due]:
        if not sinks:
            return []
        if not entry.sinks and kind != "escalated":
            kind = "firing"  # nobody has heard of it yet
        entry.sinks += [name for name in sinks if name not in entry.sinks]
        entry.number += 1
        alert = entry.alert.model_copy(update={"deliveries": [], "escalated": entry.escalated}, deep=True)
        key = f"{alert.id}.{int(alert.since)}.{entry.number}"
        return [Due(notice=Notice(key=key, kind=kind, alert=alert, at=now), sinks=sinks)]


def _many_new(now: list[str], told: list[str]) -> bool:
    if now == told:
        return False
    new = len(set(now).difference(told))
    return new >= max(MANY_NEW, MANY_NEW_PART * len(told))


def _not_ahead(entry: Entry, now: float) -> None:
    """After a clock was set back, nothing waits for the time that was."""
    entry.seen_at = min(entry.seen_at, now)
    for name in ("told_at", "critical_at", "differs_at"):
        value = getattr(entry, name)
        if value is not None and value > now:
            setattr(entry, name, now)
