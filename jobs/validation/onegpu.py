"""One GPU by itself: is it right, to the last bit; how fast is it; is its memory sound; does it learn, and repeatably.

On a machine without CUDA the CPU stands in for each GPU, with sizes that take it as long.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from jobs.validation import training
from jobs.validation.measured import Measured, Teller

GEMM_SIDE, CPU_GEMM_SIDE = 8192, 512
EXACT_SIDE, CPU_EXACT_SIDE = 8192, 384
"""Whole numbers of at most 4 in size: sums below 2**24, which float32 holds exactly."""
EXACT_REPEATS = 3
COPY_BYTES, CPU_COPY_BYTES = 4 << 30, 64 << 20
TRANSFER_BYTES, CPU_TRANSFER_BYTES = 1 << 30, 64 << 20
PATTERN_BYTES, CPU_PATTERN_BYTES = 4 << 30, 64 << 20
PATTERN_CHUNK_BYTES = 1 << 30
PATTERNS = (0, -1, 0x5555555555555555, -0x5555555555555556)
LEAK_BYTES = 64 << 20
STEPS = 30
_WORD = 8


@dataclass(frozen=True, slots=True)
class Gpu:
    """One that is checked."""

    index: int
    device: torch.device
    seconds: float
    """How long a rate is measured."""
    deep: bool
    fault: str

    @property
    def cpu(self) -> bool:
        """It is stood in for."""
        return self.device.type == "cpu"

    def wait(self) -> None:
        """Until what it was given is done."""
        if not self.cpu:
            torch.cuda.synchronize(self.device)

    def planted(self, kind: str) -> bool:
        """Whether this fault is planted on it."""
        return self.fault == f"{kind}:{self.index}"


def run(request: dict[str, Any], tell: Teller) -> None:
    """Every check that is asked for, on each of these GPUs.

    ``request``: ``device`` (``cuda``: the one that this process sees, ``cpu``), ``gpus`` (indexes on the node),
    ``checks`` (ids), ``seconds`` (for a rate), ``deep``, ``fault``.
    """
    torch.set_num_threads(int(request.get("threads", 1)))
    device = torch.device("cpu") if request["device"] == "cpu" else torch.device("cuda", 0)
    for index in request["gpus"]:
        gpu = Gpu(index, device, float(request["seconds"]), bool(request.get("deep")), str(request.get("fault", "")))
        for check in request["checks"]:
            with tell.check(check, index) as measured:
                CHECKS[check](gpu, measured)
            if not gpu.cpu:
                torch.cuda.empty_cache()


def context(gpu: Gpu, measured: Measured) -> None:
    """The first use: memory is taken, something is computed, memory is given back."""
    began = time.perf_counter()
    if gpu.cpu:
        equal = bool((torch.ones(1 << 20) + 1 == 2).all())
    else:
        torch.cuda.init()
        before = torch.cuda.mem_get_info(gpu.device)[0]
        made = torch.ones((64 << 20) // 4, device=gpu.device)
        equal = bool((made + 1 == 2).all())
        del made
        torch.cuda.empty_cache()
        lost = before - torch.cuda.mem_get_info(gpu.device)[0]
        # The first kernel loads code that stays; what a second look misses has leaked.
        made = torch.ones((64 << 20) // 4, device=gpu.device)
        del made
        torch.cuda.empty_cache()
        leaked = before - torch.cuda.mem_get_info(gpu.device)[0] - lost
        if leaked > LEAK_BYTES:
            measured.wrong = f"{leaked >> 20} MiB of its memory were not given back"
    measured.figures["context"] = [time.perf_counter() - began]
    if not equal:
        measured.wrong = "1 + 1 is not 2"
    elif measured.figures["context"][0] > 20.0:
        measured.wrong = f"its first use took {measured.figures['context'][0]:.0f} s"


def _whole_numbers(side: int, seed: int, device: torch.device) -> torch.Tensor:
    """Between -4 and 4, shape ``(side, side)``, the same on every machine."""
    made = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, (side, side), generator=made).to(torch.float32).to(device)


def gemm_exact(gpu: Gpu, measured: Measured) -> None:
    """A product that must be exact, proven by Freivalds' test, several times with equal bits."""
    side = CPU_EXACT_SIDE if gpu.cpu else EXACT_SIDE
    a, b = _whole_numbers(side, 1, gpu.device), _whole_numbers(side, 2, gpu.device)
    digests: set[str] = set()
    product = a
    for _ in range(EXACT_REPEATS):
        product = a @ b
        gpu.wait()
        if gpu.planted("gemm"):
            product[side // 2, side // 3] += 1.0
        digests.add(hashlib.sha256(product.cpu().numpy().tobytes()).hexdigest())
    a64, b64, c64 = a.double(), b.double(), product.double()
    for seed in range(3):
        made = torch.Generator().manual_seed(100 + seed)
        x = torch.randint(0, 2, (side, 1), generator=made).double().to(gpu.device)
        rows = (c64 @ x - a64 @ (b64 @ x)).flatten().nonzero().flatten()
        if len(rows):
            measured.wrong = _wrong_elements(a64, b64, c64, rows)
            break
    if not measured.wrong and len(digests) > 1:
        measured.wrong = f"the same product came out in {len(digests)} ways in {EXACT_REPEATS} tries"
    name = "cpu" if gpu.cpu else torch.cuda.get_device_name(gpu.device)
    measured.facts["digest"] = digests.pop()
    measured.facts["libs"] = f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}"


