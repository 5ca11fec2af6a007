"""What takes work up again: restart from a checkpoint, roll back to a release, take a rollback back.

Each has a plan (the controller says what it would do, and does nothing), a preview of that plan (pure), and the action.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from console.preview import Preview
from console.render.cells import age
from console.render.prose import listed, number, some
from console.stake import at_stake, last_step, what_to_type, whose
from jobs.client import ControllerClient
from jobs.errors import Refused
from jobs.model import Run
from jobs.wire import Restarted, RestartRequest, Rollback, RollbackRequest, UndoRequest


def _new_request_id() -> str:
    return secrets.token_hex(8)


def _begins(step: int | None) -> str:
    return "from the beginning" if step is None else f"from step {number(step)}"


# --- restart ----------------------------------------------------------------------------------------------------------


async def plan_restart(client: ControllerClient, run: Run, from_step: int | None) -> Restarted:
    """What a restart would do. ``from_step``: a checkpoint's, 0 for the beginning, None for the newest complete one."""
    request = RestartRequest(request_id=_new_request_id(), from_step=from_step, dry_run=True)
    return await client.restart(run.id, request)


def preview_restart(run: Run, plan: Restarted, now_wall: float, *, you: str = "") -> Preview:
    """What restarting a run does, by the controller's plan."""
    lines = [_now(run, now_wall)]
    lines.append(f"it starts {_begins(plan.from_step)}{_again(run, plan)}")
    if plan.set_aside:
        steps = listed([number(step) for step in plan.set_aside])
        lines.append(f"set aside (renamed, not deleted): {some(len(plan.set_aside), 'checkpoint')}, {steps}")
    warnings = (*whose([run], you), *plan.skipped, *plan.warnings)
    typed = what_to_type([run], you)
    return Preview(f"Restart {run.id}", tuple(lines), typed.ask, typed.expected, True, warnings)


def _now(run: Run, now_wall: float) -> str:
    """What becomes of the run as it is."""
    if run.state.ended:
        ago = f" {age(now_wall - run.ended_at)} ago" if run.ended_at is not None else ""
        why = f": {run.reason}" if run.reason else ""
        return f"{run.state.value}{ago}{why}; back to queue {run.queue}, priority {run.priority}, with all its retries"
    if run.state.waiting:
        return f"{run.state.value}: it waits, and goes on waiting at its place"
    return f"{run.state.value} on {some(run.gpus, 'GPU')}: it saves and leaves first; {at_stake(run, now_wall)}"


def _again(run: Run, plan: Restarted) -> str:
    """The steps that are done a second time, where that is known."""
    last, first = last_step(run), plan.from_step or 0
    if last is None or last <= first:
        return ""
    return f"; it was at step {number(last)}, so {some(last - first, 'step')} may have to be done again"


async def restart(client: ControllerClient, run: Run, reason: str, from_step: int | None) -> Restarted:
    """Ask the controller to restart a run; ``from_step`` as in `plan_restart`."""
    request = RestartRequest(request_id=_new_request_id(), reason=reason, from_step=from_step)
    return await client.restart(run.id, request)


# --- roll back --------------------------------------------------------------------------------------------------------


async def plan_rollback(client: ControllerClient, workflow: str, to: str) -> Rollback:
    """What a rollback would do. ``to``: a release's id; empty for the last good one."""
    request = RollbackRequest(request_id=_new_request_id(), to=to, dry_run=True)
    return await client.rollback(workflow, request)


