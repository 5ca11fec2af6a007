"""Reads stacks as py-spy prints them: what a process is at, and which one of many is at something else. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_FRAME = re.compile(r"^\s+(?P<function>[^\s(][^(]{0,200}?) \((?P<file>[^()]{1,300}?)(?::(?P<line>\d{1,7}))?\)\s*$")
_THREAD = re.compile(r"^Thread\b.*$", re.MULTILINE)
_KINDS = (
    ("saving", re.compile(r"checkpoint|save_state|torch/serialization|_save\b|\bsave\b|dcp/|distributed/checkpoint")),
    ("data", re.compile(r"dataloader|_next_data|_get_data|__getitem__|dataset|DataLoader")),
    (
        "collective",
        re.compile(
            r"distributed_c10d|all_?reduce|all_?gather|reduce_scatter|all_to_all|broadcast|barrier|nccl|gloo"
            r"|\bsynchronize\b|DistributedDataParallel|fsdp",
            re.IGNORECASE,
        ),
    ),
)
_MAX = 64 << 10


def frames(stack: str) -> list[str]:
    """The frames of the main thread, innermost first: ``function (file)``, without line numbers."""
    blocks = _THREAD.split(stack[:_MAX])
    heads = _THREAD.findall(stack[:_MAX])
    chosen = blocks[0]
    for head, block in zip(heads, blocks[1:], strict=True):
        if "MainThread" in head or chosen is blocks[0]:
            chosen = block
        if "MainThread" in head:
            break
    found = (_FRAME.match(line) for line in chosen.splitlines())
    return [f"{each['function'].strip()} ({each['file']})" for each in found if each]


def doing(stack: str) -> str:
    """``collective``, ``data``, ``saving``, ``other``; empty if the stack cannot be read.

    The innermost frame that tells decides: a collective inside a save is a save that waits for the others.
    """
    told = frames(stack)
    if not told:
        return ""
    for frame in told:
        for kind, pattern in reversed(_KINDS):
            if pattern.search(frame):
                return kind
    return "other"


def top(stack: str) -> str:
    """The innermost frame that has a name, with its file's last two parts: ``train (workload/lm.py)``."""
    told = frames(stack)
    named = next((frame for frame in told if not frame.startswith("0x")), told[0] if told else "")
    function, _, file = named.partition(" (")
    return f"{function} ({'/'.join(file.removesuffix(')').split('/')[-2:])})" if file else named


def groups(stacks: Mapping[int, str]) -> list[tuple[list[str], list[int]]]:
    """Ranks with one and the same stack together, the largest group first; ranks without a stack are left out."""
    found: dict[tuple[str, ...], list[int]] = {}
    for rank in sorted(stacks):
        told = tuple(frames(stacks[rank]))
        if told:
            found.setdefault(told, []).append(rank)
    return sorted(((list(key), ranks) for key, ranks in found.items()), key=lambda each: (-len(each[1]), each[1]))
