"""Code and model: why the attempt failed, by what its ranks left; a loss that is no number; what a running one says."""

from __future__ import annotations

import math
import re

from jobs import failure
from jobs.model import Failure
from jobs.triage import scan
from jobs.triage.findings import Confidence, Culprit, Finding, Item, Sheet, listed, plural
from jobs.triage.first import AFTER_SECONDS, ASKED, Ended, First
from jobs.triage.hang import behind
from jobs.triage.look import Look
from jobs.triage.patterns import BY_ID, CODE, NETWORK, Pattern

_BARRIER = re.compile(r"Ranks? (\d{1,6}(?:, ?\d{1,6})*) failed to pass monitoredBarrier")
_PATH = re.compile(r"['\"](/[^'\"\s]{1,200})['\"]")
_SYMPTOMS = {
    **dict.fromkeys(("K01", "K02", "K18", "K19", "K20", "K21", "K22"), "device"),
    **dict.fromkeys(("K03", "K04", "K05"), "memory"),
    **dict.fromkeys(("K23", "K24", "K25", "K33", "K35"), "data"),
    "K30": "certificate",
}
_BY_KIND = {
    Failure.DRIVER: "device", Failure.OUT_OF_MEMORY: "memory", Failure.DATA: "data", Failure.COMMUNICATION: "peer",
    Failure.NODE_LOST: "peer", Failure.UNKNOWN: "silent", Failure.SILENCE: "hang",
}  # fmt: skip
_FOR_KIND = {
    Failure.DRIVER: "K01", Failure.OUT_OF_MEMORY: "K03", Failure.DATA: "K24", Failure.COMMUNICATION: "K07",
    Failure.NODE_LOST: "K26", Failure.UNKNOWN: "K27",
}  # fmt: skip
_NOT_A_FAILURE = (Failure.CANCELLED, Failure.TIME_LIMIT, Failure.START_TIMEOUT, Failure.CHECKPOINT)
SHOWN_CONSEQUENCES = 8


def failed(look: Look, sheet: Sheet) -> None:
    """The rank that failed first, and those that only followed it."""
    if not look.failed:
        return
    first = look.first
    if first is None:
        _by_outcome(look, sheet)
        return
    sheet.checked(f"{plural(1 + len(first.others), 'rank')} ended in failure; put in the order of time")
    sheet.found(_of_follower(look, first, sheet) if first.only_followed else _of_first(look, first))


def _of_first(look: Look, first: First) -> Finding:
    end = first.ended
    pattern = end.pattern
    said = end.line.text if end.line else ""
    row, title, cause, action, key = _words(end, said)
    sure: Confidence = "certain" if end.line is not None and (first.by or not first.others) else "likely"
    if row.id == "K16":
        # Of two that differ the one with less room dies: it need not be the one that is wrong.
        sure = "likely"
    if row.id == "K27":
        sure = "likely" if end.line is None else sure
    items = [Item(f"rank {end.rank.rank} on {end.rank.node}", end.rank.ended_at, end.how)]
    if end.line is not None:
        items.insert(0, end.line)
    last = end.rank.log[-1:]
    if end.line is None and last:
        items.append(scan.item(last[0], scan.rank_file(end.rank), end.rank.node))
    symptom = _SYMPTOMS.get(pattern.id, "program") if pattern else _BY_KIND.get(end.told.failure, "program")
    if end.line is None:
        symptom = "silent"
    return Finding(
        row.id if pattern or end.line is None else "exception", pattern.step if pattern else CODE, title, sure, cause,
        action, look.rank_culprit(end.rank), key, tuple(items), _followers(first.others), at=end.at,
        weight=row.weight, symptom=symptom, touches=(end.rank.node,) if end.rank.node else tuple(look.involved),
    )  # fmt: skip


