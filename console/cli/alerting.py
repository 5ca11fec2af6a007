"""The work of `raydeck alerts`: what fires, what ended, what people say to it. Same previews and client as screens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from console import alerting
from console.cli import output
from console.cli.keys import confirm
from console.cli.opened import controlled, opened, repeated, you
from console.cli.reads import SETTLE_SECONDS, nodes_settled
from console.render.alertdocs import alert_document, delivery_document, line_document, silence_document
from console.render.alerts import (
    ALERT_COLUMNS,
    HISTORY_COLUMNS,
    ID_COLUMN,
    AlertRow,
    alert_lines,
    alert_row,
    attention_rows,
)
from console.render.cells import safe
from console.render.prose import listed, moment, some
from console.settings import Context
from console.sources.session import Session
from jobs.alertview import Alert, AlertsReply, AlertsView, Level, Matcher, Silence
from jobs.client import ControllerClient
from jobs.errors import Refused
from jobs.wording import nearest

CONTROLLER_SECONDS = 10.0
SHORTEST_ID = 4
HISTORY = 10_000
NAMED = 6


async def alerts(context: Context, as_json: bool, watch: bool, level: Level | None, every: bool) -> int:
    """What fires. Without a controller: what this console sees itself."""
    async with opened(context, probes=False, ray=False) as session:
        await session.until(lambda: session.work.controller.state not in ("unknown", "connecting"), CONTROLLER_SECONDS)
        if session.work.controller.state == "ok":
            client = await session.controller()

            async def show() -> None:
                view = await client.alerts()
                _show(session, view, _wanted(view.alerts, level, every), as_json, watch)

            return await repeated(watch, show)
        why = session.work.controller.reason or f"the head does not answer: {session.head.status.reason}"
    return await _own(context, as_json, watch, level, every, why)


def _wanted(found: Sequence[Alert], level: Level | None, every: bool) -> list[Alert]:
    return [
        each
        for each in found
        if level in (None, each.level) and (every or (each.state == "firing" and not each.silenced_by))
    ]


def _show(session: Session, view: AlertsView, found: Sequence[Alert], as_json: bool, watch: bool) -> None:
    silences = {each.id: each for each in view.silences}
    if as_json:
        output.documents([alert_document(each, silences.get(each.silenced_by)) for each in found], watch)
        return
    now = session.head_wall()
    rows = [alert_row(each, silences.get(each.silenced_by), now) for each in found]
    _rows(rows, "nothing fires")
    hidden = [each for each in view.alerts if each.state == "firing" and each.silenced_by and each not in found]
    if hidden:
        output.note(f"{some(len(hidden), 'alert')} silenced; see them with: raydeck alerts --all")
    if view.unwatched:
        output.note(safe(f"not watched by the controller: {listed(list(view.unwatched), NAMED)}"))
    for each in view.blind:
        output.note(safe(f"cannot be seen: {each}"))


def _rows(rows: Sequence[AlertRow], empty: str) -> None:
    """As the screen has them, with the id that commands take at the left."""
    output.columns([ID_COLUMN, *ALERT_COLUMNS], rows, empty)


async def _own(context: Context, as_json: bool, watch: bool, level: Level | None, every: bool, why: str) -> int:
    """What this console sees itself, over SSH and by Ray's dashboard."""
    async with opened(context, controller=False) as session:
        await session.until(lambda: nodes_settled(session), SETTLE_SECONDS)
        if not as_json:
            output.note(safe(f"no controller: {why}"))
            output.note("This is what this console sees itself; rules that wait before they fire need --watch")

        async def show() -> None:
            rows = [
                row for row in attention_rows(session.fleet, session.work, session.now(), session.head_wall())
                if row.line is not None and level in (None, row.line.level) and (every or not row.line.ended)
            ]  # fmt: skip
            if as_json:
                output.documents([line_document(row.line) for row in rows if row.line is not None], watch)
            else:
                _rows(rows, "nothing needs you")

        await repeated(watch, show)
        reached = any(node.sample is not None for node in session.fleet.nodes.values())
        return output.DONE if reached or session.fleet.ray.state == "ok" else output.UNREACHABLE


async def show(context: Context, name: str, as_json: bool) -> int:
    """One alert, all of it."""
    async with controlled(context) as (session, client):
        view = await client.alerts()
        alert = _named(view.alerts, name) or _named(await client.alert_history(HISTORY), name)
        if alert is None:
            raise _unknown(name, view.alerts)
        silence = next((each for each in view.silences if each.id == alert.silenced_by), None)
        if as_json:
            output.document(alert_document(alert, silence))
        else:
            output.lines(alert_lines(alert_row(alert, silence, session.head_wall()), output.width(100)))
    return output.DONE


async def history(context: Context, limit: int, as_json: bool) -> int:
    """The newest alerts, those that ended too."""
    async with controlled(context) as (session, client):
        found = await client.alert_history(limit)
        if as_json:
            output.document([alert_document(each) for each in found])
        else:
            now = session.head_wall()
            rows = [alert_row(each, None, now) for each in found]
            output.columns([ID_COLUMN, *HISTORY_COLUMNS], rows, "nothing has fired yet")
    return output.DONE


