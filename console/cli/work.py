"""The shape of the commands for runs, queues and releases: options and help. What they do is in the files beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from console.cli.shape import (
    Call,
    carry_out,
    dry_run_option,
    json_option,
    reason_option,
    runs_argument,
    wait_option,
    watch_option,
    yes_option,
)
from jobs.errors import Usage

if TYPE_CHECKING:
    from console.dispatch import Where

# --- look -------------------------------------------------------------------------------------------------------------


@click.command()
@json_option
@watch_option
@click.option("--sweep", default="", metavar="ID", help="Of this sweep alone.")
@click.pass_obj
def runs(call: Call, as_json: bool, watch: bool, sweep: str) -> int:
    """The runs, and Ray's own jobs that raydeck did not start."""
    from console.cli import runs as work

    return carry_out(work.runs(call.context(), sweep, as_json, watch))


@click.command()
@json_option
@click.argument("run")
@click.pass_obj
def show(call: Call, as_json: bool, run: str) -> int:
    """One run, whole."""
    from console.cli import runs as work

    return carry_out(work.show(call.context(), run, as_json))


@click.command()
@json_option
@click.argument("run")
@click.pass_obj
def events(call: Call, as_json: bool, run: str) -> int:
    """Each step of a run from state to state: when, why, by whom."""
    from console.cli import runs as work

    return carry_out(work.events(call.context(), run, as_json))


@click.command()
@json_option
@click.argument("run")
@click.pass_obj
def checkpoints(call: Call, as_json: bool, run: str) -> int:
    """The checkpoints of a run, complete or not and why."""
    from console.cli import runs as work

    return carry_out(work.checkpoints(call.context(), run, as_json))


@click.command()
@json_option
@watch_option
@click.argument("identity", metavar="ID")
@click.pass_obj
def sweep(call: Call, as_json: bool, watch: bool, identity: str) -> int:
    """A sweep in one summary: its points, their states, the best."""
    from console.cli import runs as work

    return carry_out(work.sweep(call.context(), identity, as_json, watch))


@click.command()
@json_option
@watch_option
@click.option("--all", "every", is_flag=True, help="Every run that waits, not the first alone.")
@click.pass_obj
def queue(call: Call, as_json: bool, watch: bool, every: bool) -> int:
    """The queues, and the runs that wait, in order, each with why."""
    from console.cli import queue as work

    return carry_out(work.queue(call.context(), every, as_json, watch))


@click.command()
@json_option
@click.argument("run")
@click.pass_obj
def explain(call: Call, as_json: bool, run: str) -> int:
    """Why a run waits, and what would let it start."""
    from console.cli import queue as work

    return carry_out(work.explain(call.context(), run, as_json))


@click.command()
@json_option
@click.option("--workflow", default="", help="Of this workflow alone.")
@click.option("--diff", "pair", nargs=2, metavar="A B", help="These two side by side.")
@click.pass_obj
def releases(call: Call, as_json: bool, workflow: str, pair: tuple[str, str] | None) -> int:
    """The releases: what was launched exactly, how it fared, the last good one."""
    from console.cli import releases as work

    if pair:
        return carry_out(work.differ(call.context(), pair, as_json))
    return carry_out(work.releases(call.context(), workflow, as_json))


@click.command()
@json_option
@click.option("--workflow", default="", help="Of this workflow alone.")
@click.pass_obj
def rollbacks(call: Call, as_json: bool, workflow: str) -> int:
    """What was rolled back, by whom and why, and what was taken back."""
    from console.cli import releases as work

    return carry_out(work.rollbacks(call.context(), workflow, as_json))


# --- begin, end, take up ----------------------------------------------------------------------------------------------


@click.command()
@json_option
@yes_option
@click.argument("workflow", metavar="WORKFLOW.yaml")
@click.option("--queue", default="", help="The queue that it waits in.")
@click.option("--priority", default="", help="low, normal, high or a number.")
@click.option("--overlay", default="", help="One of the workflow's overlays: dev, test, prod.")
@click.option("--hold", is_flag=True, help="Have it wait until it is released.")
@click.option("--dry-run", is_flag=True, help="Check it here and on the cluster; launch nothing.")
@wait_option
@click.pass_obj
def launch(call: Call, sure: bool, **options: Any) -> int:
    """Launch a workflow: a file, or a sample (lm, lm-single, failing, sweep, batch)."""
    from console.cli import writes

    call.must_write(sure or options["dry_run"])
    return carry_out(writes.launch(call.context(), sure=sure, **options))


@click.command()
@json_option
@yes_option
@runs_argument
@reason_option
@click.option("--now", "at_once", is_flag=True, help="Do not let it save.")
@click.option("--wait", is_flag=True, help="Return when every run has ended.")
@click.pass_obj
def stop(call: Call, sure: bool, **options: Any) -> int:
    """Stop runs: ask the gang to save and leave, then end the job."""
    from console.cli import writes

    call.must_write(sure)
    return carry_out(writes.stop(call.context(), sure=sure, **options))


def _step(_context: click.Context, _option: click.Parameter, value: str) -> int | None:
    """``latest``, ``nothing`` or a step, as `console.dispatch.restart` takes it."""
    if value == "latest":
        return None
    if value == "nothing":
        return 0
    if not value.isascii() or not value.isdigit() or int(value) == 0:
        raise click.BadParameter(f"{value!r} is none of: a step of `raydeck checkpoints RUN`, latest, nothing")
    return int(value)


