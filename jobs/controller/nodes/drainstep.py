"""One step of a drain: from what is seen of its nodes to how it stands and what to do next. Pure: no clock, no network.

A node's part: waiting (its turn has not come) → moving → checking (empty; does it stay so?) → empty. A node that does
not answer has nothing to wait for: its runs are ended at once, and the fence keeps what may still live there out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jobs.model import Run, RunState
from jobs.nodeview import Drain, DrainNode, DrainRun, Other
from jobs.spans import span

_BACK = "it did not stay empty"


@dataclass(frozen=True, slots=True)
class SeenNode:
    """All that is known of one node at one moment."""

    held: bool
    """The drain's own hold is in force."""
    node_id: str = ""
    ray: str = "unknown"
    """``alive``, ``dead``, ``unknown``."""
    silent: bool = False
    """Ray has it as alive, but nothing answers there."""
    away: bool = False
    """It takes no work already, for another reason than this drain."""
    gpus: float = 0.0
    runs: tuple[Run, ...] = ()
    """Runs of raydeck's that hold something there."""
    others: tuple[Other, ...] = ()
    others_known: bool = True

    @property
    def dead(self) -> bool:
        """There is nobody to ask."""
        return self.ray == "dead" or self.silent


@dataclass(slots=True)
class Budget:
    """How much may still go away at this moment."""

    nodes: float = float("inf")
    gpus: float = float("inf")

    def take(self, gpus: float) -> bool:
        """Whether one more node may, which is then counted."""
        if self.nodes < 1 or self.gpus < gpus:
            return False
        self.nodes -= 1
        self.gpus -= gpus
        return True


@dataclass(frozen=True, slots=True)
class Ask:
    """Have this run leave."""

    run: str
    node: str
    now: bool = False
    """Do not wait for a checkpoint."""


@dataclass(frozen=True, slots=True)
class EndOther:
    """End what raydeck did not start."""

    node_id: str
    other: Other


Action = Ask | EndOther


@dataclass(frozen=True, slots=True)
class Stepped:
    """The drain as it stands, and what follows."""

    drain: Drain
    actions: list[Action] = field(default_factory=list[Action])


def step(drain: Drain, seen: Mapping[str, SeenNode], runs: Mapping[str, Run], budget: Budget, now: float) -> Stepped:
    """One step. ``seen`` by the node's name; ``runs`` are those that the drain has had leave, as they are now."""
    actions: list[Action] = []
    nodes: list[DrainNode] = []
    for node in drain.nodes:
        there = seen[node.node.name]
        moved = node
        if not node.over:
            moved = _node(drain, node, there, budget, now, actions)
        told = [_course(each, runs.get(each.run), now) for each in moved.runs]
        nodes.append(moved if told == moved.runs else moved.model_copy(update={"runs": told}))
    changed = drain.model_copy(update={"nodes": nodes})
    if drain.state == "running" and all(node.over for node in nodes):
        state = _end_state(nodes)
        changed = changed.model_copy(update={"state": state, "ended_at": now})
    return Stepped(changed, actions)


def _end_state(nodes: Sequence[DrainNode]) -> str:
    states = {node.state for node in nodes}
    if "given up" in states:
        return "given up"
    return "stopped" if states == {"stopped"} else "done"


def _node(
    drain: Drain, node: DrainNode, there: SeenNode, budget: Budget, now: float, actions: list[Action]
) -> DrainNode:
    policy = drain.policy
    if not there.held:
        return node.model_copy(update={"state": "stopped", "ended_at": now, "note": "it was uncordoned"})
    changes: dict[str, object] = {}
    if node.state == "waiting":
        if not (there.away or there.dead or budget.take(there.gpus)):
            return _noted(node, "its turn has not come: as much is away as may be")
        deadline = now + policy.deadline_seconds
        changes = {"state": "moving", "began_at": now, "deadline_at": deadline, "node_id": there.node_id}
        node = node.model_copy(update=changes)
    gone = there.dead or policy.gone
    late = node.deadline_at is not None and now >= node.deadline_at
    stop_now = gone or (late and policy.at_deadline == "stop")
    asked = {(each.run, each.attempt): each for each in node.runs}
    for run in there.runs:
        number = run.attempt.number if run.attempt is not None else 0
        entry = asked.get((run.id, number))
        if entry is None:
            entry = _entry(run, number, now)
            asked[run.id, number] = entry
        actions.append(Ask(run.id, node.node.name, now=stop_now))
    others = list(there.others)
    if policy.others == "stop" and not there.dead:
        actions += [EndOther(there.node_id, other) for other in others]
    left = len(there.runs)
    wait_for_others = policy.others == "stop" and bool(others) and not there.dead
    node = node.model_copy(update={"runs": list(asked.values()), "others": others, "dead": node.dead or gone})
    if left or wait_for_others:
        return _moving(drain, node, there, late, now)
    return _emptied(drain, node, there, now)


