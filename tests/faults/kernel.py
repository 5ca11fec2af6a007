"""What kernels tell: lines stay in a host's log, and so in what triage reads of it. These are made after all others."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

from tests.faults.fault import Aim, Fault
from tests.faults.lab import Lab

PCI = "0000:1b:00"


def says(node: str, *lines: str) -> Callable[[Lab], AbstractContextManager[Aim]]:
    """Lines of a host's kernel."""

    @contextmanager
    def make(lab: Lab) -> Generator[Aim]:
        with lab.kernel_says(node, *lines):
            yield Aim(node, node)

    return make


FAULTS: tuple[Fault, ...] = (
    Fault(
        "XID 48 in the kernel's log",
        says("worker-1", f"NVRM: Xid (PCI:{PCI}): 48, pid=1234, name=python, DBE"),
        ("gpu.xid.critical", "node.xid.critical"),
        r"XID 48|double",
    ),
    Fault(
        "fatal NVSwitch error",
        says("worker-3", "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
        ("node.sxid",),
        r"SXid|NVSwitch",
    ),
    Fault(
        "out of memory, by the kernel",
        says("worker-2", "Out of memory: Killed process 4242 (python) total-vm:9000000kB, anon-rss:8000000kB"),
        ("node.oom",),
        r"memory",
    ),
    Fault(
        "NFS server does not answer",
        says("head", "nfs: server store-1 not responding, still trying"),
        ("node.storage_errors",),
        r"nfs|storage",
    ),
    Fault(
        "hardware error by the kernel",
        says("worker-2", "mce: [Hardware Error]: Machine check events logged"),
        ("node.machine_check",),
        r"hardware|machine check",
    ),
)
