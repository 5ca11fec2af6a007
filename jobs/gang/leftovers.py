"""Owns the sweep of what earlier attempts of a run left on other nodes: nothing starts beside a process of theirs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.gang import placing, processes
from jobs.model import Launch

LIMIT_SECONDS = 40.0
"""For all nodes together: a worker has to start there first, and may have to unpack the package."""
_END_SECONDS = 8.0
_POLITE_SECONDS = 1.0
_LOOK_EVERY_SECONDS = 0.25


@dataclass(slots=True)
class Swept:
    """What became of it."""

    ended: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Processes that were ended, by the name of their node."""
    survivors: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Those that could not be ended."""
    unanswered: list[str] = field(default_factory=list[str])
    """Nodes that Ray has as alive, and that did not say."""
    gone: list[str] = field(default_factory=list[str])
    """Nodes that Ray does not have any more: nobody can look there."""


def end_here(run: str, attempt: int) -> tuple[list[int], list[int]]:
    """End all of the run's other attempts on this node: those that were found, and of them those that live on."""
    seen: set[int] = set()

    def find() -> Iterable[processes.Process]:
        found = processes.marked({"RAYDECK_RUN": run}, {"RAYDECK_ATTEMPT": str(attempt)})
        seen.update(process.pid for process in found)
        return found

    left = processes.end(find, _POLITE_SECONDS, _END_SECONDS)
    return sorted(seen), left


def sweep(launch: Launch, go_on: Callable[[], None]) -> Swept:
    """End them on all of ``launch.previous_nodes`` that are alive in Ray. ``go_on`` is called while it waits.

    A machine that joined anew has another id, and may have kept its processes: it is known by its name again.

    Ray must be connected. Raises what ``go_on`` raises.
    """
    swept = Swept()
    alive = {str(node["NodeID"]): node for node in ray.nodes() if node.get("Alive")}
    named = {placing.name_of(node): node_id for node_id, node in alive.items()}
    asked: dict[Any, str] = {}
    there: dict[str, None] = {}
    for before, name in launch.previous_nodes.items():
        now = before if before in alive else named.get(name)
        if now is None:
            swept.gone.append(name)
        else:
            there[now] = None
    for node_id in there:
        pinned = NodeAffinitySchedulingStrategy(node_id, soft=False)
        task = ray.remote(end_here).options(num_cpus=0, max_retries=0, scheduling_strategy=pinned)
        asked[task.remote(launch.run, launch.attempt)] = placing.name_of(alive[node_id])
    deadline = time.monotonic() + LIMIT_SECONDS
    waiting = list(asked)
    while waiting and time.monotonic() < deadline:
        done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_LOOK_EVERY_SECONDS)
        for reference in done:
            node = asked[reference]
            try:
                ended, survivors = ray.get(reference)
            except RayError:
                swept.unanswered.append(node)
                continue
            if survivors:
                swept.survivors[node] = survivors
            if gone := sorted(set(ended) - set(survivors)):
                swept.ended[node] = gone
        go_on()
    for reference in waiting:
        ray.cancel(reference, force=True)
        swept.unanswered.append(asked[reference])
    return swept
