"""A service as evidence, from what Ray Serve tells of its applications. Pure; anything may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs import raymodel
from jobs.triage.evidence import Replica, ServeEvidence

_WORST = ("DEPLOY_FAILED", "UNHEALTHY", "DELETING", "DEPLOYING", "NOT_STARTED", "RUNNING")


def serve_evidence(raw: Mapping[str, Any], nodes: Mapping[str, str]) -> ServeEvidence | None:
    """The application that fares worst; None where nothing is served. ``nodes``: Ray's node id to a node's name."""
    applications = {str(name): raymodel.mapping(app) for name, app in raymodel.mapping(raw.get("applications")).items()}
    if not applications:
        return None

    def rank(name: str) -> tuple[int, str]:
        status = raymodel.text(applications[name], "status")
        return (_WORST.index(status) if status in _WORST else len(_WORST), name)

    name = min(applications, key=rank)
    app = applications[name]
    found = ServeEvidence(
        name=name,
        status=raymodel.text(app, "status"),
        message=raymodel.text(app, "message"),
        route=raymodel.text(app, "route_prefix"),
        routes=[route for each in applications.values() if (route := raymodel.text(each, "route_prefix"))],
    )
    for node_id, proxy in raymodel.mapping(raw.get("proxies")).items():
        found.proxies[nodes.get(str(node_id), str(node_id))] = raymodel.text(proxy, "status")
    port = raymodel.number(raymodel.mapping(raw.get("http_options")).get("port"))
    found.port = None if port is None else int(port)
    targets: list[float] = []
    for deployment in raymodel.mapping(app.get("deployments")).values():
        told = raymodel.mapping(deployment)
        wanted = raymodel.number(told.get("target_num_replicas"))
        targets += [] if wanted is None else [wanted]
        for replica in raymodel.rows(told.get("replicas")):
            node_id = raymodel.text(replica, "node_id")
            found.replicas.append(
                Replica(
                    id=raymodel.text(replica, "replica_id"),
                    node=nodes.get(node_id, node_id),
                    state=raymodel.text(replica, "state"),
                    reason=raymodel.one_line(raymodel.text(told, "message")),
                )
            )
    found.target_replicas = int(sum(targets)) if targets else None
    return found
