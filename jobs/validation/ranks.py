"""One rank of a process group that is checked: it joins, and goes through the checks in step with all others.

Every check begins with a barrier that names who is missing, under a short time limit: the defaults of torch are ten
and thirty minutes, and what a rank sees of another one's death or hang names nobody.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from jobs.validation import collectives, pairs, resume, training
from jobs.validation.measured import Measured, Teller


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that are checked together, as one of them sees them."""

    rank: int
    names: tuple[str, ...]
    """Each rank's node."""
    locals: tuple[int, ...]
    """Each rank's number on its node."""
    device: torch.device
    gloo: dist.ProcessGroup
    """For barriers that name who is missing, and for objects."""
    patience: float
    """Seconds for one collective."""
    quick: bool
    deep: bool
    fault: str
    """What is planted for a drill: ``slow:RANK:MILLISECONDS``, ``hang:RANK:CHECK``, ``die:RANK:CHECK``,
    ``rot:RANK:byte`` (of its part of the checkpoint)."""

    folder: str = ""
    """Below which a checkpoint is saved; all ranks see it."""
    expected: tuple[str, ...] = ()
    """The losses that a training has to have that goes on from it."""

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return len(self.names)

    @property
    def cpu(self) -> bool:
        """It stands in for a GPU."""
        return self.device.type == "cpu"

    def gathered(self, value: Any) -> list[Any]:
        """This from every rank, in their order."""
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value, group=self.gloo)
        return found

    def wait(self) -> None:
        """Until what the device was given is done."""
        if not self.cpu:
            torch.cuda.synchronize(self.device)

    def line_up(self) -> None:
        """Until all ranks are here. Raises where some do not come; rank 0's words name them."""
        dist.monitored_barrier(self.gloo, timeout=timedelta(seconds=self.patience), wait_all_ranks=True)

    def planted(self, kind: str) -> str:
        """What of this kind is planted for this rank; empty for nothing."""
        found, _, rest = self.fault.partition(":")
        rank, _, detail = rest.partition(":")
        return detail if found == kind and rank == str(self.rank) else ""


Check = Callable[[Group, Measured], None]
CHECKS: dict[str, Check] = {
    "collectives": collectives.exact,
    "all_reduce": collectives.sweep,
    "stability": collectives.stability,
    "pairs": pairs.bandwidth,
    "latency": pairs.latency,
    "straggler": training.straggler,
    "train": training.together,
    "shards": training.shards,
    "save": resume.save,
    "resume": resume.resume,
}
"""By what stands behind the stage in their ids: ``node.all_reduce``, ``cluster.all_reduce``."""


def run(request: dict[str, Any], tell: Teller) -> None:
    """Join, and go through the checks that are asked for.

    ``request``: ``stage``, ``checks`` (ids), ``run`` (what tells this group from any other), ``rank``, ``names`` (each
    rank's node), ``locals``, ``host`` and ``port`` (where rank 0 is met), ``device``, ``backend``, ``patience``,
    ``join_seconds``, ``check_seconds``, ``quick``, ``deep``, ``fault``,
    ``folder`` (for a checkpoint), ``expected`` (losses), ``crash`` (in the end).
    """
    torch.set_num_threads(1)
    stage: str = request["stage"]
    joined: list[Group] = []
    with tell.check(f"{stage}.join") as measured:
        began = time.monotonic()
        group = _joined(request)
        joined.append(group)
        measured.figures["join"] = [time.monotonic() - began]
        told = group.gathered((request["run"], request["names"][group.rank], _device_of(group)))
        strangers = [each for each in told if each[0] != request["run"]]
        if strangers:
            measured.wrong = f"ranks of another group answered at this port: {strangers[0][0]}"
        devices = [each[2] for each in told if each[2]]
        if len(set(devices)) < len(devices):
            measured.wrong = "two ranks have the same GPU"
            measured.evidence = sorted(devices)
    if measured.broken:
        return
    group = joined[0]
    for check in request["checks"]:
        name = check.partition(".")[2]
        if name == "join":
            continue
        # One that hangs says where it stands, and ends by itself: nobody has to wait for the stage's limit.
        faulthandler.dump_traceback_later(request["check_seconds"], exit=True)
        with tell.check(check) as measured:
            _act_out(group, name)
            group.line_up()
            CHECKS[name](group, measured)
        if measured.broken:
            return  # the others are at another place by now, and nothing that is measured from here on means anything
    if request.get("crash") and not measured.wrong:
        resume.crash(group)


def _joined(request: dict[str, Any]) -> Group:
    rank, world = int(request["rank"]), len(request["names"])
    limit = timedelta(seconds=request["join_seconds"])
    # Torch documents it there, and only there.
    make_store = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]
    store = make_store(request["host"], int(request["port"]), world, rank == 0, timeout=limit)
    # Two groups that meet at one port would join each other without a word: names of their own keep them apart.
    named = PrefixStore(request["run"], store)
    device = torch.device("cpu") if request["device"] == "cpu" else torch.device("cuda", 0)
    dist.init_process_group(
        request["backend"], store=named, rank=rank, world_size=world, timeout=timedelta(seconds=request["patience"])
    )
    gloo: Any = dist.group.WORLD
    if request["backend"] != "gloo":
        gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=request["patience"]))
    group = Group(
        rank=rank,
        names=tuple(request["names"]),
        locals=tuple(request["locals"]),
        device=device,
        gloo=gloo,
        patience=float(request["patience"]),
        quick=bool(request.get("quick")),
        deep=bool(request.get("deep")),
        fault=str(request.get("fault", "")),
        folder=str(request.get("folder", "")),
        expected=tuple(request.get("expected", ())),
    )
    dist.monitored_barrier(gloo, timeout=limit, wait_all_ranks=True)
    return group


def _device_of(group: Group) -> str:
    return "" if group.cpu else str(torch.cuda.get_device_properties(group.device).uuid)


def _act_out(group: Group, check: str) -> None:
    """What is planted before a check, for drills."""
    if group.planted("die") == check:
        os.kill(os.getpid(), signal.SIGKILL)
    if group.planted("hang") == check:
        time.sleep(3600)
