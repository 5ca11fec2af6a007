"""What needs someone, each thing once: the controller's alerts, and what this console sees itself. No I/O, no clock.

The controller watches from inside the nodes, this console over SSH. Where both see the same thing there is one line
with both truths; what only this console sees is kept, and marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from console.state.fleet import Finding, FleetStore, Node
from jobs.alertview import LEVELS, Alert, AlertsView, Level, Silence

if TYPE_CHECKING:
    from console.state.work import WorkStore

RULES_OF: dict[str, tuple[str, ...]] = {
    "ssh": ("node.ssh_lost", "node.ray_dead", "node.unwatched"),
    "ray": ("node.ray_dead", "node.ssh_lost"),
    "probe": ("node.unwatched",),
    "driver": ("node.driver.",),
    "gpu": ("gpu.lost", "node.gpus_missing"),
    "disk": ("mount.space", "mount.shm", "mount.filling"),
    "clock": ("node.clock",),
    "cluster": ("cluster.ray",),
    "run failed": ("run.failed", "run.retries_spent"),
    "run tries again": ("run.attempt_failed",),
    "run figures": ("run.not_finite",),
}
"""What a finding is about to the beginnings of the rules that tell of the same."""
AWAY = RULES_OF["ssh"]
"""Rules that say that a node is gone, for whom it may be: what SSH says to that belongs beside it."""
LOST_HERE = ("node.ssh_lost",)
CLUSTER = "cluster"
"""The name of what is about no node and no run; see `jobs.alertview.Alert.entities`."""

_RANK = {level: rank for rank, level in enumerate(LEVELS)}


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that needs someone, from whoever told of it."""

    key: str
    level: Level
    text: str
    """One line: what, where, how much."""
    since: float | None
    """The head's wall seconds; None where nobody knows."""
    alert: Alert | None = None
    """The alert that it is: the controller's, or one that this console's own look at the rules gave."""
    target: str = ""
    """For what is no alert: the node or run that it is about."""
    here: tuple[str, ...] = ()
    """What this console sees of it itself, in sentences."""
    short: str = ""
    """The same in a few words."""
    own: bool = False
    """Only this console sees it."""

    @property
    def told(self) -> Alert | None:
        """The alert that the controller knows: only that can be acknowledged, silenced or cleared."""
        return self.alert if self.alert is not None and self.alert.source == "controller" else None

    @property
    def ended(self) -> bool:
        """It is over."""
        return self.alert is not None and self.alert.state == "cleared"

    @property
    def aside(self) -> Literal["", "acknowledged", "silenced"]:
        """``acknowledged`` or ``silenced``; empty for what still needs someone."""
        if self.alert is None or self.ended:
            return ""
        return "silenced" if self.alert.silenced_by else "acknowledged" if self.alert.acknowledged else ""

    @property
    def nodes(self) -> list[str]:
        """The nodes that it is on, by whatever name they were told."""
        return list(self.alert.nodes) if self.alert is not None else [self.target] if self.target else []

    @property
    def place(self) -> tuple[int, int, float]:
        """What needs someone first, worst first, then the newest."""
        group = 3 if self.ended else {"": 0, "acknowledged": 1, "silenced": 2}[self.aside]
        rank = 0 if self.ended else _RANK[self.level]
        at = self.alert.ended_at if self.ended and self.alert is not None else self.since
        return group, rank, -(at or 0.0)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many alerts there are, and how many of them are set aside."""

    critical: int = 0
    warning: int = 0
    info: int = 0
    acknowledged: int = 0
    silenced: int = 0

    @property
    def open(self) -> int:
        """Those that still need someone."""
        return self.critical + self.warning + self.info

    @property
    def all(self) -> int:
        """All that fire."""
        return self.open + self.acknowledged + self.silenced


def counted(lines: Iterable[Line]) -> Counts:
    """These lines, counted; what is over counts for nothing."""
    found: dict[str, int] = dict.fromkeys((*LEVELS, "acknowledged", "silenced"), 0)
    for line in lines:
        if not line.ended:
            found[line.aside or line.level] += 1
    return Counts(**found)


class AlertsState:
    """What the controller tells, and what this console's own look at the rules gave."""

    def __init__(self) -> None:
        self.view: AlertsView | None = None
        """None until a controller told it, or where it is too old to tell."""
        self.own: list[Alert] = []
        """What the rules find in what this console sees, on nodes that the controller does not watch."""
        self.judged = 0
        """Nodes that this console judges by the rules itself."""
        self._changed = False
        self._lines: list[Line] | None = None

    def take(self, view: AlertsView | None) -> None:
        """All that fires, as the controller has it now."""
        if view != self.view:
            self._changed, self._lines = True, None
        self.view = view

    def take_own(self, alerts: Sequence[Alert], judged: int = 0) -> None:
        """All that the rules find here now, on so many nodes."""
        self.judged = judged
        if alerts != self.own:
            self._changed, self._lines = True, None
            self.own = list(alerts)

    def take_changed(self) -> bool:
        """Is anything told otherwise since the last call?"""
        changed, self._changed = self._changed, False
        return changed

    @property
    def lines(self) -> list[Line]:
        """The alerts alone, those that ended lately among them; what this console sees too is not added yet."""
        if self._lines is None:
            told = self.view.alerts if self.view is not None else []
            known = [each for each in told if each.state == "firing"]
            own = [each for each in self.own if not any(_covers(one, each) for one in known)]
            self._lines = [_line(each) for each in (*told, *own)]
        return self._lines

    def silence(self, identity: str) -> Silence | None:
        """The silence with this id."""
        silences = self.view.silences if self.view is not None else []
        return next((each for each in silences if each.id == identity), None)

    def watches(self, node: Node) -> bool:
        """Does the controller have figures of this node?"""
        if self.view is None or node.ray.state != "alive":
            return False
        return not any(name in self.view.unwatched for name in (node.name, node.ray_address) if name)


