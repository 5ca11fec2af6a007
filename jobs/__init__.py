"""What is launched on the cluster; for training scripts the door to raydeck.

A script imports it as it is: ``import jobs; jobs.report(step=…, loss=…)``; ``jobs.Saver()`` saves its checkpoints.
Importing this package costs nothing: what a script may call is loaded when it is first called, from the standard
library only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.metrics import config, report, stopping
    from jobs.saver import Saver

__all__ = ["Saver", "config", "report", "stopping"]

_OWNERS = {"Saver": "jobs.saver", "config": "jobs.metrics", "report": "jobs.metrics", "stopping": "jobs.metrics"}


def __getattr__(name: str) -> Any:
    if name in _OWNERS:
        return getattr(import_module(_OWNERS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
