"""What a change shows before it asks. Light: the first paint imports it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SAMPLES = {
    "lm": "a small language model, 2 nodes × 2 GPUs, with checkpoints",
    "lm-single": "the same on one GPU",
    "failing": "fails on purpose at a step, is retried and goes on from its checkpoint",
    "sweep": "one GPU each with three learning rates: one launch, three runs",
    "batch": "any Ray program: counts words with Ray tasks, on no GPU",
}
"""The workflows that ship with raydeck."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a change would do and to whom, and how it has to be confirmed."""

    title: str
    lines: tuple[str, ...]
    """The blast radius, a sentence a line."""
    ask: Literal["y", "name", "count"] = "y"
    """How much has to be typed: one key, the name of the one thing that is hurt, or how many there are."""
    expected: str = "y"
    """What has to be typed."""
    wants_reason: bool = False
    warnings: tuple[str, ...] = field(default=())
