"""`raydeck validate`: prove a cluster, stage by stage; the shape of the command. The work is in `console.cli.proof`."""

from __future__ import annotations

import click

from console.cli.shape import Call, carry_out, dry_run_option, json_option, yes_option
from jobs.errors import Usage

_STAGES = ("preflight", "gpu", "node", "cluster")
_PROFILES = ("prolog", "quick", "standard", "full")


@click.command()
@json_option
@yes_option
@click.option("--profile", type=click.Choice(_PROFILES), default="standard", show_default=True,
              help="How much: 30 s before a run, 3 minutes, all, or all and long.")  # fmt: skip
@click.option("--stage", "stages", type=click.Choice(_STAGES), multiple=True, help="Only this stage (again for more).")
@click.option("--nodes", metavar="NODE,NODE", default="", help="Only these; every node that has GPUs if not said.")
@click.option("--keep-going", is_flag=True, help="A node that fails a stage takes part in the next all the same.")
@click.option("--wait-for-gpus", "wait_seconds", type=click.FloatRange(min=0), default=20.0, show_default=True,
              metavar="SECONDS", help="How long GPUs in use are waited for; then their node is skipped.")  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Return as soon as it is launched.")
@click.option("--show", metavar="RUN", help="Show the report of this validation; `last` for the newest.")
@click.option("--compare", nargs=2, metavar="OLD NEW", help="What is different between two validations.")
@click.option("--list", "as_list", is_flag=True, help="The validations that there were.")
@click.option("--markdown", "as_markdown", is_flag=True, help="The report as Markdown.")
@click.option("--html", "as_html", is_flag=True, help="The report as one page of HTML, with pictures.")
@dry_run_option
@click.pass_obj
def validate(
    call: Call, as_json: bool, sure: bool, profile: str, stages: tuple[str, ...], nodes: str, keep_going: bool,
    wait_seconds: float, no_wait: bool, show: str | None, compare: tuple[str, str] | None, as_list: bool,
    as_markdown: bool, as_html: bool, dry_run: bool,
) -> int:  # fmt: skip
    """Prove nodes before they are trusted: preflight, one GPU, one node, several nodes; each opens the next.

    A node that fails a stage is left out of the next. Exit code 0 for pass (warnings too), 1 for anything else.
    """
    from console.cli import proof

    if sum(map(bool, (show, compare, as_list))) > 1:
        raise Usage("--show, --compare and --list are three questions: choose one")
    forms = [name for name, on in (("json", as_json), ("markdown", as_markdown), ("html", as_html)) if on]
    if len(forms) > 1:
        raise Usage(f"--{forms[0]} and --{forms[1]}: choose one")
    form = forms[0] if forms else "text"
    if show:
        return carry_out(proof.show(call.context(), show, form))
    if compare:
        return carry_out(proof.compared(call.context(), *compare, as_json))
    if as_list:
        return carry_out(proof.listed(call.context(), as_json))
    call.must_write(sure or dry_run)
    return carry_out(
        proof.validate(
            call.context(), profile=profile, stages=stages, nodes=[name for name in nodes.split(",") if name],
            keep_going=keep_going, wait_seconds=wait_seconds, follow=not no_wait, form=form,
            dry_run=dry_run, sure=sure,
        )
    )  # fmt: skip
