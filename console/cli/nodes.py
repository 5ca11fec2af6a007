"""The shape of the commands that keep nodes free, or bring them back: options and help. The work is in files beside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import click

from console.cli.shape import (
    Call,
    carry_out,
    dry_run_option,
    json_option,
    reason_option,
    watch_option,
    yes_option,
)
from jobs.errors import RaydeckError, Usage

CHOICES = ("wait", "stop", "give-up")


def _completed(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of the context's nodes, for the shell."""
    from console.settings import find_context, load_settings

    try:
        context_name = context.find_root().params.get("context_name")
        names = [entry.name for entry in find_context(context_name, load_settings()).nodes]
    except RaydeckError:
        return []  # a shell that asks for names has no place for a sentence; the command itself says it
    return [name for name in names if name.startswith(incomplete)]


def _nodes_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("names", metavar="NODE...", nargs=-1, required=True, shell_complete=_completed)(command)


def _node_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("name", metavar="NODE", shell_complete=_completed)(command)


def seconds_of(_context: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    """A duration as the files have it."""
    from jobs.values import seconds

    if value is None:
        return None
    try:
        return seconds(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}") from error


def _deadline(context: click.Context, option: click.Parameter, value: str) -> float:
    """The same, or 0."""
    return 0.0 if value in ("0", "0s", "now") else seconds_of(context, option, value) or 0.0


def _until(_context: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    """A time of day (the next one), or a day with one, by this machine's clock: how many seconds that is from now."""
    from datetime import datetime, timedelta

    if value is None:
        return None
    now = datetime.now().astimezone()
    for form in ("%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M"):
        try:
            read = datetime.strptime(value, form)  # noqa: DTZ007 - it is this machine's own time
        except ValueError:
            continue
        if form == "%H:%M":
            at = now.replace(hour=read.hour, minute=read.minute, second=0, microsecond=0)
            at = at if at > now else (at.replace(tzinfo=None) + timedelta(days=1)).astimezone()
        else:
            at = read.astimezone()
        if at <= now:
            raise click.BadParameter(f"{value!r} has passed")
        return (at - now).total_seconds()
    raise click.BadParameter(f"{value!r} is neither a time such as 06:00 nor a day such as '2030-01-31 06:00'")


def _share(_context: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    """``25%`` or ``0.25``."""
    if value is None:
        return None
    try:
        share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise click.BadParameter(f"{value!r} is no share: say 25%, or 0.25")
    return share


def _may(call: Call, sure: bool, dry_run: bool) -> None:
    if not dry_run:
        call.must_write(sure)


@click.command()
@json_option
@yes_option
@_nodes_argument
@reason_option
@click.option("--for", "seconds", metavar="DURATION", callback=seconds_of, help="Ends by itself after so long: 2h.")
@click.option("--until", metavar="TIME", callback=_until, help="Ends by itself then: 06:00.")
@click.option("--hold-gpus", "gpus", is_flag=True, help="Hold idle GPUs in Ray too, against others' work; best effort.")
@dry_run_option
@click.pass_obj
def cordon(call: Call, seconds: float | None, until: float | None, **options: Any) -> int:
    """Keep new work off nodes. What runs there goes on."""
    from console.cli import upkeep

    if seconds is not None and until is not None:
        raise Usage("--for and --until say the same thing twice", "Give one of them")
    if options["sure"] and not options["reason"]:
        raise Usage("a cordon needs a reason: others see it, and decide by it", "Say --reason TEXT")
    _may(call, options["sure"], options["dry_run"])
    return carry_out(upkeep.cordon(call.context(), seconds=seconds if until is None else until, **options))


@click.command()
@json_option
@yes_option
@_nodes_argument
@reason_option
@click.option("--of", default="", metavar="USER", help="The holds of this user, instead of your own.")
@dry_run_option
@click.pass_obj
def uncordon(call: Call, **options: Any) -> int:
    """Take your holds back. A drain of the node stops with them."""
    from console.cli import upkeep

    _may(call, options["sure"], options["dry_run"])
    return carry_out(upkeep.uncordon(call.context(), **options))


@click.command()
@json_option
@yes_option
@click.argument("names", metavar="NODE...", nargs=-1, shell_complete=_completed)
@reason_option
@click.option("--deadline", metavar="DURATION", default="30m", show_default=True, callback=_deadline,
              help="For each node, from when its turn comes.")  # fmt: skip
@click.option("--at-deadline", type=click.Choice(CHOICES), default="wait", show_default=True,
              help="What follows: wait until somebody chooses, end what is left, or give the node up.")  # fmt: skip
@click.option("--others", type=click.Choice(("leave", "stop")), default="leave", show_default=True,
              help="What raydeck did not start.")  # fmt: skip
@click.option("--most", type=click.IntRange(min=1), help="So many nodes away at a time.")
@click.option("--share", metavar="PERCENT", callback=_share, help="And this share of the GPUs: 25%.")
@click.option("--off", is_flag=True, help="They are switched off: nothing there can still write.")
@click.option("--hold-gpus", "gpus", is_flag=True, help="Hold idle GPUs in Ray too, against others' work; best effort.")
@click.option("--wait", is_flag=True, help="Tell each step, and return when they are empty; exit 1 unless they are.")
@click.option("--cancel", metavar="DRAIN", help="Stop this drain as it stands; its nodes stay cordoned.")
@click.option("--decide", nargs=2, metavar="DRAIN wait|stop|give-up", help="Choose for a drain whose time is up.")
@click.option("--for", "seconds", metavar="DURATION", default="30m", callback=seconds_of,
              help="With --decide DRAIN wait: how much longer.")  # fmt: skip
@dry_run_option
@click.pass_obj
def drain(
    call: Call, names: tuple[str, ...], cancel: str | None, decide: tuple[str, str] | None, seconds: float,
    **options: Any,
) -> int:  # fmt: skip
    """Cordon nodes and move the work off them: runs save, leave, and start again elsewhere.

    It goes on by itself. For --cancel and --decide a drain is named by its id, or by a node of it.
    """
    if (bool(names) + (cancel is not None) + (decide is not None)) != 1:
        raise Usage(
            "say which nodes, or which drain", "raydeck drain NODE..., or --cancel DRAIN, or --decide DRAIN ..."
        )
    _may(call, options["sure"], options["dry_run"])
    if names:
        return _drain(call, names, **options)
    if options["dry_run"] or options["wait"]:
        raise Usage("--cancel and --decide go with neither --dry-run nor --wait")
    return _decide(call, cancel, decide, seconds, options["reason"], options["as_json"])


def _drain(
    call: Call, names: tuple[str, ...], *, deadline: float, at_deadline: str, others: Literal["leave", "stop"],
    most: int | None, share: float | None, off: bool, gpus: bool, **options: Any,
) -> int:  # fmt: skip
    from console.cli import upkeep
    from jobs.nodeview import DrainPolicy

    policy = DrainPolicy.model_validate(
        {
            "deadline_seconds": deadline, "at_deadline": at_deadline.replace("-", "_"), "others": others,
            "most_nodes": most, "most_share": share, "gpus": gpus, "gone": off,
        }
    )  # fmt: skip
    return carry_out(upkeep.drain(call.context(), names=names, policy=policy, **options))


def _decide(
    call: Call, cancel: str | None, decide: tuple[str, str] | None, seconds: float, reason: str, as_json: bool
) -> int:
    from console.cli import upkeep

    named, choice = (cancel or "", "cancel") if decide is None else decide
    decisions: dict[str, upkeep.upkeep.Decision] = {
        "cancel": "cancel", "wait": "wait", "stop": "stop", "give-up": "give_up"
    }  # fmt: skip
    if decide is not None and choice not in CHOICES:
        raise Usage(f"{choice!r} is no choice", f"Say one of: {', '.join(CHOICES)}; --cancel DRAIN stops a drain")
    return carry_out(
        upkeep.decide(
            call.context(), named=named, decision=decisions[choice], seconds=seconds, reason=reason, as_json=as_json
        )
    )  # fmt: skip


@click.command()
@json_option
@watch_option
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@click.pass_obj
def drains(call: Call, as_json: bool, watch: bool, limit: int) -> int:
    """The drains, the newest first: how far each node is."""
    from console.cli import upkeep

    return carry_out(upkeep.drains(call.context(), limit, as_json, watch))


@click.command()
@json_option
@yes_option
@_nodes_argument
@reason_option
@click.option("--stop-ray", "end_ray", is_flag=True, help="Then end Ray there, over SSH.")
@dry_run_option
@click.pass_obj
def retire(call: Call, **options: Any) -> int:
    """Take drained nodes out of Ray for good; `raydeck rejoin` brings one back."""
    from console.cli import upkeep

    _may(call, options["sure"], options["dry_run"])
    return carry_out(upkeep.retire(call.context(), **options))


@click.command()
@json_option
@yes_option
@_node_argument
@reason_option
@dry_run_option
@click.pass_obj
def rejoin(call: Call, **options: Any) -> int:
    """Start Ray on a node again, over SSH; wait until it is back with its GPUs, and open it."""
    from console.cli import hands

    _may(call, options["sure"], options["dry_run"])
    return carry_out(hands.rejoin(call.context(), **options))


@click.command()
@json_option
@yes_option
@_node_argument
@click.argument("pids", metavar="[PID]...", nargs=-1, type=click.IntRange(min=2))
@click.option("--end", is_flag=True, help="End these processes: SIGTERM.")
@click.option("--all", "every", is_flag=True, help="End all that belong to no run that lives.")
@click.option("--kill", is_flag=True, help="And SIGKILL for what is still there after 5 s.")
@click.option("--even-living", is_flag=True, help="Also a process of a run that lives.")
@reason_option
@dry_run_option
@click.pass_obj
def processes(call: Call, pids: tuple[int, ...], end: bool, every: bool, **options: Any) -> int:
    """The processes that hold a node's GPUs, and whose they are; with --end or --all they are ended."""
    from console.cli import hands

    if end and every:
        raise Usage("--end and --all say different things", "Give pids with --end, or --all")
    if bool(pids) != end:
        raise Usage(
            "say which processes are ended" if end else "say what is to be done with these processes",
            "raydeck processes NODE --end PID...",
        )
    if not (end or every):
        if options["kill"] or options["even_living"]:
            raise Usage("--kill and --even-living go with --end PID... or --all")
    else:
        _may(call, options["sure"], options["dry_run"])
    return carry_out(hands.processes(call.context(), pids=pids, every=every, **options))


COMMANDS = (cordon, uncordon, drain, drains, retire, rejoin, processes)