def _moving(drain: Drain, node: DrainNode, there: SeenNode, late: bool, now: float) -> DrainNode:
    """Something is still there."""
    policy = drain.policy
    if late and policy.at_deadline == "give_up":
        note = f"given up: {_still(there)} after {span(policy.deadline_seconds)}; it stays cordoned"
        return node.model_copy(update={"state": "given up", "ended_at": now, "note": note, "empty_since": None})
    back = node.state == "checking" or node.note.startswith(_BACK)
    words = f"{_BACK}: {_still(there)}" if back else f"waits for {_still(there)}"
    if there.silent:
        words += "; nothing answers there, though Ray still has it as alive"
    if late and policy.at_deadline == "wait":
        words += "; its deadline has passed: wait on, stop what is left, or give up"
    return _noted(
        node.model_copy(
            update={"state": "moving", "empty_since": None, "overdue": late and policy.at_deadline == "wait"}
        ),
        words,
    )


def _emptied(drain: Drain, node: DrainNode, there: SeenNode, now: float) -> DrainNode:
    """Nothing of ours is there any more."""
    if node.dead:
        how = "a person says that it is off" if drain.policy.gone else "it does not answer"
        note = f"{how}: there was nothing to wait for"
        return node.model_copy(
            update={"state": "empty", "empty_since": now, "ended_at": now, "overdue": False, "note": note}
        )
    since = node.empty_since if node.state == "checking" and node.empty_since is not None else now
    others = f"; not raydeck's, left alone: {_names(there.others)}" if there.others else ""
    if now < since + drain.policy.check_seconds:
        note = f"empty; looks for {span(drain.policy.check_seconds)} whether it stays so{others}"
        return node.model_copy(update={"state": "checking", "empty_since": since, "overdue": False, "note": note})
    note = f"empty, and stayed so for {span(drain.policy.check_seconds)}{others}"
    return node.model_copy(update={"state": "empty", "empty_since": since, "ended_at": now, "note": note})


def _noted(node: DrainNode, note: str) -> DrainNode:
    return node if node.note == note else node.model_copy(update={"note": note})


def _still(there: SeenNode) -> str:
    parts = [run.id for run in there.runs[:4]]
    if len(there.runs) > len(parts):
        parts.append(f"{len(there.runs) - len(parts)} more")
    return ", ".join(parts) if parts else _names(there.others)


def _names(others: Sequence[Other]) -> str:
    named = ", ".join(each.sentence for each in others[:3])
    return f"{named} and {len(others) - 3} more" if len(others) > 3 else named


def _entry(run: Run, number: int, now: float) -> DrainRun:
    attempt = run.attempt
    return DrainRun(
        run=run.id,
        attempt=number,
        workflow=run.workflow,
        user=run.user,
        nodes=list(attempt.nodes) if attempt is not None else [],
        asked_at=now,
        step=_step(run),
        saved_step=_saved(run),
    )


def _step(run: Run) -> int | None:
    attempt = run.attempt
    if attempt is None:
        return None
    if attempt.outcome is not None and attempt.outcome.last_step is not None:
        return attempt.outcome.last_step
    progress = attempt.status.progress if attempt.status is not None else None
    return progress.step if progress is not None else None


def _saved(run: Run) -> int | None:
    attempt = run.attempt
    if attempt is None:
        return None
    for told in (attempt.outcome, attempt.status):
        if told is not None and told.checkpoint_step is not None:
            return told.checkpoint_step
    return attempt.resume_step


def _course(entry: DrainRun, run: Run | None, now: float) -> DrainRun:
    """What became of a run that was asked to leave, from how it stands now."""
    if run is None or entry.state in ("ended", "again"):
        return entry
    number = run.attempt.number if run.attempt is not None else 0
    if number == entry.attempt and not run.state.waiting and not run.state.ended:
        state = "saving" if run.state in (RunState.SAVING, RunState.STOPPING) else "asked"
        return _changed(entry, {"state": state, "step": _step(run), "saved_step": _saved(run), "note": run.reason})
    changes: dict[str, object] = {}
    if entry.left_at is None:
        before = next((each for each in run.attempts if each.number == entry.attempt), None)
        if before is not None:
            old = run.model_copy(update={"attempts": [before]})
            changes |= {"left_at": before.ended_at, "step": _step(old), "saved_step": _saved(old)}
        else:
            # It had been let go and not begun: taken back before anything was started.
            changes["left_at"] = entry.asked_at
    if run.state.ended:
        changes |= {"state": "ended", "note": f"{run.state.value}: {run.reason}".rstrip(": ")}
    elif number > entry.attempt and run.state in (RunState.RUNNING, RunState.SAVING):
        attempt = run.attempt
        assert attempt is not None
        changes |= {"state": "again", "again_at": now, "again_on": list(attempt.nodes), "note": ""}
    else:
        changes |= {"state": "left", "note": run.reason}
    return _changed(entry, changes)


def _changed(entry: DrainRun, changes: Mapping[str, object]) -> DrainRun:
    if all(getattr(entry, name) == value for name, value in changes.items()):
        return entry
    return entry.model_copy(update=dict(changes))
