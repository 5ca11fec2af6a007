"""Every figure that a health rule may look at: what it is of, in which unit, and what it means; and how it is written.

What begins with ``gpu_``, ``mount_`` and ``node_`` comes from `probes.health.measures`, but for those marked "told": of
these, as of ``run_``, ``queue_`` and ``cluster_``, the caller knows. A yes is 1, a no is 0.
"""

from __future__ import annotations

from typing import Dict, NamedTuple

from probes.health.rule import Measure
from probes.health.xids import meaning, recovery_advice, recovery_words
from probes.reading import Missing


class Figure(NamedTuple):
    """One measure."""

    of: str
    """The kind of entity."""
    unit: str
    """``%``, ``s``, ``°C``, ``W``, ``bytes``, ``share`` (1 is as usual), ``count``, ``flag``, ``xid``, ``action``."""
    meaning: str


MEASURES: Dict[str, Figure] = {
    # One accelerator.
    "gpu_lost": Figure("gpu", "flag", "its driver answers, and it does not"),
    "gpu_ecc_uncorrected_new": Figure("gpu", "count", "uncorrectable memory errors counted within the last minute"),
    "gpu_ecc_uncorrected_before": Figure(
        "gpu", "count", "such errors since its last reset, from before it was watched"
    ),
    "gpu_remap_pending": Figure("gpu", "flag", "faulty memory rows wait for a reset to be replaced"),
    "gpu_remap_failed": Figure("gpu", "flag", "a faulty memory row could not be replaced"),
    "gpu_pages_pending": Figure("gpu", "flag", "faulty memory pages wait for a reset to be retired"),
    "gpu_recovery_action": Figure("gpu", "action", "what its driver asks for, NVML's number"),
    "gpu_xid_critical": Figure("gpu", "xid", "number of the newest critical XID of the last minute, or 0"),
    "gpu_xid_warning": Figure("gpu", "xid", "number of the newest XID of level warning of the last 10 min, or 0"),
    "gpu_xid_program": Figure("gpu", "xid", "number of the newest XID of the last 10 min that programs cause, or 0"),
    "gpu_xid_ended": Figure(
        "gpu", "xid", "number of the newest XID of the last 10 min that ends of programs leave, or 0"
    ),
    "gpu_run_failed": Figure("gpu", "flag", "the run that it worked for has just failed"),
    "gpu_under_load": Figure("gpu", "flag", "its utilisation, averaged over half a minute, is 30 % or more"),
    "gpu_thermal_percent": Figure("gpu", "%", "share of the last half minute slowed by its hardware for heat"),
    "gpu_thermal_soft_percent": Figure("gpu", "%", "share of the last half minute slowed by its driver for heat"),
    "gpu_brake_percent": Figure("gpu", "%", "share of the last half minute slowed by the power supply's brake"),
    "gpu_slowdown_percent": Figure("gpu", "%", "share of the last half minute slowed by its hardware, no reason given"),
    "gpu_pcie_width_short": Figure("gpu", "count", "PCIe lanes fewer than it could have"),
    "gpu_pcie_generation_short": Figure("gpu", "count", "PCIe generations below what it could have"),
    "gpu_pcie_replays": Figure("gpu", "count", "PCIe packets sent again within the last minute"),
    "gpu_nvlinks_inactive": Figure("gpu", "count", "NVLinks that are not active though its node has them"),
    "gpu_nvlink_error_minutes": Figure("gpu", "count", "of the last 5 min, those in which NVLink errors were counted"),
    "gpu_fabric_unhealthy": Figure("gpu", "flag", "its place in the NVLink fabric is not complete, or not healthy"),
    "gpu_margin_celsius": Figure("gpu", "°C", "how far it is below the temperature at which it slows down"),
    "gpu_memory_celsius": Figure("gpu", "°C", "temperature of its memory"),
    "gpu_memory_margin_celsius": Figure(
        "gpu", "°C", "how far its memory is below the temperature at which it slows down"
    ),
    "gpu_memory_percent": Figure("gpu", "%", "how full its memory is"),
    "gpu_orphaned_bytes": Figure("gpu", "bytes", "memory in use while no run holds it and no process is listed"),
    "gpu_held_idle_seconds": Figure("gpu", "s", "for how long a run has held it while its utilisation was below 5 %"),
    "gpu_peer_share": Figure(
        "gpu", "share", "its utilisation or power, the lower, to the median of its peers in the run"
    ),
    "gpu_peers_busy": Figure("gpu", "flag", "its 3 or more peers are at 80 % or more, and draw their usual power"),
    # One machine.
    "node_gpus_missing": Figure("node", "count", "GPUs fewer than the inventory says"),
    "node_driver_blocked_seconds": Figure("node", "s", "for how long a call into the driver has not come back"),
    "node_driver_error_seconds": Figure("node", "s", "for how long the driver has not been usable"),
    "node_driver_mismatch": Figure("node", "flag", "the driver's library and its kernel module are of two versions"),
    "node_driver_minority": Figure("node", "flag", "its driver's version is not that of most nodes with the same GPUs"),
    "node_kernel_minority": Figure("node", "flag", "its kernel is not that of most nodes with the same GPUs"),
    "node_xid_critical": Figure("node", "xid", "as gpu_xid_critical, where the GPU is not known"),
    "node_xid_warning": Figure("node", "xid", "as gpu_xid_warning, where the GPU is not known"),
    "node_sxid_fatal": Figure("node", "count", "fatal NVSwitch errors (SXid) within the last minute"),
    "node_sxid_other": Figure("node", "count", "NVSwitch errors that are not fatal within the last 10 min"),
    "node_clock_offset_seconds": Figure("node", "s", "told: how far its clock is from the head's, without sign"),
    "node_clock_unsynchronised": Figure("node", "flag", "its kernel says that nothing keeps its clock"),
    "node_stuck_seconds": Figure("node", "s", "for how long a process has waited inside the kernel (state D)"),
    "node_memory_percent": Figure("node", "%", "how full its memory is"),
    "node_memory_pressure_percent": Figure("node", "%", "share of the last 10 s in which something waited for memory"),
    "node_oom_kills": Figure("node", "count", "processes ended for want of memory within the last 10 min"),
    "node_ports_down": Figure("node", "count", "network ports that are down and were up before"),
    "node_port_flaps": Figure("node", "count", "times that one of its ports went down within the last hour"),
    "node_runs": Figure("node", "count", "runs that hold GPUs of it"),
    "node_machine_checks": Figure("node", "count", "hardware errors in its kernel's log within the last 10 min"),
    "node_storage_errors": Figure("node", "count", "storage errors in its kernel's log within the last 10 min"),
    "node_figures_age_seconds": Figure("node", "s", "how old the newest line of its probe is"),
    "node_foreign_on_cordoned": Figure(
        "node", "count", "processes on its GPUs that are of no run while it is cordoned"
    ),
    "node_ssh_lost": Figure("node", "flag", "told: it cannot be reached over SSH, and could be"),
    "node_ray_dead": Figure("node", "flag", "told: it is expected in Ray, and Ray says dead or does not know it"),
    "node_is_head": Figure("node", "flag", "told: Ray's head runs on it"),
    # One file system on one machine.
    "mount_hangs_seconds": Figure("mount", "s", "for how long it has not answered"),
    "mount_read_only": Figure("mount", "flag", "it cannot be written, and was or must be writable"),
    "mount_free_percent": Figure("mount", "%", "space that is left"),
    "mount_space_counts": Figure(
        "mount", "flag", "what is left is less than 1 TB: a share of a huge one is still much"
    ),
    "mount_full_in_seconds": Figure("mount", "s", "when it is full if it fills as in the last half hour; at most 1e9"),
    "mount_inodes_percent": Figure("mount", "%", "inodes that are left"),
    "mount_shm_percent": Figure("mount", "%", "space that is left in /dev/shm"),
    "mount_unreadable": Figure("mount", "flag", "there are no figures of it, for another reason than that it hangs"),
    # One run; all told.
    "run_failed": Figure("run", "flag", "it ended as failed"),
    "run_retries_spent": Figure("run", "flag", "it was to be tried again, and no try is left"),
    "run_attempt_failed": Figure("run", "flag", "an attempt failed within the last 10 min, and another one follows"),
    "run_spinning": Figure(
        "run", "flag", "its GPUs are at full utilisation and far below their usual power; 0 while it saves"
    ),
    "run_stuck_seconds": Figure("run", "s", "since its newest step"),
    "run_stuck_short": Figure("run", "share", "since its newest step, to the longer of 20 s and 6 usual steps"),
    "run_stuck_long": Figure("run", "share", "since its newest step, to the longer of 5 min and 10 usual steps"),
    "run_not_finite": Figure("run", "count", "figures of it that are NaN or infinite"),
    "run_throughput_share": Figure("run", "share", "its throughput to its own baseline"),
    "run_waits_with_room_seconds": Figure("run", "s", "for how long it has waited while there is room for it"),
    "run_checkpoint_late": Figure("run", "share", "the age of its newest checkpoint to its usual interval"),
    "run_checkpoint_slow": Figure("run", "share", "the median of its last 3 savings' seconds to the median of all"),
    "run_log_errors": Figure(
        "run", "count", "lines of its logs within the last 10 min that a pattern knows as an error"
    ),
    "run_straggler_share": Figure("run", "share", "its slowest rank's own seconds a step to the median of its ranks"),
    "run_idle_seconds": Figure("run", "s", "for how long all its GPUs have been below 5 % of utilisation"),
    # One queue, and the cluster as a whole; all told.
    "queue_wait_share": Figure("queue", "share", "the 95th percentile of its waits to what it usually is"),
    "cluster_ray_unreachable_seconds": Figure("cluster", "s", "for how long Ray's head has not answered"),
    "cluster_controller_trouble": Figure("cluster", "flag", "the controller cannot do a part of its work"),
}

