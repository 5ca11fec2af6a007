"""What each key of ``alerting`` allows and all of them together do not. Pure; `jobs.load` says where it stands.

No sentence repeats a value: an address of a chat is a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from jobs.alertspec import CHATS, Alerting, Sink, only_references
from jobs.contradictions import Fault
from jobs.spec import Cluster, Place
from jobs.values import REFERENCE, is_plaintext_secret
from jobs.wording import nearest
from probes.health.rule import Rule

_COMMON = frozenset(("name", "kind", "levels"))
_OF_KIND: dict[str, frozenset[str]] = {
    "webhook": frozenset(("url", "headers")),
    "slack": frozenset(("url",)),
    "feishu": frozenset(("url", "secret")),
    "dingtalk": frozenset(("url", "secret")),
    "email": frozenset(("host", "port", "tls", "user", "password", "sender", "to")),
    "command": frozenset(("command",)),
}
_NEEDED: dict[str, tuple[str, ...]] = {"email": ("host", "sender", "to"), "command": ("command",)}
_WRITTEN = {"sender": "from"}
"""Field to its key, where the key is no name in Python."""
_SECRET_HEADERS = re.compile(r"auth|cookie|token|secret|key|password|signature", re.IGNORECASE)
_LOCAL = ("localhost", "::1")


def faults(cluster: Cluster) -> Iterator[Fault]:
    """All that is wrong with how alerts are told."""
    alerting, root = cluster.alerting, ("alerting",)
    names = [sink.name for sink in alerting.sinks]
    for index, sink in enumerate(alerting.sinks):
        place: Place = (*root, "sinks", index)
        if sink.name in names[:index]:
            yield Fault((*place, "name"), f"there is a sink {sink.name} already")
        yield from _keys(sink, place)
        yield from _secrets(sink, place)
        if not sink.levels and sink.name not in alerting.escalate_to:
            yield Fault((*place, "levels"), f"nothing is ever told through {sink.name}: no levels, no escalation to it")
    for index, name in enumerate(alerting.escalate_to):
        if name not in names:
            yield Fault((*root, "escalate_to", index), f"there is no sink {name}", nearest(name, names))


def rule_faults(alerting: Alerting, rules: Iterable[Rule]) -> Iterator[Fault]:
    """Changes that cannot be made to these rules."""
    known = {rule.id: rule for rule in rules}
    for name, change in alerting.rules.items():
        place: Place = ("alerting", "rules", name)
        if name not in known:
            yield Fault(place, f"there is no rule {name}", nearest(name, known), of_key=True)
        elif known[name].latch and change.clear_seconds is not None:
            yield Fault(
                (*place, "clear"), f"{name} stays until somebody clears it after a repair: it has no time to end"
            )


def _keys(sink: Sink, place: Place) -> Iterator[Fault]:
    """Keys of another kind, and those that are lacking."""
    mine = _OF_KIND[sink.kind]
    for field in sorted(sink.model_fields_set - _COMMON - mine):
        key = _WRITTEN.get(field, field)
        kinds = " and ".join(kind for kind, fields in _OF_KIND.items() if field in fields)
        yield Fault((*place, key), f"{key} is for {kinds}, and this sink is of kind {sink.kind}", of_key=True)
    for field in _NEEDED.get(sink.kind, ("url",)):
        if not getattr(sink, field):
            yield Fault(place, f"a sink of kind {sink.kind} needs {_WRITTEN.get(field, field)}")


def _secrets(sink: Sink, place: Place) -> Iterator[Fault]:
    """Secrets that stand in the file, and those that would travel for all to read."""
    by_reference = "write ${env:NAME} or ${file:/PATH}"
    if sink.url and sink.kind in CHATS and not REFERENCE.search(sink.url):
        yield Fault((*place, "url"), f"whoever has the address of a {sink.kind} bot can write there; {by_reference}")
    elif sink.url and not only_references(sink.url):
        plain = REFERENCE.sub("x", sink.url)
        if not re.match(r"https?://[^/?#\s]", plain) or re.search(r"\s", plain):
            yield Fault((*place, "url"), "url must be an address that begins with http:// or https://")
        elif re.match(r"[^/]*//[^/?#]*@", plain) or is_plaintext_secret("url", sink.url) or _told(sink.url):
            yield Fault((*place, "url"), f"url seems to hold a secret; {by_reference}")
    for name, value in sink.headers.items():
        hidden = is_plaintext_secret(name, value) or (_SECRET_HEADERS.search(name) and not REFERENCE.search(value))
        if hidden and value:
            yield Fault((*place, "headers", name), f"{name} looks like a secret in plain text; {by_reference}")
    if sink.kind != "email":
        return
    if bool(sink.user) != bool(sink.password):
        given, lacks = ("user", "password") if sink.user else ("password", "user")
        yield Fault((*place, given), f"a {given} needs a {lacks} beside it")
    elif sink.password and sink.tls == "none" and not _is_local(sink.host or ""):
        yield Fault((*place, "tls"), "a password would travel for all to read; tls must be starttls or tls")


def _told(url: str) -> bool:
    """A query with a plain value: that is where tokens stand."""
    query = url.partition("?")[2]
    return any(value and not REFERENCE.search(value) for value in re.findall(r"=([^&#]*)", query))


def _is_local(host: str) -> bool:
    return host in _LOCAL or host.startswith("127.")
