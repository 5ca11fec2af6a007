"""A clock that goes faster: a process that lives by it is through with its pauses and limits sooner.

Controller and stand-in Ray both live by it, so that two hundred kills meet as many ticks, back-offs and doubts as hours
of a real cluster would. Only waits are shortened; work takes what it takes.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from dataclasses import dataclass

FACTOR = 5.0
"""How many seconds pass there in one of ours."""


@dataclass(frozen=True, slots=True)
class FastClock:
    """A clock that was right at ``origin`` (seconds since 1970), and goes ``factor`` times as fast since."""

    origin: float
    factor: float = FACTOR

    @property
    def arguments(self) -> list[str]:
        """For the command line of a process that is to live by it."""
        return [repr(self.origin), repr(self.factor)]


class _Selector(selectors.DefaultSelector):
    """Waits for real seconds where the event loop asks for fast ones."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout / self._factor if timeout is not None and timeout > 0 else timeout)


class _Policy(asyncio.DefaultEventLoopPolicy):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_Selector(self._factor))


def hasten(clock: FastClock) -> None:
    """From now on this process lives by the fast clock.

    Call it before anything is imported that keeps a reference to the clock's functions.
    """
    wall, monotonic, sleep = time.time, time.monotonic, time.sleep
    time.time = lambda: clock.origin + (wall() - clock.origin) * clock.factor
    time.time_ns = lambda: int(time.time() * 1e9)
    time.monotonic = lambda: monotonic() * clock.factor
    time.sleep = lambda seconds, /: sleep(float(seconds) / clock.factor)
    policy = _Policy(clock.factor)
    asyncio.set_event_loop_policy(policy)  # pyright: ignore[reportDeprecated] — `asyncio.run` of others takes it
