"""Alerts as they are told, stored and shown: what fires, on what, since when, and what people said to it. Light."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Level = Literal["critical", "warning", "info"]
"""Now, today, to watch."""
LEVELS: tuple[Level, ...] = ("critical", "warning", "info")

AlertState = Literal["firing", "cleared"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Acknowledged(_Model):
    """Somebody has it: it is not told again, and does not escalate. It goes on firing."""

    user: str
    at: float
    reason: str = ""


class Matcher(_Model):
    """Which alerts are meant; what is empty matches all. At least one of them must not be empty."""

    rule: str = ""
    node: str = ""
    run: str = ""
    level: Level | None = None

    def matches(self, alert: Alert) -> bool:
        """Whether this alert is meant."""
        return (
            self.rule in ("", alert.rule)
            and (not self.node or self.node in alert.nodes)
            and self.run in ("", alert.run)
            and self.level in (None, alert.level)
        )

    @property
    def words(self) -> str:
        """In words."""
        parts = [
            f"rule {self.rule}" if self.rule else "",
            f"node {self.node}" if self.node else "",
            f"run {self.run}" if self.run else "",
            f"level {self.level}" if self.level else "",
        ]
        return ", ".join(part for part in parts if part) or "everything"


class Silence(_Model):
    """What is not told of until it ends. What it hides is still shown, and counted."""

    id: str
    matcher: Matcher
    user: str
    reason: str = ""
    at: float
    until: float


class Delivery(_Model):
    """How the newest try to tell of an alert through one way out went."""

    sink: str
    at: float
    ok: bool
    detail: str = ""


class Alert(_Model):
    """One alert: a rule on one thing, or on many that have one reason."""

    id: str
    rule: str
    family: str = ""
    """What it is kin to: of one family on one thing only the worst is shown."""
    level: Level
    state: AlertState = "firing"
    title: str
    """One line for the strip: what, where, how much."""
    entities: list[str] = Field(default_factory=list)
    """What it is on: ``gpu-1``, ``gpu-1/3`` (a GPU), ``gpu-1:/data`` (a mount), a run's id, a queue, ``cluster``."""
    nodes: list[str] = Field(default_factory=list)
    run: str = ""
    since: float
    """Wall seconds of the head when it began to fire."""
    changed_at: float = 0.0
    ended_at: float | None = None
    evidence: list[str] = Field(default_factory=list)
    """Figures and lines, each with its place and time."""
    cause: str = ""
    action: str = ""
    key: str = ""
    """The console's key that acts on it; empty if there is none."""
    latched: bool = False
    """It does not go away by itself: somebody clears it after a repair."""
    flapping: bool = False
    """It came and went so often that it is held until it has been quiet."""
    fired: int = 1
    """How often it has begun to fire since it was first seen."""
    no_data: str = ""
    """Why it is not known whether it still holds; empty while it is."""
    acknowledged: Acknowledged | None = None
    silenced_by: str = ""
    """The silence that hides it; empty if none does."""
    cleared_by: str = ""
    cleared_reason: str = ""
    escalated: int = 0
    """How often it was told again because nobody had acknowledged it."""
    deliveries: list[Delivery] = Field(default_factory=list)
    source: str = "controller"
    """``controller``, or ``console`` for what only this console sees (over SSH)."""
    test: bool = False
    """Sent by somebody to try the ways out."""


class AlertsView(_Model):
    """All that fires, the silences, and what cannot be watched."""

    alerts: list[Alert] = Field(default_factory=list)
    """Worst first, then the newest."""
    silences: list[Silence] = Field(default_factory=list)
    watched_nodes: int = 0
    unwatched: dict[str, str] = Field(default_factory=dict)
    """Node to why the controller has no figures of it."""
    blind: list[str] = Field(default_factory=list)
    """What cannot be seen anywhere, or on which nodes: ``gpu-1, gpu-2: no XID source: …``."""
    rules_version: str = ""
    sinks: list[str] = Field(default_factory=list)
    """The ways out that are set up, by name."""


class AcknowledgeRequest(_Model):
    """Say that somebody has these alerts."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    alerts: list[str] = Field(min_length=1, max_length=4096)
    reason: str = ""


LONGEST_SILENCE_SECONDS = 366 * 86400.0
"""Silences end. A cluster file says less, see ``alerting.silences_longest``."""


class SilenceRequest(_Model):
    """Have what matches not told of for a while."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    matcher: Matcher
    seconds: float = Field(gt=0, le=LONGEST_SILENCE_SECONDS)
    reason: str = ""
    dry_run: bool = False


class EndSilenceRequest(_Model):
    """End a silence before its time."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    reason: str = ""


class ClearRequest(_Model):
    """Clear alerts after a repair; a reason is asked for. One whose condition still holds fires again."""

    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    alerts: list[str] = Field(min_length=1, max_length=4096)
    reason: str = Field(min_length=1)


class TestRequest(_Model):
    """Send one alert, marked as a test, through the ways out."""

    __test__: ClassVar[bool] = False
    """For pytest, which takes it for a test by its name."""
    request_id: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$")
    level: Level = "critical"
    sink: str = ""
    """Only through this one; empty: through all that take this level."""


class AlertsReply(_Model):
    """How all stands after a request, and what it was about."""

    view: AlertsView
    changed: list[Alert] = Field(default_factory=list)
    """The alerts that it touched (for a dry run of a silence: those that it would hide)."""
    already: list[str] = Field(default_factory=list)
    """What was so already, in sentences."""
    silence: Silence | None = None


class TestReply(_Model):
    """What came of a test, a row for each way out that was tried."""

    __test__: ClassVar[bool] = False
    deliveries: list[Delivery] = Field(default_factory=list)
    alert: Alert


class AlertsChanged(_Model):
    """All that fires, as it is now; at most once a second."""

    event: Literal["alerts"] = "alerts"
    alerts: AlertsView