async def silences(context: Context, as_json: bool) -> int:
    """The silences."""
    async with controlled(context) as (session, client):
        view = await client.alerts()
        if as_json:
            output.document([silence_document(each) for each in view.silences])
        else:
            now = session.head_wall()
            columns = ("silence", "what", "hides", "user", "until", "reason")
            rows = [_silence_row(each, view, now) for each in view.silences]
            output.table(rows, columns, "nothing is silenced")
    return output.DONE


def _silence_row(silence: Silence, view: AlertsView, now: float) -> dict[str, object]:
    return {
        "silence": silence.id,
        "what": silence.matcher.words,
        "hides": sum(each.silenced_by == silence.id for each in view.alerts),
        "user": silence.user,
        "until": moment(silence.until, now),
        "reason": silence.reason,
    }


# --- what people say to them ------------------------------------------------------------------------------------------


async def acknowledge(context: Context, names: Sequence[str], reason: str, *, sure: bool, as_json: bool) -> int:
    """Say that one has them. What somebody has already is said to be so."""
    async with controlled(context) as (session, client):
        found = await _chosen(client, names)
        fresh = [each for each in found if each.acknowledged is None and each.state == "firing"]
        already = [_stands(each) for each in found if each not in fresh]
        if not fresh:
            _tell(None, already, as_json)
            return output.DONE
        reason = await confirm(alerting.acknowledge_preview(fresh), sure, reason)
        reply = await alerting.acknowledge(client, [each.id for each in fresh], reason)
        _tell(reply, already, as_json, *[f"{each.id}: acknowledged by {_who(each, session)}" for each in reply.changed])
    return output.DONE


def _who(alert: Alert, session: Session) -> str:
    return alert.acknowledged.user if alert.acknowledged is not None else you(session)


def _stands(alert: Alert) -> str:
    if alert.state != "firing":
        return f"{alert.id} has ended"
    return f"{alert.id} is acknowledged by {alert.acknowledged.user if alert.acknowledged else 'somebody'} already"


async def clear(context: Context, names: Sequence[str], reason: str, *, sure: bool, as_json: bool) -> int:
    """Clear them after a repair. Raises `Refused` for those that end by themselves."""
    async with controlled(context) as (_, client):
        found = await _chosen(client, names)
        firm = [each for each in found if each.state == "firing" and not alerting.clearable(each)]
        if firm:
            raise Refused(
                f"{firm[0].id} ({firm[0].title}) ends by itself when its cause is gone: only what is latched or flaps "
                "is cleared by hand",
                f"Meanwhile: raydeck alerts ack {firm[0].id}, or raydeck alerts silence --rule {firm[0].rule} --for 2h",
            )
        fresh = [each for each in found if each.state == "firing"]
        already = [_stands(each) for each in found if each not in fresh]
        if not fresh:
            _tell(None, already, as_json)
            return output.DONE
        reason = await confirm(alerting.clear_preview(fresh), sure, reason)
        if not reason:
            raise Refused("clearing needs a reason: what was repaired; nothing was changed", "Say --reason TEXT")
        reply = await alerting.clear(client, [each.id for each in fresh], reason)
        _tell(reply, already, as_json, *[f"{each.id}: cleared" for each in reply.changed])
    return output.DONE


async def silence(
    context: Context, *, rule: str, node: str, run: str, level: Level | None, seconds: float, reason: str,
    dry_run: bool, sure: bool, as_json: bool,
) -> int:  # fmt: skip
    """Have nobody told of what matches for a while; shown first is what that hides."""
    matcher = Matcher(rule=rule, node=node, run=run, level=level)
    if rule:
        _known_rule(rule)
    async with controlled(context) as (session, client):
        plan = await alerting.silence(client, matcher, seconds, reason, dry_run=True)
        preview = alerting.silence_preview(plan, matcher, seconds, session.head_wall())
        reason = await confirm(preview, sure or dry_run, reason)
        if dry_run:
            if as_json:
                output.document({"dry_run": True, "silence": None, "hides": [alert_document(a) for a in plan.changed]})
            else:
                output.say("nothing was done")
            return output.DONE
        reply = await alerting.silence(client, matcher, seconds, reason)
        if as_json:
            output.document(
                {
                    "dry_run": False,
                    "silence": silence_document(reply.silence) if reply.silence is not None else None,
                    "hides": [alert_document(each) for each in reply.changed],
                }
            )
            return output.DONE
        if reply.silence is not None:
            output.say(safe(f"{reply.silence.id}: {alerting.silence_sentence(reply.silence, session.head_wall())}"))
        _notes(reply.already)
    return output.DONE


def _known_rule(rule: str) -> None:
    """A silence on a rule that there is none of hides nothing, and nobody would notice."""
    from probes.health.rules import BY_ID

    if rule not in BY_ID:
        near = nearest(rule, BY_ID)
        hint = f"Did you mean {near}?" if near else "See: raydeck alerts rules"
        raise Refused(f"there is no rule {rule!r}", hint)


