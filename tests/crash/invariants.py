"""What must hold whatever happened: each check takes all that is known at the end and names what is wrong."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.model import MOVES, Move, Run, RunState
from jobs.nodeview import Drain
from jobs.wire import AuditEntry, Rollback
from tests.crash.operations import Operation


@dataclass(frozen=True, slots=True)
class Limits:
    """What the cluster file allows."""

    runs: int
    runs_of_a_user: int
    accelerators_of_a_user: int


@dataclass(slots=True)
class Evidence:
    """All that is known at the end."""

    history: Sequence[Operation]
    runs: dict[str, Run]
    moves: dict[str, list[Move]]
    audit: list[AuditEntry]
    """Oldest first."""
    broken: str
    """What the controller says of its audit's chain."""
    rollbacks: list[Rollback]
    record: list[dict[str, Any]]
    """What the stand-in Ray noted."""
    limits: Limits
    drains: list[Drain] = field(default_factory=list[Drain])
    held: dict[str, list[tuple[float, float]]] = field(default_factory=dict[str, list[tuple[float, float]]])
    """By run: when it held its accelerators, from its admission to the end of the attempt."""

    def __post_init__(self) -> None:
        self.held = {run: list(_held(moves)) for run, moves in self.moves.items()}


def _held(moves: Sequence[Move]) -> Iterator[tuple[float, float]]:
    since = None
    for move in moves:
        if move.after is RunState.ADMITTED:
            since = move.at
        elif since is not None and (move.after.waiting or move.after.ended):
            yield since, move.at
            since = None
    if since is not None:
        yield since, float("inf")


def launched(operation: Operation) -> list[str]:
    """The runs that an accepted launch was answered with."""
    assert operation.answer is not None
    return [str(run["id"]) for run in operation.answer.body["runs"]]


def _launches(evidence: Evidence) -> Iterator[tuple[Operation, list[str]]]:
    for operation in evidence.history:
        if operation.kind in ("launch", "sweep") and operation.took_effect():
            yield operation, launched(operation)


def nothing_lost_and_nothing_doubled(evidence: Evidence) -> Iterator[str]:
    """The runs are those that were asked for, each once."""
    wanted: dict[str, str] = {}
    for operation, runs in _launches(evidence):
        for run in runs:
            if run in wanted:
                yield f"{operation.mark} and {wanted[run]} were both answered with {run}"
            wanted[run] = operation.mark
    for rollback in evidence.rollbacks:
        if rollback.started:
            wanted[rollback.started] = f"rollback {rollback.id}"
    for run in sorted(wanted.keys() - evidence.runs.keys()):
        yield f"{run} is lost: {wanted[run]} was answered with it"
    for run in sorted(evidence.runs.keys() - wanted.keys()):
        yield f"nobody asked for {run}"
    accepted = [operation for operation in evidence.history if operation.kind == "rollback" and operation.took_effect()]
    ids = [str(operation.answer.body["id"]) for operation in accepted if operation.answer is not None]
    known = {rollback.id for rollback in evidence.rollbacks}
    if len(set(ids)) != len(ids) or set(ids) != known:
        yield f"{len(accepted)} rollbacks were accepted, and {len(known)} are known: {sorted(known ^ set(ids))}"


def everything_ended(evidence: Evidence) -> Iterator[str]:
    """Nothing waits and nothing runs once all has come to its end, in Ray neither."""
    for run in evidence.runs.values():
        if not run.state.ended:
            yield f"{run.id} has not ended: {run.state.value}: {run.reason}"


def moves_are_a_path(evidence: Evidence) -> Iterator[str]:
    """Each run went from its launch to where it is by ways that the table of moves has."""
    for run, moves in evidence.moves.items():
        at: RunState | None = None
        for move in moves:
            if move.before is not at:
                yield f"{run} moved from {move.before} to {move.after.value}, and was {at}"
            elif at is None and move.after is not RunState.QUEUED:
                yield f"{run} began as {move.after.value}"
            elif at is not None and move.after not in MOVES[at]:
                yield f"{run} moved from {at.value} to {move.after.value}"
            at = move.after
        if at is not evidence.runs[run].state:
            yield f"{run} is {evidence.runs[run].state.value}, and its moves end in {at}"
        if any(later.at < earlier.at for earlier, later in itertools.pairwise(moves)):
            yield f"the moves of {run} are not in order"


