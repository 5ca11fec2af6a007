"""What touching a cluster goes through: targets → preview → confirmation → controller → outcome. Knows no screen.

The screens and the command line both come through here, so that both show the same blast radius and ask the same way.
A preview is pure; ``you`` is the user that the controller sees, for whom another person's run takes more than one key.
Restart, rollback and undo are written in `console.again`, and have their names here too.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from console.again import plan_restart as plan_restart
from console.again import plan_rollback as plan_rollback
from console.again import plan_undo as plan_undo
from console.again import preview_restart as preview_restart
from console.again import preview_rollback as preview_rollback
from console.again import preview_undo as preview_undo
from console.again import restart as restart
from console.again import roll_back as roll_back
from console.again import undo as undo
from console.preview import SAMPLES, Preview
from console.render.prose import listed, number, some
from console.stake import at_stake, what_to_type, whose
from jobs.client import ControllerClient
from jobs.errors import RaydeckError, Refused
from jobs.load import load_workflow
from jobs.model import Run, RunState
from jobs.package import Package, build, sample_folder
from jobs.queueview import QueueView
from jobs.spec import Workflow
from jobs.wire import ArrangeRequest, LaunchRequest, StopRequest


def new_request_id() -> str:
    """The name of one request: a repeat under the same name is the same request."""
    return secrets.token_hex(8)


async def _each(runs: Iterable[Run], ask: Callable[[Run], Awaitable[Run]]) -> list[Run]:
    """One request for each run, in order. What was done before one was refused is part of that refusal."""
    done: list[Run] = []
    for run in runs:
        try:
            done.append(await ask(run))
        except RaydeckError as error:
            if not done:
                raise
            names = listed([each.id for each in done])
            raise type(error)(f"{error.sentence}; done before that: {names}", error.hint) from error
    return done


# --- stop -------------------------------------------------------------------------------------------------------------


def preview_stop(runs: Sequence[Run], now_wall: float, *, at_once: bool = False, you: str = "") -> Preview:
    """What stopping these runs does. Raises `Refused` where none of them can be stopped."""
    living = [run for run in runs if not run.state.ended]
    if not living:
        names = ", ".join(run.id for run in runs) or "nothing"
        raise Refused(f"{names}: ended already" if runs else "no run is chosen")
    gpus = sum(run.gpus for run in living if not run.state.waiting)
    how = (
        "killed at once; steps since the last checkpoint are lost" if at_once else "asked to save and leave, then ended"
    )
    waiting = [run for run in living if run.state.waiting]
    lines: list[str] = []
    if len(waiting) < len(living):
        lines.append(f"{some(len(living) - len(waiting), 'run')} on {gpus} GPUs: {how}.")
    if waiting:
        lines.append(f"{some(len(waiting), 'run')} that {'waits' if len(waiting) == 1 else 'wait'}: out of the queue.")
    lines += [
        f"{run.id} ({run.state.value}, {run.user or 'unknown user'}): {at_stake(run, now_wall)}" for run in living
    ]
    saving = [run.id for run in living if run.state in (RunState.SAVING, RunState.STOPPING)]
    warnings = whose(living, you) + ((f"already on its way: {', '.join(saving)}",) if saving else ())
    title = f"Stop {living[0].id}" if len(living) == 1 else f"Stop {len(living)} runs"
    typed = what_to_type(living, you)
    if at_once and len(living) == 1:
        return Preview(title + " at once", tuple(lines), "name", living[0].id, True, warnings)
    return Preview(title, tuple(lines), typed.ask, typed.expected, True, warnings)


async def stop(client: ControllerClient, runs: Iterable[Run], reason: str, *, at_once: bool = False) -> list[Run]:
    """Ask the controller to stop each run that has not ended."""
    return await _each(
        (run for run in runs if not run.state.ended),
        lambda run: client.stop(run.id, StopRequest(request_id=new_request_id(), reason=reason, now=at_once)),
    )


# --- launch -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workflow that was read and checked here, ready to be sent."""

    request: LaunchRequest
    workflow: Workflow
    package: Package

    @property
    def gpus(self) -> int:
        """Of one run, over all its nodes."""
        return self.workflow.resources.accelerators

    @property
    def points(self) -> int:
        """How many runs this is: 1, or those of its sweep."""
        sweep = self.workflow.sweep
        return math.prod(len(values) for values in sweep.parameters.values()) if sweep else 1


