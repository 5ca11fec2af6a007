"""Ends Ray on a node over SSH, and looks whether it has ended. Never while a run of raydeck's is on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from console.hands import node
from console.hands.node import Look, Raylet, raylets_of
from console.hands.permits import permitted
from console.hands.runs import attempts_that_live
from console.render.prose import listed, some
from console.settings import NodeEntry
from console.sources.session import Session
from console.sources.ssh import Connection
from console.upkeep import refs
from jobs.client import ControllerClient
from jobs.errors import Refused

STOP_COMMAND = "ray stop"
STOP_SECONDS = 60.0
"""It asks, waits 16 s unless told otherwise, and then kills."""
GONE_SECONDS = 10.0
POLL_SECONDS = 0.5


async def stop_ray(
    session: Session, client: ControllerClient, entry: NodeEntry, reason: str, tell: Callable[[str], None]
) -> str:
    """End Ray on a node. Returns what came of it, as a sentence; where no Ray runs, that is said and nothing done.

    Args:
        session: The ways in.
        client: The controller, which has to allow it.
        entry: The node; never the head.
        reason: For the audit.
        tell: Told each step, as a sentence.

    Raises:
        Refused: On the head; while a run of raydeck's is on it; where the controller says no; where Ray is still there.
        Unreachable: Where the node or the controller does not answer.
    """
    if entry.role == "head":
        raise Refused(f"{entry.name} is the head: Ray as a whole would end with it")
    ref = refs([entry.name], session.fleet)[0]
    connection = session.connection(entry.name)
    await connection.ready()
    tell(f"{entry.name} answers over SSH")
    found = await node.look(connection)
    raylets = raylets_of(found, entry, ref.address)
    if not raylets:
        return f"no Ray runs on {entry.name}: there is nothing to end"
    await must_be_free(client, entry, found, raylets)
    async with permitted(client, ref, "ray stop", entry.ray_stop or STOP_COMMAND, reason, tell) as outcome:
        outcome.words = await ended(connection, entry, ref.address, raylets, tell)
    return outcome.words


async def must_be_free(client: ControllerClient, entry: NodeEntry, found: Look, raylets: Sequence[Raylet]) -> None:
    """Whether Ray may be ended there. Raises `Refused` where more would end with it than is meant.

    That is processes of a run that lives, or of which nobody knows, and the Ray of another node on the same machine.
    """
    living = await attempts_that_live(client, {mark.run for mark in found.marked})
    there = {mark.run for mark in found.marked if living.get(mark.run, mark.attempt) == mark.attempt}
    if there:
        count = some(sum(mark.run in there for mark in found.marked), "process", "processes")
        raise Refused(
            f"{listed(sorted(there))} still {'has' if len(there) == 1 else 'have'} {count} on {entry.name}: "
            "Ray there was left as it is",
            f"Move it off first: raydeck drain {entry.name}",
        )
    others = [raylet for raylet in found.raylets if raylet not in raylets]
    command = entry.ray_stop or STOP_COMMAND
    if others and command.split()[:2] == STOP_COMMAND.split():
        raise Refused(
            f"{entry.name} shares its machine with {some(len(others), 'other node')} of Ray "
            f"({listed([raylet.name or f'raylet {raylet.pid}' for raylet in others])}), and {command} would end "
            f"{'that' if len(others) == 1 else 'those'} too",
            "Say in ray_stop how the Ray of this node alone is ended",
        )


async def ended(
    connection: Connection, entry: NodeEntry, address: str, raylets: Sequence[Raylet], tell: Callable[[str], None]
) -> str:
    """Run the command that ends Ray and see that no raylet is left; a sentence. Whoever calls has the permit."""
    command = entry.ray_stop or STOP_COMMAND
    pids = listed([str(raylet.pid) for raylet in raylets])
    tell(f"ending Ray on {entry.name} (raylet {pids}): {command}")
    ran = await node.run(connection, command, STOP_SECONDS)
    deadline = time.monotonic() + GONE_SECONDS
    while left := raylets_of(await node.look(connection), entry, address):
        if time.monotonic() > deadline or ran.code != 0:
            how = f"did not end within {STOP_SECONDS:.0f} s" if ran.late else f"ended with {ran.code}"
            words = f": {ran.last_words}" if ran.last_words else ""
            still = listed([str(raylet.pid) for raylet in left])
            raise Refused(f"Ray still runs on {entry.name} (raylet {still}): {command} {how}{words}")
        await asyncio.sleep(POLL_SECONDS)
    return f"Ray on {entry.name} has ended: no raylet is left there"
