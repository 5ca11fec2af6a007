"""The shape of `raydeck alerts` and its subcommands: options and help. The work is in `console.cli.alerting`. Light."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from console.cli.nodes import seconds_of
from console.cli.shape import (
    Call,
    carry_out,
    dry_run_option,
    json_option,
    reason_option,
    watch_option,
    yes_option,
)
from jobs.errors import Usage

if TYPE_CHECKING:
    from jobs.alertview import Level

LEVELS = ("critical", "warning", "info")
_Command = Callable[..., Any]


def _level_option(command: _Command) -> _Command:
    return click.option("--level", type=click.Choice(LEVELS), help="Only of this level.")(command)


def _alerts_argument(command: _Command) -> _Command:
    return click.argument("names", metavar="ALERT...", nargs=-1, required=True)(command)


@click.group(invoke_without_command=True)
@json_option
@watch_option
@_level_option
@click.option("--all", "every", is_flag=True, help="Also what is silenced, and what ended within the last minutes.")
@click.pass_context
def alerts(ctx: click.Context, as_json: bool, watch: bool, level: Level | None, every: bool) -> int | None:
    """What fires: worst first, who has it, and what to do.

    Without a controller: what this console sees itself, over SSH and by Ray's dashboard.
    """
    if ctx.invoked_subcommand is not None:
        if as_json or watch or level or every:
            raise Usage(
                f"options of `alerts` stand before {ctx.invoked_subcommand} and mean nothing to it",
                f"Say: raydeck alerts {ctx.invoked_subcommand} --help",
            )
        return None
    from console.cli import alerting

    call: Call = ctx.obj
    return carry_out(alerting.alerts(call.context(), as_json, watch, level, every))


@alerts.command()
@json_option
@click.argument("name", metavar="ALERT")
@click.pass_obj
def show(call: Call, name: str, as_json: bool) -> int:
    """One alert: cause, evidence, action, and who did what."""
    from console.cli import alerting

    return carry_out(alerting.show(call.context(), name, as_json))


@alerts.command()
@json_option
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@click.pass_obj
def history(call: Call, as_json: bool, limit: int) -> int:
    """The newest alerts, those that ended too."""
    from console.cli import alerting

    return carry_out(alerting.history(call.context(), limit, as_json))


@alerts.command()
@json_option
@yes_option
@_alerts_argument
@reason_option
@click.pass_obj
def ack(call: Call, names: tuple[str, ...], reason: str, sure: bool, as_json: bool) -> int:
    """Say that you have these alerts: nobody is told of them again, and they do not escalate.

    An alert is named by its id, or by as much of it as is enough.
    """
    from console.cli import alerting

    call.must_write(sure)
    return carry_out(alerting.acknowledge(call.context(), names, reason, sure=sure, as_json=as_json))


@alerts.command()
@json_option
@yes_option
@click.option("--rule", default="", metavar="RULE", help="Alerts of this rule: gpu.hot.")
@click.option("--node", default="", metavar="NODE", help="Alerts on this node.")
@click.option("--run", default="", metavar="RUN", help="Alerts about this run.")
@_level_option
@click.option("--for", "seconds", metavar="DURATION", required=True, callback=seconds_of, help="For so long: 2h.")
@reason_option
@dry_run_option
@click.pass_obj
def silence(call: Call, rule: str, node: str, run: str, level: Level | None, **options: Any) -> int:
    """Have nobody told of alerts for a while. They are still shown, and counted.

    What is named is all that has to fit: --rule and --node together mean this rule on this node.
    """
    if not (rule or node or run or level):
        raise Usage("say what is to be silenced", "--rule RULE, --node NODE, --run RUN, --level LEVEL, or several")
    if options["sure"] and not options["reason"] and not options["dry_run"]:
        raise Usage("a silence needs a reason: others see it, and rely on it", "Say --reason TEXT")
    from console.cli import alerting

    if not options["dry_run"]:
        call.must_write(options["sure"])
    return carry_out(alerting.silence(call.context(), rule=rule, node=node, run=run, level=level, **options))


@alerts.command()
@json_option
@yes_option
@click.argument("name", metavar="SILENCE")
@reason_option
@click.pass_obj
def unsilence(call: Call, name: str, reason: str, sure: bool, as_json: bool) -> int:
    """End a silence before its time."""
    from console.cli import alerting

    call.must_write(sure)
    return carry_out(alerting.unsilence(call.context(), name, reason, sure=sure, as_json=as_json))


@alerts.command()
@json_option
@click.pass_obj
def silences(call: Call, as_json: bool) -> int:
    """The silences: what they hide, whose they are, until when."""
    from console.cli import alerting

    return carry_out(alerting.silences(call.context(), as_json))


@alerts.command()
@json_option
@yes_option
@_alerts_argument
@reason_option
@click.pass_obj
def clear(call: Call, names: tuple[str, ...], reason: str, sure: bool, as_json: bool) -> int:
    """Clear alerts after a repair: those that do not end by themselves. Needs a reason."""
    if sure and not reason:
        raise Usage("clearing needs a reason: what was repaired", "Say --reason TEXT")
    from console.cli import alerting

    call.must_write(sure)
    return carry_out(alerting.clear(call.context(), names, reason, sure=sure, as_json=as_json))


@alerts.command()
@json_option
@yes_option
@click.option("--level", type=click.Choice(LEVELS), default="critical", show_default=True)
@click.option("--sink", default="", metavar="NAME", help="Only through this way out.")
@click.pass_obj
def test(call: Call, level: Level, sink: str, sure: bool, as_json: bool) -> int:
    """Send one alert, marked as a test, through the ways out; exit 1 unless all of them worked."""
    from console.cli import alerting

    call.must_write(sure)
    return carry_out(alerting.test(call.context(), level, sink, sure=sure, as_json=as_json))


@alerts.command()
@json_option
@click.argument("name", metavar="[RULE]", required=False)
@click.pass_obj
def rules(call: Call, name: str | None, as_json: bool) -> int:
    """The rules: when each fires and ends, and where that comes from. With a name, all of one.

    What the context's cluster file changes in them is shown as it is in force.
    """
    from console.cli import alerting

    try:
        context = call.context()
    except Usage:
        if call.context_name is not None:
            raise
        context = None  # nobody said whose: as they are before a cluster file changes them
    return alerting.rules(context, name or "", as_json)


COMMANDS = (alerts,)