def _words(end: Ended, said: str) -> tuple[Pattern, str, str, str, str]:
    """The row, title, cause, action and key for a rank that failed by itself."""
    number = failure.signal_of(end.rank.exit_code)
    if end.pattern is not None:
        row = end.pattern
        named = _PATH.findall(said) if row.step == NETWORK else []
        return row, row.title + (f" ({named[-1]})" if named else ""), row.cause, row.action, row.key
    row = BY_ID["K27"]
    if end.line is not None:
        return (
            row, f"{end.how}: {(failure.error_line(said) or said)[:160]}", "The script raised it itself.",
            "Read the lines before it in its log; mend the script or its settings, then restart.", "l",
        )  # fmt: skip
    if number == 9:
        return (
            BY_ID["K27"], f"{end.how}, without a word in its log",
            "Somebody killed it, or the kernel for want of memory.",
            "Look at the kernel's log of its node for an out-of-memory line; else ask who killed it.", "l",
        )  # fmt: skip
    if number in (7, 135):
        row = BY_ID["K05"]
        return row, f"{end.how}, as when /dev/shm is full", row.cause, row.action, row.key
    return row, f"{end.how}, without a word in its log", row.cause, row.action, row.key


def _followers(others: list[Ended]) -> tuple[Item, ...]:
    """What came after, as consequences: how many, and the first of their lines."""
    if not others:
        return ()
    shown: list[Item] = [Item(plural(len(others), "rank"), others[0].at, "followed")]
    for end in others[:SHOWN_CONSEQUENCES]:
        if end.line is not None:
            shown.append(Item(end.line.place, end.line.wall if end.line.wall is not None else end.at, end.line.text))
        else:
            shown.append(Item(f"rank {end.rank.rank} on {end.rank.node}", end.at, end.how))
    return tuple(shown)


def _of_follower(look: Look, first: First, sheet: Sheet) -> Finding:
    """All that failed only lost a peer, or were asked to end: who was it that they lost?"""
    end = first.ended
    everyone = [end, *first.others]
    complaints = [each for each in everyone if each.pattern is not None]
    row = min((each.pattern for each in complaints if each.pattern), key=lambda p: p.weight, default=BY_ID["K07"])
    lines = tuple(each.line for each in complaints if each.line is not None)[:4]
    culprit, why, sure = _missing(look, everyone)
    title = why or f"{plural(len(everyone), 'rank')} lost a peer or waited in vain, and none says which"
    if not culprit.known:
        sheet.blind(
            "which rank was missing is not known; flight recorders (TORCH_FR_BUFFER_SIZE), the steps of the ranks or"
            " their stacks would tell"
        )
    kernel = Culprit(node=culprit.node, nodes=culprit.nodes)
    nodes = tuple(culprit.nodes) or ((kernel.node,) if kernel.node else tuple(look.involved))
    return Finding(
        row.id, row.step, title, sure, row.cause, row.action, culprit, row.key, lines,
        _followers([each for each in everyone if each.rank.rank != culprit.rank]), at=end.at,
        weight=row.weight, symptom="peer", touches=nodes if sure == "certain" else tuple(look.involved), secondary=True,
    )  # fmt: skip


