"""The figures of one GPU that health rules look at: what a sample and a health line say, over the windows they need."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Sequence, Tuple

from probes.health.rule import Entity, Measure, Seen
from probes.health.windows import Growth, Xids, smoothed
from probes.reading import ERROR, DeviceFacts, DeviceHealth, Missing, Number, Sample

SMOOTH_SECONDS = 30.0
USUAL_SECONDS = 900.0
LOADED_PERCENT = 30.0
LOAD, WATTS, USUAL_WATTS = "gpu_load_percent", "gpu_watts", "gpu_usual_watts"
"""Kept beside the measures, for the comparison with its peers."""
IDLE_PERCENT = 5.0
ECC_SECONDS = 60.0
NVLINK_MINUTES = 5

_THERMAL, _THERMAL_SOFT, _BRAKE, _SLOWDOWN = 0x40, 0x20, 0x80, 0x8
"""NVML's clocks event reasons. Hardware slowdown is also set beside the two that say why."""

NOT_YET = Missing(ERROR, "nothing was told of it yet")
_NO_RUN = Missing(ERROR, "no run holds it")

_FLAGS = (
    ("gpu_remap_pending", "remap_pending"),
    ("gpu_remap_failed", "remap_failed"),
    ("gpu_pages_pending", "retired_pages_pending"),
    ("gpu_recovery_action", "recovery_action"),
    ("gpu_memory_celsius", "memory_temperature_celsius"),
)
FROM_HEALTH = (
    *(measure for measure, _ in _FLAGS),
    "gpu_fabric_unhealthy",
    "gpu_pcie_width_short",
    "gpu_pcie_generation_short",
    "gpu_nvlinks_inactive",
    "gpu_memory_margin_celsius",
)
FROM_SAMPLE = (
    "gpu_under_load",
    "gpu_thermal_percent",
    "gpu_thermal_soft_percent",
    "gpu_brake_percent",
    "gpu_slowdown_percent",
    "gpu_margin_celsius",
    "gpu_memory_percent",
    "gpu_orphaned_bytes",
    "gpu_held_idle_seconds",
)
_NO_XIDS = {"gpu_xid_critical": 0, "gpu_xid_warning": 0, "gpu_xid_program": 0, "gpu_xid_ended": 0}


