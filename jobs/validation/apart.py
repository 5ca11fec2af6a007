"""Several things at the same time, each in a thread of its own: one that hangs holds up nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def at_once(work: list[Callable[[], T]], seconds: float) -> list[T | None]:
    """What each gives, all at the same time; None for one that does not come back. What it raises is raised."""
    found: list[T | None] = [None] * len(work)
    errors: list[BaseException] = []

    def do(at: int) -> None:
        try:
            found[at] = work[at]()
        except BaseException as error:  # carried over to the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=do, args=(at,), daemon=True) for at in range(len(work))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    return found
