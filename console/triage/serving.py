"""A service as evidence, from what Ray Serve tells of its applications. Pure; anything may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from console.triage.latency import Figures, pace
from jobs import raymodel
from jobs.triage.evidence import NodeEvidence, Replica, ServeEvidence
from probes.reading import Sample

_WORST = ("DEPLOY_FAILED", "UNHEALTHY", "DELETING", "DEPLOYING", "NOT_STARTED", "RUNNING")


@dataclass(frozen=True, slots=True)
class Timed:
    """What is known of how fast a cluster's services answer."""

    now: Figures = field(default_factory=Figures)
    earlier: Figures | None = None
    seconds: float = 0.0
    """Between the two."""
    promised: Mapping[str, float] = field(default_factory=dict[str, float])
    """Application to the milliseconds within which 95 of 100 answers shall come, as the cluster file says."""


def serving_nodes(raw: Mapping[str, Any]) -> set[str]:
    """Ray's ids of the nodes on which something is served."""
    found = {str(node_id) for node_id in raymodel.mapping(raw.get("proxies"))}
    for app in raymodel.mapping(raw.get("applications")).values():
        for deployment in raymodel.mapping(raymodel.mapping(app).get("deployments")).values():
            replicas = raymodel.rows(raymodel.mapping(deployment).get("replicas"))
            found |= {raymodel.text(replica, "node_id") for replica in replicas}
    return found - {""}


def serve_evidence(
    raw: Mapping[str, Any],
    names: Mapping[str, str],
    timed: Timed | None = None,
    nodes: Mapping[str, NodeEvidence] | None = None,
) -> ServeEvidence | None:
    """The application that fares worst, or (all run) is latest by its promise; None where nothing is served.

    Args:
        raw: As Ray's dashboard tells of Serve.
        names: Ray's node id to a node's name.
        timed: How fast they answer, where that was read.
        nodes: Where the samples of the replicas' GPUs are.
    """
    applications = {str(name): raymodel.mapping(app) for name, app in raymodel.mapping(raw.get("applications")).items()}
    found = [_of(raw, name, applications, names, timed or Timed(), nodes or {}) for name in applications]
    return min(found, key=_rank, default=None)


def _rank(found: ServeEvidence) -> tuple[int, float, str]:
    late = 0.0
    if found.p95_milliseconds is not None and found.limit_milliseconds is not None:
        late = found.p95_milliseconds / found.limit_milliseconds
    return (_WORST.index(found.status) if found.status in _WORST else len(_WORST), -late, found.name)


def _of(
    raw: Mapping[str, Any],
    name: str,
    applications: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
    timed: Timed,
    nodes: Mapping[str, NodeEvidence],
) -> ServeEvidence:
    app = applications[name]
    found = ServeEvidence(
        name=name,
        status=raymodel.text(app, "status"),
        message=raymodel.text(app, "message"),
        route=raymodel.text(app, "route_prefix"),
        routes=[route for each in applications.values() if (route := raymodel.text(each, "route_prefix"))],
    )
    for node_id, proxy in raymodel.mapping(raw.get("proxies")).items():
        found.proxies[names.get(str(node_id), str(node_id))] = raymodel.text(proxy, "status")
    port = raymodel.number(raymodel.mapping(raw.get("http_options")).get("port"))
    found.port = None if port is None else int(port)
    targets: list[float] = []
    for deployment in raymodel.mapping(app.get("deployments")).values():
        told = raymodel.mapping(deployment)
        wanted = raymodel.number(told.get("target_num_replicas"))
        targets += [] if wanted is None else [wanted]
        for replica in raymodel.rows(told.get("replicas")):
            node_id = raymodel.text(replica, "node_id")
            one = Replica(
                id=raymodel.text(replica, "replica_id"),
                node=names.get(node_id, node_id),
                state=raymodel.text(replica, "state"),
                reason=raymodel.one_line(raymodel.text(told, "message")),
            )
            known = nodes.get(one.node)
            one.gpu_percent = _gpu_percent(known.sample if known else None, raymodel.number(replica.get("pid")))
            part = (name, one.id)
            answers = pace(timed.now.replicas.get(part, {}), _earlier(timed, part), timed.seconds)
            one.p95_milliseconds = answers.p95_milliseconds if answers is not None else None
            found.replicas.append(one)
    found.target_replicas = int(sum(targets)) if targets else None
    _time(found, timed)
    return found


def _earlier(timed: Timed, part: tuple[str, str]) -> dict[float, float] | None:
    # A replica that was not there at the first reading has answered all that it has since then.
    return None if timed.earlier is None else timed.earlier.replicas.get(part, {})


def _time(found: ServeEvidence, timed: Timed) -> None:
    """How fast it answers as a whole."""
    earlier = timed.earlier.of(found.name) if timed.earlier is not None else None
    answers = pace(timed.now.of(found.name), earlier, timed.seconds)
    found.limit_milliseconds = timed.promised.get(found.name)
    found.queued = timed.now.queued.get(found.name)
    if answers is not None:
        found.p95_milliseconds, found.answers = answers.p95_milliseconds, answers.answers
        found.answers_seconds = answers.seconds


def _gpu_percent(sample: Sample | None, pid: float | None) -> float | None:
    """How busy the GPUs are that a replica's process holds memory on; None without one, or where it is not known."""
    if sample is None or pid is None:
        return None
    held = {process.device for process in sample.processes if process.pid == pid}
    shown = [sample.reading(device, "utilization_percent") for device in held]
    return max((float(each) for each in shown if isinstance(each, (int, float))), default=None)
