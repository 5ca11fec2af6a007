"""Ranks that were checked together, judged: who is missing, dead or hung; what is wrong; which link or node is slow.

What a rank says of another one's death or hang names nobody, so the judge looks at who ended first and how, and at the
barrier's list, and takes the words of the rest for consequences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from jobs.validation import culprit as culprits
from jobs.validation.criteria import judge_rate
from jobs.validation.measured import Measured
from jobs.validation.plan import BY_ID, FIGURES
from jobs.validationview import VERDICTS, CheckResult, Culprit, Figure, StageName, Verdict, worst

_MISSING = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier")
_TIMEOUT = "Timeout (0:"
"""How `faulthandler` begins what it writes before it ends a process."""
LOST_PACKET_MICROSECONDS = 50_000.0
"""TCP waits 200 ms at the least before it sends again: a slowest answer beyond this has lost packets, or a dead CPU."""
LOST_PACKETS = 3
"""So many packets that TCP had to send again, of a few hundred, are no accident."""
JITTER_WARN, JITTER_FAIL = 3.0, 10.0
EVIDENCE_LINES = 6


@dataclass(frozen=True, slots=True)
class RankRan:
    """One rank's process, and what it told."""

    node: str
    local: int
    results: Sequence[Measured] = ()
    unfinished: str = ""
    """The check that it was at when it ended."""
    exit_code: int | None = 0
    """None: its time was up. Negative: a signal."""
    tail: str = ""
    lost: str = ""
    """Why nothing is known of it: its node went away."""

    @property
    def hung(self) -> bool:
        """Its time was up: somebody ended it, or it ended itself and wrote down where it stood."""
        return self.exit_code is None or (self.exit_code == 1 and _TIMEOUT in self.tail)


@dataclass(slots=True)
class Judged:
    """What comes of it."""

    checks: list[CheckResult] = field(default_factory=list[CheckResult])
    unreached: list[str] = field(default_factory=list[str])
    """Checks that it did not come to."""
    to_blame: list[str] = field(default_factory=list[str])
    """Nodes without which it may go better."""
    measure_again: list[str] = field(default_factory=list[str])
    """Checks whose figure is bad, and that have to be measured once more before that counts."""


def judge(
    stage: StageName,
    wanted: Sequence[str],
    ranks: Sequence[RankRan],
    stand_in: bool,
    reference: Mapping[str, tuple[float | None, float | None]],
) -> Judged:
    """Every check that was wanted (ids), in order.

    ``reference``: figure to its floor and its baseline. Checks after one that was cut short were not reached.
    """
    found = Judged()
    for at, check in enumerate(wanted):
        told = {rank: _of(ran, check) for rank, ran in enumerate(ranks)}
        if (cut := _cut_short(check, ranks, told)) is not None:
            found.checks.append(_result(stage, check, "fail", cut.sentence, ranks, stand_in, [cut.culprit], cut.lines))
            found.to_blame = [node for node in cut.culprit.nodes if node]
            found.unreached = list(wanted[at + 1 :])
            return found
        results = {rank: measured for rank, measured in told.items() if measured is not None}
        _one(found, stage, check, ranks, results, stand_in, reference)
    return found


# --- who broke it off -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cut:
    sentence: str
    culprit: Culprit
    lines: list[str]


def _of(ran: RankRan, check: str) -> Measured | None:
    return next((measured for measured in ran.results if measured.check == check), None)


