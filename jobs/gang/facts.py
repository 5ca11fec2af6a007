"""Owns what the nodes of a gang run on: versions of what a run's figures depend on, and where nodes differ in them."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

NAMES = ("python", "torch", "cuda", "nccl", "driver", "ray")
_DRIVER_FILES = ("/sys/module/nvidia/version", "/proc/driver/nvidia/version")
_MAX_NAMED = 4


def of_node(ray_version: str) -> dict[str, str]:
    """What does not depend on the ranks: ``ray``, and ``driver`` where there is one."""
    found = {"ray": ray_version}
    for file in _DRIVER_FILES:
        try:
            text = Path(file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if driver := re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", text):
            found["driver"] = driver.group()
            break
    return found


def of_torch(torch: Any) -> dict[str, str]:
    """The ranks' ``python`` and its ``torch``, with the ``cuda`` and ``nccl`` that it was built for, if any."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if cuda := getattr(torch.version, "cuda", None):
        found["cuda"] = str(cuda)
    # A build without NCCL has the function too, and fails in it.
    if hasattr(torch._C, "_nccl_version"):
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version() if str(part))
    return found


def of_python() -> dict[str, str]:
    """This process's ``python``, and the ``torch`` that is installed for it, without loading it."""
    found = {"python": platform.python_version()}
    with suppress(PackageNotFoundError):
        found["torch"] = version("torch")
    return found


def common(nodes: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Each fact with the nodes' common value, or each value with its nodes: ``2.5.1 (a, b), 2.4.0 (c)``."""
    found: dict[str, str] = {}
    for name in NAMES:
        values = _values(name, nodes)
        if len(values) == 1:
            found[name] = next(iter(values))
        elif values:
            found[name] = ", ".join(f"{value} ({_listed(who)})" for value, who in values.items())
    return found


def differences(nodes: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A sentence for each fact in which nodes differ."""
    return [
        f"its nodes differ in {name}: {text}" for name, text in common(nodes).items() if len(_values(name, nodes)) > 1
    ]


def _values(name: str, nodes: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """Value to nodes, the most common value first. A node that does not say counts for nothing."""
    values: dict[str, list[str]] = {}
    for node in sorted(nodes):
        if value := nodes[node].get(name):
            values.setdefault(value, []).append(node)
    return dict(sorted(values.items(), key=lambda item: (-len(item[1]), item[0])))


def _listed(names: list[str]) -> str:
    rest = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