def audit_is_whole(evidence: Evidence) -> Iterator[str]:
    """The chain holds, with each accepted action exactly once and no refused one as allowed."""
    if evidence.broken:
        yield f"the audit's chain is broken: {evidence.broken}"
    allowed = [entry for entry in evidence.audit if entry.allowed]
    for operation in evidence.history:
        if operation.kind in ("launch", "sweep"):
            continue
        entries = [entry for entry in allowed if operation.mark in entry.reason]
        if len(entries) != operation.took_effect():
            yield f"the audit has it {len(entries)} times as allowed: {operation}"
        elif entries and entries[0].user != operation.who.name:
            yield f"the audit says that {entries[0].user} did it: {operation}"
    launches = collections.Counter(entry.target for entry in allowed if entry.action == "launch")
    for operation, runs in _launches(evidence):
        targets = {*runs, *(evidence.runs[run].sweep for run in runs if run in evidence.runs)} - {""}
        count = sum(launches.pop(target, 0) for target in targets)
        if count not in (1, len(runs)):
            yield f"the audit has it {count} times as allowed: {operation}"
    for target in launches:
        yield f"the audit has a launch of {target}, which nobody asked for"
    refusals = collections.Counter(entry.user for entry in evidence.audit if not entry.allowed)
    for operation in evidence.history:
        if operation.answer is not None and not operation.answer.fine:
            refusals[operation.who.name] -= 1
    for user, count in refusals.items():
        if count < 0:
            yield f"{-count} refusals that {user} got are not in the audit"


def attempts_are_the_ones_that_ran(evidence: Evidence) -> Iterator[str]:
    """What ran in Ray is what the runs tell of, each attempt once, and no more retries than were allowed."""
    begun = [each for each in evidence.record if each["what"] == "started"]
    started = collections.Counter((str(each["run"]), int(each["attempt"])) for each in begun)
    for (run, attempt), count in started.items():
        if count > 1:
            yield f"attempt {attempt} of {run} was started {count} times"
        if run not in evidence.runs or attempt > len(evidence.runs[run].attempts):
            yield f"Ray ran attempt {attempt} of {run}, and that run does not know it"
    for run in evidence.runs.values():
        if [attempt.number for attempt in run.attempts] != list(range(1, len(run.attempts) + 1)):
            yield f"the attempts of {run.id} are {[attempt.number for attempt in run.attempts]}"
        if run.retries > run.max_retry:
            yield f"{run.id} was tried again {run.retries} times, and {run.max_retry} were allowed"
        for attempt in run.attempts:
            if attempt.state is RunState.SUCCEEDED and (run.id, attempt.number) not in started:
                yield f"attempt {attempt.number} of {run.id} succeeded, and never ran"


def stopped_stays_stopped(evidence: Evidence) -> Iterator[str]:
    """After a stop nothing of the run begins, unless somebody asked for that later."""
    again = [entry for entry in evidence.audit if entry.allowed and entry.action in ("restart", "undo")]
    for entry in evidence.audit:
        if not entry.allowed or not entry.action.startswith("stop") or entry.target not in evidence.moves:
            continue
        for move in evidence.moves[entry.target]:
            if move.after is RunState.ADMITTED and move.at > entry.at:
                if not any(entry.at <= each.at <= move.at for each in again):
                    yield f"{entry.target} was admitted again after {entry.user} had stopped it ({entry.reason})"
                break


def no_quota_passed(evidence: Evidence) -> Iterator[str]:
    """At no time did more run at once than the cluster file allows, in all and for each user."""
    edges: list[tuple[float, int, Run]] = []
    for name, spans in evidence.held.items():
        for begin, end in spans:
            edges += [(begin, 1, evidence.runs[name]), (end, -1, evidence.runs[name])]
    total = 0
    runs: collections.Counter[str] = collections.Counter()
    accelerators: collections.Counter[str] = collections.Counter()
    for at, sign, run in sorted(edges, key=lambda edge: (edge[0], edge[1])):
        total += sign
        runs[run.user] += sign
        accelerators[run.user] += sign * run.gpus
        if total > evidence.limits.runs:
            yield f"{total} runs were active at {at}, when {run.id} was admitted"
        if runs[run.user] > evidence.limits.runs_of_a_user:
            yield f"{run.user} had {runs[run.user]} active runs when {run.id} was admitted"
        if accelerators[run.user] > evidence.limits.accelerators_of_a_user:
            yield f"{run.user} held {accelerators[run.user]} accelerators when {run.id} was admitted"


def arrangements_lasted(evidence: Evidence) -> Iterator[str]:
    """A run has the priority and the queue that it was given last."""
    marked = {operation.mark: operation for operation in evidence.history if operation.kind == "arrange"}
    last: dict[tuple[str, str], str] = {}
    for entry in evidence.audit:
        operation = next((each for mark, each in marked.items() if entry.allowed and mark in entry.reason), None)
        if operation is not None:
            last.update({(entry.target, what): operation.body[what] for what in _LASTING if what in operation.body})
    for (name, what), value in last.items():
        run = evidence.runs[name]
        if getattr(run, what) != value:
            yield f"{name} was given the {what} {value}, and has {getattr(run, what)}"


_LASTING = ("priority", "queue")


