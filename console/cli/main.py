"""The command line's shape: its root, and the commands for nodes, logs, files and the controller, with their help.

Light, so that `raydeck --help` is quick: what a command needs is imported when it is called.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from console.cli import alerts as alert_shapes
from console.cli import nodes as upkeep_shapes
from console.cli import work
from console.cli.replay import replay
from console.cli.shape import Call, Group, carry_out, json_option, watch_option, yes_option
from console.cli.triage import triage
from console.cli.validate import validate
from jobs.errors import Usage

if TYPE_CHECKING:
    from console.demo.runner import Demo
    from console.settings import Context, Settings


@click.group(cls=Group, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--context", "-c", "context_name", metavar="NAME", help="A context, a demo, or a cluster.yaml.")
@click.option("--read-only", is_flag=True, help="Keys and commands that change anything are off.")
@click.version_option(package_name="raydeck")
@click.pass_context
def command_line(ctx: click.Context, context_name: str | None, read_only: bool) -> int | None:
    """An operations console for GPU training clusters on Ray.

    Without a command the console opens on the current context. `raydeck demo` needs no cluster.
    """
    ctx.obj = Call(context_name, read_only)
    if ctx.invoked_subcommand is None:
        call: Call = ctx.obj
        return open_console(call.settings, call.context)
    return None


def open_console(settings: Settings, find: Callable[[], Context] | Demo) -> int:
    """The console on a context, a demo or a recording; returns its exit code. Raises `Usage` without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # Textual paints on standard error
        raise Usage(
            "the console needs a terminal", "Use a command, such as `raydeck nodes`; or `raydeck demo --headless`"
        )
    from console.app import run_app
    from console.render.cells import use_ascii
    from console.theme import wants_ascii

    use_ascii(wants_ascii(os.environ, sys.stdout.encoding) if settings.ascii is None else settings.ascii)
    gc.enable()
    return run_app(settings, dict(os.environ), find)


@command_line.command()
@click.option("--headless", is_flag=True, help="No screen: one JSON line when ready, then until interrupted.")
@click.option("--hosts", is_flag=True, help="On four hosts of their own (namespaces, real sshd): Linux, as root.")
@click.pass_obj
def demo(call: Call, headless: bool, hosts: bool) -> int:
    """An embedded Ray cluster with SIMULATED GPUs, SSH hosts and the controller. All gone when it ends."""
    from console.demo.runner import Demo

    if headless:
        from console.cli.demo import run_headless

        return carry_out(run_headless(Demo(hosts)))
    return open_console(call.settings, Demo(hosts))


@command_line.command()
@json_option
@watch_option
@click.pass_obj
def nodes(call: Call, as_json: bool, watch: bool) -> int:
    """The nodes, each with its three truths: SSH, Ray, driver."""
    from console.cli import reads

    return carry_out(reads.nodes(call.context(), as_json, watch))


@command_line.command()
@json_option
@watch_option
@click.pass_obj
def gpus(call: Call, as_json: bool, watch: bool) -> int:
    """Every GPU with its figures and who holds it."""
    from console.cli import reads

    return carry_out(reads.gpus(call.context(), as_json, watch))


@command_line.command()
@click.argument("name", metavar="RUN")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("--rank", type=int, help="This rank alone.")
@click.option("--attempt", type=int, help="This attempt; the newest if not said.")
@click.option("--grep", metavar="RE", help="Only lines that match.")
@click.option(
    "--lines", type=click.IntRange(min=1), default=1000, show_default=True, help="Lines of the past, each rank."
)
@click.option("--json", "as_json", is_flag=True, help="NDJSON: rank and text.")
@click.pass_obj
def logs(call: Call, name: str, **options: Any) -> int:
    """The log of a run, all ranks or one."""
    from console.cli import reads

    return carry_out(reads.logs(call.context(), name, **options))


@command_line.command()
@json_option
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--verify", is_flag=True, help="Check the chain of hashes; exit 1 if it does not hold.")
@click.pass_obj
def audit(call: Call, as_json: bool, limit: int, verify: bool) -> int:
    """What was asked for, by whom, allowed or not."""
    from console.cli import runs

    return carry_out(runs.audit(call.context(), limit, verify, as_json))


@command_line.command()
@json_option
@click.argument("file")
@click.option("--overlay", default="", help="Check a workflow with this overlay.")
@click.option("--cluster", default="", metavar="FILE", help="And whether the cluster of this file can run it.")
def check(file: str, as_json: bool, overlay: str, cluster: str) -> int:
    """Check a cluster or a workflow file."""
    from console.cli import reads

    return reads.check(file, overlay, cluster, as_json)


@command_line.group()
def controller() -> None:
    """The controller on the head: start, status, stop, restart, backups, restore."""


@controller.command("start")
@json_option
@yes_option
@click.pass_obj
def controller_start(call: Call, as_json: bool, sure: bool) -> int:
    """Start it, or find it running. Nothing is installed."""
    from console.cli import controllers

    call.must_write(sure)
    return carry_out(controllers.controller(call.context(), "start", sure, as_json))


@controller.command("restart")
@json_option
@yes_option
@click.pass_obj
def controller_restart(call: Call, as_json: bool, sure: bool) -> int:
    """Put this version in the place of the one that runs. Runs go on."""
    from console.cli import controllers

    call.must_write(sure)
    return carry_out(controllers.controller(call.context(), "restart", sure, as_json))


@controller.command("stop")
@json_option
@yes_option
@click.pass_obj
def controller_stop(call: Call, as_json: bool, sure: bool) -> int:
    """Stop it. Runs go on."""
    from console.cli import controllers

    call.must_write(sure)
    return carry_out(controllers.controller(call.context(), "stop", sure, as_json))


@controller.command("status")
@json_option
@click.pass_obj
def controller_status(call: Call, as_json: bool) -> int:
    """Whether one runs, and which."""
    from console.cli import controllers

    return carry_out(controllers.controller(call.context(), "status", True, as_json))


@controller.command("backups")
@json_option
@click.pass_obj
def controller_backups(call: Call, as_json: bool) -> int:
    """The backups of its journal on the head, the newest first."""
    from console.cli import controllers

    return carry_out(controllers.backups(call.context(), as_json))


@controller.command("restore")
@json_option
@yes_option
@click.option("--from", "source", default="", metavar="FILE", help="This file on the head; else the newest whole one.")
@click.pass_obj
def controller_restore(call: Call, as_json: bool, sure: bool, source: str) -> int:
    """Put a backup in the place of its journal; it must be stopped."""
    from console.cli import controllers

    call.must_write(sure)
    return carry_out(controllers.restore(call.context(), source, sure, as_json))


@command_line.command()
@json_option
@click.pass_obj
def contexts(call: Call, as_json: bool) -> int:
    """The contexts and running demos that --context can name."""
    from console.cli import reads

    return reads.contexts(call.settings, as_json)


for command in (*work.COMMANDS, *upkeep_shapes.COMMANDS, *alert_shapes.COMMANDS, triage, replay, validate):
    command_line.add_command(command)
