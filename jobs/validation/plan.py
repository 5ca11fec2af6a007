"""The ladder as data: stages, their checks, what each is judged by and catches, and which of them a profile takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobs.validationview import Profile, StageName


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the ladder."""

    id: str
    """Its stage, and what it is: ``gpu.gemm``."""
    title: str
    does: str
    """What is done, in a sentence."""
    passes: str
    """What it is judged by."""
    catches: str
    profile: Profile
    """The smallest profile that has it."""
    hardware: str = ""
    """What its stand-in on a CPU cannot show; empty where that shows all."""

    @property
    def stage(self) -> StageName:
        """Where it belongs."""
        for stage in ("preflight", "gpu", "node", "cluster", "drills"):
            if self.id.startswith(f"{stage}."):
                return stage
        raise ValueError(self.id)


@dataclass(frozen=True, slots=True)
class Kind:
    """A figure that checks measure."""

    title: str
    unit: str
    higher_is_better: bool = True
    compared: bool = True
    """Beside its floor, its baseline and its like; else it is only shown."""


FIGURES: Mapping[str, Kind] = {
    "disk_write": Kind("disk, writing", "MB/s"),
    "disk_read": Kind("disk, reading", "MB/s"),
    "context": Kind("first use of the GPU", "s", higher_is_better=False, compared=False),
    "gemm": Kind("matrix product", "TFLOP/s"),
    "gemm_fall": Kind("matrix product, end to beginning", "of 1"),
    "memory_bandwidth": Kind("GPU memory", "GB/s"),
    "h2d": Kind("host to GPU", "GB/s"),
    "d2h": Kind("GPU to host", "GB/s"),
    "train_steps": Kind("training alone", "steps/s"),
    "join": Kind("joining", "s", higher_is_better=False, compared=False),
    "all_reduce": Kind("all_reduce, bus", "GB/s"),
    "all_reduce_latency": Kind("all_reduce, latency", "µs", higher_is_better=False),
    "jitter": Kind("slowest all_reduce to usual", "times", higher_is_better=False),
    "train": Kind("training together", "samples/s"),
    "link": Kind("link", "GB/s"),
    "latency": Kind("link, latency", "µs", higher_is_better=False),
    "save": Kind("saving", "s", higher_is_better=False),
    "load": Kind("loading", "s", higher_is_better=False),
    "data": Kind("reading data", "MB/s"),
}