def _cut_short(check: str, ranks: Sequence[RankRan], told: Mapping[int, Measured | None]) -> _Cut | None:
    """Whether the check did not come to its end on all ranks, and who is to blame for that."""
    open_ranks = [rank for rank, measured in told.items() if measured is None or measured.broken]
    if not open_ranks:
        return None
    title = BY_ID[check].title
    broken = {rank: measured for rank, measured in told.items() if measured is not None and measured.broken}
    lines = [f"rank {rank} on {ranks[rank].node}: {each.wrong}" for rank, each in broken.items()]
    silent = [rank for rank in open_ranks if rank not in broken]
    for rank in silent:  # a node that went away explains all the rest
        if ranks[rank].lost:
            return _cut(f"{ranks[rank].node} was lost at “{title}”: {ranks[rank].lost}", ranks, [rank], lines)
    for rank in silent:
        code = ranks[rank].exit_code
        if code is not None and code != 0 and not ranks[rank].hung:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            return _cut(f"rank {rank} on {ranks[rank].node} {how} at “{title}”", ranks, [rank], lines)
    missing = _missing(broken)
    hung = [rank for rank in silent if ranks[rank].hung]
    # Where only some hang, it is they; where all do, the barrier's list is all there is.
    named = hung if hung and len(hung) < len(ranks) else missing
    if named:
        where = ", ".join(f"rank {rank} on {ranks[rank].node}" for rank in named)
        come = "did" if hung else "did not come to"
        verb = f"hung at “{title}”" if hung else f"{come} “{title}”"
        return _cut(f"{where} {verb}", ranks, named, lines)
    if len(broken) == 1 and not silent:
        rank, only = next(iter(broken.items()))
        return _cut(f"rank {rank} on {ranks[rank].node} failed at “{title}”: {only.wrong}", ranks, [rank], lines)
    everyone = ", ".join(dict.fromkeys(ran.node for ran in ranks))
    words = f"{everyone} do not come through “{title}” together, and none of them alone is to blame"
    return _Cut(words, Culprit(kind="cluster", detail=title), lines)


def _missing(broken: Mapping[int, Measured]) -> list[int]:
    for measured in broken.values():
        if match := _MISSING.search(" ".join([measured.wrong, *measured.evidence])):
            return [int(rank) for rank in match[1].split(",")]
    return []


def _cut(sentence: str, ranks: Sequence[RankRan], named: Sequence[int], lines: list[str]) -> _Cut:
    nodes = list(dict.fromkeys(ranks[rank].node for rank in named))
    tails = [f"{ranks[rank].node}: {line}" for rank in named for line in ranks[rank].tail.splitlines()[-3:]]
    kind = "node" if len(nodes) == 1 else "cluster"
    return _Cut(sentence, Culprit(kind=kind, nodes=nodes), [*lines[:EVIDENCE_LINES], *tails])


# --- what came to its end ---------------------------------------------------------------------------------------------


def _one(
    found: Judged,
    stage: StageName,
    check: str,
    ranks: Sequence[RankRan],
    results: Mapping[int, Measured],
    stand_in: bool,
    reference: Mapping[str, tuple[float | None, float | None]],
) -> None:
    wrong = {rank: measured for rank, measured in results.items() if measured.wrong}
    if wrong:
        first = next(iter(wrong.values()))
        odd: list[int] = first.facts.get("odd") or (list(wrong) if len(wrong) * 2 < len(ranks) else [])
        nodes = list(dict.fromkeys(ranks[each].node for each in odd))
        blame = [Culprit(kind="node", nodes=[node]) for node in nodes] or [Culprit(kind="cluster", detail=check)]
        if file := first.facts.get("file"):
            blame = [Culprit(kind="file", detail=str(file))]
            nodes = []
        lines = [f"rank {rank} on {ranks[rank].node}: {line}" for rank, each in wrong.items() for line in each.evidence]
        found.checks.append(
            _result(stage, check, "fail", first.wrong, ranks, stand_in, blame, lines[:EVIDENCE_LINES], results)
        )
        found.to_blame += nodes
        return
    name = check.partition(".")[2]
    if name in ("pairs", "latency"):
        _links(found, stage, check, ranks, results, stand_in)
        return
    if name == "straggler":
        _straggler(found, stage, check, ranks, results, stand_in)
        return
    figures = _figures(results[0], reference)
    verdict: Verdict = "pass"
    criteria: list[str] = []
    sentences: list[str] = []
    for figure in figures:
        if figure.name == "jitter":
            one: Verdict = "fail" if figure.value > JITTER_FAIL else "warn" if figure.value > JITTER_WARN else "pass"
            criteria.append(f"warn above {JITTER_WARN:g}, fail above {JITTER_FAIL:g}")
        elif FIGURES[figure.name].compared:
            one, words = judge_rate(figure, stand_in)
            criteria.append(words)
        else:
            one = "pass"
        sentences.append(f"{FIGURES[figure.name].title} {figure.value:.3g} {figure.unit}")
        verdict = worst([verdict, one])
    if verdict != "pass":
        found.measure_again.append(check)
    sentence = "; ".join(sentences) or f"{BY_ID[check].passes}, on {len(ranks)} ranks"
    made = _result(stage, check, verdict, sentence, ranks, stand_in, [], [], results)
    found.checks.append(made.model_copy(update={"figures": figures, "criterion": "; ".join(dict.fromkeys(criteria))}))


