"""What is asked about: a name to a target, the nodes that are asked first, where data lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.sources.session import Session
from console.state.fleet import Node
from jobs.errors import RaydeckError, Refused
from jobs.triage.evidence import Target

if TYPE_CHECKING:
    from jobs.spec import Cluster


def target_of(session: Session, name: str) -> Target:
    """What a person means by a name: a run, a node, ``NODE/GPU``; empty for the whole fleet.

    Raises `Refused` for a GPU that no node has. A name that nobody knows here is taken for a run's: it may be one that
    ended long ago.
    """
    if not name or name == "fleet":
        return Target()
    if name in session.work.runs or name.startswith("run/"):
        return Target("run", name.removeprefix("run/"))
    if name in session.fleet.nodes:
        return Target("node", name)
    node, slash, gpu = name.rpartition("/")
    if slash and node in session.fleet.nodes:
        if not gpu.isdecimal() or int(gpu) not in session.fleet.nodes[node].gpu_indexes:
            raise Refused(f"{node} has no GPU {gpu}", f"It has {len(session.fleet.nodes[node].gpu_indexes)}")
        return Target("gpu", f"{node}/{int(gpu)}")
    return Target("run", name)


def well(node: Node) -> int:
    """0 for a node with something amiss: it is asked first."""
    bad = node.ssh.state != "up" or node.ray.state in ("dead", "absent") or node.driver.state in ("blocked", "error")
    return 0 if bad else 1


def dataset_path(session: Session) -> str:
    """Where the cluster file says that data lies; empty where it does not, or cannot be read any more."""
    cluster = cluster_of(session)
    return cluster.storage.dataset_path if cluster is not None else ""


def promised_milliseconds(session: Session) -> dict[str, float]:
    """Services of which the cluster file says how fast they answer, and that."""
    cluster = cluster_of(session)
    services = cluster.observability.services if cluster is not None else {}
    return {name: promise.p95_milliseconds for name, promise in services.items()}


def cluster_of(session: Session) -> Cluster | None:
    """The cluster file of a context; None without one, or where it cannot be read any more."""
    from jobs.load import load_cluster

    file = session.context.cluster_file
    if file is None:
        return None
    try:
        return load_cluster(file.read_text("utf-8"), str(file))
    except (RaydeckError, OSError, UnicodeDecodeError):
        return None