CHECKS: tuple[Check, ...] = (
    # --- preflight: no load on any GPU ---
    Check("preflight.inventory", "inventory", "NVML, torch, Ray and the cluster file are asked for the GPUs.",
          "all count the same", "a GPU that is lost or hidden", "prolog"),
    Check("preflight.versions", "versions", "Driver, CUDA, NCCL, torch, Python, Ray, kernel and image of each node.",
          "all nodes as most of them", "a node that was left out of an update", "prolog"),
    Check("preflight.clock", "clock", "Each node's clock against the head's, in a round trip.",
          "less than 0.5 s apart", "tokens, certificates and logs that do not fit", "prolog"),
    Check("preflight.health", "health", "The rules of health, on what the node shows now.",
          "nothing critical", "XIDs, ECC errors, rows to remap, throttling, links that are down", "prolog"),
    Check("preflight.names", "names and routes", "Its own name, the way to each other node, the interface in use.",
          "each leads where it should", "a name that means the loopback, no route", "quick"),
    Check("preflight.ports", "ports", "Connections to the ports of the head and of each other node.",
          "no try without an answer", "a firewall between two nodes", "quick"),
    Check("preflight.mounts", "mounts", "The paths for data, output and logs: there, writable, with room.",
          "there, writable, 5 % free", "a mount that hangs, is missing, read-only or full", "quick"),
    Check("preflight.shared", "shared paths", "A file that each node writes is looked for from every other.",
          "seen within 5 s", "a path that is another disk on one node", "quick"),
    Check("preflight.disk", "disk speed", "Written to the disk and read back from it, past the cache.",
          "like the other nodes", "a slow disk", "standard"),
    Check("preflight.limits", "limits and permissions", "Open files, shared memory, device files, memory limits.",
          "enough of each", "bus errors, NCCL without its fast paths", "quick"),
    Check("preflight.foreign", "foreign processes", "Who holds memory on the GPUs.",
          "nobody but known runs", "a process that was left over", "prolog"),
    # --- one GPU ---
    Check("gpu.context", "first use", "torch is started on the GPU; memory is taken and given back.",
          "within 20 s, all memory back", "a driver or container that is broken", "prolog"),
    Check("gpu.gemm_exact", "exact matrix product", "A product of whole numbers, proven by Freivalds' test, repeated.",
          "equal to the last bit, and equal on like GPUs", "silent data corruption", "quick"),
    Check("gpu.gemm", "matrix product", "Large products, as fast as it can, over a while.",
          "by model's floor, baseline and peers", "a slow or throttled GPU", "quick", "its rate"),
    Check("gpu.memory_bandwidth", "GPU memory bandwidth", "A large copy within its memory.",
          "by model's floor, baseline and peers", "a bad memory stack", "standard", "its rate"),
    Check("gpu.memory_pattern", "GPU memory patterns", "Patterns and addresses written, and read back.",
          "no bit differs", "memory defects that ECC does not see", "standard", "the GPU's memory"),
    Check("gpu.transfers", "host transfers", "To the GPU and back.",
          "equal, by floor, baseline and peers", "a PCIe link below its width", "quick", "the PCIe link"),
    Check("gpu.train", "small training", "A small model learns.", "its loss starts where it must, and falls",
          "arithmetic that is wrong only together", "standard"),
    Check("gpu.determinism", "determinism", "The same training twice, with one seed.", "equal bits",
          "results that cannot be repeated", "standard"),
    # --- one node ---
    Check("node.join", "rendezvous", "One process for each GPU; all meet.", "all are there, each its own GPU",
          "a GPU that two ranks share", "prolog"),
    Check("node.collectives", "collectives, exact", "Every collective, in three types and sizes.",
          "equal to the last element", "a link that changes data", "quick"),
    Check("node.all_reduce", "all_reduce", "Over sizes.", "by floor and baseline", "a link inside the node", "quick",
          "NVLink"),
    Check("node.pairs", "peer transfers", "Every two GPUs.", "like the other pairs", "a bad NVLink", "standard",
          "NVLink"),
    Check("node.straggler", "straggler", "The same piece of work on each, then all wait for all.",
          "nobody works longest and waits least", "one slow GPU", "standard"),
    Check("node.train", "training, DDP", "The training of one GPU, by all.", "the same loss, equal weights",
          "ranks that drift apart", "standard"),
    Check("node.shards", "shares of the data", "Which samples each rank is given.", "each exactly one",
          "samples seen twice, or never", "standard"),
    # --- several nodes ---
    Check("cluster.data", "data", "The files of the dataset's list of checksums, read on every node.",
          "each as it was", "a file that has changed, on one node or on all", "standard"),
    Check("cluster.join", "rendezvous", "All nodes meet.", "all are there", "a node that cannot be reached", "quick"),
    Check("cluster.pairs", "links", "Every two nodes, in a tournament.", "like the other links",
          "a slow node, link or uplink, by name", "standard"),
    Check("cluster.latency", "latency", "Eight bytes back and forth, every two nodes.", "like the other links",
          "lost packets", "standard"),
    Check("cluster.collectives", "collectives, exact", "Every collective, in three types and sizes.",
          "equal to the last element", "a link that changes data", "quick"),
    Check("cluster.all_reduce", "all_reduce", "Over sizes.", "by floor and baseline", "congestion", "quick",
          "the fabric's rate"),
    Check("cluster.stability", "stability", "The same all_reduce over a while.", "the slowest within 3 times the usual",
          "links that flap", "full"),
    Check("cluster.straggler", "straggler", "The same piece of work on each, then all wait for all.",
          "nobody works longest and waits least", "one slow node", "standard"),
    Check("cluster.train", "training, DDP", "The training of one GPU, by all nodes.", "the same loss, equal weights",
          "ranks that drift apart", "standard"),
    Check("cluster.shards", "shares of the data", "Which samples each rank is given.", "each exactly one",
          "samples seen twice, or never", "standard"),
    Check("cluster.save", "checkpoint", "Saved by all ranks, as runs save theirs; then a rank is killed.",
          "complete", "storage that loses what is written", "standard"),
    Check("cluster.resume", "going on from a checkpoint", "The newest whole one, read by new processes.",
          "every loss to the bit as without the crash", "a checkpoint that has changed, or lacks something",
          "standard"),
)  # fmt: skip
BY_ID: Mapping[str, Check] = {check.id: check for check in CHECKS}

LIMIT_SECONDS: Mapping[StageName, float] = {
    "preflight": 60.0, "gpu": 240.0, "node": 300.0, "cluster": 900.0, "drills": 900.0,
}  # fmt: skip
"""The most that a stage may take; what is not done by then has hung."""
CPU_LIMIT_SECONDS: Mapping[StageName, float] = {
    "preflight": 60.0, "gpu": 90.0, "node": 60.0, "cluster": 90.0, "drills": 300.0,
}  # fmt: skip
_ORDER: tuple[Profile, ...] = ("prolog", "quick", "standard", "full")


def checks_of(profile: Profile, stage: StageName) -> list[Check]:
    """The checks of a stage that a profile takes, in their order."""
    there = _ORDER[: _ORDER.index(profile) + 1]
    return [check for check in CHECKS if check.stage == stage and check.profile in there]
