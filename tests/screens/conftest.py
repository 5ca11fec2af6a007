"""What stands still in every test of a screen: the log that is read, and the time zone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

LOG = [
    "step 1249 loss 1.6302, 18,240 tokens a second",
    "\x1b[31mstep 1250\x1b[0m loss 1.6231",
    "token=hf_abcdefghijklmnopqrstuvwxyz012345",
]


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No log is read: its lines are given; times of day are those of Greenwich."""
    from console.sources.runlog import RunLog

    async def read(self: Any) -> None:
        for rank in range(4):
            self._take(LOG, rank)

    with monkeypatch.context() as patched:
        patched.setattr(RunLog, "run", read)
        patched.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()
