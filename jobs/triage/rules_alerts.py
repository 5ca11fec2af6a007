"""Alerts that fire in what is asked about, as findings where no rule here has found the same."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.alertview import Alert
from jobs.triage.findings import OTHER, ROOT, Confidence, Culprit, Finding, Item
from jobs.triage.join import nodes_of
from jobs.triage.look import Look
from jobs.triage.patterns import INFRASTRUCTURE, SCHEDULING
from jobs.triage.scan import as_sentence, shown

WEIGHTS = {"critical": 60, "warning": 61, "info": 62}
OWN_WEIGHT = 5
"""Of what is critical on the very node that is asked about: before what became of runs there."""


def of_alerts(look: Look, findings: Sequence[Finding]) -> list[Finding]:
    """Alerts that fire in what is asked about, and that no rule here has found as well."""
    places = {finding.culprit.words for finding in findings}
    whole = {name for finding in findings if _of_whole_nodes(finding) for name in nodes_of(finding)}
    runs = {finding.culprit.run for finding in findings if finding.culprit.run}
    scope = {node.name for node in look.scope}
    made: list[Finding] = []
    for alert in look.evidence.alerts:
        if alert.state != "firing" or alert.test or not _of_target(look, alert, scope):
            continue
        if places & set(alert.entities) or whole & set(alert.nodes) or (alert.run and alert.run in runs):
            continue
        own = look.target.kind == "node" and alert.level == "critical"
        made.append(
            _of_alert(alert, beside=bool(findings) and not own, weight=OWN_WEIGHT if own else WEIGHTS[alert.level])
        )
    return made


def _of_whole_nodes(finding: Finding) -> bool:
    """It is about machines as they are, and so about all that is on them."""
    who = finding.culprit
    return who.gpu is None and who.rank is None and not who.path and not who.run


def _of_target(look: Look, alert: Alert, scope: set[str]) -> bool:
    if look.target.kind == "fleet":
        return True
    if look.target.kind == "run":
        return (look.run is not None and alert.run == look.run.id) or bool(scope & set(alert.nodes))
    return look.target.node in alert.nodes


def _of_alert(alert: Alert, beside: bool, weight: int) -> Finding:
    # What a driver or a kernel told does not become less true by passing.
    confidence: Confidence = "certain" if alert.latched else "likely" if alert.level == "critical" else "possible"
    entity = alert.entities[0] if alert.entities else ""
    node, _, index = entity.rpartition("/")
    path = entity.partition(":")[2]
    gpu = int(index) if node and index.isascii() and index.isdecimal() and len(index) < 5 and not path else None
    many = len(alert.nodes) > 1
    if len(alert.entities) > 1:
        gpu, path = None, ""
    culprit = Culprit(
        node="" if many or not alert.nodes else alert.nodes[0], gpu=None if many else gpu, run=alert.run, path=path,
        nodes=tuple(alert.nodes) if many else (),
    )  # fmt: skip
    return Finding(
        alert.rule, INFRASTRUCTURE if alert.nodes else SCHEDULING,
        shown(alert.title).removeprefix(f"{culprit.words}: "), confidence,
        as_sentence(alert.cause) or "See the alert.", as_sentence(alert.action) or "See the alert.", culprit, alert.key,
        (Item("alert", alert.since, shown(alert.title)),
        *(Item("alert", None, shown(text)) for text in alert.evidence[:4])),
        at=alert.since, weight=weight, relevance=OTHER if beside else ROOT,
    )  # fmt: skip
