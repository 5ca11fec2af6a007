"""A small character language model, trained with DDP: the sample that shows a run from its start to its resume.

Any GPU or none: NCCL where there are GPUs, gloo elsewhere.

The settings are the workflow's ``training`` section; what this script adds to it stands under ``training.parameters``:
``steps``, ``pause_seconds`` (after each step, so that a machine which simulates a cluster keeps some room), and, to see
what a failure looks like, ``fail_at_step``, ``fail_rank`` and ``fail_attempts`` (how many attempts fail; 1), or a hang,
``hang_at_step`` and ``hang_rank``.

A resumed run gives the same figures, to the last bit, as one that was never interrupted: what a step does depends on
the weights, the optimizer, the step, the rank and the seed alone. Figures are reported at the same steps, too.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import jobs

TEXT = Path(__file__).with_name("operations.txt")
CONTEXT = 64
WIDTH = 64
HEADS = 4
LAYERS = 2
WARM_UP_STEPS = 20
REPORT_EVERY_STEPS = 5


@dataclass(frozen=True)
class Settings:
    """What this run is asked for."""

    steps: int
    batch_size: int
    """Sequences in one step, over all ranks."""
    learning_rate: float
    pause_seconds: float
    seed: int
    fail_at_step: int | None
    """None where this attempt is not to fail."""
    fail_rank: int
    hang_at_step: int | None
    """None where it is not to hang."""
    hang_rank: int


class Block(nn.Module):
    """Attention to what came before, then two layers; both beside the straight path."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_layers = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.to_heads, self.from_heads = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.to_heads(self.norm_attention(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.from_heads(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.layers(self.norm_layers(x))


class LanguageModel(nn.Module):
    """Which character comes next, from up to 64 before it."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.character = nn.Embedding(characters, WIDTH)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters)

    def forward(self, text: Tensor, following: Tensor) -> Tensor:
        """The mean loss of guessing ``following`` from ``text``, both (batch, length) of character numbers."""
        x = self.character(text) + self.place(torch.arange(text.shape[1], device=text.device))
        guess = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(guess.flatten(0, 1), following.flatten())


def read_settings() -> Settings:
    """The workflow's settings; arguments go before them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--pause-seconds", type=float)
    arguments = parser.parse_args()
    training = jobs.config()
    parameters: dict[str, Any] = training.get("parameters") or {}
    fail_at_step = parameters.get("fail_at_step")
    if int(os.environ.get("RAYDECK_ATTEMPT") or 1) > int(parameters.get("fail_attempts", 1)):
        fail_at_step = None
    return Settings(
        steps=int(arguments.steps or parameters.get("steps") or 2000),
        batch_size=int(training.get("batch_size") or 32),
        learning_rate=float(training.get("learning_rate") or 3e-3),
        pause_seconds=float(arguments.pause_seconds or parameters.get("pause_seconds") or 0.0),
        seed=int(training.get("seed") or 1),
        fail_at_step=None if fail_at_step is None else int(fail_at_step),
        fail_rank=int(parameters.get("fail_rank") or 0),
        hang_at_step=None if parameters.get("hang_at_step") is None else int(parameters["hang_at_step"]),
        hang_rank=int(parameters.get("hang_rank") or 0),
    )


def pick(text: Tensor, sequences: int, step: int, rank: int, seed: int) -> Tensor:
    """This rank's share of a step; it depends on these numbers alone, so a resumed run goes on the same."""
    generator = torch.Generator().manual_seed(hash((seed, step, rank)) % 2**63)
    starts = torch.randint(len(text) - CONTEXT - 1, (sequences,), generator=generator)
    return torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])


def wait_for_ever() -> None:
    """What a rank does that waits for something that never comes."""
    while True:
        time.sleep(1.0)


def train(settings: Settings, saver: jobs.Saver, rank: int, ranks: int, device: torch.device) -> None:
    """From the first step, or the one after the checkpoint, to the last one or the one where all agree to stop."""
    raw = TEXT.read_text(encoding="ascii")
    characters = sorted(set(raw))
    number = {character: index for index, character in enumerate(characters)}
    text = torch.tensor([number[character] for character in raw])

    torch.manual_seed(settings.seed)
    model = LanguageModel(len(characters)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate, betas=(0.9, 0.99))
    parts: dict[str, nn.Module | Optimizer] = {"model.pt": model, "optimizer.pt": optimizer}
    if saver.resume:
        for name, part in parts.items():
            part.load_state_dict(torch.load(saver.resume / name, map_location=device, weights_only=True))
        print(f"resumed from the checkpoint of step {saver.step}")
    together = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    sequences = max(1, settings.batch_size // ranks)
    told, tokens = time.monotonic(), 0
    if rank == 0:
        size = sum(parameter.numel() for parameter in model.parameters())
        print(f"{size:,} parameters, {len(raw):,} characters of text, world size {ranks}, on {device.type}")

    for step in range(saver.step + 1, settings.steps + 1):
        if step == settings.fail_at_step and rank == settings.fail_rank % ranks:
            raise RuntimeError(f"this rank was told to fail at step {step} (training.parameters.fail_at_step)")
        if step == settings.hang_at_step and rank == settings.hang_rank % ranks:
            wait_for_ever()
        began = time.monotonic()
        batch = pick(text, sequences, step, rank, settings.seed).to(device)
        loss = together(batch[:, :-1], batch[:, 1:])
        own = time.monotonic() - began
        optimizer.zero_grad()
        loss.backward()  # averages the gradients over all ranks
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, step / WARM_UP_STEPS)
        optimizer.step()

        total = loss.detach().clone()
        dist.all_reduce(total)
        mean = float(total) / ranks
        tokens += sequences * CONTEXT * ranks
        due = saver.due(step, last=step == settings.steps)
        if due or step == saver.step + 1 or step % REPORT_EVERY_STEPS == 0:
            now = time.monotonic()
            rate = tokens / (now - told)
            jobs.report(step=step, loss=mean, own_seconds=own, tokens_per_second=rate)
            print(f"step {step} loss {float(loss.detach()):.4f} of {mean:.4f}, {rate:,.0f} tokens a second", flush=True)
            told, tokens = now, 0
        if not math.isfinite(mean):
            raise ArithmeticError(f"the loss is {mean} at step {step}")
        if due:
            with saver.save(step, loss=mean) as folder:
                if rank == 0:
                    for name, part in parts.items():
                        torch.save(part.state_dict(), folder / name)
            print(f"saved the checkpoint of step {step}", flush=True)
        if saver.leaving:
            print(f"asked to stop: leaving after step {step}")
            break
        time.sleep(settings.pause_seconds)


def main() -> None:
    """Join the others, train, leave."""
    saver = jobs.Saver()  # from here on a request to stop is noted, not obeyed at once
    torch.set_num_threads(1)
    gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    train(read_settings(), saver, dist.get_rank(), dist.get_world_size(), device)
    dist.barrier()  # who leaves first breaks no connection that another one still uses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
