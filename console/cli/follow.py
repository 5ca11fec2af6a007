"""Follows a drain until it has ended: each step as a line, or each change as a line of NDJSON."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from console.cli import output
from console.cli.opened import GONE_SECONDS
from console.render.cells import age, safe
from console.render.nodedocs import drain_document
from console.render.prose import listed, moment, number, some
from console.sources.session import Session
from jobs.client import ControllerClient
from jobs.errors import Refused, Unreachable
from jobs.nodeview import Drain, DrainNode, DrainRun

POLL_SECONDS = 0.5


async def follow(session: Session, client: ControllerClient, drain_id: str, as_json: bool) -> int:
    """Tell what a drain does until it has ended; the exit code says whether all its nodes are empty.

    A controller that is away for a while is waited for: the drain goes on where it stood. Raises `Unreachable` where it
    stays away, `Refused` where it does not know the drain.
    """
    said: set[str] = set()
    last: Drain | None = None
    heard = time.monotonic()
    while True:
        try:
            found = next((each for each in await client.drains() if each.id == drain_id), None)
        except Unreachable as error:
            if time.monotonic() - heard > GONE_SECONDS:
                raise Unreachable(
                    f"the controller is away while drain {drain_id} is waited for: {error.sentence}",
                    "The drain goes on with it; see `raydeck drains`",
                ) from error
            await asyncio.sleep(POLL_SECONDS)
            continue
        heard = time.monotonic()
        if found is None:
            raise Refused(f"the controller knows no drain {drain_id}", "See `raydeck drains`")
        if as_json:
            if found != last:
                output.line(drain_document(found))
        else:
            _tell(found, said, session.head_wall())
        last = found
        if found.state != "running":
            if not as_json:
                output.say(safe(sentence_of(found, session.head_wall())))
            return output.DONE if found.state == "done" else output.FAILED
        await asyncio.sleep(POLL_SECONDS)


def _tell(drain: Drain, said: set[str], now: float) -> None:
    """What is new since the last look."""
    for key, sentence in progress(drain):
        if key not in said:
            said.add(key)
            output.step(safe(f"{moment(now, now)} {sentence}"))


def progress(drain: Drain) -> Iterator[tuple[str, str]]:
    """Each step so far: what it is known by, and a sentence."""
    for node in drain.nodes:
        for run in node.runs:
            yield f"{node.node.name} {run.run} {run.attempt} {run.state}", f"{run.run}: {_of_run(run)}"
        yield f"{node.node.name} {node.state}", f"{node.node.name}: {_of_node(node)}"
        if node.overdue and not node.over:
            yield (
                f"{node.node.name} overdue {node.deadline_at}",
                f"{node.node.name}: its time is up. Choose: raydeck drain --decide {drain.id} wait, stop or give-up",
            )


def _of_node(node: DrainNode) -> str:
    """The controller's own words where it has some, and how long it took."""
    words = {
        "waiting": "waits for its turn",
        "moving": "does not answer: nothing is waited for" if node.dead else "its work is moved off",
        "checking": "empty; for a while it is looked at whether it stays so",
        "empty": "empty",
        "stopped": "its drain was stopped",
        "given up": "given up",
    }[node.state]
    took = _after(node.began_at, node.ended_at) if node.state == "empty" else ""
    return f"{words}{took}" if not node.note else f"{node.note}{f' ({took.strip()})' if took else ''}"


def _after(began: float | None, ended: float | None) -> str:
    return f" after {age(ended - began)}" if began is not None and ended is not None else ""


def _of_run(run: DrainRun) -> str:
    step = "" if run.step is None else f" at step {number(run.step)}"
    if run.state == "asked":
        words = f"asked to save and to leave{step}"
    elif run.state == "saving":
        words = f"saves{step}"
    elif run.state == "ended":
        words = "over for good"
    elif run.state == "left":
        saved = "" if run.saved_step is None else f", checkpoint at step {number(run.saved_step)}"
        lost = run.lost_steps
        words = f"has left{step}{saved}" + ("" if lost is None else f": {some(lost, 'step')} to do again")
    else:
        words = f"runs again on {listed(run.again_on)}" + (_after(run.left_at, run.again_at))
    return words + (f" ({run.note})" if run.note else "")


def sentence_of(drain: Drain, now: float) -> str:
    """How a drain stands, in a line."""
    states: dict[str, list[str]] = {}
    for node in drain.nodes:
        states.setdefault(node.state, []).append(node.node.name)
    parts = "; ".join(f"{state}: {listed(names)}" for state, names in states.items())
    by = f" by {drain.ended_by}" if drain.ended_by else ""
    took = age((drain.ended_at or now) - drain.at)
    return f"drain {drain.id}: {drain.state}{by} after {took}; {parts}; {some(drain.lost_steps, 'step')} to do again"