async def unsilence(context: Context, name: str, reason: str, *, sure: bool, as_json: bool) -> int:
    """End a silence before its time."""
    async with controlled(context) as (session, client):
        view = await client.alerts()
        found = [each for each in view.silences if each.id == name]
        found = found or [each for each in view.silences if len(name) >= SHORTEST_ID and each.id.startswith(name)]
        if len(found) != 1:
            names = listed([each.id for each in view.silences], NAMED)
            hint = f"There are: {names}" if names else "Nothing is silenced"
            raise Refused(f"there is no silence {name!r}; it may have ended", hint)
        hidden = [each for each in view.alerts if each.silenced_by == found[0].id]
        preview = alerting.end_silence_preview(found, hidden, you(session), session.head_wall())
        reason = await confirm(preview, sure, reason)
        reply = await alerting.end_silence(client, found[0].id, reason)
        _tell(reply, [], as_json, f"{found[0].id}: ended")
    return output.DONE


async def test(context: Context, level: Level, sink: str, *, sure: bool, as_json: bool) -> int:
    """Send one through the ways out, a row for each; exit 1 unless all of them worked."""
    async with controlled(context) as (session, client):
        view = await client.alerts()
        if sink and sink not in view.sinks:
            near = nearest(sink, view.sinks)
            known = f"Did you mean {near}?" if near else f"There are: {listed(view.sinks, NAMED)}" if view.sinks else ""
            raise Refused(
                f"there is no way out {sink!r}", known or "None is set up: alerting.sinks in the cluster file"
            )
        await confirm(alerting.send_test_preview(level, sink, view.sinks), sure)
        reply = await alerting.send_test(client, level, sink)
        if as_json:
            output.document([delivery_document(each) for each in reply.deliveries])
        else:
            now = session.head_wall()
            rows = [
                {"sink": each.sink, "sent": "sent" if each.ok else "failed", "at": moment(each.at, now),
                 "detail": delivery_document(each)["detail"]}
                for each in reply.deliveries
            ]  # fmt: skip
            output.table(rows, ("sink", "sent", "at", "detail"), f"no way out takes alerts of level {level}")
        worked = bool(reply.deliveries) and all(each.ok for each in reply.deliveries)
    return output.DONE if worked else output.FAILED


def _tell(reply: AlertsReply | None, already: Sequence[str], as_json: bool, *said: str) -> None:
    if as_json:
        changed = reply.changed if reply is not None else []
        notes = [*already, *(reply.already if reply is not None else [])]
        output.document({"changed": [alert_document(each) for each in changed], "already": notes})
        return
    for sentence in said:
        output.say(safe(sentence))
    _notes([*already, *(reply.already if reply is not None else [])])


def _notes(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        output.note(safe(sentence))


# --- names ------------------------------------------------------------------------------------------------------------


async def _chosen(client: ControllerClient, names: Sequence[str]) -> list[Alert]:
    """The alerts of these names, each once. Raises `Refused` for one that is none, or several."""
    view = await client.alerts()
    found: dict[str, Alert] = {}
    for name in names:
        alert = _named(view.alerts, name)
        if alert is None:
            raise _unknown(name, view.alerts)
        found[alert.id] = alert
    return list(found.values())


def _named(alerts: Sequence[Alert], name: str) -> Alert | None:
    """By its id, or by as much of it as names one alone. Raises `Refused` where it names several."""
    exact = next((each for each in alerts if each.id == name), None)
    if exact is not None:
        return exact
    near = [each for each in alerts if each.id.startswith(name) or each.id.partition("-")[2].startswith(name)]
    if len(name) < SHORTEST_ID or not near:
        return None
    if len(near) > 1:
        raise Refused(f"{name!r} is the beginning of several alerts", f"{listed([each.id for each in near], NAMED)}")
    return near[0]


def _unknown(name: str, alerts: Sequence[Alert]) -> Refused:
    names = [each.id for each in alerts]
    near = nearest(name, names)
    hint = f"Did you mean {near}?" if near else "See: raydeck alerts --all, raydeck alerts history"
    return Refused(f"there is no alert {name!r}; it may have ended", hint)


# --- the rules --------------------------------------------------------------------------------------------------------


def rules(context: Context | None, name: str, as_json: bool) -> int:
    """The rules: when each fires and ends, and where that comes from."""
    from console.render.rules import rule_document, rule_lines, rule_row
    from console.settings import thresholds_of
    from probes.health.rules import BY_ID, RULES, VERSION

    changes = thresholds_of(context) if context is not None else None
    if name:
        _known_rule(name)
        if as_json:
            output.document(rule_document(BY_ID[name], changes))
        else:
            output.lines(rule_lines(BY_ID[name], changes, output.width(100)))
        return output.DONE
    if as_json:
        output.document({"version": VERSION, "rules": [rule_document(rule, changes) for rule in RULES]})
        return output.DONE
    rows: list[dict[str, Any]] = [rule_row(rule, changes) for rule in RULES]
    output.table(rows, ("rule", "level", "fires", "for", "clears", "source"), "there is no rule")
    output.note(f"version {VERSION}; all of one: raydeck alerts rules RULE")
    return output.DONE
