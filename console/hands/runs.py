"""Which runs live, for whoever is about to end processes: by the controller's word, one question for each run."""

from __future__ import annotations

from collections.abc import Iterable

from jobs.client import ControllerClient
from jobs.errors import Refused
from jobs.model import Run

AT_MOST = 200
"""So many runs are asked for; a node has marks of a few."""


def living_attempt(run: Run) -> int:
    """The number of the attempt whose processes do their work; 0 for a run that has ended, or waits."""
    if run.state.ended or run.state.waiting or run.attempt is None:
        return 0
    return run.attempt.number


async def attempts_that_live(client: ControllerClient, runs: Iterable[str]) -> dict[str, int]:
    """Each run's attempt that lives, 0 where none does. A run that this controller does not know is left out.

    Raises `Unreachable` where no controller answers.
    """
    found: dict[str, int] = {}
    for name in sorted(set(runs))[:AT_MOST]:
        try:
            found[name] = living_attempt(await client.run(name))
        except Refused:
            continue  # of another cluster, or forgotten: whoever asks takes it for one that may live
    return found