def _wrong_elements(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, rows: torch.Tensor) -> str:
    right = a[rows] @ b
    wrong = (c[rows] != right).nonzero()
    row, column = int(rows[wrong[0, 0]]), int(wrong[0, 1])
    return (
        f"a product is wrong without any error, in {len(wrong)} of {c.numel()} elements, "
        f"the first at ({row}, {column}): "
        f"{c[row, column].item():g}, not {right[wrong[0, 0], column].item():g}"
    )


def gemm(gpu: Gpu, measured: Measured) -> None:
    """Large products for a while; the rate of each part of it, and how far it falls."""
    side = CPU_GEMM_SIDE if gpu.cpu else GEMM_SIDE
    kind = torch.float32 if gpu.cpu else torch.bfloat16
    a, b = (torch.randn(side, side, device=gpu.device).to(kind) for _ in range(2))
    windows = 9
    rates: list[float] = []
    _rate(gpu, lambda: a @ b, gpu.seconds / windows)
    for _ in range(windows):
        rates.append(2 * side**3 / _rate(gpu, lambda: a @ b, gpu.seconds / windows) / 1e12)
    measured.figures["gemm"] = rates
    third = windows // 3
    fall = median(rates[-third:]) / median(rates[:third])
    measured.facts["fall"] = fall
    if not gpu.cpu and fall < 0.95:
        measured.warned = f"its rate falls to {fall:.0%} of that at the beginning: does it get too hot?"


def _rate(gpu: Gpu, work: Callable[[], object], seconds: float) -> float:
    """Seconds for one call, over so long (at least three calls)."""
    count, began = 0, time.perf_counter()
    while count < 3 or time.perf_counter() - began < seconds:
        work()
        gpu.wait()
        count += 1
    return (time.perf_counter() - began) / count


