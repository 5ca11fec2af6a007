"""What each GPU measured by itself, judged: right or wrong, and its rates beside its like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jobs.validation.criteria import judge_rate, majority, peers_of
from jobs.validation.measured import Measured
from jobs.validation.plan import BY_ID, FIGURES
from jobs.validationview import CheckResult, Culprit, Figure, Verdict, worst

Reference = Mapping[str, tuple[float | None, float | None]]
"""Figure to its floor and its baseline."""


@dataclass(frozen=True, slots=True)
class GpuRan:
    """One GPU's process, and what it told."""

    node: str
    gpu: int
    model: str = ""
    results: Sequence[Measured] = ()
    unfinished: str = ""
    """The check that it was at when it ended."""
    exit_code: int | None = 0
    """None: its time was up."""
    tail: str = ""
    lost: str = ""
    """Why nothing is known of it: its node went away."""
    reference: Reference = field(default_factory=dict[str, tuple[float | None, float | None]])

    @property
    def name(self) -> str:
        """``node/gpu``."""
        return f"{self.node}/{self.gpu}"


def judge(wanted: Sequence[str], gpus: Sequence[GpuRan], stand_in: bool) -> list[CheckResult]:
    """Each check that was wanted (ids), on each GPU."""
    found: list[CheckResult] = []
    for check in wanted:
        told = {gpu.name: _of(gpu, check) for gpu in gpus}
        odd = _odd_digests(gpus, told)
        # What stands in for the GPUs of a node are the same processors: one is not the other's like.
        peers = {} if stand_in else _peers(gpus, told)
        found += [_one(check, gpu, told[gpu.name], odd, peers, stand_in) for gpu in gpus]
    return found


def _of(gpu: GpuRan, check: str) -> Measured | None:
    return next((each for each in gpu.results if each.check == check and each.gpu == gpu.gpu), None)


def _odd_digests(gpus: Sequence[GpuRan], told: Mapping[str, Measured | None]) -> dict[str, str]:
    """GPUs whose result is right by its own proof and yet not that of most of its like: by name, a sentence."""
    groups: dict[str, dict[str, str]] = {}
    for gpu in gpus:
        measured = told[gpu.name]
        if measured is not None and measured.right and "digest" in measured.facts:
            alike = groups.setdefault(str(measured.facts.get("libs", "")), {})
            alike[gpu.name] = str(measured.facts["digest"])
    found: dict[str, str] = {}
    for alike in groups.values():
        common, odd = majority(alike)
        if common is not None:
            for name in odd:
                found[name] = f"its result is not that of {len(alike) - len(odd)} GPUs of its kind"
    return found


def _peers(gpus: Sequence[GpuRan], told: Mapping[str, Measured | None]) -> dict[tuple[str, str], float]:
    """By GPU and figure: what its like have, where there are enough of them."""
    groups: dict[tuple[str, str], dict[str, float]] = {}
    for gpu in gpus:
        measured = told[gpu.name]
        for figure, samples in measured.figures.items() if measured is not None else ():
            if samples:
                value = Figure(name=figure, unit="", samples=samples).value
                groups.setdefault((gpu.model, figure), {})[gpu.name] = value
    return {(name, figure): value for (_, figure), values in groups.items() for name, value in peers_of(values).items()}


def _one(
    check: str,
    gpu: GpuRan,
    measured: Measured | None,
    odd: Mapping[str, str],
    peers: Mapping[tuple[str, str], float],
    stand_in: bool,
) -> CheckResult:
    plan = BY_ID[check]
    blame = [Culprit(kind="gpu", nodes=[gpu.node], gpu=gpu.gpu)]
    made = CheckResult(
        check=check, title=plan.title, stage="gpu", node=gpu.node, gpu=gpu.gpu, verdict="pass", sentence="",
        criterion=plan.passes, stand_in=stand_in and bool(plan.hardware),
    )  # fmt: skip
    if measured is None:
        return made.model_copy(update=_not_told(check, gpu, blame))
    made.seconds, made.evidence = measured.seconds, measured.evidence
    made.facts = {name: value for name, value in measured.facts.items() if name != "libs"}
    if measured.skipped:
        return made.model_copy(update={"verdict": "skipped", "sentence": measured.skipped})
    figures = [_figure(name, samples, gpu, peers) for name, samples in measured.figures.items() if samples]
    made.figures = figures
    if wrong := measured.wrong or odd.get(gpu.name, ""):
        return made.model_copy(update={"verdict": "fail", "sentence": wrong, "culprits": blame})
    judged = [judge_rate(figure, stand_in) for figure in figures if FIGURES[figure.name].compared]
    verdict: Verdict = worst([*(each for each, _ in judged), "warn" if measured.warned else "pass"])
    shown = [f"{FIGURES[each.name].title} {each.value:.3g} {each.unit}" for each in figures]
    criteria = list(dict.fromkeys(words for _, words in judged)) or [plan.passes]
    return made.model_copy(
        update={
            "verdict": verdict,
            "sentence": measured.warned or "; ".join(shown) or plan.passes,
            "criterion": "; ".join(criteria),
            "culprits": blame if verdict == "fail" else [],
        }
    )


def _figure(name: str, samples: list[float], gpu: GpuRan, peers: Mapping[tuple[str, str], float]) -> Figure:
    kind, (floor, baseline) = FIGURES[name], gpu.reference.get(name, (None, None))
    return Figure(
        name=name, unit=kind.unit, samples=samples, higher_is_better=kind.higher_is_better, floor=floor,
        baseline=baseline, peers=peers.get((gpu.name, name)),
    )  # fmt: skip


def _not_told(check: str, gpu: GpuRan, blame: list[Culprit]) -> dict[str, object]:
    """A check that did not come to its end."""
    if gpu.lost:
        return {"verdict": "unknown", "sentence": f"{gpu.node} was lost: {gpu.lost}"}
    if gpu.unfinished != check:
        return {"verdict": "unknown", "sentence": "it was not come to: an earlier check ended the process"}
    lines = gpu.tail.splitlines()[-6:]
    if gpu.exit_code is None:
        return {"verdict": "fail", "sentence": "it hung, and was ended", "culprits": blame, "evidence": lines}
    how = f"signal {-gpu.exit_code}" if gpu.exit_code < 0 else f"exit code {gpu.exit_code}"
    return {"verdict": "fail", "sentence": f"its process ended with {how}", "culprits": blame, "evidence": lines}
