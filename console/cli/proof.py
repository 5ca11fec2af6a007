"""What `raydeck validate` does: launches a validation, follows it up the ladder, shows reports and compares them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from console import validating
from console.cli import output
from console.cli.keys import confirm
from console.cli.opened import controlled, opened, with_controller
from console.cli.reads import SETTLE_SECONDS, settled
from console.render.safe import safe
from jobs.errors import Refused
from jobs.validationpage import page as html_page
from jobs.validationreport import WORDS, compare, markdown, where
from jobs.validationview import STAGE_TITLES, Report, StageResult

if TYPE_CHECKING:
    from console.settings import Context
    from jobs.client import ControllerClient
    from jobs.model import Run

POLL_SECONDS = 0.5
_SHOWN_AT_MOST = 12
"""So many checks of one stage that did not pass are listed."""


async def validate(
    context: Context, *, profile: str, stages: Sequence[str], nodes: Sequence[str], keep_going: bool,
    wait_seconds: float, follow: bool, form: str, dry_run: bool, sure: bool,
) -> int:  # fmt: skip
    """Launch one, and follow it to its end."""
    async with opened(context) as session:
        await with_controller(session)
        await session.until(lambda: settled(session), SETTLE_SECONDS)
        client = await session.controller()
        ask = validating.ask_for(session, profile, stages, nodes, keep_going=keep_going, wait_seconds=wait_seconds)
        preview = validating.preview(session, ask)
        if dry_run:
            for line in preview.lines:
                output.say(safe(line))
            await validating.launch(client, ask, dry_run=True)
            output.note("nothing was launched")
            return output.DONE
        await confirm(preview, sure)
        run = await validating.launch(client, ask)
        output.note(f"{run.id}: launched")
        if not follow:
            output.say(run.id)
            return output.DONE
        report = await _followed(client, run, quiet=form != "text")
    return _told(report, form)


async def show(context: Context, name: str, form: str) -> int:
    """The report of a validation."""
    async with controlled(context) as (_, client):
        _, report = await validating.found(client, name)
    return _told(report, form)


async def compared(context: Context, old: str, new: str, as_json: bool) -> int:
    """What is different between two of them."""
    async with controlled(context) as (_, client):
        (_, before), (_, after) = await validating.found(client, old), await validating.found(client, new)
    lines = compare(before, after)
    if as_json:
        output.document(lines)
    else:
        for line in lines or ["no difference: every verdict is the same, and no figure moved by 5 %"]:
            output.say(safe(line))
    return output.DONE


async def listed(context: Context, as_json: bool) -> int:
    """All that there were."""
    async with controlled(context) as (_, client):
        rows: list[dict[str, object]] = []
        for run in await validating.validations(client):
            row: dict[str, object] = {
                "run": run.id,
                "user": run.user,
                "submitted_at": run.submitted_at,
                "state": run.state,
            }
            try:
                report = await client.validation(run.id)
                row |= {"verdict": report.verdict, "profile": report.profile, "sentence": report.sentence}
            except Refused as error:
                row |= {"verdict": None, "profile": None, "sentence": error.sentence}
            rows.append(row)
    if as_json:
        output.document(rows)
    else:
        for row in rows:
            output.say(
                safe(
                    f"{row['run']}  {WORDS.get(str(row['verdict']), '-'):8} {row['profile'] or '-':9} {row['sentence']}"
                )
            )
        if not rows:
            output.say("there was no validation yet")
    return output.DONE


async def _followed(client: ControllerClient, run: Run, quiet: bool) -> Report:
    """The report once it is done; each stage is told of as it begins and ends. Raises `Refused` where there is none."""
    told: set[tuple[str, str]] = set()
    report: Report | None = None
    while True:
        run = await client.run(run.id)
        try:
            report = await client.validation(run.id)
        except Refused:
            if run.state.ended:
                raise Refused(f"{run.id} ended without a report: {run.reason}", f"raydeck logs {run.id}") from None
        for stage in report.stages if report is not None and not quiet else ():
            if stage.state != "waiting" and (stage.stage, stage.state) not in told:
                told.add((stage.stage, stage.state))
                output.note(safe(_stage_line(stage)))
        if report is not None and (report.done or run.state.ended):
            return report
        await asyncio.sleep(POLL_SECONDS)


def _stage_line(stage: StageResult) -> str:
    title = STAGE_TITLES[stage.stage]
    if stage.state == "running":
        return f"{title}: {len(stage.nodes)} nodes …"
    return f"{title}: {WORDS[stage.verdict]} in {stage.seconds:.0f} s, {stage.sentence}"


def _told(report: Report, form: str) -> int:
    """The report on standard output (``text``, ``json``, ``markdown`` or ``html``), and what it comes to."""
    if form == "json":
        output.document(report.model_dump(mode="json"))
    elif form == "markdown":
        output.say(markdown(report).rstrip("\n"))
    elif form == "html":
        output.say(html_page(report).rstrip("\n"))
    else:
        for line in page(report):
            output.say(safe(line))
    return output.DONE if report.verdict in ("pass", "warn") else output.FAILED


def page(report: Report) -> list[str]:
    """The ladder on one page: each stage, and every check that did not pass."""
    simulated = "  SIMULATED" if report.simulated else ""
    lines = [f"{report.id}  {WORDS[report.verdict]}  {report.sentence}{simulated}", ""]
    for stage in report.stages:
        lines.append(
            f"  {WORDS[stage.verdict]:8} {STAGE_TITLES[stage.stage]:14} {stage.seconds:4.0f} s  {stage.sentence}"
        )
        lines += [f"           left out: {node}, {why}" for node, why in stage.left_out.items()]
        bad = [check for check in stage.checks if check.verdict not in ("pass", "skipped")]
        for check in bad[:_SHOWN_AT_MOST]:
            lines.append(f"           {WORDS[check.verdict]:8} {check.title} {where(check)}: {check.sentence}")
            lines += [f"                    {line}" for line in check.evidence[:4]]
        if len(bad) > _SHOWN_AT_MOST:
            lines.append(f"           and {len(bad) - _SHOWN_AT_MOST} more")
        skipped = {f"{check.title}: {check.sentence}" for check in stage.checks if check.verdict == "skipped"}
        lines += [f"           skipped  {each}" for each in sorted(skipped)]
    return lines
