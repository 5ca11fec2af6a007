"""A gang that trains nothing and goes wrong as it is told: what to do stands under ``training.parameters``.

``mode`` is what goes wrong, ``at_step`` when, ``rank`` on which rank; every other rank goes on until it loses it.
"""

from __future__ import annotations

import math
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import jobs


def go_wrong(mode: str, what: str, rank: int) -> None:
    """Do what this mode means, once. Returns for those that only hold things up."""
    if mode == "silent exit":
        sys.exit(3)
    if mode == "missing data":
        Path(what).read_bytes()
    if mode == "missing module":
        __import__(what)
    if mode == "device memory":
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80 GiB"
        )
    if mode == "host memory":
        raise MemoryError("Unable to allocate 512. GiB for an array")
    if mode == "write":
        Path(what).write_bytes(b"x" * (64 << 20))
    if mode == "assert":
        raise RuntimeError("CUDA error: device-side assert triggered")
    if mode == "port taken":
        import socket

        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            one.listen()
            two.bind(one.getsockname())
    if mode == "wait in a read":
        os.open(what, os.O_RDONLY)  # a FIFO that nobody writes to
    if mode == "sleep":
        time.sleep(3600)
    if mode == "mismatch":
        dist.all_reduce(torch.ones(7 + rank))


def main() -> None:
    """Steps of an all_reduce each, until the end or the fault."""
    told: dict[str, Any] = jobs.config()
    parameters: dict[str, Any] = told.get("parameters") or {}
    mode, at, culprit = (
        str(parameters.get("mode", "")),
        int(parameters.get("at_step", 10)),
        int(parameters.get("rank", 1)),
    )
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(parameters.get("timeout_seconds", 600))))
    rank = dist.get_rank()
    attempt = int(os.environ.get("RAYDECK_ATTEMPT", "1"))
    loss = 2.0
    for step in range(int(parameters.get("steps", 100_000))):
        began = time.monotonic()
        if step == at and rank == culprit and attempt <= int(parameters.get("attempts", 99)):
            go_wrong(mode, str(parameters.get("what", "")), rank)
        if mode == "slow rank" and rank == culprit and step >= at:
            time.sleep(1.0)
        own = time.monotonic() - began
        told_loss = torch.full((int(parameters.get("numbers", 1)),), loss)
        dist.all_reduce(told_loss)
        loss = 2.0 / (1 + step / 50)
        if mode == "nan" and step >= at:
            loss = math.nan
        if jobs.stopping():
            break
        took = max(time.monotonic() - began, 1e-6)
        jobs.report(step=step, loss=loss, own_seconds=own, samples_per_second=16 / (took + 0.1))
        print(f"step {step} loss {loss:.4f}", flush=True)
        time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