def _missing(look: Look, everyone: list[Ended]) -> tuple[Culprit, str, Confidence]:
    run = look.run.id if look.run else ""
    for each in everyone:
        named = _BARRIER.search(each.line.text) if each.line else None
        if named and each.rank.rank == 0:
            numbers = [int(number) for number in named[1].split(",")]
            ranks = [look.ranks[number] for number in numbers if number in look.ranks]
            if ranks and len(ranks) == 1:
                return look.rank_culprit(ranks[0]), "never came to the barrier, as rank 0 says", "certain"
            if ranks:
                nodes = tuple(sorted({rank.node for rank in ranks}))
                one = nodes[0] if len(nodes) == 1 else ""
                return (
                    Culprit(node=one, nodes=() if one else nodes, run=run),
                    f"ranks {listed([str(rank.rank) for rank in ranks])} never came to the barrier, as rank 0 says",
                    "certain",
                )  # fmt: skip
    ends = [each.rank.ended_at for each in everyone if each.rank.ended_at is not None]
    left = [
        rank for rank in look.evidence.ranks
        if rank.exit_code == 0 and (rank.ended_at is None or not ends or rank.ended_at <= min(ends) + AFTER_SECONDS)
    ]  # fmt: skip
    if left and 2 * len(left) <= len(look.evidence.ranks):
        return look.rank_culprit(left[0]), "left early with exit code 0 while the others went on", "certain"
    odd = behind(look)
    if odd is not None and odd.kind != "ended":
        one = odd.ranks[0]
        culprit = look.rank_culprit(one) if len(odd.ranks) == 1 else Culprit(
            nodes=tuple(sorted({rank.node for rank in odd.ranks})), run=run
        )  # fmt: skip
        return culprit, f"is behind: {'; '.join(odd.why) or 'its stack differs'}", odd.confidence
    quiet = [each.rank for each in everyone if each.standing == ASKED and each.line is None]
    if len(quiet) == 1 and len(everyone) > 2:
        how = "was killed in the end" if quiet[0].exit_code in (-9, 137) else "was asked to end"
        return (
            look.rank_culprit(quiet[0]),
            f"is behind: all others waited for somebody, it said nothing and {how}",
            "likely",
        )
    spoke = {each.rank.node for each in everyone if each.standing != ASKED}
    silent = {rank.node for rank in look.evidence.ranks if rank.node} - spoke
    if len(silent) == 1 and len(look.involved) > 1:
        return Culprit(node=silent.pop(), run=run), "said nothing while all others waited for somebody", "possible"
    return Culprit(), "", "possible"


def _by_outcome(look: Look, sheet: Sheet) -> None:
    """No rank left anything: what the attempt's driver said has to do."""
    attempt, run = look.attempt, look.run
    if attempt is None or run is None:
        return
    outcome = attempt.outcome
    kind = (outcome.failure if outcome else None) or attempt.failure or run.failure
    reason = (outcome.reason if outcome else "") or attempt.reason or run.reason
    if kind in _NOT_A_FAILURE:
        return
    evidence = outcome.evidence if outcome else ""
    pattern = scan.best(evidence or reason)
    row = pattern or BY_ID[_FOR_KIND.get(kind or Failure.UNKNOWN, "K27")]
    suspects = outcome.suspects if outcome else []
    rank = look.ranks.get(outcome.first_failing_rank) if outcome and outcome.first_failing_rank is not None else None
    node = suspects[0] if len(suspects) == 1 else ""
    several = tuple(suspects) if len(suspects) > 1 else ()
    culprit = look.rank_culprit(rank) if rank else Culprit(
        node=node, rank=outcome.first_failing_rank if outcome and not suspects else None, nodes=several, run=run.id
    )  # fmt: skip
    silence = kind is Failure.SILENCE
    sheet.found(
        Finding(
            "S01" if silence else row.id, CODE if silence else row.step, scan.shown(reason) or row.title,
            "likely" if pattern or suspects else "possible", row.cause, row.action, culprit, row.key,
            (Item("its outcome", attempt.ended_at, scan.shown(evidence or reason)),), at=look.failed_at,
            weight=row.weight, symptom=_BY_KIND.get(kind, "program") if kind else "silent",
            touches=tuple(suspects) or tuple(look.involved), secondary=row.secondary,
        )
    )  # fmt: skip
    if not look.evidence.ranks:
        sheet.blind("the logs of its ranks were not read; they would tell more")


