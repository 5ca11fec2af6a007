"""Holds: who keeps which node free of work, and why. Pure values, and the table of those that are in force."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from jobs.controller.nodes.identity import same
from jobs.nodeview import Hold, NodeRef


class HoldRecord(BaseModel):
    """A hold, and how its node is found again."""

    model_config = ConfigDict(extra="ignore")

    hold: Hold
    ref: NodeRef
    there: list[str] = Field(default_factory=list)
    """Ids of work that was there already and that raydeck did not start: what comes later slipped in."""
    node_id: str = ""
    """For a retirement: the Ray id that is to leave Ray. A node that came back has another one."""
    deadline_seconds: float = 600.0
    """For a retirement: what Ray is told."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How a node is to be treated by the queue."""

    cordoned: str = ""
    """Who keeps work off it and why; empty for a node that takes work."""
    avoid: bool = False
    """It is to be emptied soon: it takes work only where no other node has room."""
    silent: bool = False
    """Ray has it as alive, and nothing answers there: what is left on it may still write, and cannot be asked."""
    off: bool = False
    """A person says that it is off: nothing there can still write."""


OPEN = Kept()


@dataclass(slots=True)
class Table:
    """All holds that are in force, by id."""

    records: dict[str, HoldRecord] = field(default_factory=dict[str, HoldRecord])
    waiting: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Drain and node: the drain has not come to this node yet."""

    def put(self, records: Iterable[HoldRecord]) -> None:
        """New ones, or old ones as they are now."""
        for record in records:
            self.records[record.hold.id] = record

    def drop(self, ids: Iterable[str]) -> None:
        """These are over."""
        for each in ids:
            self.records.pop(each, None)

    def on(self, name: str, address: str = "", machine_id: str = "") -> list[HoldRecord]:
        """The holds of one node, oldest first."""
        found = (record for record in self.records.values() if same(record.ref, name, address, machine_id))
        return sorted(found, key=lambda record: record.hold.at)

    def kept(self, name: str, address: str = "", machine_id: str = "") -> Kept:
        """How the queue has to treat this node."""
        if not self.records:
            return OPEN
        holds = self.on(name, address, machine_id)
        for record in holds:
            if (record.hold.drain, record.hold.node) not in self.waiting:
                return Kept(_words(record.hold))
        return Kept(avoid=True) if holds else OPEN

    def refs(self) -> Iterator[NodeRef]:
        """The nodes that bear any."""
        seen: set[str] = set()
        for record in self.records.values():
            if record.ref.name not in seen:
                seen.add(record.ref.name)
                yield record.ref

    def expired(self, now: float) -> list[HoldRecord]:
        """Those whose end has come."""
        return [each for each in self.records.values() if each.hold.until is not None and each.hold.until <= now]


def _words(hold: Hold) -> str:
    return f"{hold.user}: {hold.reason}" if hold.reason else hold.user