def _figures(measured: Measured, reference: Mapping[str, tuple[float | None, float | None]]) -> list[Figure]:
    found: list[Figure] = []
    for name, samples in measured.figures.items():
        kind, (floor, baseline) = FIGURES[name], reference.get(name, (None, None))
        found.append(
            Figure(
                name=name, unit=kind.unit, samples=samples, higher_is_better=kind.higher_is_better, floor=floor,
                baseline=baseline,
            )
        )  # fmt: skip
    return found


def _links(
    found: Judged,
    stage: StageName,
    check: str,
    ranks: Sequence[RankRan],
    results: Mapping[int, Measured],
    stand_in: bool,
) -> None:
    """Each link is as good as its worse end says."""
    if check.endswith(".pairs"):
        rates = _edges(ranks, results, "edges", min)
        blame = culprits.score(rates, low=culprits.CPU_LOW if stand_in else culprits.LOW)
        unit, figure, shown = "GB/s", "link", rates
    else:
        slowest = _edges(ranks, results, "p99", max)
        lost = _edges(ranks, results, "lost", sum)
        lossy = {
            edge: 0.01 if slow >= LOST_PACKET_MICROSECONDS or lost.get(edge, 0) >= LOST_PACKETS else 1.0
            for edge, slow in slowest.items()
        }
        blame = culprits.score(lossy, reference=1.0)
        unit, figure, shown = "µs", "latency", _edges(ranks, results, "p50", max)
    better = FIGURES[figure].higher_is_better
    slowest_link = (min if better else max)(shown, key=lambda edge: shown[edge], default=None)
    usual = median(shown.values()) if shown else 0.0
    if slowest_link is None:
        found.checks.append(_result(stage, check, "unknown", "no link was measured", ranks, stand_in, [], [], results))
        return
    named = " ↔ ".join(slowest_link)
    sentence = f"{len(shown)} links, usually {usual:.3g} {unit}, the worst {shown[slowest_link]:.3g} ({named})"
    if blame:
        sentence = f"{' and '.join(each.words for each in blame)}: unlike the other links ({sentence})"
        found.measure_again.append(check)
        found.to_blame += [node for each in blame if each.kind == "node" for node in each.nodes]
    lines = [f"{' ↔ '.join(edge)}: {value:.3g} {unit}" for edge, value in sorted(shown.items(), key=lambda x: x[1])]
    made = _result(stage, check, "fail" if blame else "pass", sentence, ranks, stand_in, blame, lines[:12], results)
    made.facts["links"] = [[*edge, value] for edge, value in shown.items()]
    made.figures = [Figure(name=figure, unit=unit, samples=list(shown.values()), higher_is_better=better)]
    found.checks.append(made)