class Gpu:
    """One GPU of one node."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.xids = Xids()
        self.links = 0
        """The most NVLinks that were ever active."""
        self.load = 0.0
        """Utilisation, averaged over half a minute."""
        self.watts: Optional[float] = None
        self.usual_watts: Optional[float] = None
        """What it draws in the long run while it works for its run."""
        self._total_bytes: Optional[int] = None
        self._slowdown_celsius: Optional[Number] = None
        self._health: Dict[str, Measure] = dict.fromkeys(FROM_HEALTH, NOT_YET)
        self._details: Dict[str, str] = {}
        self._ecc = (Growth(), Growth())
        """By facts (for all time) and by health (since the last reset)."""
        self._ecc_missing = NOT_YET
        self._nvlink = Growth()
        self._nvlink_missing = NOT_YET
        self._replays = Growth()
        self._replays_missing = NOT_YET
        self._sampled: Dict[str, Measure] = dict.fromkeys(FROM_SAMPLE, NOT_YET)
        self._lost: Measure = NOT_YET
        self._lost_words = ""
        self._shares = [0.0, 0.0, 0.0, 0.0]
        self._at: Optional[float] = None
        self._run = ""
        self._busy_at = 0.0

    def take_facts(self, facts: DeviceFacts, at: float) -> None:
        """What seldom changes of it."""
        if facts.memory_total_bytes:
            self._total_bytes = facts.memory_total_bytes
        if facts.ecc_uncorrected_count is not None:
            self._ecc[0].take(facts.ecc_uncorrected_count, at)
        else:
            self._ecc_missing = _why(facts.missing, "ecc_uncorrected_count")

    def take_health(self, health: DeviceHealth, at: float) -> None:
        """What only health rules ask for."""
        figures, missing = health.figures, health.missing
        found = self._health
        for measure, name in _FLAGS:
            value = figures.get(name)
            found[measure] = _why(missing, name) if value is None else value
        healthy = figures.get("fabric_healthy")
        found["gpu_fabric_unhealthy"] = _why(missing, "fabric_healthy") if healthy is None else int(not healthy)
        self._take_pcie(figures, missing)
        active, total = figures.get("nvlinks_active"), figures.get("nvlinks_total")
        self.links = max(self.links, int(active or 0))
        found["gpu_nvlinks_inactive"] = _why(missing, "nvlinks_active") if active is None else (total or 0) - active
        if active is not None and active != total:
            self._details["gpu_nvlinks_inactive"] = "{} of {} links are active".format(active, total)
        self._slowdown_celsius = figures.get("slowdown_celsius")
        celsius, slow = figures.get("memory_temperature_celsius"), figures.get("memory_slowdown_celsius")
        found["gpu_memory_margin_celsius"] = (
            _why(missing, "memory_slowdown_celsius") if celsius is None or not slow else slow - celsius
        )
        for growth, name in (
            (self._ecc[1], "ecc_volatile_uncorrected_count"),
            (self._nvlink, "nvlink_error_count"),
            (self._replays, "pcie_replay_count"),
        ):
            value = figures.get(name)
            if value is not None:
                growth.take(value, at)
        self._ecc_missing = _why(missing, "ecc_volatile_uncorrected_count")
        self._nvlink_missing = _why(missing, "nvlink_error_count")
        self._replays_missing = _why(missing, "pcie_replay_count")

    def take_sample(self, sample: Sample, row: Sequence[Optional[Number]], at: float, run: str, processes: int) -> None:
        """The figures of one second: utilisation, memory in use, power, temperature, throttle reasons."""
        missing = sample.missing.get(self.index, {})
        whole = missing.get("*")
        if whole is not None:
            self._lost, self._lost_words = (1 if whole.kind == ERROR else whole), whole.reason
            self._sampled = dict.fromkeys(FROM_SAMPLE, whole)
            self._at = None
            return
        self._lost = 0
        utilization, used, power, celsius, reasons = row
        first = self._at is None
        elapsed = 0.0 if self._at is None else max(0.0, at - self._at)
        self._at = at
        if run != self._run:
            self._run, self._busy_at, self.usual_watts = run, at, None
        sampled: Dict[str, Measure] = {}
        if utilization is None:
            unknown = _why(missing, "utilization_percent")
            sampled["gpu_under_load"] = sampled["gpu_held_idle_seconds"] = unknown
        else:
            self.load = utilization if first else smoothed(self.load, utilization, elapsed, SMOOTH_SECONDS)
            sampled["gpu_under_load"] = int(self.load >= LOADED_PERCENT)
            if utilization >= IDLE_PERCENT or not run:
                self._busy_at = at
            sampled["gpu_held_idle_seconds"] = at - self._busy_at
        self._take_power(power, utilization, elapsed)
        self._take_reasons(sampled, reasons, missing, elapsed)
        slowdown = self._slowdown_celsius
        sampled["gpu_margin_celsius"] = (
            _why(missing, "temperature_celsius") if celsius is None or not slowdown else slowdown - celsius
        )
        if used is None:
            sampled["gpu_memory_percent"] = sampled["gpu_orphaned_bytes"] = _why(missing, "memory_used_bytes")
        else:
            total = self._total_bytes
            sampled["gpu_memory_percent"] = 100.0 * used / total if total else NOT_YET
            # A run's own processes may be hidden in a container: only what nobody holds is left behind.
            listed = missing.get("processes")
            sampled["gpu_orphaned_bytes"] = listed if listed is not None else 0 if processes or run else used
        self._sampled = sampled

    def seen(
        self,
        node: str,
        run: str,
        failed: bool,
        stale: Optional[Missing],
        stale_health: Optional[Missing],
        most_links: int,
        now: float,
    ) -> Seen:
        """All of it. ``most_links``: of any GPU of its node, ever.

        ``stale``: why its sample counts no more; ``stale_health``: why what only health rules ask for does not.
        """
        measures: Dict[str, Measure] = (
            dict(self._health) if stale_health is None else dict.fromkeys(self._health, stale_health)
        )
        details = dict(self._details)
        if stale is None:
            measures.update(self._sampled)
            measures["gpu_lost"] = self._lost
            if self._lost == 1:
                details["gpu_lost"] = self._lost_words
        else:
            for name in FROM_SAMPLE:
                measures[name] = stale
            measures["gpu_lost"] = stale
        measures["gpu_run_failed"] = int(failed)
        measures["gpu_peers_busy"] = 0
        measures["gpu_peer_share"] = _NO_RUN
        # Without any bridge no link is active, and none is missing.
        if not most_links and not isinstance(measures["gpu_nvlinks_inactive"], Missing):
            measures["gpu_nvlinks_inactive"] = 0
        self._count(measures, now)
        measures.update(_NO_XIDS)
        if self.xids:
            for ending, code, words in self.xids.newest(now):
                measures["gpu_xid_" + ending] = code
                details["gpu_xid_" + ending] = words
        name = "{}/{}".format(node, self.index)
        seen = Seen(Entity("gpu", name, node, run), measures, details)
        if stale is None and self._lost == 0 and self.watts is not None:
            seen.beside = {LOAD: self.load, WATTS: self.watts}
            if self.usual_watts is not None:
                seen.beside[USUAL_WATTS] = self.usual_watts
        return seen

    def _count(self, measures: Dict[str, Measure], now: float) -> None:
        lasting, volatile = self._ecc
        if lasting.known or volatile.known:
            measures["gpu_ecc_uncorrected_new"] = max(lasting.grown(now, ECC_SECONDS), volatile.grown(now, ECC_SECONDS))
        else:
            measures["gpu_ecc_uncorrected_new"] = self._ecc_missing
        measures["gpu_ecc_uncorrected_before"] = self._ecc_missing if volatile.first is None else volatile.first
        measures["gpu_nvlink_error_minutes"] = (
            self._nvlink.minutes(now, NVLINK_MINUTES) if self._nvlink.known else self._nvlink_missing
        )
        measures["gpu_pcie_replays"] = self._replays.grown(now, 60.0) if self._replays.known else self._replays_missing

    def _take_pcie(self, figures: Mapping[str, Optional[Number]], missing: Mapping[str, Missing]) -> None:
        said: Tuple[Tuple[str, str, str], ...] = (
            ("gpu_pcie_width_short", "pcie_width", "x{} instead of x{}"),
            ("gpu_pcie_generation_short", "pcie_generation", "generation {} instead of {}"),
        )
        for measure, name, words in said:
            here, most = figures.get(name), figures.get(name + "_max")
            if here is None or most is None:
                self._health[measure] = _why(missing, name)
                continue
            self._health[measure] = max(0, most - here)
            if here < most:
                self._details[measure] = words.format(here, most)

    def _take_power(self, power: Optional[Number], utilization: Optional[Number], elapsed: float) -> None:
        if power is None:
            self.watts = None
            return
        self.watts = power if self.watts is None else smoothed(self.watts, power, elapsed, SMOOTH_SECONDS)
        if utilization is not None and utilization >= LOADED_PERCENT and self._run:
            usual = self.usual_watts
            self.usual_watts = self.watts if usual is None else smoothed(usual, self.watts, elapsed, USUAL_SECONDS)

    def _take_reasons(
        self,
        sampled: Dict[str, Measure],
        reasons: Optional[Number],
        missing: Mapping[str, Missing],
        elapsed: float,
    ) -> None:
        names = ("gpu_thermal_percent", "gpu_thermal_soft_percent", "gpu_brake_percent", "gpu_slowdown_percent")
        if reasons is None:
            why = _why(missing, "throttle_reasons")
            sampled.update(dict.fromkeys(names, why))
            return
        bits, shares = int(reasons), self._shares
        if bits & 0xE8 or any(shares):
            why_slow = bits & (_THERMAL | _BRAKE)
            set_now = (bits & _THERMAL, bits & _THERMAL_SOFT, bits & _BRAKE, bits & _SLOWDOWN and not why_slow)
            for place, is_set in enumerate(set_now):
                share = smoothed(shares[place], 100.0 if is_set else 0.0, elapsed, SMOOTH_SECONDS)
                shares[place] = share if share > 0.1 else 0.0
        for place, name in enumerate(names):
            sampled[name] = shares[place]


def _why(missing: Mapping[str, Missing], name: str) -> Missing:
    """Why there is no figure of this name."""
    return missing.get(name) or missing.get("*") or NOT_YET
