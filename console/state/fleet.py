"""What is known of every node and accelerator, from SSH and from Ray; no I/O, no clock of its own.

Three truths are kept apart: SSH reaches the node, Ray thinks it is alive, its driver answers. One is never taken for
another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from console.state.history import History
from jobs.raymodel import RayNode
from probes.reading import (
    DRIVER_BLOCKED,
    DRIVER_OK,
    ERROR,
    DeviceFacts,
    Driver,
    Event,
    Facts,
    Health,
    Missing,
    Reading,
    Sample,
)

HISTORY_COLUMNS = ("utilization_percent", "memory_percent", "power_watts", "temperature_celsius")
STALE_AFTER_SECONDS = 3.0
CLOCK_OFFSET_SHOWN_SECONDS = 1.0
FULL_DISK_FRACTION = 0.95
EVENTS_KEPT = 200
SAME_EVENT_SECONDS = 2.0
"""A probe that is started again tells of the last minutes again, with times that differ by how well it knows them."""


@dataclass(slots=True)
class Truth:
    """One of the three: a word, why, and since when (monotonic seconds of this machine)."""

    state: str
    reason: str = ""
    since: float = 0.0

    def move(self, state: str, reason: str, at: float) -> bool:
        """Take a new state; true if anything is different."""
        if (state, reason) == (self.state, self.reason):
            return False
        if state != self.state:
            self.since = at
        self.state, self.reason = state, reason
        return True


@dataclass(slots=True)
class Node:
    """One machine as it is known now."""

    name: str
    address: str
    role: str = "worker"
    expected_gpus: int | None = None
    ssh: Truth = field(default_factory=lambda: Truth("connecting"))
    ray: Truth = field(default_factory=lambda: Truth("unknown"))
    driver: Truth = field(default_factory=lambda: Truth("unknown"))
    facts: Facts | None = None
    sample: Sample | None = None
    sampled_at: float | None = None
    """When the newest sample arrived, monotonic seconds of this machine."""
    health: Health | None = None
    """The newest that the probe told beside its samples. Its events are in ``events``, with those before."""
    health_at: float | None = None
    """When that arrived, monotonic seconds of this machine."""
    events: list[Event] = field(default_factory=list)
    """What the kernel and the driver told, the newest `EVENTS_KEPT`, in the order in which it came."""
    clock_offset_seconds: float | None = None
    round_trip_ms: float | None = None
    ray_node_id: str = ""
    ray_address: str = ""
    ray_gpus_total: float | None = None
    ray_gpus_used: float | None = None
    ray_cpus_total: float | None = None
    ray_cpus_used: float | None = None
    ray_labels: dict[str, str] = field(default_factory=dict)
    history: dict[int, dict[str, History]] = field(default_factory=dict)
    """Device index to column (``HISTORY_COLUMNS``) to its last ten minutes."""

    @property
    def simulated(self) -> bool:
        """Its accelerators are made up."""
        return self.facts is not None and self.facts.source == "simulated"

    def age_seconds(self, now: float) -> float | None:
        """How old the newest sample is; none if there never was one."""
        return None if self.sampled_at is None else max(0.0, now - self.sampled_at)

    def figures_age_seconds(self, now: float) -> float | None:
        """How old the accelerators' figures are: older than the sample while the driver blocks."""
        age = self.age_seconds(now)
        return None if age is None or self.sample is None else age + self.sample.devices_age_seconds

    def stale(self, now: float) -> bool:
        """The accelerators' figures are too old to be called live."""
        age = self.figures_age_seconds(now)
        return age is None or age > STALE_AFTER_SECONDS

    @property
    def gpu_indexes(self) -> list[int]:
        """The indexes of its accelerators, as far as the probe or Ray tells."""
        if self.facts is not None:
            return [device.index for device in self.facts.devices]
        count = self.expected_gpus if self.expected_gpus is not None else int(self.ray_gpus_total or 0)
        return list(range(count))

    def device(self, index: int) -> DeviceFacts | None:
        """What seldom changes of one accelerator."""
        if self.facts is not None:
            for device in self.facts.devices:
                if device.index == index:
                    return device
        return None

    def reading(self, index: int, column: str) -> Reading:
        """One figure of one accelerator: its newest value, or why there is none. Whether it is stale, `stale` tells."""
        return Missing(ERROR, self.missing_because) if self.sample is None else self.sample.reading(index, column)

    def memory_percent(self, index: int) -> float | None:
        """How full an accelerator's memory is."""
        device = self.device(index)
        if self.sample is None or device is None or not device.memory_total_bytes:
            return None
        used = self.sample.reading(index, "memory_used_bytes")
        return None if isinstance(used, (Missing, str)) else 100.0 * used / device.memory_total_bytes

    @property
    def can_rejoin(self) -> bool:
        """SSH reaches it and Ray has it no longer: Ray can be started there again."""
        return self.ssh.state == "up" and self.ray.state in ("dead", "absent") and self.role != "head"

    @property
    def missing_because(self) -> str:
        """Why there is no figure at all."""
        if self.ssh.state != "up" or self.ssh.reason:
            return f"ssh is {self.ssh.state}" + (f": {self.ssh.reason}" if self.ssh.reason else "")
        if self.driver.state not in (DRIVER_OK, "unknown"):
            return self.driver.reason or f"driver: {self.driver.state}"
        return "no sample has come yet"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that needs someone."""

    severity: str
    """``critical``, ``warning`` or ``info``."""
    text: str
    target: str = ""
    """The node or run that it is about."""
    about: str = ""
    """What it is about, as `console.state.alerts.RULES_OF` knows it: ``ssh``, ``ray``, ``gpu`` …; empty for others."""
    since: float | None = None
    """Since when, monotonic seconds of this machine, where that is known."""


class FleetStore:
    """Every node by name, and which of them changed since somebody last asked."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.changed: set[str] = set()
        self.membership = 0
        """Goes up when a node appears or goes, or when its accelerators are others: lists are then made anew."""
        self.ray = Truth("unknown")
        """Does Ray's dashboard answer?"""
        self.ray_version = ""
        self.ray_read_at: float | None = None

    def add(self, node: Node) -> Node:
        """A node that the context names."""
        self.nodes[node.name] = node
        self._members_changed(node.name)
        return node

    def _members_changed(self, name: str) -> None:
        self.membership += 1
        self.changed.add(name)

    def take_changed(self) -> set[str]:
        """The names of nodes that changed since the last call."""
        changed, self.changed = self.changed, set()
        return changed

    # --- from SSH -----------------------------------------------------------------------------------------------------

    def ssh_state(self, name: str, state: str, reason: str, since: float) -> None:
        """How SSH to a node stands."""
        if self.nodes[name].ssh.move(state, reason, since):
            self.changed.add(name)

    def take_facts(self, name: str, facts: Facts, at: float) -> None:
        """What seldom changes."""
        node = self.nodes[name]
        before = node.gpu_indexes
        node.facts = facts
        if before != node.gpu_indexes:
            self._members_changed(name)
        self.changed.add(name)

    def take_sample(self, name: str, sample: Sample, at: float) -> None:
        """One second of a node."""
        node = self.nodes[name]
        node.sample, node.sampled_at = sample, at
        driver: Driver = sample.driver
        node.driver.move(driver.state, driver.reason, at - driver.seconds)
        self._remember(node, sample)
        self.changed.add(name)

    def _remember(self, node: Node, sample: Sample) -> None:
        fresh = sample.devices_age_seconds <= STALE_AFTER_SECONDS
        for index in sample.index:
            rings = node.history.get(index)
            if rings is None:
                rings = node.history[index] = {name: History() for name in HISTORY_COLUMNS}
            for column, ring in rings.items():
                value: Any = node.memory_percent(index) if column == "memory_percent" else sample.reading(index, column)
                ring.push(value if fresh and isinstance(value, (int, float)) else None)

    def take_health(self, name: str, health: Health, at: float) -> None:
        """What health rules ask of a node, and what happened on it."""
        node = self.nodes[name]
        node.health, node.health_at = health, at
        for event in health.events:
            if not any(_same(event, known) for known in node.events):
                node.events.append(event)
        del node.events[:-EVENTS_KEPT]
        self.changed.add(name)

    def take_clock(self, name: str, offset_seconds: float, round_trip_ms: float) -> None:
        """A node's clock against this machine's, measured inside a round trip."""
        node = self.nodes[name]
        node.clock_offset_seconds, node.round_trip_ms = offset_seconds, round_trip_ms
        self.changed.add(name)

    # --- from Ray -----------------------------------------------------------------------------------------------------

    def _match(self, ray_node: RayNode) -> Node | None:
        label = ray_node.labels.get("raydeck.io/node")
        if label:
            return self.nodes.get(label)
        for node in self.nodes.values():
            if ray_node.node_id == node.ray_node_id:
                return node
        for node in self.nodes.values():
            hostname = node.facts.hostname if node.facts else None
            if ray_node.node_ip in (node.address, node.ray_address) or ray_node.node_name in (node.name, hostname):
                return node
        return None

    def take_ray_nodes(self, ray_nodes: Iterable[RayNode], at: float) -> None:
        """Ray's list of nodes.

        Of several entries for one machine a living one wins: a node that rejoined has a new id, and its old one stays
        listed as dead.
        """
        self.ray_read_at = at
        chosen: dict[str, RayNode] = {}
        for ray_node in ray_nodes:
            node = self._match(ray_node)
            if node is None and ray_node.alive:
                node = self.add(Node(name=ray_node.node_ip, address=ray_node.node_ip, ray_address=ray_node.node_ip))
                node.ssh.move("none", "not in this context: only Ray tells of it", at)
            if node is not None and (node.name not in chosen or ray_node.alive or not chosen[node.name].alive):
                chosen[node.name] = ray_node
        for name, ray_node in chosen.items():
            self._take_ray_node(self.nodes[name], ray_node, at)
        for node in self.nodes.values():
            if node.name not in chosen and node.ray.move("absent", "Ray does not list this node", at):
                self.changed.add(node.name)

    def _take_ray_node(self, node: Node, ray_node: RayNode, at: float) -> None:
        moved = node.ray.move(
            "alive" if ray_node.alive else "dead", "" if ray_node.alive else ray_node.state_message, at
        )
        before = (node.ray_node_id, node.ray_gpus_total, node.ray_gpus_used, node.role)
        node.ray_node_id, node.ray_address = ray_node.node_id, ray_node.node_ip
        node.ray_labels = dict(ray_node.labels)
        node.ray_gpus_total = ray_node.resources_total.get("GPU", 0.0)
        node.ray_cpus_total = ray_node.resources_total.get("CPU", 0.0)
        if ray_node.is_head:
            node.role = "head"
        if moved or before != (node.ray_node_id, node.ray_gpus_total, node.ray_gpus_used, node.role):
            self.changed.add(node.name)

    def take_ray_usage(self, usage: dict[str, dict[str, tuple[float, float]]]) -> None:
        """Ray's node id to resource to (used, total)."""
        for node in self.nodes.values():
            figures = usage.get(node.ray_node_id)
            if figures is None:
                continue
            gpus, cpus = figures.get("GPU", (0.0, 0.0))[0], figures.get("CPU", (0.0, 0.0))[0]
            if (gpus, cpus) != (node.ray_gpus_used, node.ray_cpus_used):
                node.ray_gpus_used, node.ray_cpus_used = gpus, cpus
                self.changed.add(node.name)

    def ray_answers(self, state: str, reason: str, at: float) -> None:
        """Whether Ray's dashboard answers: ``ok``, ``down``, ``unauthorised``, ``refused``, ``unsupported``."""
        if self.ray.move(state, reason, at):
            self.changed.update(self.nodes)

    # --- what needs someone -------------------------------------------------------------------------------------------

    def findings(self, now: float, retired: Collection[str] = ()) -> list[Finding]:
        """What needs someone among the nodes, and of Ray. ``retired``: nodes that are meant to be out of Ray."""
        found = [finding for node in self.nodes.values() for finding in _of_node(node, now, node.name in retired)]
        connecting = sum(node.ssh.state == "connecting" for node in self.nodes.values())
        if connecting:
            found.append(Finding("info", f"connecting to {connecting} of {len(self.nodes)} nodes"))
        if self.ray.state not in ("ok", "unknown"):
            age = "" if self.ray_read_at is None else f"; what is shown of Ray is {now - self.ray_read_at:.0f} s old"
            text = f"Ray: {self.ray.reason or self.ray.state}{age}"
            found.append(Finding("critical", text, about="cluster", since=self.ray.since))
        return found