def memory_bandwidth(gpu: Gpu, measured: Measured) -> None:
    """A copy within its memory: read and written bytes a second."""
    size = CPU_COPY_BYTES if gpu.cpu else COPY_BYTES
    source = torch.arange(size // 4, device=gpu.device, dtype=torch.int32)
    target = torch.empty_like(source)
    rates = [2 * size / _rate(gpu, lambda: target.copy_(source), 0.01) / 1e9 for _ in range(5)]
    measured.figures["memory_bandwidth"] = rates
    if not torch.equal(source, target):
        measured.wrong = "what was copied within its memory is not what was there"


def memory_pattern(gpu: Gpu, measured: Measured) -> None:
    """Patterns and addresses, written to all of it before any is read back, so that nothing can lie in two places."""
    size = CPU_PATTERN_BYTES if gpu.cpu else PATTERN_BYTES
    if gpu.deep and not gpu.cpu:
        size = int(torch.cuda.mem_get_info(gpu.device)[0] * 0.9)
    chunk = min(size, PATTERN_CHUNK_BYTES)
    chunks = [torch.empty(chunk // _WORD, dtype=torch.int64, device=gpu.device) for _ in range(size // chunk)]
    wrong: list[str] = []
    for pattern in (*PATTERNS, None):
        for at, part in enumerate(chunks):
            _write(part, at, pattern)
        if gpu.planted("memory"):
            chunks[0][5] ^= 4
        for at, part in enumerate(chunks):
            expected = _expected(part, at, pattern)
            bad = (part != expected).nonzero().flatten()
            if len(bad):
                first = int(bad[0])
                told = expected if isinstance(expected, int) else int(expected[first].item())
                changed = (int(part[first].item()) ^ told) & (2**64 - 1)
                name = "addresses" if pattern is None else f"{pattern & (2**64 - 1):016x}"
                where = at * chunk + first * _WORD
                wrong.append(f"{name}: {len(bad)} words, the first at byte {where:#x}, bits {changed:016x}")
    measured.facts["bytes"] = chunk * len(chunks)
    if wrong:
        measured.wrong, measured.evidence = f"its memory does not hold what was written: {wrong[0]}", wrong


def _write(part: torch.Tensor, at: int, pattern: int | None) -> None:
    if pattern is None:
        part.copy_(torch.arange(at * len(part), (at + 1) * len(part), device=part.device))
    else:
        part.fill_(pattern)


def _expected(part: torch.Tensor, at: int, pattern: int | None) -> Any:
    return torch.arange(at * len(part), (at + 1) * len(part), device=part.device) if pattern is None else pattern


def transfers(gpu: Gpu, measured: Measured) -> None:
    """To the GPU and back, by pinned memory where there is CUDA."""
    size = CPU_TRANSFER_BYTES if gpu.cpu else TRANSFER_BYTES
    host = torch.arange(size // 4, dtype=torch.int32)
    back = torch.empty_like(host)
    if not gpu.cpu:
        host, back = host.pin_memory(), back.pin_memory()
    there = torch.empty_like(host, device=gpu.device)
    for name, target, source in (("h2d", there, host), ("d2h", back, there)):
        measured.figures[name] = [
            size / _rate(gpu, lambda target=target, source=source: target.copy_(source), 0.01) / 1e9 for _ in range(5)
        ]
    if not torch.equal(host, back):
        measured.wrong = "what came back from it is not what was sent"


def train(gpu: Gpu, measured: Measured) -> None:
    """A small model learns a rule: the loss begins where chance is, and falls."""
    training.alone(2, gpu.device)  # the first steps load half of torch
    began = time.perf_counter()
    losses = training.alone(STEPS, gpu.device)
    measured.figures["train_steps"] = [STEPS / (time.perf_counter() - began)]
    measured.facts.update(first_loss=losses[0], last_loss=losses[-1])
    chance = math.log(training.CLASSES)
    if not all(map(math.isfinite, losses)):
        measured.wrong = f"the loss is {next(each for each in losses if not math.isfinite(each))}"
    elif abs(losses[0] - chance) > 0.1 * chance:
        measured.wrong = f"the loss begins at {losses[0]:.3f}, and chance is {chance:.3f}"
    elif losses[-1] > 0.5 * losses[0]:
        measured.wrong = f"the loss does not fall: {losses[0]:.3f} at first, {losses[-1]:.3f} after {STEPS} steps"


def determinism(gpu: Gpu, measured: Measured) -> None:
    """The same training twice, with one seed: equal bits."""
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (training.alone(STEPS, gpu.device) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    if [each.hex() for each in first] != [each.hex() for each in second]:
        step = next(at for at, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
        measured.wrong = f"two trainings with one seed part at step {step}: {first[step].hex()}, {second[step].hex()}"


CHECKS: dict[str, Callable[[Gpu, Measured], None]] = {
    "gpu.context": context,
    "gpu.gemm_exact": gemm_exact,
    "gpu.gemm": gemm,
    "gpu.memory_bandwidth": memory_bandwidth,
    "gpu.memory_pattern": memory_pattern,
    "gpu.transfers": transfers,
    "gpu.train": train,
    "gpu.determinism": determinism,
}
