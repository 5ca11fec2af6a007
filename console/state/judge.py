"""The rules of health on what this console sees itself, for nodes that the controller does not watch. No I/O, no clock.

A thousand nodes are judged in slices, so that no key has to wait for them. What is known of runs and of the cluster as
a whole only the controller can judge; whether SSH reaches a node is judged here for every node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from console.state.fleet import FleetStore, Node
from console.state.work import WorkStore
from jobs.alertview import LEVELS, Alert, Level
from probes.health.engine import Engine
from probes.health.fleet import majority, peers
from probes.health.group import Group, Grouper
from probes.health.measures import NodeMeasures
from probes.health.rule import Entity, Measure, Seen, Thresholds
from probes.health.rules import RULES
from probes.reading import ERROR, UNSUPPORTED, Event, Facts, Health, Missing, Sample

ROUND_SECONDS = 2.0
"""Everything is judged once in so long; of more than `ROUND_NODES` nodes in as much longer as there are more."""
ROUND_NODES = 600
CLOCK_SECONDS = 0.5
SLICE = 32
"""So many nodes are looked at in one go."""

_NOT_TRIED = Missing(UNSUPPORTED, "SSH has not reached it yet")
_NO_RAY = Missing(ERROR, "Ray does not tell")
_NO_CLOCK = Missing(ERROR, "the clocks have not been measured yet")


@dataclass(slots=True)
class _Own:
    """One node, as far as its lines have been taken."""

    measures: NodeMeasures = field(default_factory=NodeMeasures)
    facts: Facts | None = None
    sample: Sample | None = None
    health: Health | None = None
    event: Event | None = None
    """The newest that was taken."""


class Judge:
    """All that this console judges by itself. `round` again and again, each to its end."""

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds
        self._engines: list[Engine] = []
        """One for each slice: a rule on a node asks for nothing beyond that node."""
        self._grouper = Grouper()
        self._own: dict[str, _Own] = {}
        self._things: dict[str, list[Entity]] = {}
        """What was judged on each node the last time."""
        self._ahead = 0.0
        """The head's wall clock less this machine's monotonic one; a new one only where it is another clock."""

    def round(self, fleet: FleetStore, work: WorkStore, now: float, head_wall: float) -> Iterator[float]:
        """Judge everything once, and have `AlertsState.own` say what came of it.

        Gives after each piece of work how many seconds to wait before the next one.

        Args:
            fleet: What this console sees.
            work: What the controller tells; takes the alerts.
            now: Monotonic seconds of this machine, when the round begins.
            head_wall: The same moment by the head's clock.
        """
        if abs(head_wall - now - self._ahead) > CLOCK_SECONDS:
            self._ahead = head_wall - now
        nodes = list(fleet.nodes.values())
        slices = [nodes[at : at + SLICE] for at in range(0, len(nodes), SLICE)]
        pause = ROUND_SECONDS * max(1.0, len(nodes) / ROUND_NODES) / (2 * len(slices) + 2)
        told = work.controller.state == "ok"
        head = next((node.clock_offset_seconds for node in nodes if node.role == "head"), None)
        retired = work.nodes.retired()
        seen: list[list[Seen]] = []
        judged = 0
        for part in slices:
            found: list[Seen] = []
            for node in part:
                watched = told and work.alerts.watches(node)
                judged += not watched and node.ssh.state != "none"
                found += self._look(node, fleet, work, now, head, watched, node.name in retired)
            seen.append(found)
            yield pause
        everything = [each for found in seen for each in found]
        peers(everything)
        majority(everything)
        yield pause
        for at, found in enumerate(seen):
            if at == len(self._engines):
                self._engines.append(Engine(RULES, self._thresholds))
            self._engines[at].step(now, found)
            yield pause
        firing = [each for engine in self._engines for each in engine.firing()]
        work.alerts.take_own([_alert(group, self._ahead) for group in self._grouper.groups(firing)], judged)
        yield pause

    def _look(
        self,
        node: Node,
        fleet: FleetStore,
        work: WorkStore,
        now: float,
        head_offset: float | None,
        watched: bool,
        retired: bool,
    ) -> list[Seen]:
        """What is to be judged of one node; of one that the controller watches only whether SSH reaches it."""
        lost, words = _ssh(node)
        if watched or node.ssh.state == "none":
            self._leave(node.name, fleet)
            entity = Entity("node", node.name, node.name)
            return [Seen(entity, {"node_ssh_lost": lost}, {"node_ssh_lost": words})] if watched else []
        told: dict[str, Measure] = {
            "node_ssh_lost": lost,
            "node_ray_dead": _ray(node, fleet, retired),
            "node_is_head": int(node.role == "head"),
            "node_clock_offset_seconds": _offset(node, head_offset),
        }
        view = work.nodes.of(node)
        found = self._take(node).seen(
            now,
            node=node.name,
            expected_gpus=node.expected_gpus if node.sample is not None else None,
            runs={index: run for index, (run, _) in work.holders(node.ray_node_id).items()},
            cordoned=view is not None and bool(view.holds),
            told=told,
            words={"node_ssh_lost": words, "node_ray_dead": node.ray.reason},
        )
        self._things[node.name] = [each.entity for each in found]
        return found

    def _take(self, node: Node) -> NodeMeasures:
        """Its measures, with what came since the last time."""
        own = self._own.get(node.name)
        if own is None:
            own = self._own[node.name] = _Own()
        if node.facts is not None and node.facts is not own.facts:
            own.facts = node.facts
            own.measures.take_facts(node.facts, node.sampled_at)
        if node.sample is not None and node.sample is not own.sample and node.sampled_at is not None:
            own.sample = node.sample
            own.measures.take_sample(node.sample, node.sampled_at)
        if node.health is not None and node.health is not own.health and node.health_at is not None:
            own.health = node.health
            own.measures.take_health(replace(node.health, events=_since(node, own.event)), node.health_at)
            own.event = node.events[-1] if node.events else None
        return own.measures

    def _leave(self, name: str, fleet: FleetStore) -> None:
        """The controller watches it now: what was judged of it here is no more."""
        if self._own.pop(name, None) is None:
            return
        at = list(fleet.nodes).index(name) // SLICE
        for entity in self._things.pop(name, ()):
            if at < len(self._engines):
                self._engines[at].forget(entity)


def _since(node: Node, event: Event | None) -> list[Event]:
    """The events that came after this one; several lines of health may have come since."""
    for at in range(len(node.events) - 1, -1, -1):
        if node.events[at] is event:
            return node.events[at + 1 :]
    return list(node.events)


def _ssh(node: Node) -> tuple[Measure, str]:
    """Whether SSH has lost it; and in words, with the other truth beside it."""
    if node.ssh.state == "lost":
        ray = "Ray still holds it alive" if node.ray.state == "alive" else f"for Ray it is {node.ray.state}"
        return 1, f"{node.ssh.reason or 'no answer'}; {ray}"
    return (0, "") if node.ssh.state in ("up", "silent") else (_NOT_TRIED, "")


def _ray(node: Node, fleet: FleetStore, retired: bool) -> Measure:
    if fleet.ray.state != "ok" or node.ray.state not in ("alive", "dead"):
        return _NO_RAY
    return int(node.ray.state == "dead" and not retired)


def _offset(node: Node, head_offset: float | None) -> Measure:
    """How far its clock is from the head's: both are measured against this machine's."""
    if node.clock_offset_seconds is None or head_offset is None:
        return _NO_CLOCK
    return abs(node.clock_offset_seconds - head_offset)


def _alert(group: Group, ahead: float) -> Alert:
    return Alert(
        id=f"here-{group.key}",
        rule=group.rule,
        family=group.family,
        level=_level(group.level),
        title=group.title,
        entities=list(group.entities),
        nodes=list(group.nodes),
        run=group.run,
        since=group.since + ahead,
        evidence=list(group.evidence),
        cause=group.cause,
        action=group.action,
        key=group.key_hint,
        latched=group.latched,
        flapping=group.flapping,
        fired=group.fired,
        no_data=group.no_data,
        source="console",
    )


def _level(text: str) -> Level:
    for level in LEVELS:
        if level == text:
            return level
    return "warning"
