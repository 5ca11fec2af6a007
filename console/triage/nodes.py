"""A node as evidence: what the session knows of it already, and what it says itself when it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from console.sources.session import Session
from console.state.fleet import Node
from console.state.fleet import Truth as Known
from console.triage.asked import Answer, Answers, Task
from console.triage.times import dated
from jobs.triage.evidence import FileEvidence, LogLine, NodeEvidence, PortEvidence, Truth

KERNEL_LINES = 1_000
RAYLET_LINES = 400
CONNECT_SECONDS = 2.0
RAY_GONE = ("dead", "absent")


@dataclass(slots=True)
class Machine:
    """What one round of questions to a node brought beside its evidence."""

    answers: Answers
    ahead: float
    """Its clock less the head's."""
    raylet: dict[str, Any] = field(default_factory=dict[str, Any])
    """As `console.triage.remote.machine` tells it; empty without one."""

    @property
    def uid(self) -> int | None:
        """Who Ray is there, and with it every rank; None where no raylet runs."""
        found = self.raylet.get("uid")
        return found if isinstance(found, int) else None

    def lines(self, value: Any) -> list[LogLine]:
        """A log that was read there, as lines with places and times."""
        return dated(
            [str(text) for text in value.get("lines", [])],
            value.get("first"),
            value.get("modified"),
            self.answers.utc_offset_seconds,
            self.ahead,
            self.answers.wall,
        )


def ahead_of_head(session: Session, node: Node) -> float | None:
    """A node's clock less the head's; None where it was not measured."""
    if node.role == "head":
        return None if node.clock_offset_seconds is None else 0.0
    return None if node.clock_offset_seconds is None else node.clock_offset_seconds - session.work.clock_offset_seconds


def from_store(session: Session, node: Node) -> NodeEvidence:
    """A node as the session knows it, every time by the head's clock."""
    ahead = ahead_of_head(session, node)
    view = session.work.nodes.of(node)

    def truth(known: Known, states: dict[str, str]) -> Truth:
        since = session.head_wall() - (session.now() - known.since) if known.since else None
        return Truth(states.get(known.state, known.state), known.reason, since)

    return NodeEvidence(
        name=node.name,
        address=node.address,
        role=node.role,
        ssh=truth(node.ssh, {"none": "unknown", "connecting": "unknown"}),
        ray=truth(node.ray, {}),
        driver=truth(node.driver, {}),
        facts=node.facts,
        sample=node.sample,
        health=node.health,
        events=[replace(event, wall=event.wall - (ahead or 0.0) if event.wall else 0.0) for event in node.events],
        clock_offset_seconds=ahead,
        holds=list(view.holds) if view is not None else [],
        expected_gpus=node.expected_gpus,
        ray_gpus_total=node.ray_gpus_total,
        ray_gpus_used=node.ray_gpus_used,
        runs=session.work.runs_on(node.ray_node_id) if node.ray_node_id else [],
    )


def questions(node: Node) -> list[Task]:
    """What every node is asked."""
    latest = node.ray.state in RAY_GONE
    named = {"node_id": node.ray_node_id, "name": node.name, "latest": latest, "lines": RAYLET_LINES}
    return [Task("machine", named), Task("kernel", {"lines": KERNEL_LINES})]


def take(evidence: NodeEvidence, answers: Answers) -> Machine:
    """The answers to `questions`, put where they belong."""
    told, kernel = answers.answers[0], answers.answers[1]
    machine = Machine(answers, evidence.clock_offset_seconds or 0.0)
    if isinstance(told.value, dict):
        value: dict[str, Any] = told.value
        found = value.get("raylet")
        machine.raylet = dict(found) if isinstance(found, dict) else {}
        evidence.versions = {str(name): str(version) for name, version in dict(value.get("versions") or {}).items()}
        evidence.raylet = machine.lines({"lines": value.get("log", [])})
    else:
        evidence.unread.append(f"its Ray could not be looked at: {told.reason}")
    if isinstance(kernel.value, list):
        evidence.kernel = [
            LogLine(str(text), float(wall) - machine.ahead)
            for wall, text in kernel.value
            if isinstance(wall, (int, float))
        ]
    else:
        evidence.unread.append(f"its kernel's log may not be read: {kernel.reason}")
    return machine


# --- paths and ports --------------------------------------------------------------------------------------------------


def path_questions(paths: Iterable[tuple[str, str]], uid: int | None) -> list[Task]:
    """How the paths (each with its purpose) stand on a node, for the user that has to use them."""
    return [Task("path", {"path": path, "uid": uid}) for path, _ in paths]


def take_paths(node: str, paths: Sequence[tuple[str, str]], answers: Sequence[Answer]) -> list[FileEvidence]:
    """The answers to `path_questions`."""
    found: list[FileEvidence] = []
    for (path, purpose), answer in zip(paths, answers, strict=True):
        value: dict[str, Any] = answer.value if isinstance(answer.value, dict) else {}
        found.append(
            FileEvidence(
                path=path,
                node=node,
                purpose=purpose,
                exists=value.get("exists"),
                owner=str(value.get("owner", "")),
                mode=str(value.get("mode", "")),
                user=str(value.get("user", "")),
                readable=value.get("readable"),
                writable=value.get("writable"),
                free_bytes=value.get("free"),
                total_bytes=value.get("total"),
                inodes_free=value.get("inodes_free"),
                reason=answer.reason,
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Way:
    """One port of one node, to be tried from another one."""

    source: str
    node: str
    host: str
    port: int
    purpose: str


def ways(machines: dict[str, Machine], between: Sequence[str], head: str) -> list[Way]:
    """What the nodes must reach: Ray's head from each, and among the nodes of a run each other's raylet."""
    found: list[Way] = []
    addresses = [str(each.raylet.get("gcs_address", "")) for each in machines.values() if each.raylet]
    for source in machines:
        host, _, port = next((address for address in addresses if address), "").rpartition(":")
        if port.isdecimal():
            found.append(Way(source, head, host, int(port), "Ray's head"))
    for source in between:
        for other in between:
            raylet = machines[other].raylet if other in machines else {}
            host, port = str(raylet.get("node_ip_address", "")), str(raylet.get("node_manager_port", ""))
            if source != other and source in machines and host and port.isdecimal() and int(port):
                found.append(Way(source, other, host, int(port), "Ray's node manager"))
    return found


def way_questions(tried: Sequence[Way]) -> list[Task]:
    """One try of each."""
    return [Task("connect", {"host": way.host, "port": way.port, "seconds": CONNECT_SECONDS}) for way in tried]


def take_ways(tried: Sequence[Way], answers: Sequence[Answer]) -> list[PortEvidence]:
    """The answers to `way_questions`."""
    return [
        PortEvidence(way.source, way.node, way.port, str(answer.value.get("result", "")), way.purpose,
                     answer.value.get("milliseconds"))
        for way, answer in zip(tried, answers, strict=True)
        if isinstance(answer.value, dict)
    ]  # fmt: skip
