"""Ten minutes of one accelerator's figures, two bytes each: 8,000 accelerators fit in 40 MB."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

SECONDS = 600
MISSING = 0xFFFF


class History:
    """A ring of one figure a second. A second without a figure is a gap, never a 0."""

    __slots__ = ("_at", "_ring", "_scale")

    def __init__(self, scale: float = 1.0) -> None:
        self._ring = array("H")
        self._at = 0
        self._scale = scale
        """What a figure is multiplied by before it is rounded to an integer below 65,535."""

    def push(self, value: float | None) -> None:
        """One more second."""
        stored = MISSING if value is None else min(MISSING - 1, max(0, round(value * self._scale)))
        if len(self._ring) < SECONDS:
            self._ring.append(stored)
        else:
            self._ring[self._at] = stored
            self._at = (self._at + 1) % SECONDS

    def __len__(self) -> int:
        return len(self._ring)

    def __iter__(self) -> Iterator[float | None]:
        for stored in (*self._ring[self._at :], *self._ring[: self._at]):
            yield None if stored == MISSING else stored / self._scale

    def last(self, seconds: int) -> list[float | None]:
        """The newest figures, oldest first."""
        return list(self)[-seconds:]