_STEPS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"))


def written(measure: str, value: Measure) -> str:
    """A value with its unit, as a person writes it; why there is none for one that is missing."""
    if isinstance(value, Missing):
        return value.reason
    figure = MEASURES.get(measure)
    unit = figure.unit if figure is not None else ""
    if unit == "xid":
        return "{} ({})".format(int(value), meaning(int(value)).words)
    if unit == "action":
        return recovery_words(int(value))
    if unit == "bytes":
        return _bytes(value)
    if unit == "share":
        return "{:.2f}".format(value)
    if unit == "s":
        return _seconds(value)
    number = "{:.0f}".format(value) if value == int(value) else "{:.1f}".format(value)
    return "{} {}".format(number, unit) if unit in ("%", "°C", "W") else number


def told(measure: str, value: Measure) -> str:
    """The same as a part of a sentence: of a distance from a limit also on which side of it, ``4 °C above``."""
    if measure.endswith("_margin_celsius") and not isinstance(value, Missing):
        return "{} {}".format(written(measure, abs(value)), "below" if value >= 0 else "above")
    return written(measure, value)


def explained(measure: str, value: Measure) -> str:
    """A value and what it is a figure of, for somebody who does not know the measures."""
    figure = MEASURES.get(measure)
    if figure is None or isinstance(value, Missing) or figure.unit in ("xid", "action"):
        return written(measure, value)
    if figure.unit == "flag":
        return figure.meaning if value else "no longer: {}".format(figure.meaning)
    return "{}, {}".format(written(measure, value), figure.meaning)


def advice(measure: str, value: Measure) -> str:
    """What to do about this very value: for XIDs and what the driver asks for; empty otherwise."""
    figure = MEASURES.get(measure)
    if figure is None or isinstance(value, Missing):
        return ""
    if figure.unit == "xid":
        return meaning(int(value)).action
    return recovery_advice(int(value)) if figure.unit == "action" else ""


def _bytes(value: float) -> str:
    for size, name in _STEPS:
        if value >= size:
            return "{:.1f} {}".format(value / size, name)
    return "{:.0f} bytes".format(value)


def _seconds(value: float) -> str:
    if value < 10:
        return "{:.1f} s".format(value)
    if value < 120:
        return "{:.0f} s".format(value)
    if value < 7200:
        return "{:.0f} min".format(value / 60)
    return "{:.0f} h".format(value / 3600)
