"""Faults of runs: ranks that die, stop, are slow or wrong, and all that keeps a run from starting."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from tests.faults.fault import Aim, Fault
from tests.faults.lab import GPUS, TRAINS, Lab

Make = Callable[[Lab], AbstractContextManager[Aim]]
KILL = signal.SIGKILL
AT = 15
"""The step at which a run goes wrong."""
LATER = 150
"""The same where it has to be known before what is usual: some fifteen seconds on."""
BASELINE_STEPS = 450
"""By then it is known how fast a run usually is."""


def trouble(mode: str, culprit: str = "rank 1", what: str = "", step: int = AT, **changes: Any) -> Make:
    """A run that goes wrong by itself."""

    @contextmanager
    def make(lab: Lab) -> Generator[Aim]:
        more = {"training__parameters__at_step": step, "training__parameters__what": what.format(folder=lab.bed.folder)}
        with lab.running(mode, **{**more, **changes}) as run:
            lab.wait_step(run, step - 1)
            yield Aim(run, run, culprit)

    return make


def signalled(number: signal.Signals, rank: int = 1, step: int = AT) -> Make:
    """A healthy run of which one rank is sent a signal."""

    @contextmanager
    def make(lab: Lab) -> Generator[Aim]:
        with lab.running() as run:
            lab.wait_step(run, step)
            pids = lab.ranks(run, rank)
            assert pids, f"rank {rank} of {run} is not there"
            for pid in pids:
                os.kill(pid, number)
            yield Aim(run, run, f"rank {rank}")

    return make


@contextmanager
def unreadable(lab: Lab) -> Generator[Aim]:
    path = lab.bed.folder / "secret"
    path.mkdir(mode=0o700, exist_ok=True)
    make = trouble("missing data", f"{path}/shard-0", f"{path}/shard-0")
    with make(lab) as aim:
        yield aim


@contextmanager
def kept_waiting(lab: Lab) -> Generator[Aim]:
    """A run that needs two nodes, and one of the two is cordoned."""
    lab.bed.cli("cordon", TRAINS[1], "--yes", "--reason", "fan 2 is loud")
    try:
        with lab.running() as run:
            yield Aim(run, run, TRAINS[1])
    finally:
        lab.bed.cli("uncordon", TRAINS[1], "--yes", "--reason", "the fan was changed")


@contextmanager
def full_output(lab: Lab) -> Generator[Aim]:
    path = lab.folder("worker-1", "out")
    with ExitStack() as stack:
        for node in ("worker-1", "worker-2", "worker-3"):
            stack.enter_context(lab.mounted(node, path, "size=4m"))
        yield stack.enter_context(trouble("write", "rank 1", f"{path}/checkpoint")(lab))


@contextmanager
def slow_link(lab: Lab) -> Generator[Aim]:
    """A run of two nodes that sends 4 MB at each step, and a link of one of them that lets little through."""
    with lab.running("", training__parameters__numbers=1_000_000) as run:
        lab.wait_step(run, BASELINE_STEPS, 180.0)
        node = next(name for name in lab.nodes_of(run) if name != "head")
        with lab.bed.hosts[node].link.slow(20_000):
            yield Aim(run, run, run)


def hangs(make: Make) -> Make:
    """And the GPUs of all ranks do what they do while ranks wait in a collective: full utilisation, little power."""

    @contextmanager
    def spinning(lab: Lab) -> Generator[Aim]:
        with make(lab) as aim, ExitStack() as stack:
            for node in TRAINS:
                faults = {str(index): {"kind": "spin"} for index in range(GPUS)}
                stack.enter_context(lab.simulated(node, faults=faults))
            yield aim

    return spinning


FAULTS: tuple[Fault, ...] = (
    Fault("rank killed", signalled(signal.SIGKILL), ("run.failed", "run.retries_spent"), r"kill|signal 9|SIGKILL"),
    Fault("rank stopped", hangs(signalled(signal.SIGSTOP, step=LATER)), ("run.spinning", "run.stalled"), r"behind|stopped|state T|hang", seconds=120),
    Fault("rank sleeps", hangs(trouble("sleep", step=LATER)), ("run.spinning", "run.stalled"), r"behind|hang", seconds=120),
    Fault("rank exits without a word", trouble("silent exit"), ("run.failed",), r"exit|code 3|without"),
    Fault("loss is not a number", trouble("nan", ""), ("run.not_finite",), r"not a number|NaN|finite", also=("run.failed",)),
    Fault("data missing", trouble("missing data", "/shard-7", "{folder}/nowhere/shard-7"), ("run.failed",), r"missing|No such file|not there|data"),
    Fault("a package is missing", trouble("missing module", "", "flash_attn_nowhere"), ("run.failed",), r"flash_attn_nowhere|module|package|depend"),
    Fault("GPU memory full", trouble("device memory"), ("run.failed",), r"memory"),
    Fault("host memory full", trouble("host memory"), ("run.failed",), r"memory"),
    Fault("device-side assert", trouble("assert"), ("run.failed",), r"assert"),
    Fault("port taken", trouble("port taken"), ("run.failed",), r"port|address already in use"),
    Fault("ranks call different collectives", hangs(trouble("mismatch", "", step=LATER)), ("run.failed", "run.spinning", "run.stalled"), r"mismatch|different|collective|size", seconds=120),
    Fault("output folder full", full_output, ("run.failed",), r"space|full", also=("mount.space.critical", "mount.space")),
    Fault("a cordoned node keeps a run waiting", kept_waiting, (), r"cordon"),
    Fault("a rank is slow", trouble("slow rank", step=LATER), ("run.slow", "run.straggler", "gpu.unlike"), r"slow|straggl|behind", seconds=150),
    Fault("slow link", slow_link, ("run.slow",), r"network|collective"),
    Fault("rank waits in a read", hangs(trouble("wait in a read", "rank 1", "{folder}/pipe", LATER)), ("run.spinning", "run.stalled"), r"read|behind|storage|hang", seconds=120),
)  # fmt: skip
