"""Starts Ray on a node again over SSH, waits until Ray has it with all its GPUs, and opens it for new work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from console import upkeep
from console.hands import node
from console.hands.node import Raylet, raylets_of
from console.hands.permits import permitted
from console.hands.raystop import STOP_COMMAND, ended, must_be_free
from console.preview import Preview
from console.render.prose import listed
from console.settings import NodeEntry
from console.sources.session import Session
from console.sources.ssh import Connection
from jobs.client import ControllerClient
from jobs.errors import Refused, Unreachable
from jobs.nodeview import Hold, NodeRef, NodeView
from jobs.rayapi import RayApi
from jobs.raymodel import RayNode

START_SECONDS = 120.0
"""`ray start` to a head that is dead hangs for 13 minutes."""
RAY_SECONDS = 60.0
"""How long Ray may take to have the node, once the command has ended."""
APPEAR_SECONDS = 6.0
"""How long a raylet that Ray does not list may be one that has just been started: Ray's own answers are 2 s old."""
POLL_SECONDS = 1.0

Tell = Callable[[str], None]


async def rejoin(session: Session, client: ControllerClient, entry: NodeEntry, reason: str, tell: Tell) -> str:
    """Bring a node back into Ray. Where Ray runs there already nothing is started, and that is said.

    Args:
        session: The ways in.
        client: The controller, which has to allow it.
        entry: The node; never the head.
        reason: For the audit.
        tell: Told each step, as a sentence.

    Returns:
        How it stands then, as a sentence.

    Raises:
        Refused: What went wrong and what to do; the node then stays cordoned, if it was.
        Unreachable: Where the node, Ray or the controller does not answer.
    """
    if entry.role == "head":
        raise Refused(f"{entry.name} is the head: the other nodes join it, and it joins none")
    began = time.monotonic()
    work = _Rejoin(session, client, entry, upkeep.refs([entry.name], session.fleet)[0], reason, tell)
    await work.connection.ready()
    tell(f"{entry.name} answers over SSH")
    work.api = await session.ray_api()
    there = await work.running()
    if there is not None:
        tell(f"Ray runs on {entry.name} already, as {there.node_id[:8]}: nothing is started")
    else:
        there = await work.start()
    work.must_have_all(there)
    held = await _opened(client, work.ref, there, reason)
    if session.ray_watcher is not None:
        session.ray_watcher.refresh()
    gpus = f" with {there.gpus:g} GPUs" if there.gpus else ""
    took = f" after {time.monotonic() - began:.0f} s"
    stands = "takes new work" if not held else f"stays closed: {listed([hold.sentence for hold in held])}"
    return f"{entry.name} is in Ray as {there.node_id[:8]}{gpus}{took}, and {stands}"


def preview(entry: NodeEntry, held: NodeView | None = None, you: str = "") -> Preview:
    """What a rejoin does. ``held``: what the controller says of the node. Pure."""
    lines = [
        f"Over SSH, in your login shell on {entry.name}: {entry.ray_start or 'nothing says what starts Ray there'}"
    ]
    gpus = "" if entry.accelerators is None else f" with {entry.accelerators} GPUs or more"
    lines.append(f"Then it is waited until Ray has the node{gpus}. Where Ray runs there already, nothing is started.")
    lines.append(
        f"What is left of an old Ray there is ended first ({entry.ray_stop or STOP_COMMAND}), unless a run is on it."
    )
    holds = held.holds if held is not None else []
    ending = _whose(holds, you)
    taken = [hold.sentence for hold in holds if hold.user in ending]
    staying = [hold.sentence for hold in holds if hold.user not in ending]
    if taken:
        lines.append(f"These holds are taken back then: {listed(taken)}.")
    if staying:
        lines.append(f"These stay, and keep it closed: {listed(staying)}.")
    return Preview(f"Rejoin {entry.name}", tuple(lines), wants_reason=True)