def restarts_took_effect(evidence: Evidence) -> Iterator[str]:
    """A run that had ended when it was restarted went back to the queue at that moment."""
    for entry in evidence.audit:
        if not entry.allowed or entry.action != "restart":
            continue
        moves = evidence.moves[entry.target]
        before = [move for move in moves if move.at < entry.at - MOMENT_SECONDS]
        began = [move for move in moves if abs(move.at - entry.at) <= MOMENT_SECONDS and move.after is RunState.QUEUED]
        if before and before[-1].after.ended and not began:
            yield f"{entry.target} was restarted by {entry.user} ({entry.reason}), and did not go back to the queue"


def held_nodes_get_nothing_new(evidence: Evidence) -> Iterator[str]:
    """From a cordon's answer on nothing is given to Ray for that node, until the last hold is taken back or ends."""
    spans = _cordoned(evidence)
    for name, moves in evidence.moves.items():
        attempts = {attempt.number: attempt for attempt in evidence.runs[name].attempts}
        # One that was taken back before Ray had it was let go again under the same number.
        last = {move.attempt: move for move in moves if move.after is RunState.ADMITTED and move.attempt in attempts}
        for move in last.values():
            for node in attempts[move.attempt].nodes:
                for begin, end in spans.get(node, ()):
                    if begin < move.at < end - MOMENT_SECONDS:
                        yield f"attempt {move.attempt} of {name} was let go onto {node}, cordoned since {begin}"


def _cordoned(evidence: Evidence) -> dict[str, list[tuple[float, float]]]:
    """By node: from when to when a cordon held it. Drains are left out: a node may have to wait for its turn."""
    holders: dict[str, dict[str, float]] = {}
    spans: dict[str, list[tuple[float, float]]] = {}
    for entry in evidence.audit:
        if not entry.allowed or entry.action not in ("cordon", "uncordon"):
            continue
        named = re.search(r"of (\S+?);", entry.reason)
        ended = re.search(r"the end that (\S+) set", entry.reason)
        user = named[1] if named else ended[1] if ended else entry.user
        for node in entry.target.split(", "):
            there = holders.setdefault(node, {})
            if entry.action == "cordon":
                if not there:
                    spans.setdefault(node, []).append((entry.at, float("inf")))
                there.setdefault(user, entry.at)
            elif there.pop(user, None) is not None and not there:
                spans[node][-1] = (spans[node][-1][0], entry.at)
    return spans


def drains_spend_no_retry_and_come_to_an_end(evidence: Evidence) -> Iterator[str]:
    """What a drain moved is told, and none goes on for ever."""
    for drain in evidence.drains:
        if drain.state == "running":
            yield f"drain {drain.id} has not ended: {[(node.node.name, node.state, node.note) for node in drain.nodes]}"
        for node in drain.nodes:
            for each in node.runs:
                run = evidence.runs.get(each.run)
                if run is None or each.attempt > len(run.attempts) + 1:
                    yield f"drain {drain.id} tells of attempt {each.attempt} of {each.run}, which is not known"
                elif each.state in ("asked", "saving") and run.state.ended:
                    yield f"drain {drain.id} says that {each.run} is {each.state}, and it has {run.state.value}"


MOMENT_SECONDS = 1.0
"""Of the fast clock: within so long an accepted request and what it does at once are written."""


def rolled_back_runs_wait_for_those_before(evidence: Evidence) -> Iterator[str]:
    """What a rollback starts begins when all that it stopped has ended, from the checkpoint that was promised.

    But where somebody stopped or restarted it before it began: then it goes by what they asked for.
    """
    asked = {entry.target for entry in evidence.audit if entry.allowed and entry.action == "restart"}
    for rollback in evidence.rollbacks:
        run = evidence.runs.get(rollback.started)
        if run is None or not run.attempts or run.id in asked:
            continue
        if [move.after for move in evidence.moves[run.id][:2]] != [RunState.QUEUED, RunState.ADMITTED]:
            continue
        first = evidence.held[run.id][0][0]
        for stopped in rollback.stopped:
            late = [end for begin, end in evidence.held[stopped] if begin < rollback.at and end > first]
            if late:
                yield f"{run.id} of rollback {rollback.id} was admitted while {stopped} still held something"
        if run.attempts[0].resume_step != rollback.from_step:
            promised, began = rollback.from_step, run.attempts[0].resume_step
            yield f"{run.id} of rollback {rollback.id} began from step {began}, and {promised} was promised"


CHECKS: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    nothing_lost_and_nothing_doubled,
    everything_ended,
    moves_are_a_path,
    audit_is_whole,
    attempts_are_the_ones_that_ran,
    stopped_stays_stopped,
    arrangements_lasted,
    restarts_took_effect,
    rolled_back_runs_wait_for_those_before,
    held_nodes_get_nothing_new,
    drains_spend_no_retry_and_come_to_an_end,
    no_quota_passed,
)


def violations(evidence: Evidence) -> list[str]:
    """Everything that does not hold, as sentences."""
    return [f"{check.__name__}: {sentence}" for check in CHECKS for sentence in check(evidence)]
