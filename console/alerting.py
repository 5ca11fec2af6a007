"""What people say to alerts: acknowledge, silence, clear, try the ways out; and what each would do. Knows no screen.

The previews are pure. What a silence would hide is asked of the controller, by a dry run.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from console.preview import Preview
from console.render.cells import age, safe
from console.render.prose import listed, moment, some
from jobs.alertview import (
    AcknowledgeRequest,
    Alert,
    AlertsReply,
    ClearRequest,
    EndSilenceRequest,
    Level,
    Matcher,
    Silence,
    SilenceRequest,
    TestReply,
    TestRequest,
)
from jobs.client import ControllerClient

SHOWN = 8


def _new_request_id() -> str:
    return secrets.token_hex(8)


# --- what is asked ----------------------------------------------------------------------------------------------------


async def acknowledge(client: ControllerClient, alerts: Sequence[str], reason: str = "") -> AlertsReply:
    """Say that somebody has these alerts."""
    return await client.acknowledge(
        AcknowledgeRequest(request_id=_new_request_id(), alerts=list(alerts), reason=reason)
    )


async def silence(
    client: ControllerClient, matcher: Matcher, seconds: float, reason: str, *, dry_run: bool = False
) -> AlertsReply:
    """Have what matches not told of for so long; a dry run tells what that would hide."""
    return await client.silence(
        SilenceRequest(
            request_id=_new_request_id(), matcher=matcher, seconds=seconds, reason=reason, dry_run=dry_run
        )
    )  # fmt: skip


async def end_silence(client: ControllerClient, identity: str, reason: str = "") -> AlertsReply:
    """End a silence before its time."""
    return await client.end_silence(identity, EndSilenceRequest(request_id=_new_request_id(), reason=reason))


async def clear(client: ControllerClient, alerts: Sequence[str], reason: str) -> AlertsReply:
    """Clear alerts after a repair."""
    return await client.clear(ClearRequest(request_id=_new_request_id(), alerts=list(alerts), reason=reason))


async def send_test(client: ControllerClient, level: Level, sink: str = "") -> TestReply:
    """Send one alert, marked as a test, through the ways out."""
    return await client.test_alert(TestRequest(request_id=_new_request_id(), level=level, sink=sink))


# --- what may be asked ------------------------------------------------------------------------------------------------


def clearable(alert: Alert) -> bool:
    """Only what does not end by itself is cleared by hand."""
    return alert.state == "firing" and (alert.latched or alert.flapping)


def why_not_clear(alert: Alert) -> str:
    """Why an alert cannot be cleared; empty if it can."""
    if alert.state != "firing":
        return f"{alert.title}: it has ended already"
    if not clearable(alert):
        return f"{alert.title}: it ends by itself when its cause is gone; A acknowledges it, M mutes it meanwhile"
    return ""


# --- what it would do -------------------------------------------------------------------------------------------------


def acknowledge_preview(alerts: Sequence[Alert]) -> Preview:
    """What it does to say that somebody has them."""
    lines = [
        *_titles(alerts),
        f"{'It goes' if len(alerts) == 1 else 'They go'} on firing; nobody is told of {_them(alerts)} again, "
        f"and {'it does' if len(alerts) == 1 else 'they do'} not escalate.",
    ]
    already = [each for each in alerts if each.acknowledged is not None]
    warnings = tuple(
        f"{each.acknowledged.user} has {safe(each.title)} already" for each in already[:SHOWN] if each.acknowledged
    )
    return _preview(_heading("Acknowledge", alerts), lines, len(alerts), warnings)


def clear_preview(alerts: Sequence[Alert]) -> Preview:
    """What it does to clear them."""
    lines = [
        *_titles(alerts),
        f"Say what was repaired: it stands in the history. Where the cause is still there, "
        f"{'it fires' if len(alerts) == 1 else 'they fire'} again.",
    ]
    return _preview(_heading("Clear", alerts), lines, len(alerts))


def silence_preview(reply: AlertsReply, matcher: Matcher, seconds: float, now_wall: float) -> Preview:
    """What a silence hides now, by the controller's dry run, and until when."""
    hidden = reply.changed
    lines = [f"Nobody is told of {matcher.words} until {moment(now_wall + seconds, now_wall)} ({age(seconds)})."]
    if hidden:
        lines += [f"It hides {some(len(hidden), 'alert')} that {'fires' if len(hidden) == 1 else 'fire'} now:",
                  *_titles(hidden)]  # fmt: skip
    else:
        lines.append("It hides nothing that fires now, only what comes.")
    lines.append("What is hidden is still shown and counted.")
    worst = [each for each in hidden if each.level == "critical"]
    warnings = (f"{some(len(worst), 'of them is', 'of them are')} critical",) if worst and len(hidden) > 1 else ()
    return _preview(f"Silence {matcher.words}", lines, len(hidden), warnings)


def end_silence_preview(silences: Sequence[Silence], hidden: Sequence[Alert], you: str, now_wall: float) -> Preview:
    """What it does to end silences before their time."""
    lines = [silence_sentence(each, now_wall) for each in silences[:SHOWN]]
    if len(silences) > SHOWN:
        lines.append(f"and {len(silences) - SHOWN} more")
    if hidden:
        lines += [f"{some(len(hidden), 'alert')} would be told of again:", *_titles(hidden)]
    else:
        lines.append("Nothing that it hides fires now.")
    others = sorted({each.user for each in silences if you and each.user != you})
    warnings = (f"of {listed(others)}, not yours",) if others else ()
    what = "End the silence" if len(silences) == 1 else f"End {len(silences)} silences"
    return _preview(what, lines, len(silences), warnings)


def send_test_preview(level: Level, sink: str, sinks: Sequence[str]) -> Preview:
    """Whom a test alert reaches."""
    ways = sink or (listed(sinks) if sinks else "none is set up")
    lines = (f"One alert of level {level}, marked as a test, goes out through: {safe(ways)}.",)
    return Preview("Send a test alert", lines)


def silence_sentence(silence: Silence, now_wall: float) -> str:
    """What is silenced, by whom, until when, and why."""
    left = silence.until - now_wall
    ends = f"until {moment(silence.until, now_wall)}" + (f" ({age(left)} to go)" if left > 0 else " (over)")
    reason = f": {silence.reason}" if silence.reason else ""
    return f"{silence.matcher.words}: silenced by {silence.user} {ends}{reason}"


def _preview(title: str, lines: Sequence[str], many: int, warnings: tuple[str, ...] = ()) -> Preview:
    """One takes one key; many take their count."""
    ask, expected = ("count", str(many)) if many > 1 else ("y", "y")
    shown = tuple(safe(line) for line in lines)
    return Preview(safe(title), shown, "count" if ask == "count" else "y", expected, True, warnings)


def _heading(verb: str, alerts: Sequence[Alert]) -> str:
    return f"{verb} {some(len(alerts), 'alert')}"


def _them(alerts: Sequence[Alert]) -> str:
    return "it" if len(alerts) == 1 else "them"


def _titles(alerts: Sequence[Alert]) -> list[str]:
    found = [f"  {each.level}: {each.title}" for each in alerts[:SHOWN]]
    if len(alerts) > SHOWN:
        found.append(f"  and {len(alerts) - SHOWN} more")
    return found
