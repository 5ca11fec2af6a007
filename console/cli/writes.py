"""Commands that touch: launch, stop, the controller. Same previews and client as the screens, through `dispatch`."""

from __future__ import annotations

import asyncio
from typing import Any

from console import dispatch
from console.cli import output
from console.cli.keys import confirm
from console.cli.reads import opened, with_controller
from console.preview import Preview
from console.render.cells import safe
from console.render.documents import run_document
from console.settings import Context
from console.sources.head import controller_status, start_controller, stop_controller
from console.sources.session import Session
from jobs.errors import Refused
from jobs.model import Run, RunState

POLL_SECONDS = 0.5


async def _ended(session: Session, run: str) -> Run:
    """A run once it has ended, as the event stream tells."""
    while True:
        known = session.work.runs.get(run)
        if known is not None and known.state.ended:
            return known
        await asyncio.sleep(POLL_SECONDS)


def _tell(run: Run, as_json: bool) -> None:
    if as_json:
        output.document(run_document(run))
    else:
        output.say(f"{run.id}: {run.state.value}{f': {safe(run.reason)}' if run.reason else ''}")


async def launch(
    context: Context, *, workflow: str, queue: str, priority: str, overlay: str, dry_run: bool, wait: bool, sure: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Launch a workflow."""
    prepared = dispatch.prepare(workflow, queue=queue, priority=priority, overlay=overlay, dry_run=dry_run)
    async with opened(context, probes=False, ray=False) as session:
        await with_controller(session)
        if not dry_run:
            await confirm(dispatch.preview_launch(prepared, None), sure)
        run = await dispatch.launch(await session.controller(), prepared)
        if dry_run:
            output.note("nothing was launched")
        elif wait:
            run = await _ended(session, run.id)
        _tell(run, as_json)
    return output.FAILED if wait and run.state is not RunState.SUCCEEDED and not dry_run else output.DONE


async def stop(
    context: Context, *, names: tuple[str, ...], reason: str, at_once: bool, wait: bool, sure: bool, as_json: bool
) -> int:
    """Stop runs."""
    async with opened(context, probes=False, ray=False) as session:
        await with_controller(session)
        unknown = [name for name in names if name not in session.work.runs]
        if unknown:
            raise Refused(
                f"there is no run {', '.join(unknown)}",
                f"Known are: {', '.join(list(session.work.runs)[:8]) or 'none'}",
            )
        runs = [session.work.runs[name] for name in names]
        await confirm(dispatch.preview_stop(runs, session.head_wall(), at_once=at_once), sure)
        stopped = await dispatch.stop(await session.controller(), runs, reason, at_once=at_once)
        if wait:
            stopped = [await _ended(session, run.id) for run in stopped]
        if as_json:
            output.document([run_document(run) for run in stopped])
        else:
            for run in stopped:
                _tell(run, False)
    return output.DONE


async def controller(context: Context, what: str, sure: bool, as_json: bool) -> int:
    """Start, restart, stop the controller, or ask whether one runs."""
    head = context.head
    name = head.name if head else "the head"
    async with opened(context, probes=False, ray=False, controller=False) as session:
        if what == "status":
            answer: dict[str, Any] = await controller_status(session)
        elif what == "stop":
            await confirm(
                Preview(f"Stop the controller on {name}", ("Runs go on; nothing can be changed until it is back.",)),
                sure,
            )
            answer = await stop_controller(session)
        else:
            lines = (f"A process of its own under {context.metadata_store}; it listens on a Unix socket only.",)
            await confirm(Preview(f"{what.capitalize()} the controller on {name}", lines), sure)
            answer = await start_controller(session, restart=what == "restart")
    if as_json:
        output.document(answer)
    else:
        output.say(_sentence(answer))
    if what == "status":
        return output.DONE if answer["event"] == "running" else output.FAILED
    return output.DONE


def _sentence(answer: dict[str, Any]) -> str:
    event = answer["event"]
    if event == "stopped":
        return "no controller runs"
    text = f"the controller {'runs' if event == 'running' else 'has started'}: pid {answer['pid']}, {answer['socket']}"
    offered = answer.get("offered")
    if offered and answer.get("digest") and offered != answer["digest"]:
        text += f"\nit runs other code ({answer['digest'][:12]}) than this raydeck's ({offered[:12]})"
        text += "; to put this one in its place: raydeck controller restart"
    return text
