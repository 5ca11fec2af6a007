"""The command line's shape: commands, options, help. Each command's work is in `reads`, `writes` or `console.demo`."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from console.cli import output
from jobs.errors import RaydeckError, Usage

if TYPE_CHECKING:
    from console.demo.runner import Demo
    from console.settings import Context, Settings


@dataclass
class Call:
    """What every command is told."""

    context_name: str | None = None
    read_only: bool = False
    as_json: bool = False
    settings: Settings = field(init=False)

    def __post_init__(self) -> None:
        from console.settings import load_settings

        self.settings = load_settings()
        self.settings.read_only = self.settings.read_only or self.read_only

    def context(self) -> Context:
        """The context that is meant."""
        from console.settings import find_context

        return find_context(self.context_name, self.settings)

    def must_write(self, sure: bool) -> None:
        """Refuse a change in read-only mode, and one that nobody can be asked about."""
        if self.settings.read_only:
            raise Usage("read-only: nothing is changed")
        if not sure and not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise Usage("without a terminal nothing is asked", "Say --yes")


class _Group(click.Group):
    """Turns every error of ours into its sentence and its exit code, in one place."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except click.exceptions.Exit as error:
            code = error.exit_code
        except click.exceptions.Abort:
            code = 130
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except RaydeckError as error:
            code = output.failure(error, "--json" in sys.argv)
        except BrokenPipeError:
            # Whoever read our output has left; that is no error, and there is nobody to tell.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        sys.exit(code or 0)


def _run(work: Coroutine[Any, Any, int]) -> int:
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        return 130


def _json(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="One JSON document.")(command)


def _watch(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--watch", is_flag=True, help="Again each second; with --json a line each.")(command)


def _yes(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--yes", "sure", is_flag=True, help="Do it without asking.")(command)


@click.group(cls=_Group, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
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
        return _open(call.settings, call.context)
    return None


def _open(settings: Settings, find: Callable[[], Context] | Demo) -> int:
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
@click.pass_obj
def demo(call: Call, headless: bool) -> int:
    """An embedded Ray cluster with SIMULATED GPUs, SSH hosts and the controller. All gone when it ends."""
    from console.demo.runner import Demo

    if headless:
        from console.cli.demo import run_headless

        return _run(run_headless(Demo()))
    return _open(call.settings, Demo())


@command_line.command()
@_json
@_watch
@click.pass_obj
def nodes(call: Call, as_json: bool, watch: bool) -> int:
    """The nodes, each with its three truths: SSH, Ray, driver."""
    from console.cli import reads

    return _run(reads.nodes(call.context(), as_json, watch))


@command_line.command()
@_json
@_watch
@click.pass_obj
def gpus(call: Call, as_json: bool, watch: bool) -> int:
    """Every GPU with its figures and who holds it."""
    from console.cli import reads

    return _run(reads.gpus(call.context(), as_json, watch))


@command_line.command()
@_json
@_watch
@click.pass_obj
def runs(call: Call, as_json: bool, watch: bool) -> int:
    """The runs, and Ray's own jobs that raydeck did not start."""
    from console.cli import reads

    return _run(reads.runs(call.context(), as_json, watch))


@command_line.command()
@_json
@click.argument("run")
@click.pass_obj
def show(call: Call, as_json: bool, run: str) -> int:
    """One run, whole."""
    from console.cli import reads

    return _run(reads.show(call.context(), run, as_json))


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

    return _run(reads.logs(call.context(), name, **options))


@command_line.command()
@_json
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--verify", is_flag=True, help="Check the chain of hashes; exit 1 if it does not hold.")
@click.pass_obj
def audit(call: Call, as_json: bool, limit: int, verify: bool) -> int:
    """What was asked for, by whom, allowed or not."""
    from console.cli import reads

    return _run(reads.audit(call.context(), limit, verify, as_json))


@command_line.command()
@_json
@click.option("--workflow", default="", help="Of this workflow alone.")
@click.pass_obj
def releases(call: Call, as_json: bool, workflow: str) -> int:
    """The releases: what was launched, exactly."""
    from console.cli import reads

    return _run(reads.releases(call.context(), workflow, as_json))


@command_line.command()
@_json
@_yes
@click.argument("workflow", metavar="WORKFLOW.yaml")
@click.option("--queue", default="", help="The queue that it waits in.")
@click.option("--priority", default="", help="low, normal, high or a number.")
@click.option("--overlay", default="", help="One of the workflow's overlays: dev, test, prod.")
@click.option("--dry-run", is_flag=True, help="Check it here and on the cluster; launch nothing.")
@click.option("--wait", is_flag=True, help="Return when the run has ended; exit 1 unless it succeeded.")
@click.pass_obj
def launch(call: Call, sure: bool, **options: Any) -> int:
    """Launch a workflow: a file, or one of the samples lm, lm-single, failing."""
    from console.cli import writes

    call.must_write(sure or options["dry_run"])
    return _run(writes.launch(call.context(), sure=sure, **options))


@command_line.command()
@_json
@_yes
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
@click.option("--reason", default="", help="Goes to the audit log.")
@click.option("--now", "at_once", is_flag=True, help="Do not let it save.")
@click.option("--wait", is_flag=True, help="Return when every run has ended.")
@click.pass_obj
def stop(call: Call, sure: bool, **options: Any) -> int:
    """Stop runs: ask the gang to save and leave, then end the job."""
    from console.cli import writes

    call.must_write(sure)
    return _run(writes.stop(call.context(), sure=sure, **options))


@command_line.command()
@_json
@click.argument("file")
@click.option("--overlay", default="", help="Check a workflow with this overlay.")
def check(file: str, as_json: bool, overlay: str) -> int:
    """Check a cluster or a workflow file."""
    from console.cli import reads

    return reads.check(file, overlay, as_json)


@command_line.group()
def controller() -> None:
    """The controller on the head: start, status, stop, restart."""


@controller.command("start")
@_json
@_yes
@click.pass_obj
def controller_start(call: Call, as_json: bool, sure: bool) -> int:
    """Start it, or find it running. Nothing is installed."""
    from console.cli import writes

    call.must_write(sure)
    return _run(writes.controller(call.context(), "start", sure, as_json))


@controller.command("restart")
@_json
@_yes
@click.pass_obj
def controller_restart(call: Call, as_json: bool, sure: bool) -> int:
    """Put this version in the place of the one that runs. Runs go on."""
    from console.cli import writes

    call.must_write(sure)
    return _run(writes.controller(call.context(), "restart", sure, as_json))


@controller.command("stop")
@_json
@_yes
@click.pass_obj
def controller_stop(call: Call, as_json: bool, sure: bool) -> int:
    """Stop it. Runs go on."""
    from console.cli import writes

    call.must_write(sure)
    return _run(writes.controller(call.context(), "stop", sure, as_json))


@controller.command("status")
@_json
@click.pass_obj
def controller_status(call: Call, as_json: bool) -> int:
    """Whether one runs, and which."""
    from console.cli import writes

    return _run(writes.controller(call.context(), "status", True, as_json))


@command_line.command()
@_json
@click.pass_obj
def contexts(call: Call, as_json: bool) -> int:
    """The contexts and running demos that --context can name."""
    from console.cli import reads

    return reads.contexts(call.settings, as_json)
