"""What a cluster file may say under ``alerting``: the ways out, when they are used, and changes to the health rules.

No secret stands in a file: `Reference` texts are resolved on the head at the moment of sending, and kept nowhere.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from jobs.alertview import LONGEST_SILENCE_SECONDS, Level
from jobs.section import Section
from jobs.values import REFERENCE, Command, EnvValue, Host, QueueName, Seconds, Text, seconds, stated
from probes.health.rule import Thresholds

SOCKET_PATH_LIMIT = 100
"""In bytes, as for the controller's own socket."""
_LOOPBACK = re.compile(r"(?:127(?:\.[0-9]{1,3}){3}|localhost|\[::1\]):([0-9]{1,5})")
_MAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")


def only_references(text: str) -> bool:
    """Whether a text is nothing but references: what it stands for is not in the file."""
    return REFERENCE.search(text) is not None and not REFERENCE.sub("", text)


def _never_or_seconds(value: object) -> float | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == "never"):
        return None
    try:
        return seconds(value)
    except ValueError as error:
        raise stated(f"{error}, or never") from error


def _no_time_or_seconds(value: object) -> float:
    if not isinstance(value, bool) and str(value).strip() in ("0", "0s", "0.0"):
        return 0.0
    try:
        return seconds(value)
    except ValueError as error:
        raise stated(str(error)) from error


def _secret(text: str) -> str:
    if text and not only_references(text):
        raise stated("must not stand in the file; write ${env:NAME} or ${file:/PATH}")
    return text


def _mail(text: str) -> str:
    if not _MAIL.fullmatch(text):
        raise stated("must be an e-mail address such as oncall@example.org")
    return text


def _header(name: str) -> str:
    if not _HEADER.fullmatch(name):
        raise stated("is no name for a header")
    if name.lower() in ("content-type", "content-length", "host", "idempotency-key", "transfer-encoding", "connection"):
        raise stated("is a header that raydeck writes itself")
    return name


def listen_fault(text: str) -> str:
    """What is wrong with where to listen; empty for a Unix socket and for loopback."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/") or ".." in path.split("/") or path.endswith("/"):
            return "must name a socket by an absolute path, such as unix:/run/raydeck/metrics.sock"
        if len(path.encode()) > SOCKET_PATH_LIMIT:
            return f"has a path that is too long for a socket; at most {SOCKET_PATH_LIMIT} bytes"
        return ""
    found = _LOOPBACK.fullmatch(text)
    if found is None:
        return "must be unix:/PATH, or a port of loopback such as 127.0.0.1:9464: the figures have no password"
    return "" if 1 <= int(found[1]) <= 65535 else "is outside the ports there are, 1 to 65535"


def _listen(text: str) -> str:
    fault = listen_fault(text)
    if fault:
        raise stated(fault)
    return text


SecondsOrNever = Annotated[float | None, BeforeValidator(_never_or_seconds)]
"""A duration, or ``never`` (None)."""
SecondsOrNone = Annotated[float, BeforeValidator(_no_time_or_seconds)]
"""A duration, or 0."""
Reference = Annotated[EnvValue, AfterValidator(_secret)]
"""A secret: only ``${env:NAME}`` or ``${file:/PATH}``."""
MailAddress = Annotated[str, AfterValidator(_mail)]
HeaderName = Annotated[str, AfterValidator(_header)]
Listen = Annotated[Text, AfterValidator(_listen)]
RuleId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]

SinkKind = Literal["webhook", "slack", "feishu", "dingtalk", "email", "command"]
CHATS: tuple[SinkKind, ...] = ("slack", "feishu", "dingtalk")


class Sink(Section):
    """One way out. Which keys go with which kind is seen by `jobs.alertfaults`."""

    name: QueueName
    kind: SinkKind
    """``feishu`` is Lark too."""
    levels: Annotated[list[Level], Field(max_length=3)] = Field(
        default_factory=lambda: list[Level](("critical", "warning"))
    )
    """What is told of through it. Empty: only what is escalated to it."""
    url: EnvValue = ""
    """webhook, slack, feishu, dingtalk. A chat's address is a secret: it must hold a reference."""
    secret: Reference = ""
    """feishu, dingtalk: what messages are signed with."""
    headers: Annotated[dict[HeaderName, EnvValue], Field(max_length=32)] = Field(default_factory=dict)
    """webhook: headers to send, such as an Authorization by reference."""
    host: Host | None = None
    """email: the SMTP server."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """email: 587, with ``tls: tls`` 465, with ``tls: none`` 25 if not given."""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    user: EnvValue = ""
    password: Reference = ""
    sender: MailAddress | None = Field(default=None, alias="from")
    to: Annotated[list[MailAddress], Field(max_length=50)] = Field(default_factory=list)
    command: Annotated[Command, Field(max_length=100)] = Field(default_factory=list)
    """command: what is started for each notice; JSON on its standard input, and RAYDECK_ALERT_* in its environment."""


class Repeat(Section):
    """How often an alert that goes on, and that nobody has acknowledged, is told again."""

    critical: SecondsOrNever = 3600.0
    warning: SecondsOrNever = 4 * 3600.0
    info: SecondsOrNever = None

    def of(self, level: Level) -> float | None:
        """Seconds; None: never."""
        return {"critical": self.critical, "warning": self.warning, "info": self.info}[level]


class Prometheus(Section):
    """A page of figures for a Prometheus server. It has no password: it is for this machine only."""

    listen: Listen
    """``unix:/PATH`` (for the controller's user only) or a port of loopback, ``127.0.0.1:PORT``."""


class RuleChange(Section):
    """What is different in one health rule."""

    off: bool = False
    fires: Annotated[float, Field(ge=-1e15, le=1e15)] | None = None
    """The figure from which it fires."""
    for_seconds: SecondsOrNone | None = Field(default=None, alias="for")
    """So long it must hold before it fires."""
    clear_seconds: SecondsOrNone | None = Field(default=None, alias="clear")
    """So long it must have been clear before it ends."""
    level: Level | None = None


class Alerting(Section):
    """Who is told of alerts, and which rules make them."""

    sinks: Annotated[list[Sink], Field(max_length=32)] = Field(default_factory=list)
    escalate_after: SecondsOrNever = 900.0
    """A critical alert that nobody has acknowledged for so long is escalated."""
    escalate_to: Annotated[list[QueueName], Field(max_length=32)] = Field(default_factory=list)
    """The sinks that are told then; empty: all that take critical alerts, once more."""
    repeat_after: Repeat = Repeat()
    rate: Annotated[int, Field(ge=1, le=10_000)] = 30
    """The most notices per sink and hour; what is held back is counted and told in the next one."""
    prometheus: Prometheus | None = None
    """No such page if not given."""
    rules: Annotated[dict[RuleId, RuleChange], Field(max_length=1000)] = Field(default_factory=dict)
    """Rule to what is different in it."""
    silences_longest: Annotated[Seconds, Field(le=LONGEST_SILENCE_SECONDS)] = 30 * 86400.0

    def thresholds(self) -> Thresholds:
        """The changes as the rules' judge takes them."""
        rules = self.rules
        return Thresholds(
            off=tuple(name for name, change in rules.items() if change.off),
            fires={name: change.fires for name, change in rules.items() if change.fires is not None},
            for_seconds={name: change.for_seconds for name, change in rules.items() if change.for_seconds is not None},
            clear_seconds={
                name: change.clear_seconds for name, change in rules.items() if change.clear_seconds is not None
            },
            levels={name: change.level for name, change in rules.items() if change.level is not None},
        )
