"""A small training by all ranks together: the loss, equal weights everywhere, each rank's share, and who is slow."""

from __future__ import annotations

import hashlib
import math
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from jobs.validation.measured import Measured

if TYPE_CHECKING:
    from jobs.validation.ranks import Group

FEATURES, HIDDEN, CLASSES = 64, 128, 10
BATCH = 256
"""Of all ranks together, so that the loss does not depend on their number."""
STEPS, CPU_STEPS = 50, 30
TURNS, CPU_TURNS = 50, 12
SAME_LOSS = 1e-3
"""How far (as a share) the loss may be from that of one process alone: sums come in another order."""
SEED = 20_250


def model() -> nn.Sequential:
    """A small classifier, the same for one seed."""
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What all ranks together learn from in a step, shapes ``(BATCH, FEATURES)`` and ``(BATCH,)``: a fixed linear rule.

    The same on every machine: the generator is the CPU's.
    """
    made = torch.Generator().manual_seed(SEED + step)
    x = torch.randn(BATCH, FEATURES, generator=made)
    rule = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(SEED))
    return x, (x @ rule).argmax(1)


def alone(steps: int, device: torch.device) -> list[float]:
    """The losses of one process that does all of it by itself."""
    net = model().to(device)
    made = torch.optim.AdamW(net.parameters(), lr=0.01)
    return [_step(net, made, step, slice(0, BATCH), device) for step in range(steps)]


def _step(net: nn.Module, optimizer: torch.optim.Optimizer, step: int, mine: slice, device: torch.device) -> float:
    x, y = batch(step)
    loss = nn.functional.cross_entropy(net(x[mine].to(device)), y[mine].to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.item())


def digest(net: nn.Module) -> str:
    """SHA-256 over all weights, in hex."""
    told = hashlib.sha256()
    for value in net.state_dict().values():
        told.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return told.hexdigest()


def together(group: Group, measured: Measured) -> None:
    """DDP over all ranks: the loss of one process alone, weights equal on all ranks at the end, samples a second."""
    steps = CPU_STEPS if group.cpu else STEPS
    share = BATCH // group.world
    mine = slice(group.rank * share, (group.rank + 1) * share)
    net = DistributedDataParallel(model().to(group.device), process_group=dist.group.WORLD)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses: list[float] = []
    began = time.perf_counter()
    for step in range(steps):
        losses.append(_step(net, optimizer, step, mine, group.device))
    group.wait()
    seconds = time.perf_counter() - began
    of_all = [sum(each) / group.world for each in zip(*group.gathered(losses), strict=True)]
    digests: list[str] = group.gathered(digest(net.module))
    measured.figures["train"] = [steps * share * group.world / seconds]
    measured.facts.update(first_loss=of_all[0], last_loss=of_all[-1], digest=digests[group.rank])
    if not all(map(math.isfinite, of_all)):
        measured.wrong = f"the loss is {next(each for each in of_all if not math.isfinite(each))}"
    elif of_all[-1] >= 0.7 * of_all[0]:
        measured.wrong = f"the loss does not fall: {of_all[0]:.3f} at first, {of_all[-1]:.3f} after {steps} steps"
    elif len(set(digests)) > 1:
        common = max(set(digests), key=digests.count)
        odd = [rank for rank, each in enumerate(digests) if each != common]
        measured.facts["odd"] = odd
        measured.wrong = f"the weights of rank {', '.join(map(str, odd))} are not those of the others"
    elif BATCH % group.world == 0:
        # Ranks that do not share the batch evenly leave some of it out, and have another loss by right.
        off = max(abs(a - b) / b for a, b in zip(of_all, alone(steps, group.device), strict=True))
        measured.facts["off"] = off
        if off > SAME_LOSS:
            measured.wrong = f"the loss is {off:.2%} off that of one process alone"


def shards(group: Group, measured: Measured) -> None:
    """Whether the sampler gives every sample to exactly one rank."""
    count = 1009  # a prime: no number of ranks divides it
    samples: Any = range(count)  # all that a sampler asks of a dataset is its length
    sampler: DistributedSampler[int] = DistributedSampler(
        samples, num_replicas=group.world, rank=group.rank, shuffle=True, seed=SEED
    )
    lists: list[list[int]] = group.gathered(list(sampler))
    told = [index for each in lists for index in each]
    repeated = len(told) - len(set(told))
    padding = -count % group.world
    if set(told) != set(range(count)) or repeated != padding:
        measured.wrong = f"{count - len(set(told))} samples are in nobody's share, {repeated - padding} in several"
    measured.facts.update(samples=count, padded=padding)


def straggler(group: Group, measured: Measured) -> None:
    """Each rank's own time for one piece of work, and how long it then waits for the others: seconds, by turn."""
    size = 256 if group.cpu else 4096
    a = torch.randn(size, size, device=group.device)
    total = torch.zeros(1024, device=group.device)
    slow = float(group.planted("slow") or 0.0) / 1000
    compute: list[float] = []
    waiting: list[float] = []
    for turn in range(-2, CPU_TURNS if group.cpu else TURNS):
        began = time.perf_counter()
        for _ in range(3):
            a = torch.nn.functional.normalize(a @ a)
        group.wait()
        time.sleep(slow)
        done = time.perf_counter()
        dist.all_reduce(total)
        group.wait()
        if turn >= 0:
            compute.append(done - began)
            waiting.append(time.perf_counter() - done)
    measured.facts.update(compute=compute, waiting=waiting)
