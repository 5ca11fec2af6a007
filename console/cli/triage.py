"""`raydeck triage`: what broke, whose fault it is, what to do; and the archive to hand on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from console.cli.shape import Call, carry_out, json_option
from jobs.errors import Usage

if TYPE_CHECKING:
    from console.settings import Context


@click.command()
@json_option
@click.argument("name", metavar="[RUN|NODE|NODE/GPU]", required=False, default="")
@click.option("--markdown", "as_markdown", is_flag=True, help="As Markdown, to paste.")
@click.option("--bundle", metavar="FILE", help="Write everything into this archive (.tar.gz), redacted.")
@click.option("--attempt", type=click.IntRange(min=1), help="Of a run, this attempt; the newest if not said.")
@click.option("--check", is_flag=True, help="Exit 1 if anything was found that is wrong.")
@click.pass_obj
def triage(
    call: Call, name: str, as_json: bool, as_markdown: bool, bundle: str | None, attempt: int | None, check: bool
) -> int:
    """What broke, whose fault it is, what to do: of a run, a node, a GPU, or (without a name) the whole fleet.

    Exit code 0 whenever it could be done, whatever it found (but see --check); 3 if nothing could be reached.
    """
    if as_json and as_markdown:
        raise Usage("--json and --markdown are two answers: choose one")
    return carry_out(
        _triage(call.context(), name, as_json, as_markdown, Path(bundle) if bundle else None, attempt, check)
    )


async def _triage(
    context: Context, name: str, as_json: bool, as_markdown: bool, bundle: Path | None, attempt: int | None, check: bool
) -> int:
    from console.cli import output
    from console.cli.opened import opened
    from console.cli.reads import SETTLE_SECONDS, settled
    from console.render.triage import page_lines
    from console.triage.bundle import write_bundle
    from console.triage.judge import judge
    from console.triage.paper import paint, paint_lines
    from console.triage.targets import target_of
    from jobs.errors import Refused, Unreachable
    from jobs.triage.findings import StepName, StepResult
    from jobs.triage.report import as_json as document
    from jobs.triage.report import markdown

    def told(step: StepName, words: str, result: StepResult | None) -> None:
        if as_json:
            return
        if result is not None:
            output.note(f"{step}: {result.state}")
        elif words != "read":
            output.note(f"{step}: {words} …")

    if bundle is not None and bundle.exists():  # noqa: ASYNC240 - nothing else waits yet
        raise Refused(f"{bundle} exists already", "Name another file, or remove it first")
    async with opened(context) as session:
        await session.until(lambda: settled(session), SETTLE_SECONDS)
        nodes = session.fleet.nodes.values()
        reached = (
            any(node.ssh.state == "up" for node in nodes)
            or session.fleet.ray.state == "ok"
            or session.work.controller.state == "ok"
        )
        if not reached:
            first = next(iter(nodes), None)
            why = f"; {first.name}: {first.missing_because}" if first is not None else ""
            raise Unreachable(f"neither a node, nor Ray, nor the controller can be reached{why}")
        judged = await judge(session, target_of(session, name), told, attempt=attempt)
        if as_json:
            output.document(paint(document(judged.triage)))
        elif as_markdown:
            output.say(paint_lines(markdown(judged.triage)).rstrip())
        else:
            target = judged.evidence.target
            title = " ".join(part for part in (target.kind, target.name) if part)
            output.lines(page_lines(title, judged.triage, output.width(100), judged.evidence.now))
        if bundle is not None:
            made = await write_bundle(session, judged, bundle)
            output.note(f"{made.path}: {made.files} files, {made.size_bytes / 1024:.0f} kB")
            for sentence in made.left_out:
                output.note(f"left out: {sentence}")
    return output.FAILED if check and judged.triage.findings else output.DONE
