"""What users do at random: launches, sweeps, stops, restarts, rollbacks, changes of how a run waits, and of nodes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.model import Run
from tests.crash.desk import Answer, Person

QUEUES = ("general", "research", "urgent")
WORKFLOWS = ("lm", "vit")
SHAPES = ((1, 1), (1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (2, 3), (2, 4), (3, 2), (4, 1), (4, 2), (3, 4))
"""Nodes, and accelerators on each; the last one is more than a user may hold."""
SILENCE = "  silence_timeout: 15s\n"
"""So that one that hangs comes to its end."""
RATES = (0.1, 0.2, 0.3)
"""So that there are few releases, and runs share them."""
NODES = ("worker-1", "worker-2", "worker-3", "worker-4")
OF_NODES = ("cordon", "uncordon", "drain", "decide")
PRIORITIES = ("low", "normal", "high", "7", "-20")


@dataclass(slots=True)
class Operation:
    """One request of one user, with its id. As long as no answer came, the same request is repeated."""

    number: int
    who: Person
    kind: str
    where: str
    body: dict[str, Any]
    about: str = ""
    """The run, workflow or rollback that it is about."""
    detail: str = ""
    """What is particular about a launch."""
    answer: Answer | None = None
    tries: list[str] = field(default_factory=list[str])

    @property
    def mark(self) -> str:
        """Stands in its reason, and so in the audit."""
        return f"operation {self.number:04}"

    def took_effect(self) -> bool:
        """It was answered, and not refused."""
        return self.answer is not None and self.answer.fine

    def __str__(self) -> str:
        more = {name: value for name, value in self.body.items() if name not in _NOT_SHOWN}
        return f"{self.mark}: {self.who.name} {self.kind} {self.about} {self.detail} {more} → {'; '.join(self.tries)}"


_NOT_SHOWN = ("request_id", "reason", "package", "workflow_text")


class Users:
    """Thinks up operations."""

    def __init__(self, chance: random.Random, everybody: Sequence[Person], package: str) -> None:
        self._chance = chance
        self._everybody = everybody
        self._package = package
        self._number = 0
        self.rollbacks: list[str] = []
        """Those that were carried out and may be undone."""
        self.releases: dict[str, list[str]] = {}
        """By workflow: what a rollback may go to."""
        self.checkpoints: dict[str, list[int]] = {}
        """By run: steps that a restart may ask for."""
        self.drains: list[str] = []
        """Those that go on."""
        self.holds: list[tuple[str, str]] = []
        """Node and user of each hold that is in force."""

    def next(self, runs: Sequence[Run]) -> Operation:
        """Something that a user may want now; not always what they may do, or what can be done."""
        active = [run for run in runs if not run.state.ended]
        waiting = [run for run in active if run.state.waiting]
        kinds = {
            "launch": 30 if len(active) < 15 else 4,
            "sweep": 5 if len(active) < 10 else 0,
            "stop": 8 if active else 0,
            "stop now": 4 if active else 0,
            "restart": 12 if runs else 0,
            "rollback": 7 if self.releases else 0,
            "undo": 6 if self.rollbacks else 0,
            "arrange": 20 if waiting else 0,
            "cordon": 5 if len(self.holds) < 3 else 1,
            "uncordon": 4 + 4 * len(self.holds),
            "drain": 6 if len(self.holds) < 3 else 1,
            "decide": 4 if self.drains else 0,
        }
        kind = self._chance.choices(list(kinds), list(kinds.values()))[0]
        if kind in ("launch", "sweep"):
            return self._any_launch(kind == "sweep")
        if kind == "rollback":
            return self._rollback()
        if kind == "undo":
            rollback = self._chance.choice(self.rollbacks)
            return self._operation(kind, self._bold(), f"/v1/rollbacks/{rollback}/undo", {}, rollback)
        if kind in OF_NODES:
            return self._node(kind)
        run = self._chance.choice({"restart": list(runs), "arrange": waiting}.get(kind, active))
        if kind == "arrange":
            body = self._arrangement(run, waiting)
        elif kind == "restart":
            steps = self.checkpoints.get(run.id, [])
            body = {"from_step": self._chance.choice([None, None, 0, *steps, *steps])}
        else:
            body = {"now": kind == "stop now"}
        verb = "stop" if kind == "stop now" else kind
        return self._operation(kind, self._for(run), f"/v1/runs/{run.id}/{verb}", body, run.id)

    # --- by somebody who may, for tests that tell a story -------------------------------------------------------------

    def launch(self, *, hold: bool = False, more: str = SILENCE) -> Operation:
        """A launch of one small run; ``more`` are further lines of its workflow."""
        lines = "workflow:\n  name: lm\n  resources: {nodes: 1, accelerators_per_node: 1}\n"
        body = {"workflow_text": lines + more, "package": self._package, "hold": hold}
        return self._operation("launch", self._chief(), "/v1/runs", body, "lm")

    def stop(self, run: Run) -> Operation:
        """A stop of this run."""
        return self._operation("stop", self._chief(), f"/v1/runs/{run.id}/stop", {}, run.id)

    def restart(self, run: Run) -> Operation:
        """Another try from its newest checkpoint."""
        return self._operation("restart", self._chief(), f"/v1/runs/{run.id}/restart", {}, run.id)

    def arrange(self, run: Run, change: dict[str, Any]) -> Operation:
        """A change of how it waits."""
        return self._operation("arrange", self._chief(), f"/v1/runs/{run.id}/arrange", dict(change), run.id)

    def rollback(self, run: Run) -> Operation:
        """Its workflow back to its release."""
        where = f"/v1/workflows/{run.workflow}/rollback"
        return self._operation("rollback", self._chief(), where, {"to": run.release}, run.workflow)

    def uncordon(self, node: str, of: str) -> Operation:
        """A hold taken back."""
        where = "/v1/nodes/uncordon"
        return self._operation("uncordon", self._chief(), where, {"nodes": [_ref(node)], "of": of}, node)

    def undo(self, rollback: str) -> Operation:
        """A rollback taken back."""
        return self._operation("undo", self._chief(), f"/v1/rollbacks/{rollback}/undo", {}, rollback)

    # --- what they are made of ----------------------------------------------------------------------------------------

    def _operation(self, kind: str, who: Person, where: str, body: dict[str, Any], about: str) -> Operation:
        self._number += 1
        made = Operation(self._number, who, kind, where, body, about)
        body["request_id"] = f"{self._number:04}-{self._chance.getrandbits(64):016x}"
        if kind not in ("launch", "sweep"):
            body["reason"] = made.mark
        return made

    def _anybody(self) -> Person:
        return self._chance.choice(self._everybody)

    def _chief(self) -> Person:
        return next(each for each in self._everybody if each.role in ("operator", "admin"))

    def _bold(self) -> Person:
        """Whoever touches the runs of many; mostly one who may."""
        return self._chief() if self._chance.random() < 0.6 else self._anybody()

    def _for(self, run: Run) -> Person:
        """Mostly the one whose run it is."""
        own = next((each for each in self._everybody if each.name == run.user), None)
        return own if own is not None and self._chance.random() < 0.8 else self._anybody()

    def _any_launch(self, sweep: bool) -> Operation:
        chance = self._chance
        name = chance.choice(WORKFLOWS)
        nodes, each = chance.choice(SHAPES)
        lines = [
            "workflow:",
            f"  name: {name}",
            f"  resources: {{nodes: {nodes}, accelerators_per_node: {each}}}",
            f"  training: {{max_retry: {chance.choice([0, 1, 1, 2])}, learning_rate: {chance.choice(RATES)}}}",
            "  retry_backoff: 1s",
            "  start_timeout: 60s",
            "  silence_timeout: 15s",
            "  max_duration: 3m",
            "  stop_grace: 5s",
            "  checkpoints: {keep_last: 3}",
        ]
        if sweep:
            values = chance.sample((*RATES, 0.4, 0.5), chance.randint(2, 4))
            lines.append(f"  sweep: {{parameters: {{learning_rate: {values}}}, parallel: {chance.choice([1, 2])}}}")
        body = {
            "workflow_text": "\n".join(lines) + "\n",
            "package": self._package,
            "queue": chance.choice(["", *QUEUES]),
            "priority": chance.choice(["", "", *PRIORITIES]),
            "hold": chance.random() < 0.1,
        }
        made = self._operation("sweep" if sweep else "launch", self._anybody(), "/v1/runs", body, name)
        made.detail = f"{nodes}×{each}"
        return made

    def _rollback(self) -> Operation:
        workflow = self._chance.choice(sorted(self.releases))
        body = {"to": self._chance.choice(["", *self.releases[workflow]])}
        return self._operation("rollback", self._bold(), f"/v1/workflows/{workflow}/rollback", body, workflow)

    def _node(self, kind: str) -> Operation:
        chance = self._chance
        if kind == "decide":
            drain = chance.choice(self.drains)
            body: dict[str, Any] = {"decision": chance.choice(["cancel", "wait", "stop", "give_up"])}
            return self._operation(kind, self._bold(), f"/v1/drains/{drain}/decide", body, drain)
        nodes = chance.sample(NODES, chance.choice([1, 1, 1, 2]))
        body = {"nodes": [_ref(node) for node in nodes]}
        if kind == "uncordon" and self.holds:
            node, user = chance.choice(self.holds)
            body = {"nodes": [_ref(node)], "of": user}
        elif kind == "cordon":
            body["seconds"] = chance.choice([None, None, 10.0, 60.0])
        elif kind == "drain":
            body["policy"] = {
                "deadline_seconds": chance.choice([5.0, 60.0, 1800.0]),
                "at_deadline": chance.choice(["wait", "stop", "give_up"]),
                "most_nodes": chance.choice([None, None, 1, 2]),
            }
        about = ", ".join(each["name"] for each in body["nodes"])
        return self._operation(kind, self._bold(), f"/v1/nodes/{kind}", body, about)

    def _arrangement(self, run: Run, waiting: Sequence[Run]) -> dict[str, Any]:
        chance = self._chance
        what = chance.choice(["priority", "queue", "hold", "hold", "place"])
        if what == "priority":
            return {"priority": chance.choice(PRIORITIES)}
        if what == "queue":
            return {"queue": chance.choice(QUEUES)}
        if what == "hold":
            return {"hold": run.held is None}
        place = chance.choice(["first", "last", "before", "after", "own"])
        other = chance.choice(waiting).id if place in ("before", "after") else ""
        return {"place": place, "other": other}


def _ref(node: str) -> dict[str, str]:
    return {"name": node, "machine_id": f"machine-of-{node}"}
