"""What touching a cluster goes through: targets → preview → confirmation → controller → outcome. Knows no screen.

The screens and the command line both come through here, so that both show the same blast radius and ask the same way.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from console.preview import SAMPLES, Preview
from jobs.client import ControllerClient
from jobs.errors import Refused
from jobs.load import load_workflow
from jobs.model import Run, RunState
from jobs.package import Package, build, sample_folder
from jobs.spec import Workflow
from jobs.wire import LaunchRequest, StopRequest


def new_request_id() -> str:
    """The name of one request: a repeat under the same name is the same request."""
    return secrets.token_hex(8)


# --- stop -------------------------------------------------------------------------------------------------------------


def _gpu_hours_at_stake(run: Run, now_wall: float) -> str:
    """What is lost if nothing more is saved: time since the newest checkpoint, times accelerators."""
    attempt = run.attempt
    status = attempt.status if attempt else None
    if run.started_at is None or status is None:
        return "it has not started: nothing is lost"
    progress = status.progress
    step = f"at step {progress.step}" if progress else "before its first step"
    saved = (
        f"checkpoint at step {status.checkpoint_step}" if status.checkpoint_step is not None else "no checkpoint yet"
    )
    hours = max(0.0, now_wall - run.started_at) / 3600 * max(1, run.gpus)
    return f"{step}, {saved}; {hours:.2f} GPU-hours since its start"


def preview_stop(runs: Sequence[Run], now_wall: float, *, at_once: bool = False) -> Preview:
    """What stopping these runs does. Raises `Refused` where none of them can be stopped."""
    living = [run for run in runs if not run.state.ended]
    if not living:
        names = ", ".join(run.id for run in runs) or "nothing"
        raise Refused(f"{names}: ended already" if runs else "no run is chosen")
    gpus = sum(run.gpus for run in living)
    how = (
        "killed at once; steps since the last checkpoint are lost" if at_once else "asked to save and leave, then ended"
    )
    lines = [f"{len(living)} run{'s' * (len(living) > 1)} on {gpus} GPUs: {how}."]
    lines += [
        f"{run.id} ({run.state.value}, {run.user or 'unknown user'}): {_gpu_hours_at_stake(run, now_wall)}"
        for run in living
    ]
    saving = [run.id for run in living if run.state in (RunState.SAVING, RunState.STOPPING)]
    warnings = (f"already on its way: {', '.join(saving)}",) if saving else ()
    title = f"Stop {living[0].id}" if len(living) == 1 else f"Stop {len(living)} runs"
    if len(living) > 1:
        return Preview(title, tuple(lines), "count", str(len(living)), True, warnings)
    if at_once:
        return Preview(title + " at once", tuple(lines), "name", living[0].id, True, warnings)
    return Preview(title, tuple(lines), "y", "y", True, warnings)


async def stop(client: ControllerClient, runs: Iterable[Run], reason: str, *, at_once: bool = False) -> list[Run]:
    """Ask the controller to stop each run that has not ended."""
    return [
        await client.stop(run.id, StopRequest(request_id=new_request_id(), reason=reason, now=at_once))
        for run in runs
        if not run.state.ended
    ]


# --- launch -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workflow that was read and checked here, ready to be sent."""

    request: LaunchRequest
    workflow: Workflow
    package: Package

    @property
    def gpus(self) -> int:
        """In all."""
        return self.workflow.resources.nodes * self.workflow.resources.accelerators_per_node


def workflow_path(named: str) -> Path:
    """The file that a person means: a path, or the name of a sample that ships with raydeck."""
    path = Path(named).expanduser()
    if not path.exists() and named in SAMPLES:
        return Path(str(sample_folder())) / f"{named}.yaml"
    return path


def prepare(named: str, *, queue: str = "", priority: str = "", overlay: str = "", dry_run: bool = False) -> Prepared:
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
        dry_run=dry_run,
    )
    return Prepared(request, workflow, package)


def preview_launch(prepared: Prepared, free_gpus: int | None) -> Preview:
    """What launching does."""
    workflow = prepared.workflow
    resources = workflow.resources
    each = f"{resources.accelerators_per_node} GPU{'s' * (resources.accelerators_per_node != 1)}"
    lines = [
        f"{workflow.name}: {resources.nodes} node{'s' * (resources.nodes > 1)} × {each}, "
        f"{workflow.processes_per_node} process{'es' * (workflow.processes_per_node > 1)} on each",
        f"code: {prepared.package.files} files, {len(prepared.package.content) / 1024:.0f} kB",
    ]
    warnings: tuple[str, ...] = ()
    if free_gpus is not None:
        lines.append(f"{free_gpus} GPUs are free now")
        if free_gpus < prepared.gpus:
            warnings = (f"it asks for {prepared.gpus} GPUs and {free_gpus} are free: it will wait",)
    return Preview(f"Launch {workflow.name}", tuple(lines), warnings=warnings)


async def launch(client: ControllerClient, prepared: Prepared) -> Run:
    """Send the code, then the launch. The same `Prepared` sent twice launches once."""
    await client.put_package(prepared.package.digest, prepared.package.content)
    return await client.launch(prepared.request)