def others_failed(look: Look, sheet: Sheet) -> None:
    """For a node, a GPU or the fleet: the runs that failed there."""
    if look.target.kind == "run":
        return
    for run in look.evidence.runs:
        attempt = run.attempt
        outcome = attempt.outcome if attempt else None
        if attempt is None or outcome is None or outcome.verdict != "failed":
            continue
        kind = outcome.failure or Failure.UNKNOWN
        if kind in _NOT_A_FAILURE:
            continue
        pattern = scan.best(outcome.evidence or outcome.reason)
        suspects = outcome.suspects
        nodes = tuple(suspects or attempt.nodes)
        if look.target.node and nodes and look.target.node not in nodes:
            continue
        row = pattern or BY_ID[_FOR_KIND.get(kind, "K27")]
        sheet.found(
            Finding(
                row.id if pattern or kind is not Failure.APPLICATION else "exception", row.step,
                f"run {run.id} failed: {scan.shown(outcome.reason)}", "likely", row.cause, row.action,
                Culprit(node=suspects[0] if len(suspects) == 1 else "", run=run.id), "i",
                (Item(f"run {run.id}, its outcome", attempt.ended_at, scan.shown(outcome.evidence or outcome.reason)),),
                at=attempt.ended_at or outcome.wall or None, weight=row.weight, symptom=_BY_KIND.get(kind, "program"),
                touches=nodes, secondary=row.secondary,
            )
        )  # fmt: skip


def not_a_number(look: Look, sheet: Sheet) -> None:
    """A loss that stopped being a number, in the run's course or in what its driver noticed."""
    run = look.evidence.run
    attempt = look.attempt
    if run is None or look.run is None:
        return
    row = BY_ID["K32"]
    bad = next((point for point in run.course if point.loss is not None and not math.isfinite(point.loss)), None)
    warnings = attempt.status.warnings if attempt and attempt.status else []
    told = next((text for text in warnings if "not a number" in text or "infinite" in text), "")
    if bad is None and not told:
        if run.course:
            sheet.clear("its loss is a number in all that it reported")
        return
    where = f" at step {bad.step}" if bad else ""
    good = [each.step for each in run.checkpoints if each.complete and (bad is None or each.step < bad.step)]
    action = (
        f"Restart from the checkpoint of step {max(good)} with a lower rate, or without that batch."
        if good
        else row.action
    )
    sheet.found(
        Finding(
            "K32", CODE, f"{row.title}{where}", "certain", row.cause, action, Culprit(run=look.run.id), row.key,
            (Item("its course", bad.wall if bad else None,
            scan.shown(told) or f"loss {bad.loss if bad else 'nan'}{where}"),),
            at=bad.wall if bad else None, weight=row.weight,
        )
    )  # fmt: skip


def spoken(look: Look, sheet: Sheet) -> None:
    """Known lines in the logs of a run that has not failed."""
    if look.failed or (look.run is None and look.target.kind == "run"):
        return
    said: dict[tuple[str, str], list[scan.Hit]] = {}
    for hit in look.rank_hits:
        if hit.pattern.id != "K14":
            said.setdefault((hit.pattern.id, hit.node), []).append(hit)
    for (_, node), found in said.items():
        one = found[0]
        ranks = sorted({hit.rank for hit in found if hit.rank is not None})
        culprit = (
            look.rank_culprit(look.ranks[ranks[0]])
            if len(ranks) == 1
            else Culprit(node=node, run=look.run.id if look.run else "")
        )
        sure: Confidence = "possible" if one.pattern.secondary or look.still_seconds is None else "likely"
        sheet.found(
            Finding(
                one.pattern.id, one.pattern.step, one.pattern.title, sure, one.pattern.cause, one.pattern.action,
                culprit,
                one.pattern.key, tuple(hit.item for hit in found[:3]), at=one.wall, weight=one.pattern.weight,
                secondary=one.pattern.secondary,
                explains=frozenset({"hang"}) - ({"hang"} if one.pattern.secondary else set()),
                moment=one.wall is not None,
            )
        )  # fmt: skip
    if look.evidence.ranks and not said:
        sheet.clear(f"nothing known stands in the logs of {plural(len(look.evidence.ranks), 'rank')}")
