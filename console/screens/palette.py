"""The commands of the palette that are about one run or node: looked up by what was typed, not listed beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

if TYPE_CHECKING:
    from console.app import RaydeckApp

MOST_HITS = 60
"""More than a person reads; ten thousand runs would be matched at each key otherwise."""
MOST_DISCOVERED = 10


class RunCommands(Provider):
    """``run``, ``log``, ``explain``, ``restart`` and the id of a run; ``sweep`` and the id of a sweep."""

    @property
    def _deck(self) -> RaydeckApp:
        return cast("RaydeckApp", self.app)

    def _commands(self, wanted: str) -> Iterator[tuple[str, str, Callable[[], None]]]:
        deck, session = self._deck, self._deck.session
        if session is None:
            return
        work, sweeps = session.work, set[str]()
        # Those that wait are more than the runs that are listed; foreign jobs are no runs at all.
        queued = [one.run for one in work.queue.waiting if one.run not in work.runs] if work.queue else []
        for key in chain(work.keys, queued):
            if key in work.ray_jobs:
                continue
            run = work.runs.get(key)
            if wanted in key.casefold():
                state = run.state.value if run else "queued"
                yield f"run {key}", f"Open this run ({state})", partial(deck.open_run, key)
                yield f"log {key}", "The log of this run", partial(deck.open_log, key)
                yield f"explain {key}", "Why it waits, or failed", partial(deck.explain, key)
                yield f"triage {key}", "What broke, and whose fault it is", partial(deck.triage, key)
                if not deck.settings.read_only:
                    yield f"restart {key}", "Restart it from one of its checkpoints", partial(self._restart, key)
            if run and run.sweep and run.sweep not in sweeps and wanted in run.sweep.casefold():
                sweeps.add(run.sweep)
                yield f"sweep {run.sweep}", "Every point of this sweep", partial(deck.open_sweep, run.sweep)

    def _restart(self, key: str) -> None:
        self._deck.touch(self._deck.restart(key), "restart")

    async def search(self, query: str) -> Hits:
        """What fits: a part of an id, alone or after a verb; a verb alone gives the first runs of the list."""
        matcher = self.matcher(query)
        words = query.casefold().split()
        verb_alone = len(words) == 1 and any(verb.startswith(words[0]) for verb in VERBS)
        wanted = "" if verb_alone or not words else words[-1]
        hits = 0
        for command, sentence, act in self._commands(wanted):
            score = matcher.match(command)
            if score > 0:
                yield Hit(score, matcher.highlight(command), act, help=sentence, text=command)
                hits += 1
                if hits >= MOST_HITS:
                    return

    async def discover(self) -> Hits:
        """Before anything is typed: the first runs of the list."""
        for number, (command, sentence, act) in enumerate(self._commands("")):
            if number >= MOST_DISCOVERED:
                return
            yield DiscoveryHit(command, act, help=sentence)


class NodeCommands(Provider):
    """``node`` and the name of one; ``cordon``, ``uncordon``, ``drain``, ``retire``, ``rejoin`` likewise."""

    @property
    def _deck(self) -> RaydeckApp:
        return cast("RaydeckApp", self.app)

    def _commands(self, wanted: str) -> Iterator[tuple[str, str, Callable[[], None]]]:
        deck, session = self._deck, self._deck.session
        if session is None:
            return
        if wanted in "fleet":
            yield "triage fleet", "What is wrong, and with whom", deck.triage
        for name in session.fleet.nodes:
            if wanted in name.casefold():
                yield f"node {name}", "Open this node", partial(deck.open_node, name)
                yield f"triage {name}", "What is wrong with it", partial(deck.triage, name)
                for verb in () if deck.settings.read_only else NODE_VERBS:
                    yield f"{verb} {name}", NODE_VERBS[verb], partial(deck.keep, verb, (name,))

    async def search(self, query: str) -> Hits:
        """What fits: a part of a name, alone or after a verb."""
        matcher = self.matcher(query)
        words = query.casefold().split()
        verb_alone = len(words) == 1 and any(verb.startswith(words[0]) for verb in ("node", "triage", *NODE_VERBS))
        wanted = "" if verb_alone or not words else words[-1]
        hits = 0
        for command, sentence, act in self._commands(wanted):
            score = matcher.match(command)
            if score > 0:
                yield Hit(score, matcher.highlight(command), act, help=sentence, text=command)
                hits += 1
                if hits >= MOST_HITS:
                    return


NODE_VERBS = {
    "cordon": "Keep new work off it",
    "uncordon": "Take a hold back",
    "drain": "Move its work off",
    "retire": "Take it out of Ray",
    "rejoin": "Start Ray there again",
}
VERBS = ("run", "log", "explain", "triage", "restart", "sweep")
