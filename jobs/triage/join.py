"""Puts findings together: which is the cause of which, what is told twice, what comes first. Pure.

A fault of a machine within a minute of a failure on the same node beats what programs said about it. What a program did
to itself (XID 13, 31, 43, 45) never does. What only tells of somebody else's end becomes a consequence.
"""

from __future__ import annotations

from dataclasses import replace

from jobs.triage.findings import CONFIDENCES, OTHER, ROOT, Confidence, Finding, Item
from jobs.triage.look import NEAR_SECONDS, Look

_NOT_BEATEN = frozenset({"wait", "end"})
_MOST_ITEMS = 8


def join(look: Look, found: list[Finding]) -> list[Finding]:
    """The findings in their order, the answer first."""
    findings = _once(found)
    findings = _within_a_node(findings)
    for symptom in [finding for finding in findings if finding.symptom]:
        if symptom in findings:
            findings = _explained(look, findings, symptom)
    findings = _relevant(look, findings)
    findings = _folded(look, findings)
    return sorted(findings, key=order)


def order(finding: Finding) -> tuple[int, bool, int, int, float, str, str]:
    """The cause first, then the surer, then what is nearer to the machine."""
    return (
        finding.relevance, finding.secondary, CONFIDENCES.index(finding.confidence), finding.weight,
        float("inf") if finding.at is None else finding.at, finding.id, finding.culprit.words,
    )  # fmt: skip


def nodes_of(finding: Finding) -> set[str]:
    """The nodes that a finding is about."""
    return {name for name in (finding.culprit.node, *finding.culprit.nodes) if name}


def _once(found: list[Finding]) -> list[Finding]:
    """One finding for what two rules saw."""
    kept: dict[tuple[object, ...], Finding] = {}
    for finding in found:
        who = finding.culprit
        # A rank and its GPU are one; a path below a mount is the mount's.
        key = (finding.id, who.node, who.nodes, who.gpu, who.path, who.run if not who.node else "", finding.title
               if not (who.node or who.nodes) else "", finding.symptom)  # fmt: skip
        other = kept.get(key)
        kept[key] = finding if other is None else _merged(other, finding)
    return list(kept.values())


def _merged(one: Finding, other: Finding) -> Finding:
    first, second = sorted((one, other), key=lambda each: (CONFIDENCES.index(each.confidence), each.at is None))
    evidence = tuple(dict.fromkeys((*first.evidence, *second.evidence)))[:_MOST_ITEMS]
    return replace(
        first,
        evidence=evidence,
        at=first.at if first.at is not None else second.at,
        moment=first.moment if first.at is not None else second.moment,
        hardware=first.hardware or second.hardware,
        explains=first.explains | second.explains,
        consequences=tuple(dict.fromkeys((*first.consequences, *second.consequences))),
    )


def _follows(one: Finding, other: Finding) -> bool:
    """Whether ``one`` is only another view of ``other`` on the same machine."""
    same = nodes_of(one) and nodes_of(one) <= nodes_of(other)
    if not same or one is other:
        return False
    gpu = one.culprit.gpu in (None, other.culprit.gpu)
    if one.id == "K01" and other.id in ("K20", "driver_blocked", "K02"):
        return gpu
    if one.id == "K26":
        return "lost" in other.explains or (other.id == "K26" and len(other.culprit.nodes) > 1)
    if one.id in ("hot", "recovery", "K24") and other.id in ("S05", "K20", "K19", "driver_blocked"):
        return gpu and (one.id != "K24" or other.id == "driver_blocked")
    if one.id == "K23" and other.id == "K23":
        below, above = one.culprit.path, other.culprit.path
        return bool(above) and below != above and below.startswith(above.rstrip("/") + "/")
    if one.id == "driver_blocked":
        return other.id == "K20" and other.moment
    if one.id == "K15" and one.at is None and other.id == "K26":
        return True
    return one.id == "K05" and other.id == "K23" and other.culprit.path == one.culprit.path


def _within_a_node(findings: list[Finding]) -> list[Finding]:
    kept = list(findings)
    for one in findings:
        if one.symptom or one not in kept:
            continue
        other = next((each for each in kept if not each.symptom and _follows(one, each)), None)
        if other is not None:
            kept.remove(one)
            kept[kept.index(other)] = _with_consequence(other, one)
    return kept


def _with_consequence(cause: Finding, effect: Finding) -> Finding:
    place = effect.evidence[0].place if effect.evidence else "seen"
    told = Item(place, effect.at, effect.sentence)
    items = (
        told,
        *effect.consequences,
        *(each for each in effect.evidence if each not in cause.evidence and each.text not in effect.sentence),
    )
    return replace(cause, consequences=tuple(dict.fromkeys((*cause.consequences, *items))))