def preview_rollback(
    plan: Rollback, runs: Mapping[str, Run], now_wall: float, *, differences: int | None = None, you: str = ""
) -> Preview:
    """What a rollback does, by the controller's plan.

    Args:
        plan: What `plan_rollback` gave.
        runs: Those that it stops, as far as they are known, by id.
        now_wall: The head's clock, seconds since 1970.
        differences: How many things differ between the two releases; None where nobody has looked.
        you: As everywhere.
    """
    known = [runs[name] for name in plan.stopped if name in runs]
    lines = _stops(plan.stopped, runs, now_wall)
    differ = "" if differences is None else f"; {some(differences, 'difference')} between them"
    left = f" in the place of {plan.from_release}{differ}" if plan.from_release else ""
    if plan.started:
        lines.append(f"starts a new run of {plan.to_release}{left}")
        of = f" of {plan.from_run}" if plan.from_run else ""
        lines.append(f"it starts {_begins(plan.from_step)}{of}{_waits(plan)}")
        lines.append("one way back: undo stops that run and restarts what was stopped")
    else:
        lines.append(f"{plan.to_release} runs already and goes on alone; nothing new is started")
        lines.append("one way back: undo restarts what was stopped")
    warnings = (*whose(known, you), *plan.skipped)
    typed = what_to_type(known, you) if len(plan.stopped) < 2 else ("count", str(len(plan.stopped)))
    title = f"Roll {plan.workflow} back to {plan.to_release}"
    return Preview(title, tuple(lines), typed[0], typed[1], True, warnings)


def _waits(plan: Rollback) -> str:
    return f"; it waits until {'that has' if len(plan.stopped) == 1 else 'those have'} ended" if plan.stopped else ""


def _stops(names: Sequence[str], runs: Mapping[str, Run], now_wall: float) -> list[str]:
    if not names:
        return ["nothing runs: nothing has to be stopped"]
    waiting = [name for name in names if name in runs and runs[name].state.waiting]
    gpus = sum(runs[name].gpus for name in names if name in runs and name not in waiting)
    lines: list[str] = []
    if len(waiting) < len(names):
        lines.append(f"stops {some(len(names) - len(waiting), 'run')} on {some(gpus, 'GPU')}: saves first, then ends")
    if waiting:
        lines.append(f"takes {some(len(waiting), 'run')} out of the queue")
    for name in names:
        run = runs.get(name)
        lines.append(
            f"{name} ({run.state.value}, {run.user or 'unknown user'}): {at_stake(run, now_wall)}" if run else name
        )
    return lines


async def roll_back(client: ControllerClient, workflow: str, to: str, reason: str) -> Rollback:
    """Ask the controller to put a release in the place of what runs; ``to`` as in `plan_rollback`."""
    return await client.rollback(workflow, RollbackRequest(request_id=_new_request_id(), reason=reason, to=to))


# --- take a rollback back ---------------------------------------------------------------------------------------------


async def plan_undo(client: ControllerClient, rollback: str) -> Rollback:
    """What taking a rollback back would do."""
    return await client.undo(rollback, UndoRequest(request_id=_new_request_id(), dry_run=True))


def preview_undo(plan: Rollback, runs: Mapping[str, Run], now_wall: float, *, you: str = "") -> Preview:
    """What taking a rollback back does: the run that it started is stopped, those that it stopped go on."""
    if plan.undone_at is not None:
        raise Refused(f"rollback {plan.id} is taken back already, by {plan.undone_by or 'an unknown user'}")
    started = runs.get(plan.started)
    living = [plan.started] if plan.started and (started is None or not started.state.ended) else []
    lines = _stops(living, runs, now_wall) if living else [f"{plan.started or 'what it started'} has ended already"]
    lines += [f"restarts {name} from its newest complete checkpoint" for name in plan.stopped]
    if not plan.stopped:
        lines.append("it had stopped nothing, so nothing is restarted")
    touched = [runs[name] for name in (*living, *plan.stopped) if name in runs]
    typed = what_to_type([runs[name] for name in living if name in runs], you)
    ago = age(now_wall - plan.at)
    lines.append(f"rolled back {ago} ago by {plan.user}{f': {plan.reason}' if plan.reason else ''}")
    title = f"Take back the rollback of {plan.workflow} to {plan.to_release}"
    return Preview(title, tuple(lines), typed.ask, typed.expected, True, (*whose(touched, you), *plan.skipped))


async def undo(client: ControllerClient, rollback: str, reason: str) -> Rollback:
    """Ask the controller to take a rollback back."""
    return await client.undo(rollback, UndoRequest(request_id=_new_request_id(), reason=reason))
