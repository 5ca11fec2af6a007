"""The alerts as they stand: what the rules find, with what people said to it. Pure; who writes it down is elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jobs.alertview import LEVELS, Acknowledged, Alert, Level, Silence
from jobs.controller.nodes.asked import made_id
from probes.health.group import Group

NOT_SEEN_AGAIN = "the controller has just started, and has not seen it again yet"
RECENT_SECONDS = 600.0
"""So long an alert that ended is still among those that are told."""


@dataclass(slots=True)
class Taken:
    """What a look at the rules changed."""

    lasting: list[Alert] = field(default_factory=list)
    """To be written down: they began, ended, or are on other things now."""
    shown: bool = False
    """Something is told otherwise than before, if only a figure."""


class Book:
    """All that fires, what ended lately, and the silences."""

    def __init__(self) -> None:
        self.firing: dict[str, Alert] = {}
        """By the key of their group."""
        self._keys: dict[str, str] = {}
        self._members: dict[str, tuple[tuple[str, str], ...]] = {}
        """Alert to kind and name of what it is on."""
        self.ended: list[Alert] = []
        self.silences: dict[str, Silence] = {}
        self._before: dict[str, Alert] = {}
        """Those that fired when this began, until the rules find them again."""

    def begin(self, firing: Iterable[Alert], silences: Iterable[Silence]) -> None:
        """Take up what was written down by an earlier one."""
        self._before = {each.id: each for each in firing}
        self.silences = {each.id: each for each in silences}

    def alert(self, identity: str) -> Alert | None:
        """The alert with this id, if it fires or ended lately."""
        key = self._keys.get(identity)
        if key is not None:
            return self.firing.get(key)
        return next((each for each in self.ended if each.id == identity), None)

    def members(self, alert: Alert) -> tuple[tuple[str, str], ...]:
        """Kind and name of each thing that a firing alert is on."""
        return self._members.get(alert.id, ())

    def put(self, alert: Alert) -> None:
        """A firing alert as it stands now."""
        self.firing[self._keys[alert.id]] = alert

    def take(self, groups: Sequence[Group], now: float) -> Taken:
        """What the rules find at this moment. ``now``: the head's wall clock."""
        taken = Taken()
        found = {group.key: group for group in groups}
        for key in [key for key in self.firing if key not in found]:
            self._end(key, now, taken)
        for key, group in found.items():
            before = self.firing.get(key) or self._known(key, group)
            after = self._made(group, before, now)
            self._keys[after.id] = key
            self._members[after.id] = group.members
            if before is None or _lasting(before) != _lasting(after):
                after.changed_at = now
                taken.lasting.append(after)
            taken.shown = taken.shown or before != after
            self.firing[key] = after
        lapsed = [each for each in self.ended if each.ended_at is not None and now - each.ended_at > RECENT_SECONDS]
        if lapsed:
            self.ended = [each for each in self.ended if each not in lapsed]
            taken.shown = True
        return taken

    def settle(self, now: float) -> list[Alert]:
        """Alerts from before a restart that the rules do not find again, once they have had the time: they end."""
        over: list[Alert] = []
        for alert in self._before.values():
            ended = alert.model_copy(update={"state": "cleared", "ended_at": now, "changed_at": now})
            over.append(ended)
            self.ended.append(ended)
        self._before.clear()
        return over

    def cleared(self, identity: str, user: str, reason: str, now: float) -> Alert | None:
        """Somebody cleared it after a repair."""
        key = self._keys.get(identity)
        alert = self.firing.get(key) if key is not None else None
        if key is None or alert is None:
            return None
        update = {"cleared_by": user, "cleared_reason": reason}
        self.firing[key] = alert.model_copy(update=update)
        return self._end(key, now, Taken())

    def shown(self, now: float) -> list[Alert]:
        """Worst first, then the newest; with the silence that hides each; those that ended lately last.

        What fired before a restart goes on until the rules have had the time to see that it does not.
        """
        waiting = [each.model_copy(update={"no_data": NOT_SEEN_AGAIN}) for each in self._before.values()]
        firing = [self._hushed(each, now) for each in (*self.firing.values(), *waiting)]
        firing.sort(key=lambda each: (LEVELS.index(each.level), -each.since, each.id))
        return [*firing, *sorted(self.ended, key=lambda each: -(each.ended_at or 0.0))]

    def over(self, now: float) -> list[str]:
        """Silences whose time has come; they are taken out."""
        found = [each.id for each in self.silences.values() if each.until <= now]
        for each in found:
            del self.silences[each]
        return found

    def acknowledge(self, identity: str, said: Acknowledged) -> Alert | None:
        """Somebody has it."""
        alert = self.alert(identity)
        if alert is None or alert.state != "firing":
            return None
        after = alert.model_copy(update={"acknowledged": said, "changed_at": said.at})
        self.put(after)
        return after

    def _hushed(self, alert: Alert, now: float) -> Alert:
        by = next((each.id for each in self.silences.values() if each.until > now and each.matcher.matches(alert)), "")
        return alert if by == alert.silenced_by else alert.model_copy(update={"silenced_by": by})

    def _end(self, key: str, now: float, taken: Taken) -> Alert:
        alert = self.firing.pop(key)
        self._keys.pop(alert.id, None)
        self._members.pop(alert.id, None)
        ended = alert.model_copy(update={"state": "cleared", "ended_at": now, "changed_at": now, "no_data": ""})
        self.ended.append(ended)
        taken.lasting.append(ended)
        taken.shown = True
        return ended

    def _known(self, key: str, group: Group) -> Alert | None:
        """The same alert from before a restart."""
        return self._before.pop(alert_id(key, group.since), None)

    def _made(self, group: Group, before: Alert | None, now: float) -> Alert:
        said: Mapping[str, object] = {}
        if before is not None:
            said = {
                "id": before.id,
                "since": before.since,
                "changed_at": before.changed_at,
                "acknowledged": before.acknowledged,
                "escalated": before.escalated,
                "deliveries": before.deliveries,
            }
        made = Alert(
            id=alert_id(group.key, group.since),
            rule=group.rule,
            family=group.family,
            level=_level(group.level),
            title=group.title,
            entities=list(group.entities),
            nodes=list(group.nodes),
            run=group.run,
            since=group.since,
            changed_at=now,
            evidence=list(group.evidence),
            cause=group.cause,
            action=group.action,
            key=group.key_hint,
            latched=group.latched,
            flapping=group.flapping,
            fired=group.fired,
            no_data=group.no_data,
        )
        return made.model_copy(update=dict(said))


def alert_id(key: str, since: float) -> str:
    """A name that the same alert has again after a restart."""
    return made_id("alert", key, f"{since:.3f}")


def _level(text: str) -> Level:
    return LEVELS[[str(level) for level in LEVELS].index(text)]


def _lasting(alert: Alert) -> Alert:
    """The alert without what moves by itself."""
    return alert.model_copy(
        update={"title": "", "evidence": [], "changed_at": 0.0, "deliveries": [], "silenced_by": ""}
    )
