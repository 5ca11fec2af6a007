"""Services that answer late: too many requests, one replica on a bad node, or a GPU that waits for the CPU."""

from __future__ import annotations

from statistics import median

from jobs.triage.evidence import Replica, ServeEvidence
from jobs.triage.findings import Confidence, Culprit, Finding, Item, Sheet
from jobs.triage.look import BUSY_PERCENT, IDLE_PERCENT, Look
from jobs.triage.patterns import RESOURCES

TIMES_OTHERS = 3.0
"""A replica so many times slower than the others is told of where nothing was promised."""


def latency(look: Look, sheet: Sheet) -> None:
    """A service that answers later than the cluster file promises, or of which one replica is unlike the others."""
    serve = look.evidence.serve
    if serve is None or serve.p95_milliseconds is None:
        return
    limit = serve.limit_milliseconds
    told = f"95 of 100 answers within {_ms(serve.p95_milliseconds)}{_span(serve)}"
    if limit is not None and serve.p95_milliseconds <= limit:
        sheet.clear(f"{serve.name}: {told}; promised are {_ms(limit)}")
        return
    slow = _slow(serve)
    if limit is None and not slow:
        sheet.checked(f"{serve.name}: {told}; the cluster file promises nothing for it")
        return
    promised = "the cluster file promises nothing" if limit is None else f"promised are {_ms(limit)}"
    culprit, cause, action, key = _why(serve, slow)
    sentence = (
        f"service {serve.name} answers late" if limit is not None else f"a replica of service {serve.name} is late"
    )
    confidence: Confidence = "likely" if limit is not None else "possible"
    items = [Item(f"service {serve.name}", look.now, f"{told}; {promised}")]
    if serve.queued:
        items.append(Item(f"service {serve.name}", look.now, f"{serve.queued:g} requests wait for a replica"))
    timed = sorted((each for each in serve.replicas if each.p95_milliseconds is not None), key=_late, reverse=True)
    items += [Item(f"replica {each.id} on {each.node}", None, _of(each)) for each in timed[:5]]
    sheet.found(Finding("S10", RESOURCES, sentence, confidence, cause, action, culprit, key, tuple(items), weight=40))


def _slow(serve: ServeEvidence) -> list[Replica]:
    """The replicas that break the promise; without one, those that are far slower than the others."""
    timed = [each for each in serve.replicas if each.p95_milliseconds is not None]
    if serve.limit_milliseconds is not None:
        return [each for each in timed if _late(each) > serve.limit_milliseconds]
    found: list[Replica] = []
    for each in timed:
        others = [_late(other) for other in timed if other is not each]
        if others and _late(each) > TIMES_OTHERS * median(others):
            found.append(each)
    return found


def _why(serve: ServeEvidence, slow: list[Replica]) -> tuple[Culprit, str, str, str]:
    """Whose fault it is, in words, what to do, and its key."""
    service = Culprit(path=serve.name)
    known = [each.gpu_percent for each in serve.replicas if each.gpu_percent is not None]
    gpu = max(known, default=None)
    if len(slow) == 1 and len(serve.replicas) > 1:
        return (
            Culprit(node=slow[0].node),
            f"Only replica {slow[0].id} is late: its node is to blame, not the load.",
            "Look at its node; cordon it and have the replica start elsewhere.",
            "C",
        )
    if (serve.queued or 0.0) > 0 and (gpu is None or gpu >= BUSY_PERCENT):
        return service, "More requests than its replicas can take.", "Add replicas, or batch requests.", ""
    if gpu is not None and gpu < 5 * IDLE_PERCENT:
        return (
            service,
            "Its GPUs are hardly used: the time goes into CPU work before and after the model.",
            "Give its replicas more CPUs, or move that work out of the request.",
            "",
        )
    return service, "Not known; a load test at several rates would tell.", "Compare replicas and rates.", ""


def _late(replica: Replica) -> float:
    return replica.p95_milliseconds or 0.0


def _of(replica: Replica) -> str:
    busy = "" if replica.gpu_percent is None else f", its GPU at {replica.gpu_percent:.0f} %"
    return f"95 of 100 within {_ms(_late(replica))}{busy}"


def _span(serve: ServeEvidence) -> str:
    if serve.answers is None:
        return ""
    since = "since it began" if serve.answers_seconds is None else f"in {serve.answers_seconds:.0f} s"
    return f" (of {serve.answers} {since})"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 10_000 else f"{milliseconds:.0f} ms"
