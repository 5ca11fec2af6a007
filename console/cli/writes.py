"""Commands that begin, end and take up runs: launch, stop, restart. Same previews and client as the screens."""

from __future__ import annotations

from collections.abc import Sequence

from console import dispatch
from console.cli import output
from console.cli.keys import confirm
from console.cli.opened import all_succeeded, chosen, controlled, ended, sentence_of, you
from console.render.documents import restarted_document, run_document
from console.settings import Context
from jobs.model import Run


def _tell(runs: Sequence[Run], as_json: bool) -> None:
    """One run as a document, several as a list of them; or a line each."""
    if as_json:
        output.document(run_document(runs[0]) if len(runs) == 1 else [run_document(run) for run in runs])
    else:
        for run in runs:
            output.say(sentence_of(run))


async def launch(
    context: Context, *, workflow: str, queue: str, priority: str, overlay: str, hold: bool, dry_run: bool, wait: bool,
    sure: bool, as_json: bool,
) -> int:  # fmt: skip
    """Launch a workflow: one run, or all of a sweep."""
    prepared = dispatch.prepare(
        workflow, queue=queue, priority=priority, overlay=overlay, hold=hold, dry_run=dry_run
    )  # fmt: skip
    async with controlled(context) as (session, client):
        if not dry_run:
            await confirm(dispatch.preview_launch(prepared, None), sure)
        runs = await dispatch.launch(client, prepared)
        if dry_run:
            output.note("nothing was launched")
        elif wait:
            runs = [await ended(session, run) for run in runs]
        _tell(runs, as_json)
    return all_succeeded(runs) if wait and not dry_run else output.DONE


async def stop(
    context: Context, *, names: tuple[str, ...], reason: str, at_once: bool, wait: bool, sure: bool, as_json: bool
) -> int:
    """Stop runs."""
    async with controlled(context) as (session, client):
        runs = await chosen(session, client, names)
        preview = dispatch.preview_stop(runs, session.head_wall(), at_once=at_once, you=you(session))
        reason = await confirm(preview, sure, reason)
        stopped = await dispatch.stop(client, runs, reason, at_once=at_once)
        if wait:
            stopped = [await ended(session, run) for run in stopped]
        if as_json:
            output.document([run_document(run) for run in stopped])
        else:
            _tell(stopped, False)
    return output.DONE


async def restart(
    context: Context, *, name: str, from_step: int | None, reason: str, dry_run: bool, wait: bool, sure: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Have a run try again from one of its checkpoints."""
    async with controlled(context) as (session, client):
        (run,) = await chosen(session, client, [name])
        plan = await dispatch.plan_restart(client, run, from_step)
        preview = dispatch.preview_restart(run, plan, session.head_wall(), you=you(session))
        reason = await confirm(preview, sure or dry_run, reason)
        done = plan if dry_run else await dispatch.restart(client, run, reason, from_step)
        if wait and not dry_run:
            done = done.model_copy(update={"run": await ended(session, done.run)})
    if as_json:
        output.document(restarted_document(done))
    elif dry_run:
        output.say("nothing was restarted")
    else:
        begins = "the beginning" if done.from_step is None else f"step {done.from_step:,}"
        output.say(sentence_of(done.run) if wait else f"{sentence_of(done.run)}; it starts from {begins}")
    return all_succeeded([done.run]) if wait and not dry_run else output.DONE
