"""What a request about nodes does, worked out before it is done: a dry run and the deed ask the same. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jobs.controller.nodes.holds import HoldRecord
from jobs.controller.nodes.identity import Known
from jobs.controller.schedule import view
from jobs.controller.schedule.types import Holder, Room, Situation, Waiter
from jobs.model import Run
from jobs.nodeview import NodePlan, NodesPlan, Other, RunStake

PAGE = 500
"""Of so many that wait it is said whether they have to wait for it."""
SAID = 8
"""So many of them are named."""
KINDS = frozenset({"cordon", "never"})

Actions = Literal["cordon", "uncordon", "drain", "retire"]


@dataclass(frozen=True, slots=True)
class Target:
    """One node that a request is about, and what is there."""

    known: Known
    runs: tuple[Run, ...] = ()
    others: tuple[Other, ...] = ()
    holds: tuple[HoldRecord, ...] = ()
    already: tuple[str, ...] = ()
    at_once: bool = False
    turn: int = 1
    cordoned_after: bool = True
    """Whether it takes no new work once the request is carried out."""

    @property
    def node_id(self) -> str:
        """Ray's id, empty if Ray does not have it."""
        return self.known.node_id


def worked_out(
    action: Actions,
    targets: Sequence[Target],
    situation: Situation,
    moved: Mapping[str, Waiter],
    notes: Sequence[str],
    changes: bool,
) -> NodesPlan:
    """The plan. ``moved``: for a drain, the runs that leave at once, each as it will wait then."""
    rooms = situation.rooms or ()
    after_rooms = tuple(_after(room, targets) for room in rooms)
    after = replace(
        situation,
        rooms=after_rooms if situation.rooms is not None else None,
        holding=tuple(holder for holder in situation.holding if holder.run not in moved),
        waiting=(*moved.values(), *situation.waiting),
    )
    now, then = _course(situation), _course(after)
    names = {room.node_id: room.name for room in rooms}
    stakes = {
        run.id: _stake(run, situation.holding, names, then if run.id in moved else None)
        for target in targets
        for run in target.runs
    }
    return NodesPlan(
        action=action,
        nodes=[
            NodePlan(
                name=target.known.name,
                address=target.known.ref.address,
                known=target.known.node is not None,
                alive=target.known.alive,
                at_once=target.at_once,
                already=list(target.already),
                runs=[stakes[run.id] for run in target.runs],
                others=list(target.others),
                gpus=target.known.node.gpus if target.known.node is not None else None,
                turn=target.turn,
            )
            for target in targets
        ],
        nodes_open=_open(rooms),
        nodes_open_after=_open(after_rooms),
        gpus_open=_gpus(rooms),
        gpus_open_after=_gpus(after_rooms),
        waits=_waits(now, then, moved) if changes else [],
        notes=list(notes),
        changes=changes,
    )


def _after(room: Room, targets: Sequence[Target]) -> Room:
    for target in targets:
        if target.node_id != room.node_id:
            continue
        if not target.cordoned_after:
            return replace(room, cordoned="", avoid=False)
        return replace(room, cordoned=room.cordoned or "this request", avoid=False)
    return room


def _open(rooms: Sequence[Room]) -> int:
    """How many take new work; a head without accelerators is none where others have some."""
    some = any(room.total.get("GPU") for room in rooms)
    return sum(not room.cordoned and (not some or bool(room.total.get("GPU"))) for room in rooms)


def _gpus(rooms: Sequence[Room]) -> float:
    return sum(room.total.get("GPU", 0.0) for room in rooms if not room.cordoned)


@dataclass(frozen=True, slots=True)
class _Course:
    """What one pass of the queue makes of a situation."""

    starts: Mapping[str, list[str]]
    """Runs that start at once, and on which nodes, by name."""
    kinds: Mapping[str, str]
    """Those that wait, in their order: the kind of what is in the way."""
    words: Mapping[str, str]


def _course(situation: Situation) -> _Course:
    plan, page = view.passed(situation, 0, PAGE)
    names = {room.node_id: room.name for room in situation.rooms or ()}
    return _Course(
        {start.run: [names.get(each, each) for each in start.node_ids] for start in plan.starts},
        {each.run: each.kind for each in page.waiting},
        {each.run: each.sentence for each in page.waiting},
    )


def _waits(now: _Course, then: _Course, moved: Mapping[str, Waiter]) -> list[str]:
    """Runs that would start, or could start one day, and then cannot."""
    hit = [
        f"{run} waits: {then.words[run]}"
        for run, kind in then.kinds.items()
        if run not in moved
        and run not in then.starts
        and (run in now.starts or (kind in KINDS and now.kinds.get(run) not in KINDS))
    ]
    return hit if len(hit) <= SAID else [*hit[:SAID], f"and {len(hit) - SAID} more"]


def _stake(run: Run, holding: Sequence[Holder], names: Mapping[str, str], then: _Course | None) -> RunStake:
    """``then``: for one that leaves, what becomes of it."""
    attempt = run.attempt
    status = attempt.status if attempt is not None else None
    holder = next((each for each in holding if each.run == run.id), None)
    nodes = [names.get(each, each[:8]) for each in holder.nodes] if holder is not None else []
    starts = then.starts.get(run.id, []) if then is not None else []
    return RunStake(
        run=run.id,
        workflow=run.workflow,
        user=run.user,
        state=run.state.value,
        gpus=run.gpus,
        nodes=nodes or (list(attempt.nodes) if attempt is not None else []),
        step=status.progress.step if status is not None and status.progress is not None else None,
        checkpoint_step=status.checkpoint_step if status is not None else None,
        restarts_on=starts,
        waits_for=then.words.get(run.id, "") if then is not None and not starts else "",
    )
