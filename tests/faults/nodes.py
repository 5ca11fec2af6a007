"""Faults of machines, their storage and their network."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.faults.fault import Aim, Fault
from tests.faults.lab import Lab

Make = Callable[[Lab], AbstractContextManager[Aim]]
NODE = "worker-2"


def watched(lab: Lab) -> Path:
    """The folder that the cluster file names, and that each node may have a file system of its own at."""
    return lab.bed.folder / "data"


@contextmanager
def full_disk(lab: Lab) -> Generator[Aim]:
    with lab.mounted(NODE, watched(lab), "size=8m") as path:
        lab.bed.hosts[NODE].inside(
            "dd", "if=/dev/zero", f"of={path}/fill", "bs=1M", "count=8", "status=none", "conv=notrunc"
        )
        yield Aim(f"{NODE}:{path}", NODE, NODE)


@contextmanager
def no_inodes(lab: Lab) -> Generator[Aim]:
    with lab.mounted(NODE, watched(lab), "size=8m", "nr_inodes=20") as path:
        lab.bed.hosts[NODE].inside(
            "sh", "-c", f"i=0; while [ $i -lt 19 ]; do : > {path}/f$i || break; i=$((i+1)); done"
        )
        yield Aim(f"{NODE}:{path}", NODE, NODE)


@contextmanager
def read_only(lab: Lab) -> Generator[Aim]:
    with lab.mounted(NODE, watched(lab), "size=8m", "ro") as path:
        yield Aim(f"{NODE}:{path}", NODE, NODE)


@contextmanager
def hung_mount(lab: Lab) -> Generator[Aim]:
    with lab.hanging(NODE, watched(lab)):
        yield Aim(f"{NODE}:{watched(lab)}", NODE, NODE)


@contextmanager
def full_shm(lab: Lab) -> Generator[Aim]:
    host = lab.bed.hosts[NODE]
    host.inside("mount", "-t", "tmpfs", "-o", "size=8m", "none", "/dev/shm")
    try:
        host.inside("dd", "if=/dev/zero", "of=/dev/shm/fill", "bs=1M", "count=8", "status=none", "conv=notrunc")
        yield Aim(f"{NODE}:/dev/shm", NODE, NODE)
    finally:
        host.inside("umount", "-l", "/dev/shm")


def skewed(seconds: float) -> Make:
    @contextmanager
    def make(lab: Lab) -> Generator[Aim]:
        with lab.simulated(NODE, clock_skew_seconds=seconds):
            yield Aim(NODE, NODE)

    return make


@contextmanager
def link_cut(lab: Lab) -> Generator[Aim]:
    try:
        with lab.bed.hosts[NODE].link.cut():
            yield Aim(NODE, NODE)
    finally:
        lab.back(NODE)


@contextmanager
def raylet_killed(lab: Lab) -> Generator[Aim]:
    lab.bed.hosts[NODE].kill_raylet()
    try:
        yield Aim(NODE, NODE)
    finally:
        lab.back(NODE)


@contextmanager
def head_silent(lab: Lab) -> Generator[Aim]:
    with lab.bed.cluster.head.stopped("dashboard/dashboard.py"):
        yield Aim("cluster", "", "head")


@contextmanager
def port_down(lab: Lab) -> Generator[Aim]:
    host = lab.bed.hosts[NODE]
    host.inside("ip", "link", "add", "eth9", "type", "veth", "peer", "name", "eth9-peer")
    host.inside("ip", "link", "set", "eth9-peer", "up")
    host.inside("ip", "addr", "add", "192.0.2.9/24", "dev", "eth9")
    host.inside("ip", "link", "set", "eth9", "up")
    lab.wait_port_known()
    host.inside("ip", "link", "set", "eth9-peer", "down")
    try:
        yield Aim(NODE, NODE)
    finally:
        host.inside("ip", "link", "delete", "eth9")


FAULTS: tuple[Fault, ...] = (
    Fault("disk full", full_disk, ("mount.space.critical", "mount.space"), r"full|space", also=("mount.filling",)),
    Fault("no inodes left", no_inodes, ("mount.inodes.critical", "mount.inodes"), r"inode"),
    Fault("file system read-only", read_only, ("mount.read_only",), r"read-only|written"),
    Fault("mount hangs", hung_mount, ("mount.hangs", "mount.slow"), r"hang|not answer"),
    Fault("/dev/shm full", full_shm, ("mount.shm.critical", "mount.shm"), r"shm"),
    Fault("clock 0.8 s ahead", skewed(0.8), ("node.clock",), r"clock", seconds=90),
    Fault("clock 5 s behind", skewed(-5.0), ("node.clock.critical",), r"clock", seconds=90),
    Fault("a port goes down", port_down, ("node.port_down", "node.port_down.idle"), r"eth9|port", seconds=330),
    Fault("Ray's process killed", raylet_killed, ("node.ray_dead",), r"Ray|raylet", also=("node.unwatched",)),
    Fault("link cut", link_cut, ("node.unwatched", "node.ssh_lost", "node.ray_dead"), r"reach|link|network|answer|silent|lost", also=("node.unwatched", "node.ray_dead", "node.ssh_lost"), seconds=120),
    Fault("Ray's head does not answer", head_silent, ("cluster.ray",), r"Ray|head|dashboard", also=("node.unwatched", "cluster.controller"), seconds=90),
)  # fmt: skip