@dataclass(slots=True)
class _Rejoin:
    """One rejoin on its way."""

    session: Session
    client: ControllerClient
    entry: NodeEntry
    ref: NodeRef
    reason: str
    tell: Tell
    api: RayApi | None = None
    halves: Sequence[Raylet] = ()
    """Raylets there that Ray no longer counts with."""

    @property
    def connection(self) -> Connection:
        return self.session.connection(self.entry.name)

    async def nodes(self) -> list[RayNode]:
        assert self.api is not None
        return await self.api.nodes()

    async def running(self) -> RayNode | None:
        """The node as Ray has it, if its raylet is alive for both; else what is there instead is kept in ``halves``."""
        deadline = time.monotonic() + APPEAR_SECONDS
        leaving = await self._leaving()
        while True:
            self.halves = raylets_of(await node.look(self.connection), self.entry, self.ref.address)
            known = {each.node_id: each for each in await self.nodes()}
            for raylet in self.halves:
                found = known.get(raylet.node_id)
                if found is not None and found.alive and found.node_id not in leaving:
                    return found
            fresh = any(raylet.node_id and raylet.node_id not in known for raylet in self.halves)
            if not fresh or time.monotonic() > deadline:
                return None
            await asyncio.sleep(POLL_SECONDS)

    async def _leaving(self) -> set[str]:
        """Ray's ids of nodes that it drains for good: alive, and lost all the same."""
        view = await self.client.nodes()
        return {each.node_id for each in view.nodes if each.node_id and each.ray_draining_until is not None}

    async def start(self) -> RayNode:
        """Start Ray there, after what is left of an old one has ended. Gives the node as Ray then has it."""
        entry, tell = self.entry, self.tell
        if not entry.ray_start:
            raise Refused(
                f"nothing says what starts Ray on {entry.name}",
                "Give access.ray.start in the cluster file, or ray_start for the node in the context file",
            )
        before = {each.node_id for each in await self.nodes() if each.alive}
        detail = entry.ray_start
        if self.halves:
            await must_be_free(self.client, entry, await node.look(self.connection), self.halves)
            detail = f"first {entry.ray_stop or STOP_COMMAND}; then {detail}"
        async with permitted(self.client, self.ref, "ray start", detail, self.reason, tell) as outcome:
            if self.halves:
                tell(f"an old Ray is left on {entry.name}, and Ray no longer counts with it: it is ended first")
                tell(await ended(self.connection, entry, self.ref.address, self.halves, tell))
            tell(f"starting Ray on {entry.name}: {entry.ray_start}")
            ran = await node.run(self.connection, entry.ray_start, START_SECONDS)
            words = f": {ran.last_words}" if ran.last_words else ""
            if ran.late:
                raise Refused(
                    f"what starts Ray on {entry.name} did not end within {START_SECONDS:.0f} s, and was ended{words}",
                    "Does the head answer from there?",
                )
            if ran.code != 0:
                hint = "Your login shell there does not find it: give its whole path" if ran.code == 127 else ""
                raise Refused(f"what starts Ray on {entry.name} ended with {ran.code}{words}", hint)
            tell(f"the command took {ran.seconds:.0f} s; waiting until Ray has the node")
            there = await self._registered(before)
            gpus = "an unknown number of" if there.gpus is None else f"{there.gpus:g}"
            outcome.words = f"Ray has it as {there.node_id[:8]} with {gpus} GPUs"
            outcome.ok = self._short(there) == ""
        return there

    async def _registered(self, before: Collection[str]) -> RayNode:
        """The node that was not there before. Raises `Refused` if there is none within the limit."""
        deadline = time.monotonic() + RAY_SECONDS
        trouble = ""
        while True:
            try:
                fresh = [each for each in await self.nodes() if each.alive and each.node_id not in before]
                there = await self._ours(fresh)
                if there is not None and there.gpus is not None:
                    return there
                trouble = ""
            except Unreachable as error:
                trouble = f"; Ray's dashboard does not answer: {error.sentence}"
            if time.monotonic() > deadline:
                name = self.entry.name
                raise Refused(
                    f"Ray was started on {name}, and has not got the node after {RAY_SECONDS:.0f} s{trouble}",
                    f"See what raylet.out says in /tmp/ray/session_latest/logs on {name}",
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _ours(self, fresh: Sequence[RayNode]) -> RayNode | None:
        """Which of these is the node: by the raylet that runs there, else by its label, else by its address."""
        if not fresh:
            return None
        raylets = raylets_of(await node.look(self.connection), self.entry, self.ref.address)
        ids = {raylet.node_id for raylet in raylets if raylet.node_id}
        for each in fresh:
            label = each.labels.get(node.NAME_LABEL, "")
            address = each.node_ip in (self.ref.address, self.entry.address)
            if each.node_id in ids or label == self.entry.name or (not label and not ids and address):
                return each
        return None

    def _short(self, there: RayNode) -> str:
        """Why it must not take work yet: it has fewer GPUs than it should."""
        wanted = self.entry.accelerators
        if wanted is None or there.gpus is None or there.gpus >= wanted:
            return ""
        return f"{self.entry.name} is in Ray with {there.gpus:g} GPUs, and should have {wanted}"

    def must_have_all(self, there: RayNode) -> None:
        """Raises `Refused` for a node that came back with fewer GPUs."""
        short = self._short(there)
        if short:
            raise Refused(
                f"{short}; it stays cordoned, if it was",
                f"Look at its driver, and at what it was started with; then: raydeck uncordon {self.entry.name}",
            )
        if self.entry.accelerators is None:
            self.tell(f"how many GPUs {self.entry.name} should have is not said: that it has all is not checked")


async def _opened(client: ControllerClient, ref: NodeRef, there: RayNode, reason: str) -> list[Hold]:
    """Take back one's own holds and those of retirements; gives the holds that stay."""
    you = (await client.status()).you
    ref = ref.model_copy(update={"address": there.node_ip or ref.address})
    for user in _whose(await _holds(client, ref, there), you):
        await upkeep.uncordon(client, [ref], reason or "rejoined", of="" if user == you else user)
    return await _holds(client, ref, there)


async def _holds(client: ControllerClient, ref: NodeRef, there: RayNode) -> list[Hold]:
    view = await client.nodes()
    found: NodeView | None = view.node(ref.name) or next(
        (each for each in view.nodes if each.node_id == there.node_id), None
    )
    return found.holds if found is not None else []


def _whose(holds: Sequence[Hold], you: str) -> list[str]:
    """Whose holds a rejoin ends: one's own, and those that only say that the node is retired."""
    kinds: dict[str, set[str]] = {}
    for hold in holds:
        kinds.setdefault(hold.user, set()).add(hold.kind)
    return [user for user, found in kinds.items() if user == you or found == {"retire"}]
