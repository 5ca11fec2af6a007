"""Owns work that may block on storage, done in a thread of its own while whoever waits for it goes on with the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable


def apart(work: Callable[[], None], meanwhile: Callable[[], None], every_seconds: float) -> None:
    """Do ``work``, calling ``meanwhile`` every so often. Raises what either raises.

    What ``meanwhile`` raises ends the wait only: a thread that hangs in the kernel dies with the process.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="apart", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(every_seconds)
        meanwhile()
    if failed:
        raise failed[0]