def _same(one: Event, other: Event) -> bool:
    """Two tellings of one event."""
    return abs(one.wall - other.wall) < SAME_EVENT_SECONDS and (one.kind, one.text, one.device, one.code, one.pid) == (
        other.kind,
        other.text,
        other.device,
        other.code,
        other.pid,
    )


def _of_node(node: Node, now: float, retired: bool) -> Iterable[Finding]:
    name = node.name
    if node.ssh.state in ("silent", "lost"):
        rest = "Ray still holds it alive" if node.ray.state == "alive" else f"Ray: {node.ray.state}"
        severity = "critical" if node.ssh.state == "lost" else "warning"
        text = f"{name} is {node.ssh.state} for {now - node.ssh.since:.0f} s; {rest}"
        yield Finding(severity, text, name, "ssh", node.ssh.since)
    elif node.ssh.state in ("refused", "waiting"):
        severity = "critical" if node.ssh.state == "refused" else "warning"
        yield Finding(severity, f"{name}: {node.ssh.reason}", name, "ssh", node.ssh.since)
    elif node.ssh.state == "up" and node.ssh.reason:
        yield Finding("warning", f"{name}: SSH answers, but {node.ssh.reason}", name, "probe")
    if node.ray.state == "dead" and not retired:
        rest = "SSH still answers" if node.ssh.state == "up" else f"SSH: {node.ssh.state}"
        why = f" ({node.ray.reason})" if node.ray.reason else ""
        yield Finding("critical", f"{name} is dead to Ray; {rest}{why}", name, "ray", node.ray.since)
    if node.driver.state == DRIVER_BLOCKED:
        text = f"{name}: driver not answering for {now - node.driver.since:.0f} s"
        yield Finding("critical", text, name, "driver", node.driver.since)
    elif node.driver.state == ERROR:
        yield Finding("critical", f"{name}: {node.driver.reason}", name, "driver", node.driver.since)
    if node.sample is not None:
        for index, reasons in node.sample.missing.items():
            if "*" in reasons and reasons["*"].kind == ERROR:
                yield Finding("critical", f"{name} GPU {index}: {reasons['*'].reason}", name, "gpu")
        for disk in node.sample.host.disks:
            if (
                disk.used_bytes is not None
                and disk.total_bytes
                and disk.used_bytes / disk.total_bytes > FULL_DISK_FRACTION
            ):
                share = 100 * disk.used_bytes / disk.total_bytes
                yield Finding("warning", f"{name}: {disk.path} is {share:.0f} % full", name, "disk")
    expected, seen = node.expected_gpus, len(node.gpu_indexes)
    if expected is not None and node.facts is not None and node.driver.state == DRIVER_OK and seen < expected:
        yield Finding("critical", f"{name} shows {seen} of {expected} GPUs", name, "gpu")
    offset = node.clock_offset_seconds
    if offset is not None and abs(offset) > CLOCK_OFFSET_SHOWN_SECONDS:
        way = "ahead" if offset > 0 else "behind"
        yield Finding("warning", f"{name}: clock is {abs(offset):.1f} s {way}", name, "clock")
