"""Alerts and silences as the JSON that scripts read: stable names with units. Names are only ever added."""

from __future__ import annotations

from typing import Any

from console.render.redact import redact
from console.state.alerts import Line
from jobs.alertview import Alert, AlertsView, Delivery, Silence


def alert_document(alert: Alert, silence: Silence | None = None) -> dict[str, Any]:
    """One alert: ``id, severity, rule, entities, since, state, cause, action`` …; what is not so is null."""
    return {
        "id": alert.id,
        "severity": alert.level,
        "rule": alert.rule,
        "family": alert.family or None,
        "title": redact(alert.title),
        "entities": alert.entities,
        "nodes": alert.nodes,
        "run": alert.run or None,
        "since": alert.since,
        "changed_at": alert.changed_at or None,
        "ended_at": alert.ended_at,
        "state": alert.state,
        "cause": redact(alert.cause),
        "action": redact(alert.action),
        "key": alert.key or None,
        "evidence": [redact(text) for text in alert.evidence],
        "latched": alert.latched,
        "flapping": alert.flapping,
        "fired_count": alert.fired,
        "no_data": alert.no_data or None,
        "acknowledged": alert.acknowledged.model_dump() if alert.acknowledged is not None else None,
        "silenced_by": alert.silenced_by or None,
        "silenced_until": silence.until if silence is not None else None,
        "cleared_by": alert.cleared_by or None,
        "cleared_reason": alert.cleared_reason or None,
        "escalated_count": alert.escalated,
        "deliveries": [delivery_document(each) for each in alert.deliveries],
        "source": alert.source,
        "test": alert.test,
    }


def line_document(line: Line, silence: Silence | None = None) -> dict[str, Any]:
    """The same of whatever needs someone; what this console sees of it too stands in ``seen_here``."""
    if line.alert is not None:
        return {**alert_document(line.alert, silence), "seen_here": list(line.here)}
    blank = Alert(id=line.key, rule="", level=line.level, title=line.text, since=line.since or 0.0, source="console",
                  entities=[line.target] if line.target else [])  # fmt: skip
    return {**alert_document(blank), "id": None, "rule": None, "since": line.since, "seen_here": list(line.here)}


def delivery_document(delivery: Delivery) -> dict[str, Any]:
    """How a try to tell of it through one way out went: ``sink, at, ok, detail``."""
    return {"sink": delivery.sink, "at": delivery.at, "ok": delivery.ok, "detail": redact(delivery.detail)}


def silence_document(silence: Silence) -> dict[str, Any]:
    """One silence: ``id, rule, node, run, severity, user, reason, at, until``."""
    return {
        "id": silence.id,
        "rule": silence.matcher.rule or None,
        "node": silence.matcher.node or None,
        "run": silence.matcher.run or None,
        "severity": silence.matcher.level,
        "user": silence.user,
        "reason": silence.reason,
        "at": silence.at,
        "until": silence.until,
    }


def silences_of(view: AlertsView) -> dict[str, Silence]:
    """The silences by id."""
    return {each.id: each for each in view.silences}
