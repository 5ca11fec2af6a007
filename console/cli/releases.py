"""Releases, what differs between two, rolling back to one and taking that back."""

from __future__ import annotations

import difflib
import time

from console import dispatch
from console.cli import output
from console.cli.keys import confirm
from console.cli.opened import all_succeeded, controlled, ended, sentence_of, you
from console.render.documents import change_document, release_document, rollback_document
from console.render.prose import listed
from console.render.releases import RELEASE_COLUMNS, ShownRelease, difference_lines, newest_first
from console.settings import Context
from console.sources.session import Session
from jobs.client import ControllerClient
from jobs.errors import Refused
from jobs.model import Run
from jobs.release import difference
from jobs.wire import ReleaseRow, Rollback

DIFFERENCE_CELLS = 120


async def releases(context: Context, workflow: str, as_json: bool) -> int:
    """What was launched, and how it fared."""
    async with controlled(context) as (session, client):
        found = newest_first(await client.releases(workflow))
        now = session.head_wall()
    if as_json:
        output.document([release_document(row) for row in found])
    else:
        output.columns(RELEASE_COLUMNS, [ShownRelease(row, now) for row in found], "no release yet")
    return output.DONE


async def differ(context: Context, names: tuple[str, str], as_json: bool) -> int:
    """Two releases side by side."""
    async with controlled(context) as (_, client):
        rows = {row.id: row for row in await client.releases()}
    old, new = (_named(rows, name) for name in names)
    if as_json:
        output.document([change_document(change) for change in difference(old, new)])
    else:
        output.lines(difference_lines(old, new, output.width(DIFFERENCE_CELLS)))
    return output.DONE


def _named(rows: dict[str, ReleaseRow], name: str) -> ReleaseRow:
    if name not in rows:
        near = difflib.get_close_matches(name, rows, n=3, cutoff=0.3)
        raise Refused(f"there is no release {name}", f"Known are: {', '.join(near)}" if near else "")
    return rows[name]


async def _touched(session: Session, client: ControllerClient, plan: Rollback) -> dict[str, Run]:
    """The runs that a rollback or its undoing touches, as far as they are known."""
    known = session.work.runs
    names = [*plan.stopped, *([plan.started] if plan.started else [])]
    return {name: known[name] if name in known else await client.run(name) for name in names}


async def roll_back(
    context: Context, workflow: str, to: str, *, dry_run: bool, wait: bool, reason: str, sure: bool, as_json: bool
) -> int:
    """Put an earlier release in the place of what runs."""
    async with controlled(context) as (session, client):
        plan = await dispatch.plan_rollback(client, workflow, to)
        rows = {row.id: row for row in await client.releases(workflow)}
        old, new = rows.get(plan.from_release), rows.get(plan.to_release)
        changes = len(difference(old, new)) if old is not None and new is not None else None
        # A dry run tells an id that nobody has kept: only what is stopped can be asked for.
        touched = await _touched(session, client, plan.model_copy(update={"started": ""}))
        preview = dispatch.preview_rollback(plan, touched, session.head_wall(), differences=changes, you=you(session))
        if dry_run:
            await confirm(preview, True)
            return _tell(plan, "nothing was rolled back", as_json)
        if not sure and old is not None and new is not None:
            output.lines(difference_lines(old, new, output.width(DIFFERENCE_CELLS)))
        reason = await confirm(preview, sure, reason)
        # The release that was shown, whatever has become the last good one meanwhile.
        done = await dispatch.roll_back(client, workflow, plan.to_release, reason)
        code = _tell(done, f"{done.id}: {_done(done)}", as_json)
        if not wait or not done.started:
            return code
        run = await ended(session, await client.run(done.started))
        output.note(sentence_of(run))
        return all_succeeded([run])


async def undo(context: Context, rollback: str, *, dry_run: bool, reason: str, sure: bool, as_json: bool) -> int:
    """Take a rollback back."""
    async with controlled(context) as (session, client):
        plan = await dispatch.plan_undo(client, rollback)
        preview = dispatch.preview_undo(
            plan, await _touched(session, client, plan), session.head_wall(), you=you(session)
        )  # fmt: skip
        if dry_run:
            await confirm(preview, True)
            return _tell(plan, "nothing was taken back", as_json)
        done = await dispatch.undo(client, rollback, await confirm(preview, sure, reason))
    what = [f"stopping {plan.started}"] * bool(plan.started) + [f"restarting {listed(plan.stopped)}"] * bool(
        plan.stopped
    )
    return _tell(done, f"{done.id} is taken back: {', '.join(what)}", as_json)


def _done(done: Rollback) -> str:
    stops = f"stopping {listed(done.stopped)}" if done.stopped else "nothing had to be stopped"
    if not done.started:
        return f"{done.to_release} of {done.workflow} goes on alone; {stops}"
    return f"{done.workflow} goes back to {done.to_release}; {done.started} starts from {_from(done)}; {stops}"


def _tell(rollback: Rollback, sentence: str, as_json: bool) -> int:
    if as_json:
        output.document(rollback_document(rollback))
    else:
        output.say(sentence)
    return output.DONE


async def rollbacks(context: Context, workflow: str, as_json: bool) -> int:
    """What was rolled back, when and by whom, and what was taken back."""
    async with controlled(context) as (_, client):
        found = await client.rollbacks(workflow)
    if as_json:
        output.document([rollback_document(one) for one in found])
        return output.DONE
    output.table(
        [_readable(one) for one in found],
        ("id", "at", "user", "to_release", "undone", "what"),
        "nothing was rolled back yet",
    )
    return output.DONE


def _readable(one: Rollback) -> dict[str, str]:
    parts = [
        f"from {one.from_release}" if one.from_release else "",
        f"stopped {listed(one.stopped)}" if one.stopped else "",
        f"started {one.started} from {_from(one)}" if one.started else "",
        one.reason,
    ]
    return {
        "id": one.id,
        "at": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.at)),
        "user": one.user,
        "to_release": one.to_release,
        "undone": "no" if one.undone_at is None else f"by {one.undone_by}",
        "what": "; ".join(part for part in parts if part),
    }


def _from(one: Rollback) -> str:
    return "the beginning" if one.from_step is None else f"step {one.from_step:,}"
