"""What every command shares: what it is told, its common options, and how its end becomes an exit code. Light."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from jobs.errors import RaydeckError, Usage

if TYPE_CHECKING:
    from console.settings import Context, Settings


@dataclass
class Call:
    """What every command is told."""

    context_name: str | None = None
    read_only: bool = False
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


class Group(click.Group):
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
            from console.cli import output

            code = output.failure(error, "--json" in sys.argv)
        except BrokenPipeError:
            # Whoever read our output has left; that is no error, and there is nobody to tell.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        sys.exit(code or 0)


def carry_out(work: Coroutine[Any, Any, int]) -> int:
    """Run a command's work to its end; 130 where it was interrupted."""
    import asyncio  # a quarter of what `raydeck --help` would take

    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        return 130


_Command = Callable[..., Any]


def json_option(command: _Command) -> _Command:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document.")(command)


def watch_option(command: _Command) -> _Command:
    """``--watch``."""
    return click.option("--watch", is_flag=True, help="Again each second; with --json a line each.")(command)


def yes_option(command: _Command) -> _Command:
    """``--yes``."""
    return click.option("--yes", "sure", is_flag=True, help="Do it without asking.")(command)


def reason_option(command: _Command) -> _Command:
    """``--reason``."""
    return click.option("--reason", default="", help="Goes to the audit log.")(command)


def dry_run_option(command: _Command) -> _Command:
    """``--dry-run``."""
    return click.option("--dry-run", is_flag=True, help="Say what it would do, and do nothing.")(command)


def wait_option(command: _Command) -> _Command:
    """``--wait``."""
    return click.option(
        "--wait", is_flag=True, help="Return when the run has ended; exit 1 unless it succeeded."
    )(command)  # fmt: skip


def runs_argument(command: _Command) -> _Command:
    """One run or more."""
    return click.argument("names", metavar="RUN...", nargs=-1, required=True)(command)
