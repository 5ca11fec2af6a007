"""A session for the length of one command, and what most ask of it: the controller, runs by name, their end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from console.cli import output
from console.cli.keys import ask_on_terminal
from console.render.cells import safe
from console.settings import Context
from console.sources.session import Session
from jobs.client import ControllerClient
from jobs.errors import Unreachable
from jobs.model import Run, RunState

CONTROLLER_SECONDS = 10.0
WATCH_SECONDS = 1.0
POLL_SECONDS = 0.5
GONE_SECONDS = 120.0
"""How long a command that waits for a run goes on without a controller; restarting one takes much less."""


@asynccontextmanager
async def opened(context: Context, **what: bool) -> AsyncGenerator[Session]:
    """A session that reads what is asked for, and is closed however the command ends."""
    session = Session(context, ask=ask_on_terminal())
    try:
        session.start(**what)
        yield session
    finally:
        await session.close()


@asynccontextmanager
async def controlled(context: Context) -> AsyncGenerator[tuple[Session, ControllerClient]]:
    """A session with the controller alone, once that has answered. Raises `Unreachable` with the reason."""
    async with opened(context, probes=False, ray=False) as session:
        await with_controller(session)
        yield session, await session.controller()


async def with_controller(session: Session) -> None:
    """Wait for the controller's first word. Raises `Unreachable` with the reason."""
    work = session.work
    await session.until(lambda: work.controller.state not in ("unknown", "connecting"), CONTROLLER_SECONDS)
    if work.controller.state != "ok":
        head = session.head
        reason = work.controller.reason or f"the head {head.host.name} does not answer: {head.status.reason}"
        hint = "Start it with: raydeck controller start" if work.controller.state == "absent" else ""
        raise Unreachable(f"no controller: {reason}", hint)


def you(session: Session) -> str:
    """The user that the controller sees; empty where it has not said."""
    return session.work.status.you if session.work.status is not None else ""


async def chosen(session: Session, client: ControllerClient, names: Sequence[str]) -> list[Run]:
    """The runs of these names, each once. Raises `Refused` for a name that no run has."""
    known = session.work.runs
    return [known[name] if name in known else await client.run(name) for name in dict.fromkeys(names)]


async def ended(session: Session, run: Run) -> Run:
    """A run once it has ended, as the event stream tells; ``run`` is how it was when it was asked for.

    A run that was taken up again counts from there: news of its end before that is old. Raises `Unreachable` where the
    controller is away for long.
    """
    heard = time.monotonic()
    while True:
        known = session.work.runs.get(run.id)
        if known is not None and known.state.ended and (known.queued_at or 0.0) >= (run.queued_at or 0.0):
            return known
        if session.work.controller.state == "ok":
            heard = time.monotonic()
        elif time.monotonic() - heard > GONE_SECONDS:
            raise Unreachable(
                f"the controller is away while {run.id} is waited for: {session.work.controller.reason}",
                "The run goes on; ask for it again with: raydeck show",
            )
        await asyncio.sleep(POLL_SECONDS)


def sentence_of(run: Run) -> str:
    """How a run stands, in a line."""
    kind = f" ({run.failure.value})" if run.failure is not None and run.state is RunState.FAILED else ""
    return safe(f"{run.id}: {run.state.value}{kind}{f': {run.reason}' if run.reason else ''}")


def all_succeeded(runs: Sequence[Run]) -> int:
    """The exit code of a command that waited for these."""
    return output.DONE if all(run.state is RunState.SUCCEEDED for run in runs) else output.FAILED


async def repeated(watch: bool, show: Callable[[], Awaitable[Any]]) -> int:
    """Show once, or again each second until interrupted."""
    while True:
        await show()
        if not watch:
            return output.DONE
        await asyncio.sleep(WATCH_SECONDS)
