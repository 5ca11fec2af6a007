"""How fast a service answers, from Ray's own metrics: histograms of each node, summed, and the time that they cover.

The entries (proxies) time whole requests, the replicas their own part. Both count since they began: two readings with a
few seconds between tell how it is now.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

REQUEST = "ray_serve_http_request_latency_ms_bucket"
REPLICA = "ray_serve_deployment_processing_latency_ms_bucket"
QUEUED = "ray_serve_deployment_queued_queries"
NAMES = (REQUEST, REPLICA, QUEUED)
"""What is read of a node's metrics."""
PERIOD_SECONDS = 11.0
"""Ray writes its metrics anew every 10 s: after so long another reading differs."""
ENOUGH = 20
"""Of so many answers the slowest twentieth is at least one."""
_LINE = re.compile(r"(\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Buckets = dict[float, float]
"""Upper bound in milliseconds to how many answers took no longer."""


@dataclass(slots=True)
class Figures:
    """One reading of all nodes."""

    requests: dict[str, Buckets] = field(default_factory=dict[str, Buckets])
    """By application."""
    replicas: dict[tuple[str, str], Buckets] = field(default_factory=dict[tuple[str, str], Buckets])
    """By application and replica."""
    queued: dict[str, float] = field(default_factory=dict[str, float])
    """Requests that no replica has taken yet, by application."""

    def take(self, lines: Iterable[str]) -> None:
        """Add what a node tells. What is not as Ray writes it is passed over."""
        for line in lines:
            match = _LINE.fullmatch(line.strip())
            if match is None or match[1] not in NAMES:
                continue
            labels = dict(_LABEL.findall(match[2]))
            application = labels.get("application", "")
            count, bound = _number(match[3]), _number(labels.get("le", "0"))
            if count is None or bound is None or count < 0.0:
                continue
            if match[1] == QUEUED:
                self.queued[application] = self.queued.get(application, 0.0) + count
                continue
            if match[1] == REQUEST:
                buckets = self.requests.setdefault(application, {})
            else:
                buckets = self.replicas.setdefault((application, labels.get("replica", "")), {})
            buckets[bound] = buckets.get(bound, 0.0) + count

    def of(self, application: str) -> Buckets:
        """An application's answers as its entries time them; as its replicas do where only Ray itself calls it."""
        if total(self.requests.get(application, {})):
            return self.requests[application]
        found: Buckets = {}
        for (name, _), buckets in self.replicas.items():
            if name == application:
                for bound, count in buckets.items():
                    found[bound] = found.get(bound, 0.0) + count
        return found


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast answers were, and of how many that is said."""

    p95_milliseconds: float
    answers: int
    seconds: float | None
    """The time that it covers; None: since those who answer began."""


def pace(now: Buckets, earlier: Buckets | None, seconds: float) -> Pace | None:
    """Of the time between two readings where enough was answered in it, else of all that was; None for too few."""
    if earlier is not None:
        lately = {bound: count - earlier.get(bound, 0.0) for bound, count in now.items()}
        # A figure that fell was begun anew in between: then there is no difference to tell of.
        if min(lately.values(), default=-1.0) >= 0.0 and total(lately) >= ENOUGH:
            return Pace(quantile(lately, 0.95), round(total(lately)), seconds)
    return Pace(quantile(now, 0.95), round(total(now)), None) if total(now) >= ENOUGH else None


def total(buckets: Mapping[float, float]) -> float:
    """How many answers there were."""
    return max(buckets.values(), default=0.0)


def quantile(buckets: Mapping[float, float], share: float) -> float:
    """Within how many milliseconds so large a share was answered, even within a bucket, as Prometheus judges it.

    What lies above the last bound is told as that bound. Raises `ValueError` for no answers at all.
    """
    bounds = sorted(buckets)
    wanted = total(buckets) * share
    if wanted <= 0.0:
        raise ValueError("no answers")
    below, counted = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted and buckets[bound] > counted:
            if math.isinf(bound):
                return below
            return below + (bound - below) * (wanted - counted) / (buckets[bound] - counted)
        below, counted = (below if math.isinf(bound) else bound), max(counted, buckets[bound])
    return below


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return None if math.isnan(found) else found