def _explained(look: Look, findings: list[Finding], symptom: Finding) -> list[Finding]:
    causes = [each for each in findings if each is not symptom and _explains(look, each, symptom)]
    if not causes:
        return findings
    cause = min(
        causes,
        key=lambda each: (
            each.secondary, not _names(each, symptom), each.at is None, each.at or 0.0, each.weight, each.id,
        ),
    )  # fmt: skip
    sure = _sure(cause, symptom)
    root = replace(_with_consequence(cause, symptom), confidence=sure, relevance=ROOT)
    if not root.culprit.run and symptom.culprit.run:
        root = replace(root, culprit=replace(root.culprit, run=symptom.culprit.run))
    kept = [root if each is cause else each for each in findings if each is not symptom]
    if symptom.symptom == "program":
        # The script's own error may still be one of its own.
        kept.append(replace(symptom, confidence="possible", symptom="", weight=90))
    return kept


def _names(cause: Finding, symptom: Finding) -> bool:
    """Whether the cause lies where the symptom is: the same GPU, else the same node."""
    if cause.culprit.gpu is not None and symptom.culprit.gpu is not None:
        return cause.culprit.node == symptom.culprit.node and cause.culprit.gpu == symptom.culprit.gpu
    return bool(nodes_of(cause) & nodes_of(symptom)) or not nodes_of(symptom)


def _sure(cause: Finding, symptom: Finding) -> Confidence:
    worst: Confidence = "likely" if cause.confidence == "possible" else cause.confidence
    guessed = symptom.symptom == "program" or (cause.at is None and symptom.symptom in ("peer", "silent"))
    return "likely" if guessed and worst == "certain" else worst


def _explains(look: Look, cause: Finding, symptom: Finding) -> bool:
    if cause.symptom or cause.secondary or symptom.symptom in _NOT_BEATEN:
        return False
    where = nodes_of(cause)
    if symptom.touches and where and not where & set(symptom.touches):
        return False
    if not where and symptom.symptom not in cause.explains:
        return False
    if symptom.symptom == "slow" and cause.culprit.gpu is not None and symptom.culprit.gpu is not None and (
        cause.culprit.gpu != symptom.culprit.gpu
    ):  # fmt: skip
        return False
    near = symptom.at is not None and cause.at is not None and abs(cause.at - symptom.at) <= NEAR_SECONDS
    if symptom.symptom not in cause.explains:
        return cause.hardware and cause.moment and near and bool(where & nodes_of(symptom))
    if cause.at is None:
        return True
    if symptom.symptom in ("peer", "hang"):
        window = look.trouble if look.target.kind == "run" else None
        begin, end = window or ((symptom.at or look.now) - 1800.0, (symptom.at or look.now) + NEAR_SECONDS)
        return cause.at <= end and (not cause.moment or cause.at >= begin)
    if symptom.at is None:
        return not cause.moment
    return near or (not cause.moment and cause.at <= symptom.at + NEAR_SECONDS)


def _relevant(look: Look, findings: list[Finding]) -> list[Finding]:
    """What answers the question, and what is only true beside it."""
    if look.target.kind == "gpu":
        return [
            replace(each, relevance=ROOT if each.culprit.gpu in (None, look.target.gpu) else OTHER) for each in findings
        ]
    if look.target.kind != "run":
        return findings
    answers = [each for each in findings if _answers(look, each)]
    if not answers:
        return findings
    return [each if each in answers else replace(each, relevance=OTHER) for each in findings]


def _answers(look: Look, finding: Finding) -> bool:
    if finding.confidence == "possible" and finding.id in ("release", "config"):
        return False
    if finding.symptom or finding.explains & {"wait", "start", "end"} or finding.id in ("S01", "S08", "S11", "K32"):
        return True
    # Found to be the cause of what happened to the run: it carries the run's name and what followed.
    return finding.relevance == ROOT and bool(finding.consequences) and finding.culprit.run == (
        look.run.id if look.run else ""
    )  # fmt: skip


def _folded(look: Look, findings: list[Finding]) -> list[Finding]:
    """What only tells of somebody else's end is a consequence as soon as there is a cause."""
    causes = [each for each in findings if not each.secondary and each.relevance == ROOT]
    if not causes or look.target.kind == "fleet":
        causes = [each for each in causes if each.consequences or each.symptom]
    if not causes:
        return findings
    root = min(causes, key=order)
    kept = [each for each in findings if not (each.secondary and _may_follow(each, root))]
    for each in findings:
        if each not in kept:
            index = kept.index(root)
            root = _with_consequence(root, each)
            kept[index] = root
    return kept


def _may_follow(effect: Finding, root: Finding) -> bool:
    if root.confidence == "possible":
        return False
    return effect.at is None or root.at is None or effect.at >= root.at - NEAR_SECONDS