def workflow_path(named: str) -> Path:
    """The file that a person means: a path, or the name of a sample that ships with raydeck."""
    path = Path(named).expanduser()
    if not path.exists() and named in SAMPLES:
        return Path(str(sample_folder())) / f"{named}.yaml"
    return path


def prepare(
    named: str, *, queue: str = "", priority: str = "", overlay: str = "", hold: bool = False, dry_run: bool = False
) -> Prepared:
    """Read, check and pack a workflow. Raises `Refused` with every mistake and where it stands."""
    path = workflow_path(named)
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise Refused(f"{named} does not exist", f"Samples that ship with raydeck: {', '.join(SAMPLES)}") from error
    except OSError as error:
        raise Refused(f"{named} cannot be read: {error.strerror}") from error
    workflow = load_workflow(text, str(path), overlay)
    package = build(path.parent / workflow.code)
    request = LaunchRequest(
        request_id=new_request_id(),
        workflow_text=text.decode("utf-8"),
        workflow_file=path.name,
        package=package.digest,
        overlay=overlay,
        queue=queue,
        priority=priority,
        hold=hold,
        dry_run=dry_run,
    )
    return Prepared(request, workflow, package)


def preview_launch(prepared: Prepared, free_gpus: int | None) -> Preview:
    """What launching does."""
    workflow = prepared.workflow
    resources = workflow.resources
    each = f"{resources.accelerators_per_node} GPU{'s' * (resources.accelerators_per_node != 1)}"
    processes = (
        "one command"
        if workflow.kind == "ray"
        else f"{workflow.processes_per_node} process{'es' * (workflow.processes_per_node > 1)} on each"
    )
    lines = [f"{workflow.name}: {some(resources.nodes, 'node')} × {each}, {processes}"]
    if workflow.sweep is not None:
        at_once = f", {workflow.sweep.parallel} at once" if workflow.sweep.parallel else ""
        lines.append(f"a sweep of {some(prepared.points, 'run')}{at_once}: {', '.join(workflow.sweep.parameters)}")
    lines.append(f"code: {prepared.package.files} files, {len(prepared.package.content) / 1024:.0f} kB")
    warnings: tuple[str, ...] = ()
    if prepared.request.hold:
        lines.append("held: it waits until somebody releases it")
    if free_gpus is not None:
        lines.append(f"{free_gpus} GPUs are free now")
        if free_gpus < prepared.gpus:
            warnings = (f"it asks for {prepared.gpus} GPUs and {free_gpus} are free: it will wait",)
    title = f"Launch {workflow.name}" if workflow.sweep is None else f"Launch {prepared.points} runs of {workflow.name}"
    return Preview(title, tuple(lines), warnings=warnings)


async def launch(client: ControllerClient, prepared: Prepared) -> list[Run]:
    """Send the code, then the launch: one run, or all of a sweep. The same `Prepared` sent twice launches once."""
    await client.put_package(prepared.package.digest, prepared.package.content)
    return await client.launch(prepared.request)


# --- how runs wait ----------------------------------------------------------------------------------------------------

Where = Literal["first", "last", "before", "after", "own"]


@dataclass(frozen=True, slots=True)
class Change:
    """How runs are to wait from now on. What is not given stays as it is."""

    priority: str | None = None
    queue: str | None = None
    hold: bool | None = None
    """True keeps them waiting, False releases them."""
    place: Where | None = None
    """Among all that wait; ``own`` gives back the place that priority and time give."""
    other: str = ""
    """For ``before`` and ``after``: the run that is meant."""

    @property
    def words(self) -> list[str]:
        """What it comes to, to be read after the name of a run."""
        parts: list[str] = []
        if self.hold is not None:
            parts.append("is held: it keeps waiting until it is released" if self.hold else "is released")
        if self.queue is not None:
            parts.append(f"moves to queue {self.queue}")
        if self.priority is not None:
            parts.append(f"gets priority {self.priority}")
        if self.place in ("before", "after"):
            parts.append(f"goes {self.place} {self.other}")
        elif self.place == "own":
            parts.append("goes back to the place that its priority and time give it")
        elif self.place is not None:
            parts.append(f"goes {self.place} of all")
        return parts