def _edges(
    ranks: Sequence[RankRan],
    results: Mapping[int, Measured],
    fact: str,
    worse: Callable[[list[float]], float],
) -> dict[tuple[str, str], float]:
    """By the sorted pair of nodes (of one node: of its ranks): the worse of both ends, and of all rails."""
    found: dict[tuple[str, str], list[float]] = {}
    alone = len({ran.node for ran in ranks}) == 1
    for rank, measured in results.items():
        mine = f"{ranks[rank].node}/{ranks[rank].local}" if alone else ranks[rank].node
        for other, value in dict(measured.facts.get(fact, {})).items():
            first, second = sorted((mine, str(other)))
            found.setdefault((first, second), []).append(float(value))
    return {edge: worse(values) for edge, values in found.items()}


def _straggler(
    found: Judged,
    stage: StageName,
    check: str,
    ranks: Sequence[RankRan],
    results: Mapping[int, Measured],
    stand_in: bool,
) -> None:
    named = {rank: f"rank {rank} on {ranks[rank].node}" for rank in results}
    slow = culprits.straggler(
        {named[rank]: each.facts["compute"] for rank, each in results.items()},
        {named[rank]: each.facts["waiting"] for rank, each in results.items()},
        stand_in,
    )
    lines = [
        f"{named[rank]}: works {median(each.facts['compute']) * 1000:.1f} ms, "
        f"waits {median(each.facts['waiting']) * 1000:.1f} ms"
        for rank, each in results.items()
    ]
    if slow is None:
        sentence = f"none of {len(ranks)} ranks works longest and waits least"
        found.checks.append(_result(stage, check, "pass", sentence, ranks, stand_in, [], lines[:12], results))
        return
    rank = next(rank for rank, name in named.items() if name == slow[0])
    node = ranks[rank].node
    blame = (
        Culprit(kind="node", nodes=[node])
        if stage == "cluster" or stand_in
        else Culprit(kind="gpu", nodes=[node], gpu=ranks[rank].local)
    )
    found.measure_again.append(check)
    found.to_blame.append(node)
    found.checks.append(_result(stage, check, "fail", slow[1], ranks, stand_in, [blame], lines[:12], results))


def _result(
    stage: StageName,
    check: str,
    verdict: Verdict,
    sentence: str,
    ranks: Sequence[RankRan],
    stand_in: bool,
    blame: Sequence[Culprit],
    evidence: Sequence[str],
    results: Mapping[int, Measured] | None = None,
) -> CheckResult:
    nodes = list(dict.fromkeys(ran.node for ran in ranks))
    facts = dict(results[0].facts) if results and 0 in results else {}
    for private in ("compute", "waiting", "edges", "p50", "p99", "lost", "bad"):
        facts.pop(private, None)
    return CheckResult(
        check=check, title=BY_ID[check].title, stage=stage, node=nodes[0] if len(nodes) == 1 else "", verdict=verdict,
        sentence=sentence, criterion=BY_ID[check].passes, evidence=list(evidence), culprits=list(blame),
        stand_in=stand_in and bool(BY_ID[check].hardware),
        seconds=max((each.seconds for each in (results or {}).values()), default=0.0), facts=facts,
    )  # fmt: skip


# --- measured again ---------------------------------------------------------------------------------------------------


def better(first: Judged, second: Judged) -> Judged:
    """What was bad is bad if it was so twice: of a check that was measured again the better result counts."""
    by_check = {check.check: check for check in second.checks}
    kept: list[CheckResult] = []
    for check in first.checks:
        again = by_check.get(check.check)
        if again is None or check.check not in first.measure_again:
            kept.append(check)
            continue
        better = again if VERDICTS.index(again.verdict) > VERDICTS.index(check.verdict) else check
        kept.append(better.model_copy(update={"again": True}))
    still = {node for check in kept if check.verdict == "fail" for each in check.culprits for node in each.nodes}
    blamed = [node for node in dict.fromkeys([*first.to_blame, *second.to_blame]) if node in still]
    return Judged(kept, first.unreached, blamed)