@click.command()
@json_option
@yes_option
@click.argument("name", metavar="RUN")
@click.option("--from", "from_step", metavar="STEP|latest|nothing", default="latest", show_default=True, callback=_step,
              help="The checkpoint that it begins from.")  # fmt: skip
@reason_option
@dry_run_option
@wait_option
@click.pass_obj
def restart(call: Call, sure: bool, dry_run: bool, **options: Any) -> int:
    """Restart a run from a checkpoint; one that still runs saves and leaves first."""
    from console.cli import writes

    if not dry_run:
        call.must_write(sure)
    return carry_out(writes.restart(call.context(), sure=sure, dry_run=dry_run, **options))


@click.command()
@json_option
@yes_option
@click.argument("workflow", required=False, default="")
@click.option("--to", default="", metavar="RELEASE", help="The last good one before, if not said.")
@click.option("--undo", "rollback_id", default="", metavar="ID", help="Take this rollback back instead.")
@reason_option
@dry_run_option
@wait_option
@click.pass_obj
def rollback(call: Call, workflow: str, to: str, rollback_id: str, wait: bool, **options: Any) -> int:
    """Roll a workflow back to an earlier release, or take a rollback back.

    What runs of it saves and is stopped; a new run of the chosen release begins from that release's newest checkpoint.
    """
    from console.cli import releases as work

    if bool(workflow) == bool(rollback_id):
        raise Usage(
            "say what is rolled back", "raydeck rollback WORKFLOW [--to RELEASE], or raydeck rollback --undo ID"
        )
    if rollback_id and (to or wait):
        raise Usage("--undo goes with neither --to nor --wait")
    if not options["dry_run"]:
        call.must_write(options["sure"])
    if rollback_id:
        return carry_out(work.undo(call.context(), rollback_id, **options))
    return carry_out(work.roll_back(call.context(), workflow, to, wait=wait, **options))


# --- how runs wait ----------------------------------------------------------------------------------------------------


def _arrange(call: Call, names: tuple[str, ...], sure: bool, reason: str, as_json: bool, **change: Any) -> int:
    from console.cli import queue as work
    from console.dispatch import Change

    call.must_write(sure)
    return carry_out(work.arrange(call.context(), names, Change(**change), reason, sure, as_json))


@click.command()
@json_option
@yes_option
@reason_option
@runs_argument
@click.pass_obj
def hold(call: Call, **options: Any) -> int:
    """Keep waiting runs from starting, until they are released."""
    return _arrange(call, hold=True, **options)


@click.command()
@json_option
@yes_option
@reason_option
@runs_argument
@click.pass_obj
def release(call: Call, **options: Any) -> int:
    """Let held runs start again when their turn comes."""
    return _arrange(call, hold=False, **options)


@click.command(context_settings={"ignore_unknown_options": True})  # -50 is a priority, not an option
@json_option
@yes_option
@reason_option
@runs_argument
@click.argument("priority", metavar="PRIORITY")
@click.pass_obj
def priority(call: Call, priority: str, names: tuple[str, ...], **options: Any) -> int:
    """Change the priority of runs: low, normal, high or a number; a higher one goes first."""
    from jobs.values import priority_text

    for name in names:
        if name.startswith("-"):
            raise click.NoSuchOption(name)
    try:
        wanted = priority_text(priority)
    except ValueError as error:
        raise Usage(f"the priority {priority!r} {error}") from error
    return _arrange(call, names, priority=wanted, **options)


_PLACES: tuple[tuple[str, str], ...] = (("first", "Before all that wait."), ("last", "After all that wait."))


def _places(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, sentence in reversed(_PLACES):
        command = click.option(f"--{name}", is_flag=True, help=sentence)(command)
    return command


@click.command()
@json_option
@yes_option
@reason_option
@runs_argument
@click.option("--queue", metavar="QUEUE", help="To this queue.")
@_places
@click.option("--before", metavar="RUN", help="Before this one.")
@click.option("--after", metavar="RUN", help="After this one.")
@click.option("--own-place", is_flag=True, help="Back to the place that its priority and time give it.")
@click.pass_obj
def move(
    call: Call, names: tuple[str, ...], queue: str | None, first: bool, last: bool, before: str | None,
    after: str | None, own_place: bool, **options: Any,
) -> int:  # fmt: skip
    """Move waiting runs to another queue, or to another place in the order."""
    wanted: list[tuple[Where, str]] = []
    if first:
        wanted.append(("first", ""))
    if last:
        wanted.append(("last", ""))
    if before is not None:
        wanted.append(("before", before))
    if after is not None:
        wanted.append(("after", after))
    if own_place:
        wanted.append(("own", ""))
    if len(wanted) > 1:
        raise Usage("a run can go to one place only", "Say one of --first, --last, --before, --after, --own-place")
    if not wanted and queue is None:
        raise Usage("where to?", "Say --queue, --first, --last, --before, --after or --own-place")
    place, other = wanted[0] if wanted else (None, "")
    return _arrange(call, names, queue=queue, place=place, other=other, **options)


COMMANDS = (
    runs, show, queue, explain, events, checkpoints, sweep, launch, stop, restart, hold, release, priority, move,
    releases, rollback, rollbacks,
)  # fmt: skip
