"""A checkpoint, saved by all ranks as runs save theirs, a crash after it, and whether what goes on from it is the same.

Two groups of ranks do it: one trains, saves (`save`), goes on and loses a rank (`crash`); a later one finds the newest
checkpoint that is whole, reads it and has to come to the very losses that the first one had (`resume`).
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from jobs import checkpoint
from jobs.saver import Saver
from jobs.validation import training
from jobs.validation.measured import Measured, Skip

if TYPE_CHECKING:
    from jobs.validation.ranks import Group

SAVED_AT, CRASHED_AT, STEPS = 10, 14, 20
WIDTH, CPU_WIDTH = 8192, 1024
"""Of the hidden layer: what makes the checkpoint large enough to time."""


class Course:
    """One training with dropout: without each rank's random numbers in the checkpoint it would not go on the same."""

    def __init__(self, group: Group) -> None:
        self._group = group
        torch.manual_seed(training.SEED)
        width = CPU_WIDTH if group.cpu else WIDTH
        net = nn.Sequential(
            nn.Linear(training.FEATURES, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, training.CLASSES)
        )
        self._net = net.to(group.device)
        self._optimizer = torch.optim.AdamW(self._net.parameters(), lr=0.01)
        torch.manual_seed(training.SEED + group.rank)

    def losses(self, first: int, last: int) -> list[str]:
        """Steps ``first`` to ``last`` (without it): the mean loss of all ranks, bit by bit in hex."""
        return [self._step(step) for step in range(first, last)]

    def _step(self, step: int) -> str:
        group = self._group
        share = training.BATCH // group.world
        x, y = training.batch(step)
        mine = slice(group.rank * share, (group.rank + 1) * share)
        loss = nn.functional.cross_entropy(self._net(x[mine].to(group.device)), y[mine].to(group.device))
        self._optimizer.zero_grad()
        loss.backward()
        for value in self._net.parameters():
            # One by one, and not by DDP: that groups them anew after its first step, and sums in another order then.
            # Of three ranks or more a sum depends on the order, and equal bits are what is asked for.
            assert value.grad is not None
            dist.all_reduce(value.grad)
            value.grad /= group.world
        self._optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return float(mean.item() / group.world).hex()

    def state(self) -> dict[str, Any]:
        """All that it takes to go on."""
        made = {"net": self._net.state_dict(), "optimizer": self._optimizer.state_dict()}
        numbers = {"cpu": torch.get_rng_state()}
        if not self._group.cpu:
            numbers["gpu"] = torch.cuda.get_rng_state(self._group.device)
        return {**made, "numbers": numbers}

    def load(self, state: dict[str, Any]) -> None:
        """Be where that was."""
        self._net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["numbers"]["cpu"].cpu())
        if "gpu" in state["numbers"]:
            torch.cuda.set_rng_state(state["numbers"]["gpu"].cpu(), self._group.device)


def save(group: Group, measured: Measured) -> None:
    """A whole training, to have its losses; then the same again up to the checkpoint, which is saved."""
    folder = _folder(group)
    torch.use_deterministic_algorithms(True)
    measured.facts["losses"] = Course(group).losses(0, STEPS)[SAVED_AT:]
    course = Course(group)
    course.losses(0, SAVED_AT)
    group.line_up()
    began = time.perf_counter()
    with Saver(directory=folder).save(SAVED_AT) as draft:
        torch.save(course.state(), draft / f"rank-{group.rank}.pt")
    measured.figures["save"] = [max(group.gathered(time.perf_counter() - began))]
    found = checkpoint.newest_complete(folder)
    if found is None:
        measured.wrong = f"what was saved to {folder} is not there"
    else:
        measured.facts["bytes"] = sum(file.stat().st_size for file in found.path.iterdir() if file.is_file())


def crash(group: Group) -> None:
    """Train on from the checkpoint, begin the next one, and have the last rank die in the middle of a step."""
    course = Course(group)
    course.losses(SAVED_AT, CRASHED_AT)
    if group.rank == 0:
        checkpoint.begin(_folder(group), CRASHED_AT)
    group.line_up()
    if group.rank == group.world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    course.losses(CRASHED_AT, STEPS)


def resume(group: Group, measured: Measured) -> None:
    """Find the newest checkpoint that is whole, read it, and go on: with the very losses of before, to the bit."""
    folder = _folder(group)
    found = checkpoint.newest_complete(folder)
    if found is None:
        measured.wrong = f"no complete checkpoint is found in {folder}"
        return
    mine = found.path / f"rank-{group.rank}.pt"
    if group.planted("rot"):
        _rot(mine)
    group.line_up()
    mistakes: list[list[str]] = group.gathered(checkpoint.verify(found.path) if group.rank == 0 else [])
    if mistakes[0]:
        measured.wrong = f"the checkpoint of step {found.step}: {mistakes[0][0]}"
        measured.facts["file"] = str(found.path)
        return
    began = time.perf_counter()
    torch.use_deterministic_algorithms(True)
    course = Course(group)
    course.load(torch.load(mine, map_location=group.device, weights_only=True))
    measured.figures["load"] = [max(group.gathered(time.perf_counter() - began))]
    losses = tuple(course.losses(found.step, STEPS))
    measured.facts["step"] = found.step
    if losses != group.expected:
        at = next((at for at, pair in enumerate(zip(losses, group.expected, strict=False)) if pair[0] != pair[1]), 0)
        told = f"{float.fromhex(losses[at]):.6f} and not {float.fromhex(group.expected[at]):.6f}"
        measured.wrong = f"what goes on from step {found.step} is another training: at step {found.step + at} {told}"


def _rot(file: Path) -> None:
    """One byte of it, in the middle, is another one."""
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        byte = opened.read(1)
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte[0] ^ 1]))


def _folder(group: Group) -> Path:
    if not group.folder:
        raise Skip("there is no shared output path")
    return Path(group.folder)
