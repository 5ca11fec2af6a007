"""Nodes by the names that a person types: found, or refused with the nearest one that there is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager

from console.cli.opened import opened, with_controller
from console.render.prose import listed
from console.settings import Context, NodeEntry
from console.sources.session import Session
from jobs.client import ControllerClient
from jobs.errors import Refused
from jobs.wording import nearest

RAY_SECONDS = 5.0
"""How long a command waits for Ray's own names and addresses; without them a node goes by its name alone."""
SHORTEST_ID = 6
NAMED_AT_MOST = 8


@asynccontextmanager
async def placed(context: Context) -> AsyncGenerator[tuple[Session, ControllerClient]]:
    """A session with the controller, and with Ray's nodes as far as Ray answers. Raises `Unreachable`."""
    async with opened(context, probes=False) as session:
        await with_controller(session)
        await session.until(lambda: session.fleet.ray.state != "unknown", RAY_SECONDS)
        yield session, await session.controller()


async def chosen_nodes(session: Session, client: ControllerClient, named: Sequence[str]) -> list[str]:
    """The names of these nodes, each once; an address or the start of Ray's id will do.

    Raises `Refused` for one that neither the context, nor Ray, nor the controller has.
    """
    found: list[str] = []
    held: list[str] | None = None
    for name in dict.fromkeys(named):
        match = _found(session, name)
        if match is None:
            held = [node.name for node in (await client.nodes()).nodes] if held is None else held
            if name not in held:
                raise _unknown(name, {*session.fleet.nodes, *held}, session.context.name)
            match = name
        found.append(match)
    return list(dict.fromkeys(found))


def _found(session: Session, name: str) -> str | None:
    nodes = session.fleet.nodes
    if name in nodes:
        return name
    matches = [
        node.name
        for node in nodes.values()
        if name in (node.address, node.ray_address)
        or (len(name) >= SHORTEST_ID and node.ray_node_id.startswith(name))
    ]  # fmt: skip
    return matches[0] if len(matches) == 1 else None


def entry_of(context: Context, name: str) -> NodeEntry:
    """A node that can be reached over SSH, by its name or its address. Raises `Refused`."""
    matches = [entry for entry in context.nodes if entry.name == name]
    matches = matches or [entry for entry in context.nodes if entry.address == name]
    if len(matches) != 1:
        raise _unknown(name, (entry.name for entry in context.nodes), context.name)
    return matches[0]


def _unknown(name: str, known: Iterable[str], context: str) -> Refused:
    names = sorted(known)
    near = nearest(name, names)
    hint = f"Did you mean {near}?" if near else f"There are: {listed(names, NAMED_AT_MOST)}"
    return Refused(f"there is no node {name!r} in context {context}", hint)
