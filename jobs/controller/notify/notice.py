"""What is told at one moment of one alert, and what can go wrong with it. Values only."""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from jobs.alertview import LEVELS, Alert, Level

Kind = Literal["firing", "changed", "reminder", "escalated", "cleared", "held", "test"]
"""Began; is of another level or extent; goes on; nobody has it; is over; what was held back; somebody tries."""

WORSE = {level: place for place, level in enumerate(LEVELS)}
"""Level to its place, the worst first."""


class Held(BaseModel):
    """An alert that was not told of, since too many were."""

    alert: str
    level: Level
    line: str
    over: bool = False
    """It was to be told that it is over."""


class HeldBack(BaseModel):
    """All those, told with the next notice that goes out."""

    lines: list[Held] = Field(default_factory=list)
    more: int = 0
    """And so many of which nothing but their number is known."""

    @property
    def count(self) -> int:
        """How many."""
        return len(self.lines) + self.more


class Notice(BaseModel):
    """One thing to be told."""

    model_config = ConfigDict(frozen=True)

    key: str
    """The same for each try of the same notice, also after a restart: whoever takes it can tell a second one."""
    kind: Kind
    alert: Alert
    at: float
    """Wall seconds when it was decided."""
    reply: bool = False
    """An earlier one of this alert went through the same way out."""
    held: HeldBack = HeldBack()
    """What was held back before it."""

    @classmethod
    def of_held(cls, sink: str, held: HeldBack, at: float) -> Notice:
        """What was held back, by itself, as bad as the worst of it."""
        levels: list[Level] = [each.level for each in held.lines] or ["warning"]
        level = min(levels, key=lambda level: WORSE[level])
        title = f"{held.count} alert{'s were' if held.count != 1 else ' was'} held back"
        alert = Alert(id=f"held-{sink}", rule="held", level=level, title=title, since=at)
        return cls(key=f"{alert.id}.{int(at)}", kind="held", alert=alert, at=at, held=held)

    @property
    def rank(self) -> int:
        """Its place among others: critical first; that something is over can wait."""
        return WORSE["warning"] if self.kind == "cleared" else WORSE[self.alert.level]


class Failed(Exception):
    """A try that did not go through; the text says why, without any secret."""

    def __init__(self, why: str, *, again: bool = True, after: float | None = None) -> None:
        super().__init__(why)
        self.again = again
        """Whether another try may go better."""
        self.after = after
        """Seconds before which the other side wants no other try."""


class Way(Protocol):
    """How notices leave through one sink."""

    limit_seconds: float
    """No try takes longer."""
    where: str
    """How it is called in a log: never its address."""

    async def send(self, notice: Notice) -> str:
        """One try. Gives what is worth saying of it. Raises `Failed`."""
        ...
