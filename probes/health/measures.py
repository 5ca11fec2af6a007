"""What health rules look at on one node: its lines of the probe go in, figures with their windows and deltas come out.

No clock and no I/O: ``at`` and ``now`` are seconds of one clock of the caller's that never goes back. A figure that is
not there, or too old, is missing with a reason; it is never a 0 that was made up.
"""

from __future__ import annotations

from typing import Collection, Dict, List, Mapping, Optional, Tuple

from probes.health.gpus import NOT_YET, Gpu
from probes.health.mounts import MountFigures
from probes.health.rule import Entity, Measure, Seen
from probes.health.windows import Counted, Growth, Xids
from probes.reading import (
    DRIVER_BLOCKED,
    DRIVER_ERROR,
    STALE,
    Driver,
    Event,
    Facts,
    Health,
    Missing,
    Number,
    Sample,
    Stuck,
)

SAMPLE_SECONDS = 20.0
"""A sample that is older counts no more: three of the controller's, and some room."""
HEALTH_SECONDS = 45.0
DEVICES_SECONDS = 10.0
"""A driver that was late once repeats the figures of before; for so long they are good enough."""
OLD_EVENT_SECONDS = 600.0
"""A kernel's log that is read from its start tells of what is long over."""
LOOK_SECONDS = 15.0
"""What happened a while ago grows old, also where nothing new comes."""
OOM_SECONDS = 600.0
FLAP_SECONDS = 3600.0
EVENT_SECONDS = 600.0
FATAL_SECONDS = 60.0

_COLUMNS = ("utilization_percent", "memory_used_bytes", "power_watts", "temperature_celsius", "throttle_reasons")
_TOO_OLD = Missing(STALE, "no sample for {:.0f} s or more".format(SAMPLE_SECONDS))
_HEALTH_TOO_OLD = Missing(STALE, "no line of health for {:.0f} s or more".format(HEALTH_SECONDS))
_NO_INVENTORY = Missing("unsupported", "the inventory does not say how many there are")
_NOTHING: Mapping[str, Measure] = {}
_NO_WORDS: Mapping[str, str] = {}
_NO_RUNS: Mapping[int, str] = {}
_HEALTH_NAMES = (
    "node_clock_unsynchronised",
    "node_stuck_seconds",
    "node_memory_pressure_percent",
    "node_oom_kills",
    "node_ports_down",
    "node_port_flaps",
)