def preview_arrange(runs: Sequence[Run], change: Change, *, queue: QueueView | None = None, you: str = "") -> Preview:
    """What changing how these runs wait does.

    ``queue`` tells where they stand now and come to stand. Raises `Refused` where nothing would change or no run waits.
    """
    if not change.words:
        raise Refused("nothing is to be changed", "Name a priority, a queue or a place, or hold or release it")
    fit = _fit(runs, change)
    if not fit:
        states = listed([f"{run.id} is {run.state.value}" for run in runs], 3)
        raise Refused(f"only what waits can be arranged: {states}" if runs else "no run is chosen")
    lines = [f"{run.id} ({_stands(run, queue)}) {', '.join(change.words)}" for run in fit[:20]]
    if len(fit) > len(lines):
        lines.append(f"and {number(len(fit) - len(lines))} more")
    lines += _comes_to(len(fit), change, queue)
    left = [f"{run.id} is {run.state.value}" for run in runs if run not in fit]
    warnings = whose(fit, you) + ((f"left as they are: {listed(left, 4)}",) if left else ())
    if change.hold is False:
        holders = sorted({run.held.user for run in fit if run.held is not None and run.held.user != you})
        warnings += (f"held by {listed(holders)}",) * bool(holders and you)
    typed = what_to_type(fit, you)
    what = fit[0].id if len(fit) == 1 else f"{len(fit)} runs"
    return Preview(f"{_verb(change)} {what}", tuple(lines), typed.ask, typed.expected, True, warnings)


def _fit(runs: Sequence[Run], change: Change) -> list[Run]:
    """Those of which this can be changed: all that wait, and of what runs already the priority alone."""
    priority_alone = change == Change(priority=change.priority)
    return [run for run in runs if run.state.waiting or (priority_alone and not run.state.ended)]


def _verb(change: Change) -> str:
    if change.hold is not None:
        return "Hold" if change.hold else "Release"
    return "Change the priority of" if change.priority is not None and change.queue is change.place is None else "Move"


def _stands(run: Run, queue: QueueView | None) -> str:
    """Where a run is now: its state, its place, its queue and priority."""
    place = next((row.position for row in queue.waiting if row.run == run.id), None) if queue else None
    held = f"held by {run.held.user}" if run.held is not None else run.state.value
    return f"{held}{f', number {place}' if place else ''}, queue {run.queue}, priority {run.priority}"


def _comes_to(count: int, change: Change, queue: QueueView | None) -> list[str]:
    """Where the runs come to stand, as far as one can say before it is done."""
    span = "number {0}" if count == 1 else "numbers {0} to {1}"
    if change.place == "first":
        return [f"new place: {span.format(1, count)}; whoever waited there comes after"]
    if change.place == "last" and queue is not None:
        last = queue.waiting_total - queue.held_total
        return [f"new place: {span.format(max(1, last - count + 1), last)}, the last"] if last >= count else []
    if change.place in ("before", "after"):
        place = next((row.position for row in queue.waiting if row.run == change.other), None) if queue else None
        return [f"{change.other} is number {place} now"] if place else []
    if change.priority is not None or change.queue is not None:
        return ["its place among the others follows from that; a place given by hand is given up"]
    return []


async def arrange(client: ControllerClient, runs: Sequence[Run], change: Change, reason: str) -> list[Run]:
    """Ask the controller to change how each run waits that can be changed so.

    Several that go to one place keep the order in which they are given.
    """
    fit = _fit(runs, change)
    backwards = change.place in ("first", "after")  # each goes in front of the ones sent before it

    def ask(run: Run) -> Awaitable[Run]:
        request = ArrangeRequest(
            request_id=new_request_id(),
            reason=reason,
            priority=change.priority,
            queue=change.queue,
            hold=change.hold,
            place=change.place,
            other=change.other,
        )
        return client.arrange(run.id, request)

    done = await _each(reversed(fit) if backwards else fit, ask)
    return done[::-1] if backwards else done
