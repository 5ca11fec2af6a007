"""What a node takes the time to be."""

from __future__ import annotations

import time
from typing import Callable, Mapping


def wall_clock(environ: Mapping[str, str]) -> Callable[[], float]:
    """This node's clock: the machine's own, or what a simulated node's script makes of it."""
    script = environ.get("RAYDECK_SIMULATED", "")
    if not script:
        return time.time
    from probes.script import SkewedClock

    return SkewedClock(script)