class NodeMeasures:
    """One node, from its first line on."""

    def __init__(self) -> None:
        self._gpus: Dict[int, Gpu] = {}
        self._mounts: Dict[str, MountFigures] = {}
        self._facts: Optional[Facts] = None
        self._sample: Optional[Sample] = None
        self._sample_at = 0.0
        self._health: Optional[Health] = None
        self._health_at = 0.0
        self._told_at: Optional[float] = None
        self._asked_at: Optional[float] = None
        self._xids = Xids()
        """Of GPUs that could not be told."""
        self._events = {kind: Counted() for kind in ("sxid_fatal", "sxid", "oom", "machine_check", "storage")}
        self._oom = Growth()
        self._downs: Dict[str, Growth] = {}
        """Port to how often it went down."""
        self._was_up: Dict[str, bool] = {}
        self._runs: Dict[int, str] = {}
        self._failed: Dict[int, str] = {}
        self._writable: Tuple[str, ...] = ()
        self._fresh = False
        """Nothing came since the things on the node were last looked at."""
        self._looked_at = 0.0
        self._stale: Tuple[Optional[Missing], ...] = (NOT_YET, NOT_YET, NOT_YET)
        """Why the devices' figures, the sample and the line of health count no more; None for what does."""
        self._node_name = ""
        self._known: Tuple[Optional[int], bool, str] = (None, False, "")
        self._itself = Seen(Entity("node", ""))
        self._things: List[Seen] = []
        self._driver: Dict[str, Measure] = {}
        self._driver_words: Dict[str, str] = {}

    def take_facts(self, facts: Facts, at: Optional[float] = None) -> None:
        """What the node is. ``at``: when it came; the newest sample's time if not given."""
        self._facts, self._fresh = facts, False
        when = at if at is not None else self._told_at if self._told_at is not None else 0.0
        for device in facts.devices:
            self._gpu(device.index).take_facts(device, when)

    def take_sample(self, sample: Sample, at: float) -> None:
        """The figures of one second."""
        self._sample, self._sample_at, self._told_at, self._fresh = sample, at, at, False
        self._take_driver(sample.driver)
        if sample.devices_age_seconds > 0:
            return  # the figures of before, told again
        columns = [sample.columns.get(name) for name in _COLUMNS]
        processes: Dict[int, int] = {}
        for process in sample.processes:
            processes[process.device] = processes.get(process.device, 0) + 1
        for place, index in enumerate(sample.index):
            row: List[Optional[Number]] = [None if column is None else column[place] for column in columns]
            run = self._runs.get(index, "")
            self._gpu(index).take_sample(sample, row, at, run, processes.get(index, 0))

    def take_health(self, health: Health, at: float) -> None:
        """What only health rules ask for, and what the kernel and the driver told since the line before."""
        self._health, self._health_at, self._told_at, self._fresh = health, at, at, False
        for device in health.devices:
            self._gpu(device.index).take_health(device, at)
        paths = {mount.path for mount in health.mounts}
        for path in [path for path in self._mounts if path not in paths]:
            del self._mounts[path]
        for mount in health.mounts:
            there = self._mounts.get(mount.path)
            if there is None:
                there = self._mounts[mount.path] = MountFigures(mount.path)
            there.take(mount, at, mount.path in self._writable)
        if health.oom_kills is not None:
            self._oom.take(health.oom_kills, at)
        for port in health.ports:
            self._was_up[port.name] = self._was_up.get(port.name, False) or port.up
            if port.link_downed_count is not None:
                self._downs.setdefault(port.name, Growth()).take(port.link_downed_count, at)
        for event in health.events:
            age = max(0.0, health.wall - event.wall) if health.wall > 0 and event.wall > 0 else 0.0
            if age <= OLD_EVENT_SECONDS:
                self._take_event(event, at)

    def seen(
        self,
        now: float,
        *,
        node: str,
        expected_gpus: Optional[int] = None,
        runs: Mapping[int, str] = _NO_RUNS,
        failed: Mapping[int, str] = _NO_RUNS,
        cordoned: bool = False,
        writable: Collection[str] = (),
        told: Mapping[str, Measure] = _NOTHING,
        words: Mapping[str, str] = _NO_WORDS,
    ) -> List[Seen]:
        """The node, its GPUs and its file systems, as they are now.

        ``runs``: GPU index to the run that holds it. ``failed``: GPU index to a run that worked there and failed within
        the last minutes. ``writable``: paths that runs must be able to write. ``told``: figures of the node that others
        know (see `probes.health.figures`), and ``words`` what is behind them.
        """
        if self._asked_at is None:
            self._asked_at = now
        stale = self._stale_now(now)
        known = (expected_gpus, cordoned, node)
        if (runs, failed, known, stale) != (self._runs, self._failed, self._known, self._stale):
            self._runs, self._failed, self._known, self._stale = dict(runs), dict(failed), known, stale
            self._node_name, self._fresh = node, False
        self._writable = tuple(writable)
        if not self._fresh or now - self._looked_at > LOOK_SECONDS:
            self._things = self._see_things(now)
            self._itself = self._see_node(now, expected_gpus, cordoned)
            self._fresh, self._looked_at = True, now
        itself = Seen(self._itself.entity, dict(self._itself.measures), dict(self._itself.details))
        since = self._told_at if self._told_at is not None else self._asked_at
        itself.measures["node_figures_age_seconds"] = max(0.0, now - since)
        itself.measures.update(told)
        itself.details.update(words)
        return [itself, *self._things]

    def _gpu(self, index: int) -> Gpu:
        there = self._gpus.get(index)
        if there is None:
            there = self._gpus[index] = Gpu(index)
        return there

    def _take_event(self, event: Event, at: float) -> None:
        if event.kind in ("xid", "gpu_lost"):
            (self._xids if event.device is None else self._gpu(event.device).xids).take(event, at)
            return
        kind = event.kind
        if kind == "sxid":
            text = event.text.lower()
            light = "non-fatal" in text or "nonfatal" in text
            kind = "sxid_fatal" if "fatal" in text and not light else "sxid"
        counted = self._events.get(kind)
        if counted is not None:
            counted.take(event, at)

    def _take_driver(self, driver: Driver) -> None:
        blocked, error = driver.state == DRIVER_BLOCKED, driver.state == DRIVER_ERROR
        mismatch = error and "mismatch" in driver.reason.lower()
        self._driver = {
            "node_driver_blocked_seconds": driver.seconds if blocked else 0.0,
            "node_driver_error_seconds": driver.seconds if error else 0.0,
            "node_driver_mismatch": int(mismatch),
        }
        self._driver_words = dict.fromkeys(self._driver, driver.reason) if blocked or error else {}

    def _stale_now(self, now: float) -> Tuple[Optional[Missing], ...]:
        sample = self._sample
        old = NOT_YET if sample is None else _TOO_OLD if now - self._sample_at > SAMPLE_SECONDS else None
        devices = old
        if sample is not None and old is None and sample.devices_age_seconds > DEVICES_SECONDS:
            devices = Missing(STALE, "the driver has not given figures for more than {:.0f} s".format(DEVICES_SECONDS))
        health = NOT_YET if self._health is None else None
        if health is None and now - self._health_at > HEALTH_SECONDS:
            health = _HEALTH_TOO_OLD
        return devices, old, health

    def _see_things(self, now: float) -> List[Seen]:
        devices, _, health = self._stale
        node, runs, failed = self._node_name, self._runs, self._failed
        most_links = max((gpu.links for gpu in self._gpus.values()), default=0)
        found: List[Seen] = []
        for index, gpu in sorted(self._gpus.items()):
            run = runs.get(index, "") or failed.get(index, "")
            found.append(gpu.seen(node, run, index in failed, devices, health, most_links, now))
        found += [mount.seen(node, health) for mount in self._mounts.values()]
        return found

    def _see_node(self, now: float, expected: Optional[int], cordoned: bool) -> Seen:
        seen = Seen(Entity("node", self._node_name, self._node_name))
        measures, details = seen.measures, seen.details
        measures["node_runs"] = len(set(self._runs.values()) - {""})
        measures["node_is_head"] = 0
        self._see_sample(measures, details, expected, cordoned)
        self._see_health(measures, details, now)
        self._see_events(measures, details, now)
        facts = self._facts
        if facts is not None:
            details["node_driver_version"], details["node_kernel"] = facts.driver_version, facts.kernel
            details["node_accelerator"] = (facts.devices[0].name or "") if facts.devices else ""
        return seen

    def _see_sample(
        self, measures: Dict[str, Measure], details: Dict[str, str], expected: Optional[int], cordoned: bool
    ) -> None:
        old, sample = self._stale[1], self._sample
        if sample is None or old is not None:
            why = old or NOT_YET
            for name in ("node_driver_blocked_seconds", "node_driver_error_seconds", "node_driver_mismatch"):
                measures[name] = why
            for name in ("node_gpus_missing", "node_memory_percent", "node_foreign_on_cordoned"):
                measures[name] = why
            return
        measures.update(self._driver)
        details.update(self._driver_words)
        host = sample.host
        measures["node_memory_percent"] = (
            NOT_YET
            if host.memory_used_bytes is None or not host.memory_total_bytes
            else 100.0 * host.memory_used_bytes / host.memory_total_bytes
        )
        if sample.driver.state in (DRIVER_BLOCKED, DRIVER_ERROR):
            unknown = Missing(STALE, sample.driver.reason)
            measures["node_gpus_missing"] = measures["node_foreign_on_cordoned"] = unknown
            return
        measures["node_gpus_missing"] = _NO_INVENTORY if expected is None else max(0, expected - len(sample.index))
        details["node_gpus_missing"] = "{} of {} are there".format(len(sample.index), expected)
        foreign = [process for process in sample.processes if not process.run] if cordoned else []
        measures["node_foreign_on_cordoned"] = len(foreign)
        if foreign:
            first = foreign[0]
            details["node_foreign_on_cordoned"] = "{} (pid {}, of {})".format(first.command, first.pid, first.user)

    def _see_health(self, measures: Dict[str, Measure], details: Dict[str, str], now: float) -> None:
        health, old = self._health, self._stale[2]
        if health is None or old is not None:
            measures.update(dict.fromkeys(_HEALTH_NAMES, old or NOT_YET))
            return
        held = health.clock_synchronised
        measures["node_clock_unsynchronised"] = NOT_YET if held is None else int(not held)
        pressure = health.memory_pressure_percent
        measures["node_memory_pressure_percent"] = (
            health.blind.get("pressure", NOT_YET) if pressure is None else pressure
        )
        stuck = max(health.stuck, key=lambda each: each.seconds, default=None)
        measures["node_stuck_seconds"] = 0.0 if stuck is None else stuck.seconds
        if stuck is not None:
            details["node_stuck_seconds"] = _stuck_words(stuck, len(health.stuck))
        events = self._events["oom"]
        kills = max(self._oom.grown(now, OOM_SECONDS) if self._oom.known else 0, events.within(now, OOM_SECONDS))
        measures["node_oom_kills"] = kills
        details["node_oom_kills"] = events.words
        if "ports" in health.blind:
            measures["node_ports_down"] = measures["node_port_flaps"] = health.blind["ports"]
            return
        down = [port for port in health.ports if not port.up and self._was_up.get(port.name)]
        measures["node_ports_down"] = len(down)
        details["node_ports_down"] = ", ".join(port.name for port in down)
        flaps = {name: growth.grown(now, FLAP_SECONDS) for name, growth in self._downs.items()}
        worst = max(flaps, key=lambda name: flaps[name], default="")
        measures["node_port_flaps"] = flaps.get(worst, 0)
        details["node_port_flaps"] = worst

    def _see_events(self, measures: Dict[str, Measure], details: Dict[str, str], now: float) -> None:
        for measure, kind, seconds in (
            ("node_sxid_fatal", "sxid_fatal", FATAL_SECONDS),
            ("node_sxid_other", "sxid", EVENT_SECONDS),
            ("node_machine_checks", "machine_check", EVENT_SECONDS),
            ("node_storage_errors", "storage", EVENT_SECONDS),
        ):
            counted = self._events[kind]
            measures[measure] = counted.within(now, seconds)
            if counted.words:
                details[measure] = counted.words
        measures["node_xid_critical"] = measures["node_xid_warning"] = 0
        if self._xids:
            for ending, code, said in self._xids.newest(now):
                name = "node_xid_critical" if ending == "critical" else "node_xid_warning"
                if ending in ("critical", "warning"):
                    measures[name], details[name] = code, said


def _stuck_words(stuck: Stuck, how_many: int) -> str:
    where = " in {}".format(stuck.where) if stuck.where else ""
    more = ", and {} more".format(how_many - 1) if how_many > 1 else ""
    return "{} (pid {}, of {}) waits{}{}".format(stuck.command, stuck.pid, stuck.user or "unknown", where, more)
