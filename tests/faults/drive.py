"""Makes one fault after the other, and looks whether the alert comes, and whether triage names what was broken."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Sequence

from jobs.alertview import Alert, ClearRequest
from jobs.client import ControllerClient
from probes.health.rules import RULES
from tests.faults.fault import Aim, Fault, Result
from tests.faults.lab import Lab

LOOK_SECONDS = 0.1
QUIET_SECONDS = 40.0
"""So long what fires may take to end after the fault was mended. Lines of a kernel are told of for longer: that goes on
beside what comes next."""
STAYS = ("run.failed", "run.retries_spent")
"""Told of for an hour, since a run that failed stays failed."""
CALM_SECONDS = 3.0
"""For so long nothing may fire any more; longer than a probe takes to tell of most figures."""
TOLD = ("critical", "warning")
FOR_SECONDS = {rule.id: rule.for_seconds for rule in RULES}
AFTER_SECONDS = 45.0
"""So long an alert may take beyond the time that its rule wants to see it hold: some figures come every ten seconds."""


async def run(lab: Lab, desk: ControllerClient, fault: Fault) -> Result:
    """One fault: made, detected, named, mended."""
    result = Result(fault.name)
    before = {alert.id for alert in await _firing(desk)}
    made = fault.make(lab)
    try:
        aim = await asyncio.to_thread(made.__enter__)
        try:
            await _detect(desk, fault, aim, before, result)
            await _name(lab, fault, aim, result)
            if not fault.rules:
                result.detected_seconds = time.monotonic() - aim.since
            elif result.detected_seconds is None:
                # Who sleeps is not woken, however well triage would name it.
                result.named, result.trouble = False, "its alert did not come"
            result.false_alarms = _false(lab, fault, before, await _firing(desk))
        finally:
            await asyncio.to_thread(made.__exit__, None, None, None)
    except Exception as error:
        # One fault that cannot be made must not hide what comes of the others.
        result.trouble = f"{type(error).__name__}: {error}"[:300]
    lab.cleared = await _settle(desk, before)
    return result


async def _firing(desk: ControllerClient) -> list[Alert]:
    return [alert for alert in (await desk.alerts()).alerts if alert.state == "firing"]


async def _detect(desk: ControllerClient, fault: Fault, aim: Aim, before: set[str], result: Result) -> None:
    expected = FOR_SECONDS[fault.rules[0]] if fault.rules else 0.0
    deadline = time.monotonic() + max(fault.seconds, expected + AFTER_SECONDS)
    while fault.rules and time.monotonic() < deadline:
        for alert in await _firing(desk):
            if alert.rule in fault.rules and alert.id not in before and _about(alert, aim):
                result.detected_seconds = time.monotonic() - aim.since
                result.alert = alert.rule
                return
        await asyncio.sleep(LOOK_SECONDS)


def _about(alert: Alert, aim: Aim) -> bool:
    return aim.on in alert.entities or aim.on in alert.nodes or alert.run == aim.on


async def _name(lab: Lab, fault: Fault, aim: Aim, result: Result) -> None:
    began = time.monotonic()
    done = await asyncio.to_thread(lab.bed.cli, "triage", *([aim.target] if aim.target else []), "--json", check=False)
    result.triage_seconds = time.monotonic() - began
    if not done.stdout.strip():
        result.trouble = f"triage said nothing: {done.stderr.strip()[:200]}"
        return
    told = json.loads(done.stdout)
    findings = told.get("findings") or [{}]
    result.headline = str(told.get("headline", ""))
    first = json.dumps(findings[0], ensure_ascii=False)
    text = f"{result.headline}\n{first}"
    culprit = aim.culprit or aim.on
    result.named = re.search(fault.cause, text, re.IGNORECASE) is not None and culprit in text


def _false(lab: Lab, fault: Fault, before: set[str], firing: Sequence[Alert]) -> list[str]:
    """What was told besides, and is not true of this fault, nor of the one before it."""
    known = {*fault.rules, *fault.also}
    return [
        f"{alert.rule}: {alert.title}"
        for alert in firing
        if alert.id not in before
        and alert.level in TOLD
        and alert.rule not in known
        and (alert.rule, *alert.entities) not in lab.cleared
    ]


async def _settle(desk: ControllerClient, before: set[str]) -> set[tuple[str, ...]]:
    """Until nothing of it fires any more; what is latched is cleared, as somebody does after a repair.

    Gives what it was.
    """
    cleared: set[tuple[str, ...]] = set()
    deadline = time.monotonic() + QUIET_SECONDS
    calm_since = time.monotonic()
    while time.monotonic() - calm_since < CALM_SECONDS and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        left = [alert for alert in await _firing(desk) if alert.id not in before and alert.rule not in STAYS]
        if left:
            calm_since = time.monotonic()
            cleared |= {(alert.rule, *alert.entities) for alert in left}
        for_hands = [alert.id for alert in left if alert.latched or alert.flapping]
        if for_hands:
            await clear(desk, for_hands)
    return cleared


async def clear(desk: ControllerClient, alerts: Sequence[str]) -> None:
    """Say that these were mended."""
    await desk.clear(ClearRequest(request_id=uuid.uuid4().hex, alerts=list(alerts), reason="the fault was mended"))