def attention(fleet: FleetStore, work: WorkStore, now: float, head_wall: float) -> list[Line]:
    """All that needs someone, worst first; what is acknowledged, silenced and over after that.

    Args:
        fleet: What this console sees of the nodes.
        work: What the controller tells.
        now: Monotonic seconds of this machine.
        head_wall: The head's wall clock.
    """
    seen = fleet.findings(now, work.nodes.retired())
    lines = _together(work.alerts.lines, seen, fleet, now, head_wall, own=True)
    lines = _together(lines, work.findings(head_wall), fleet, now, head_wall, own=False)
    return sorted(_with_other_truth(lines, fleet, now), key=lambda line: line.place)


def _line(alert: Alert) -> Line:
    return Line(alert.id, alert.level, alert.title, alert.since, alert, own=alert.source == "console")


def _level(severity: str) -> Level:
    for level in LEVELS:
        if level == severity:
            return level
    return "warning"


def _covers(told: Alert, own: Alert) -> bool:
    """Does the controller tell of what this console's rules found as well?"""
    kin = (told.family or told.rule) == (own.family or own.rule)
    return kin and set(own.entities) <= {*told.entities, *told.nodes}


def _is(alert: Alert, rules: Sequence[str]) -> bool:
    return alert.rule.startswith(tuple(rules))


def _together(
    lines: Sequence[Line], findings: Iterable[Finding], fleet: FleetStore, now: float, head_wall: float, *, own: bool
) -> list[Line]:
    """The lines with these findings: one that an alert tells of is added to it, the others become lines."""
    found = list(lines)
    by_name: dict[str, list[int]] = {}
    real = _Names(fleet)
    for at, line in enumerate(found):
        alert = line.alert
        if alert is not None and not line.ended:
            whole = (CLUSTER,) if CLUSTER in alert.entities else ()
            for name in (*map(real.of, alert.nodes), alert.run, *whole):
                by_name.setdefault(name, []).append(at)
    taken: dict[str, int] = {}
    for finding in findings:
        rules = RULES_OF.get(finding.about, ())
        name = finding.target or CLUSTER
        same = [at for at in by_name.get(name, ()) if (a := found[at].alert) is not None and _is(a, rules)]
        if rules and same:
            at = same[0]
            found[at] = _and_here(found[at], finding.text if own else "")
            continue
        key = f"here {finding.about} {finding.target}"
        taken[key] = taken.get(key, 0) + 1
        since = None if finding.since is None else head_wall - (now - finding.since)
        level, target = _level(finding.severity), finding.target
        found.append(Line(f"{key} {taken[key]}", level, finding.text, since, target=target, own=own))
    return found


def _and_here(line: Line, text: str) -> Line:
    if not text:
        return line
    return replace(line, here=(*line.here, text), short=line.short or ("" if line.own else "seen from here too"))


def _with_other_truth(lines: Iterable[Line], fleet: FleetStore, now: float) -> Iterator[Line]:
    """Of a node that is gone for somebody: what SSH says to that, or Ray where it is SSH that says so."""
    real = _Names(fleet)
    for line in lines:
        alert = line.alert
        if alert is None or line.ended or not _is(alert, AWAY):
            yield line
            continue
        nodes = [fleet.nodes[name] for name in map(real.of, alert.nodes) if name in fleet.nodes]
        if line.own and _is(alert, LOST_HERE):
            words = ray_words(nodes)
            yield replace(line, short=f"Ray: {words}" if words else "")
            continue
        words = ssh_words(nodes, now)
        here = line.here or ((f"SSH from this console: {words}",) if words else ())
        yield replace(line, here=here, short=f"SSH from here: {words}" if words else line.short)


def ray_words(nodes: Sequence[Node]) -> str:
    """How these nodes stand for Ray: ``alive``, ``7 dead, 3 alive``."""
    return _tallied([node.ray.state for node in nodes])


def ssh_words(nodes: Sequence[Node], now: float) -> str:
    """How SSH to these nodes stands: ``answers``, ``lost for 12 s``, ``7 lost, 3 up``; empty where none is wanted."""
    known = [node.ssh for node in nodes if node.ssh.state != "none"]
    if len(known) == 1:
        ssh = known[0]
        return "answers" if ssh.state == "up" else f"{ssh.state} for {max(0.0, now - ssh.since):.0f} s"
    return _tallied([ssh.state for ssh in known])


def _tallied(states: Sequence[str]) -> str:
    if len(states) == 1:
        return states[0]
    counts = sorted(Counter(states).items(), key=lambda each: -each[1])
    return ", ".join(f"{count} {state}" for state, count in counts)


def real_names(fleet: FleetStore, names: Iterable[str]) -> list[str]:
    """This console's names of nodes for those that the controller uses."""
    return list(map(_Names(fleet).of, names))


class _Names:
    """The names of this console's nodes for those that the controller uses: it may know an address only."""

    def __init__(self, fleet: FleetStore) -> None:
        self._fleet = fleet
        self._others: dict[str, str] | None = None

    def of(self, name: str) -> str:
        """This console's name; the same where it knows no other."""
        if name in self._fleet.nodes:
            return name
        if self._others is None:
            self._others = {}
            for node in self._fleet.nodes.values():
                hostname = node.facts.hostname if node.facts is not None else ""
                for other in (node.address, node.ray_address, hostname, node.ray_node_id):
                    if other:
                        self._others.setdefault(other, node.name)
        return self._others.get(name, name)
