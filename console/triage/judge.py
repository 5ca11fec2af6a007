"""Gathers and judges: each step is judged as soon as what it rests on is there, and all of it at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from console.sources.session import Session
from console.triage.gather import LIMIT_SECONDS, gather
from jobs.triage.evidence import Evidence, Target
from jobs.triage.findings import StepName, StepResult, Triage
from jobs.triage.report import triage

JUDGED_AT_ONCE_LINES = 4_000
"""With more lines than this a step is not judged before the end: searching them would delay keys."""

Told = Callable[[StepName, str, StepResult | None], None]
"""The step; what is being done for it; its result once it is done and judged."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What was gathered, and what follows from it."""

    evidence: Evidence
    triage: Triage
    seconds: float
    """How long both took."""


def nobody(step: StepName, words: str, result: StepResult | None) -> None:
    """Nobody wants to know how far it is."""
    del step, words, result


async def judge(
    session: Session, target: Target, told: Told = nobody, *, attempt: int | None = None, limit: float = LIMIT_SECONDS
) -> Judged:
    """Gather what there is, and judge it. Raises what `gather` does."""
    began = asyncio.get_running_loop().time()

    def tell(step: StepName, words: str, evidence: Evidence | None) -> None:
        if evidence is None or _lines(evidence) > JUDGED_AT_ONCE_LINES:
            told(step, words or "read", None)
            return
        results = {result.name: result for result in triage(evidence).steps}
        told(step, words, results.get(step))

    evidence = await gather(session, target, tell, attempt=attempt, limit=limit)
    # Nobody writes into the evidence any more, so that a thread may search its logs.
    found = await asyncio.to_thread(triage, evidence)
    return Judged(evidence, found, asyncio.get_running_loop().time() - began)


def _lines(evidence: Evidence) -> int:
    logs = [rank.log for rank in evidence.ranks] + [node.kernel for node in evidence.nodes.values()]
    return sum(len(log) for log in logs)
