"""How runs wait: the queues, why one waits, and what changes that. Same previews and client as the screens."""

from __future__ import annotations

from collections.abc import Sequence

from console import dispatch
from console.cli import output
from console.cli.keys import confirm
from console.cli.opened import chosen, controlled, repeated, you
from console.render.documents import explanation_document, queue_document, run_document
from console.render.queue import WAITING_COLUMNS, WaitingRow, explanation_lines, queue_lines
from console.settings import Context
from jobs.client import ControllerClient
from jobs.model import RunState
from jobs.queueview import QueueView

FIRST = 20
"""So many that wait are listed where nobody asks for all."""
PAGE = 1_000
MOST_QUEUES = 1_000
EXPLAINED_CELLS = 100


async def queue(context: Context, every: bool, as_json: bool, watch: bool) -> int:
    """The queues, and the runs that wait, in their order."""
    async with controlled(context) as (_, client):

        async def show() -> None:
            view = await _view(client, every)
            if as_json:
                (output.line if watch else output.document)(queue_document(view))
            else:
                _paint(view, every)

        return await repeated(watch, show)


async def _view(client: ControllerClient, every: bool) -> QueueView:
    """The queues with the first page of those that wait, or with all of them.

    Runs come and go between two pages: one that is on both is taken once.
    """
    view = await client.queue(0, PAGE)
    while every and view.waiting and len(view.waiting) < view.waiting_total:
        page = await client.queue(len(view.waiting), PAGE)
        seen = {row.run for row in view.waiting}
        fresh = [row for row in page.waiting if row.run not in seen]
        if not fresh:
            break
        view = page.model_copy(update={"waiting": [*view.waiting, *fresh]})
    return view


def _paint(view: QueueView, every: bool) -> None:
    output.lines(queue_lines(view, output.width(120), MOST_QUEUES))
    shown = view.waiting if every else view.waiting[:FIRST]
    output.say("")
    output.columns(WAITING_COLUMNS, [WaitingRow(row, view.at) for row in shown], "no run waits")
    rest = view.waiting_total - len(shown)
    if rest > 0:
        output.say(f"and {rest:,} more: raydeck queue --all")


async def explain(context: Context, run: str, as_json: bool) -> int:
    """Why a run waits, and what would let it start."""
    async with controlled(context) as (session, client):
        told = await client.explain(run)
        now = session.head_wall()
    if as_json:
        output.document(explanation_document(told))
    else:
        output.lines(explanation_lines(told, output.width(EXPLAINED_CELLS), now))
    return output.DONE


async def arrange(
    context: Context, names: Sequence[str], change: dispatch.Change, reason: str, sure: bool, as_json: bool
) -> int:
    """Change how runs wait."""
    async with controlled(context) as (session, client):
        runs = await chosen(session, client, names)
        preview = dispatch.preview_arrange(runs, change, queue=session.work.queue, you=you(session))
        reason = await confirm(preview, sure, reason)
        changed = await dispatch.arrange(client, runs, change, reason)
        view = None if as_json else await client.queue(0, PAGE)
    if view is None:
        output.document([run_document(run) for run in changed])
        return output.DONE
    places = {row.run: row.position for row in view.waiting}
    for run in changed:
        if run.held is not None:
            stands = f"held by {run.held.user}"
        elif run.state is RunState.QUEUED and places.get(run.id) is not None:
            stands = f"queued, number {places[run.id]}"
        else:
            stands = run.state.value
        output.say(f"{run.id}: {stands}, queue {run.queue}, priority {run.priority}")
    return output.DONE
