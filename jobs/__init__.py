"""What is launched on the cluster; for training scripts the door to raydeck.

A script imports it as it is: ``import jobs; jobs.report(step=…, loss=…)``. Importing this package costs nothing: what a
script may call is loaded when it is first called, from the standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.metrics import config, report, stopping

__all__ = ["config", "report", "stopping"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from jobs import metrics

        return getattr(metrics, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
