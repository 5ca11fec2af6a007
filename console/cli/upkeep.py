"""Commands that keep nodes free of work: cordon, uncordon, drain, retire. Same previews and client as the screens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from console import upkeep
from console.cli import output
from console.cli.follow import follow, sentence_of
from console.cli.keys import confirm
from console.cli.opened import controlled, repeated, you
from console.cli.places import chosen_nodes, entry_of, placed
from console.hands.raystop import stop_ray
from console.render.cells import age, safe
from console.render.nodedocs import drain_document, held_document, plan_document
from console.render.prose import listed, moment
from console.settings import Context
from console.sources.session import Session
from jobs.client import ControllerClient
from jobs.errors import Refused
from jobs.nodeview import Drain, DrainPolicy, NodeRef, NodesView
from jobs.wire import NodesReply

RETIRE_SECONDS = 30.0
"""How long Ray may take to say that it drains a node, before Ray is ended there."""
POLL_SECONDS = 0.5
NODES_LISTED = 4

Ask = Callable[[bool, str], Awaitable[NodesReply]]
"""Has the controller do it, or (True) say what it would do; with the reason."""


async def _asked(
    session: Session, ask: Ask, reason: str, *, sure: bool, dry_run: bool, policy: DrainPolicy | None = None,
    gpus: bool = False,
) -> tuple[NodesReply, str]:  # fmt: skip
    """Show what it does, have it confirmed, do it; with the reason. What changes nothing is not asked about."""
    plan = await ask(True, reason)
    preview = upkeep.preview(plan.plan, you=you(session), now_wall=session.head_wall(), policy=policy, gpus=gpus)
    reason = await confirm(preview, sure or dry_run or not plan.plan.changes, reason)
    if dry_run or not plan.plan.changes:
        return plan, reason
    return await ask(False, reason), reason


def _tell(reply: NodesReply, as_json: bool, dry_run: bool, now: float) -> None:
    if as_json:
        output.document(
            {
                **plan_document(reply.plan, dry_run=dry_run, drain=reply.drain),
                "held": [held_document(node) for node in reply.view.nodes],
            }
        )
        return
    if dry_run:
        output.say("nothing was done")
        return
    for node in reply.plan.nodes:
        output.say(safe(f"{node.name}: {standing(reply.view, node.name, now)}"))
    for alert in reply.view.alerts if reply.plan.changes else ():
        output.note(safe(f"! {alert}"))


def standing(view: NodesView, name: str, now: float) -> str:
    """How a node stands, in a line."""
    found = view.node(name)
    if found is None or not found.holds:
        return "open for new work"
    words = [
        hold.sentence + (f", until {moment(hold.until, now)}" if hold.until is not None else "") for hold in found.holds
    ]
    return f"{found.state}; {'; '.join(words)}"


async def cordon(
    context: Context, *, names: tuple[str, ...], reason: str, seconds: float | None, gpus: bool, dry_run: bool,
    sure: bool, as_json: bool,
) -> int:  # fmt: skip
    """Keep new work off nodes."""
    async with placed(context) as (session, client):
        nodes = upkeep.refs(await chosen_nodes(session, client, names), session.fleet)

        async def ask(dry: bool, why: str) -> NodesReply:
            return await upkeep.cordon(client, nodes, why, seconds=seconds, gpus=gpus, dry_run=dry)

        reply, _ = await _asked(session, ask, reason, sure=sure, dry_run=dry_run, gpus=gpus)
        _tell(reply, as_json, dry_run, session.head_wall())
    return output.DONE


async def uncordon(
    context: Context, *, names: tuple[str, ...], reason: str, of: str, dry_run: bool, sure: bool, as_json: bool
) -> int:
    """Take holds back."""
    async with placed(context) as (session, client):
        nodes = upkeep.refs(await chosen_nodes(session, client, names), session.fleet)

        async def ask(dry: bool, why: str) -> NodesReply:
            return await upkeep.uncordon(client, nodes, why, of=of, dry_run=dry)

        reply, _ = await _asked(session, ask, reason, sure=sure, dry_run=dry_run)
        _tell(reply, as_json, dry_run, session.head_wall())
    return output.DONE


async def drain(
    context: Context, *, names: tuple[str, ...], reason: str, policy: DrainPolicy, wait: bool, dry_run: bool,
    sure: bool, as_json: bool,
) -> int:  # fmt: skip
    """Cordon nodes and move the work off them; with ``wait`` tell each step until they are empty."""
    async with placed(context) as (session, client):
        nodes = upkeep.refs(await chosen_nodes(session, client, names), session.fleet)

        async def ask(dry: bool, why: str) -> NodesReply:
            return await upkeep.drain(client, nodes, why, policy, dry_run=dry)

        reply, _ = await _asked(session, ask, reason, sure=sure, dry_run=dry_run, policy=policy)
        if wait and not dry_run and reply.drain:
            return await follow(session, client, reply.drain, as_json)
        _tell(reply, as_json, dry_run, session.head_wall())
        if reply.drain and not dry_run and not as_json:
            output.note(f"It goes on by itself, as drain {reply.drain}; see it with: raydeck drains --watch")
    return output.DONE


async def decide(
    context: Context, *, named: str, decision: upkeep.Decision, seconds: float, reason: str, as_json: bool
) -> int:
    """Stop a drain, or choose what follows its deadline. It is said outright, so nothing more is asked."""
    async with controlled(context) as (session, client):
        found = _drain_named(await client.drains(), named)
        if decision == "cancel" and found.state != "running":
            done = found  # it is so already
        else:
            done = await upkeep.decide(client, found.id, decision, seconds=seconds, reason=reason)
        if as_json:
            output.document(drain_document(done))
        else:
            output.say(safe(sentence_of(done, session.head_wall())))
    return output.DONE


def _drain_named(drains: Sequence[Drain], named: str) -> Drain:
    """A drain by its id, or the one that goes on of the node of this name. Raises `Refused`."""
    for each in drains:
        if each.id == named:
            return each
    going = [each for each in drains if each.state == "running"]
    of_node = [each for each in going if any(node.node.name == named and not node.over for node in each.nodes)]
    if len(of_node) == 1:
        return of_node[0]
    words = listed([f"{each.id} ({listed([node.node.name for node in each.nodes], 3)})" for each in going])
    raise Refused(
        f"there is no drain {named!r}, and no node of that name is being drained",
        f"These go on: {words}" if going else "No drain goes on; see `raydeck drains`",
    )


async def drains(context: Context, limit: int, as_json: bool, watch: bool) -> int:
    """The drains, the newest first: how far each is."""
    async with controlled(context) as (session, client):

        async def show() -> None:
            found = await client.drains(limit)
            if as_json:
                output.documents([drain_document(each) for each in found], watch)
                return
            now = session.head_wall()
            columns = ("drain", "state", "began", "took", "user", "nodes", "runs", "steps_lost", "reason")
            output.table([_row(each, now) for each in found], columns, "nothing was drained yet")

        return await repeated(watch, show)


def _row(drain: Drain, now: float) -> dict[str, object]:
    names = [f"{node.node.name} {'overdue' if node.overdue and not node.over else node.state}" for node in drain.nodes]
    runs = [run for node in drain.nodes for run in node.runs]
    left = sum(run.left_at is not None for run in runs)
    return {
        "drain": drain.id,
        "state": drain.state,
        "began": moment(drain.at, now),
        "took": age((drain.ended_at or now) - drain.at),
        "user": drain.user,
        "nodes": listed(names, NODES_LISTED),
        "runs": f"{left} of {len(runs)} left" if runs else "none",
        "steps_lost": drain.lost_steps,
        "reason": drain.reason,
    }


async def retire(
    context: Context, *, names: tuple[str, ...], reason: str, end_ray: bool, dry_run: bool, sure: bool, as_json: bool
) -> int:
    """Take drained nodes out of Ray; with ``end_ray`` also end Ray on them, over SSH."""
    async with placed(context) as (session, client):
        found = await chosen_nodes(session, client, names)
        entries = [entry_of(context, name) for name in found] if end_ray else []
        nodes = upkeep.refs(found, session.fleet)

        async def ask(dry: bool, why: str) -> NodesReply:
            return await upkeep.retire(client, nodes, why, dry_run=dry)

        reply, reason = await _asked(session, ask, reason, sure=sure, dry_run=dry_run)
        ended: dict[str, str] = {}
        if not dry_run:
            for entry in entries:
                ref = next(ref for ref in nodes if ref.name == entry.name)
                await _retiring(client, ref)
                ended[entry.name] = await stop_ray(session, client, entry, reason, _step)
        if as_json:
            output.document({**plan_document(reply.plan, dry_run=dry_run), "ray_ended": ended})
            return output.DONE
        _tell(reply, False, dry_run, session.head_wall())
        for sentence in ended.values():
            output.say(safe(sentence))
    return output.DONE


def _step(sentence: str) -> None:
    output.note(safe(sentence))


async def _retiring(client: ControllerClient, ref: NodeRef) -> None:
    """Wait until Ray has it that this node goes, or is gone. Raises `Refused` if that takes too long."""
    deadline = time.monotonic() + RETIRE_SECONDS
    while True:
        found = (await client.nodes()).node(ref.name)
        if found is None or found.ray == "dead" or found.ray_draining_until is not None:
            return
        if time.monotonic() > deadline:
            raise Refused(
                f"Ray does not say that it drains {ref.name}, {RETIRE_SECONDS:.0f} s after it was told to; Ray there "
                "was left as it is",
                found.note or "Look at it again with: raydeck nodes",
            )
        await asyncio.sleep(POLL_SECONDS)
