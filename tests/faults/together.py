"""Two faults at once: each has to be found in spite of the other."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from tests.faults import gpus, nodes, runs
from tests.faults.fault import Aim, Fault
from tests.faults.lab import Lab


@contextmanager
def nan_and_xid(lab: Lab) -> Generator[Aim]:
    """A run whose loss breaks, while a GPU of a node that it does not use reports an XID."""
    remap = "NVRM: Xid (PCI:0000:1b:00): 63, pid=1, name=python, row remap"
    with lab.kernel_says("worker-3", remap), runs.trouble("nan", "")(lab) as aim:
        yield aim


@contextmanager
def disk_and_gpu(lab: Lab) -> Generator[Aim]:
    """A full disk on one node, a lost GPU on another: asked about the node with the GPU."""
    with nodes.full_disk(lab), gpus.simulated("lost")(lab) as aim:
        yield aim


@contextmanager
def killed_and_clock(lab: Lab) -> Generator[Aim]:
    """A rank that is killed while another node's clock is wrong."""
    with nodes.skewed(-5.0)(lab), runs.signalled(runs.KILL)(lab) as aim:
        yield aim


FAULTS: tuple[Fault, ...] = (
    Fault("loss breaks while a GPU elsewhere remaps", nan_and_xid, ("run.not_finite",), r"not a number|NaN|finite",
          also=("run.failed", "gpu.xid.warning", "node.xid.warning")),
    Fault("GPU lost while a disk elsewhere is full", disk_and_gpu, ("gpu.lost",), r"lost|bus|not answer",
          also=("mount.space.critical", "mount.space", "mount.filling")),
    Fault("rank killed while a clock is wrong", killed_and_clock, ("run.failed",), r"kill|signal 9|SIGKILL",
          also=("node.clock.critical", "node.clock")),
)  # fmt: skip
