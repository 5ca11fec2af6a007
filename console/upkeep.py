"""Keeping nodes free of work: cordon, uncordon, drain, retire, and what each would do, in words. Knows no screen.

The controller computes what a request does (`jobs.nodeview.NodesPlan`) with the code that does it; asked with
``dry_run`` it says so and does nothing. `preview` puts that into sentences, and is pure.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Literal

from console.preview import Preview
from console.render.cells import age
from console.render.prose import listed, number, some
from console.state.fleet import FleetStore
from jobs.client import ControllerClient
from jobs.nodeview import Drain, DrainPolicy, NodeRef, NodesPlan, Other, RunStake
from jobs.wire import CordonRequest, DecideRequest, DrainRequest, NodesReply, RetireRequest, UncordonRequest

Decision = Literal["cancel", "wait", "stop", "give_up"]

RUNS_SHOWN = 20
OTHERS_SHOWN = 10
NODES_SHOWN = 6
RETIRE_SECONDS = 600.0
WAIT_SECONDS = 1800.0


def _new_request_id() -> str:
    return secrets.token_hex(8)


# --- what is asked ----------------------------------------------------------------------------------------------------


def refs(names: Iterable[str], fleet: FleetStore | None = None) -> list[NodeRef]:
    """Nodes by the names of the screen, each once, with what else is known of them: they are found again by that.

    The address is the one that Ray has, not the one that SSH connects to: that may be an alias of this operator's.
    """
    found: list[NodeRef] = []
    for name in dict.fromkeys(names):
        node = fleet.nodes.get(name) if fleet is not None else None
        if node is None:
            found.append(NodeRef(name=name))
            continue
        machine_id = node.facts.machine_id[:64] if node.facts is not None else ""
        found.append(NodeRef(name=name, address=node.ray_address, machine_id=machine_id))
    return found


async def cordon(
    client: ControllerClient,
    nodes: Sequence[NodeRef],
    reason: str,
    *,
    seconds: float | None = None,
    gpus: bool = False,
    dry_run: bool = False,
) -> NodesReply:
    """Keep new work off nodes: for so many seconds, or until somebody takes it back; ``gpus`` as in `Hold.gpus`."""
    request = CordonRequest(
        request_id=_new_request_id(), nodes=list(nodes), reason=reason, seconds=seconds, gpus=gpus, dry_run=dry_run
    )
    return await client.cordon(request)


async def uncordon(
    client: ControllerClient, nodes: Sequence[NodeRef], reason: str, *, of: str = "", dry_run: bool = False
) -> NodesReply:
    """Take one's own holds back, or those of another person."""
    request = UncordonRequest(
        request_id=_new_request_id(), nodes=list(nodes), of=of, reason=reason, dry_run=dry_run
    )  # fmt: skip
    return await client.uncordon(request)


async def drain(
    client: ControllerClient, nodes: Sequence[NodeRef], reason: str, policy: DrainPolicy, *, dry_run: bool = False
) -> NodesReply:
    """Cordon nodes and move the work off them, in the background."""
    request = DrainRequest(
        request_id=_new_request_id(), nodes=list(nodes), reason=reason, policy=policy, dry_run=dry_run
    )  # fmt: skip
    return await client.drain(request)


async def retire(
    client: ControllerClient,
    nodes: Sequence[NodeRef],
    reason: str,
    *,
    deadline_seconds: float = RETIRE_SECONDS,
    dry_run: bool = False,
) -> NodesReply:
    """Take nodes out of Ray, by Ray's own drain."""
    request = RetireRequest(
        request_id=_new_request_id(), nodes=list(nodes), reason=reason, deadline_seconds=deadline_seconds,
        dry_run=dry_run,
    )  # fmt: skip
    return await client.retire(request)


async def decide(
    client: ControllerClient, drain_id: str, decision: Decision, *, seconds: float = WAIT_SECONDS, reason: str = ""
) -> Drain:
    """Stop a drain, or choose what follows its deadline; ``seconds`` are for ``wait``."""
    request = DecideRequest(request_id=_new_request_id(), decision=decision, seconds=seconds, reason=reason)
    return await client.decide(drain_id, request)


# --- what it would do -------------------------------------------------------------------------------------------------


def preview(
    plan: NodesPlan, *, you: str = "", now_wall: float = 0.0, policy: DrainPolicy | None = None, gpus: bool = False
) -> Preview:
    """What a request about nodes does, by the controller's plan.

    Args:
        plan: What a dry run gave.
        you: The user that the controller sees, for whom work of another person is marked; empty where nobody said.
        now_wall: The head's clock, seconds since 1970.
        policy: How a drain goes about it, where that is to be told.
        gpus: Idle GPUs are to be held as well.
    """
    names = [node.name for node in plan.nodes]
    what = names[0] if len(names) == 1 else some(len(names), "node")
    title = f"{plan.action.capitalize()} {what}"
    if not plan.changes:
        lines = ["Nothing changes.", *_already(plan), *plan.notes]
        return Preview(title, tuple(lines))
    policy = policy or (DrainPolicy() if plan.action == "drain" else None)
    others = _others(plan, policy, now_wall)
    if policy is not None and plan.action == "drain":
        # Whom it hits comes first: on a small screen the rest has to be scrolled to.
        lines = [*_runs(plan), *_open(plan), *_waits(plan), *others, *_deed(plan), *_pace(plan, policy)]
    else:
        lines = [*_deed(plan), *_open(plan), *_runs(plan), *others, *_waits(plan)]
    lines += _already(plan)
    with_gpus = gpus or (policy is not None and policy.gpus)
    if with_gpus:
        lines.append(
            "Idle GPUs are held in Ray too, against work that raydeck does not start. That is best effort: what waits "
            "in Ray already goes first, and what asks for no GPU lands there anyway; it is then reported."
        )
    lines += [note for note in plan.notes if not (with_gpus and "best effort" in note)]
    ask, expected = _to_type(plan, policy)
    return Preview(title, tuple(lines), ask, expected, True, tuple(_warnings(plan, you)))


def _named(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; of many the first."""
    if len(names) < 2 or len(names) > NODES_SHOWN:
        return listed(names, NODES_SHOWN)
    return f"{listed(names[:-1])} and {listed(names[-1:])}"


def _verb(names: Sequence[str], one: str, many: str) -> str:
    return f"{_named(names)} {one if len(names) == 1 else many}"


def _deed(plan: NodesPlan) -> list[str]:
    """What it is that is done, and what is not."""
    names = [node.name for node in plan.nodes]
    there = "there" if len(names) == 1 else "on them"
    closed = f"{_verb(names, 'takes', 'take')} no new work from raydeck"
    dead = [node.name for node in plan.nodes if node.known and not node.alive]
    lines: list[str] = []
    if plan.action == "cordon":
        lines.append(f"{closed}. What runs {there} goes on: a cordon ends nothing.")
        if dead:
            lines.append(f"{_verb(dead, 'is', 'are')} dead for Ray now; the hold is there when Ray has it back.")
    elif plan.action == "uncordon":
        if plan.nodes_open_after > plan.nodes_open:
            lines.append(f"New work may start again on {_named(names)}.")
        else:
            lines.append(f"A hold is taken off {_named(names)}; no node takes new work for that yet.")
    elif plan.action == "drain":
        lines.append(
            f"{closed}. Each run of raydeck's {there} is asked to save and to leave, with its whole gang; it goes "
            "back to its old place in the queue, and that costs it no retry."
        )
        at_once = [node.name for node in plan.nodes if node.at_once]
        if at_once:
            lines.append(
                f"{_verb(at_once, 'does', 'do')} not answer: nothing is waited for, and what ran there is put back "
                "into the queue once no process of it can still write."
            )
    else:
        again = f"raydeck rejoin {names[0]}" if len(names) == 1 else "raydeck rejoin, for each"
        lines.append(
            f"Ray drains {_named(names)} for good: it starts nothing {there} any more. There is one way back: Ray has "
            f"to be started {there} anew ({again})."
        )
    return lines


def _open(plan: NodesPlan) -> list[str]:
    """The capacity that is left."""
    after = f"{some(plan.nodes_open_after, 'node')} with {plan.gpus_open_after:g} GPUs"
    if (plan.nodes_open, plan.gpus_open) == (plan.nodes_open_after, plan.gpus_open_after):
        return [f"Open for new work: {after}, as now."]
    return [f"Open for new work afterwards: {after}; now {number(plan.nodes_open)} with {plan.gpus_open:g}."]


def _pace(plan: NodesPlan, policy: DrainPolicy) -> list[str]:
    """The deadline, and how many nodes are away at a time."""
    follows = {
        "wait": "then somebody has to choose: wait on, end what is left, or give the node up",
        "stop": "then what has not left is ended at once, and steps since its last checkpoint are lost",
        "give_up": "then the node is given up: it stays cordoned, and what is on it goes on",
    }[policy.at_deadline]
    lines = [f"Each node has {age(policy.deadline_seconds)} from when its turn comes; {follows}."]
    if policy.gone:
        lines.append("You say that no process there can still write: its runs may start elsewhere at once.")
    limits: list[str] = []
    if policy.most_nodes is not None:
        limits.append(some(policy.most_nodes, "node"))
    if policy.most_share is not None:
        limits.append(f"{policy.most_share:.0%} of the GPUs")
    rounds: dict[int, list[str]] = {}
    for node in plan.nodes:
        rounds.setdefault(node.turn, []).append(node.name)
    if limits:
        lines.append(f"At most {' and '.join(limits)} away at a time; a node stays away until it is uncordoned.")
    if len(rounds) > 1:
        turns = "; then ".join(_named(rounds[turn]) for turn in sorted(rounds)[:NODES_SHOWN])
        more = f"; {some(len(rounds) - NODES_SHOWN, 'round')} more" if len(rounds) > NODES_SHOWN else ""
        lines.append(f"In {some(len(rounds), 'round')}: {turns}{more}.")
    return lines


def _stakes(plan: NodesPlan) -> list[RunStake]:
    """The runs on all of these nodes, each once: a gang is on several."""
    return list({stake.run: stake for node in plan.nodes for stake in node.runs}.values())


def _runs(plan: NodesPlan) -> list[str]:
    """Which runs of raydeck's are on them, and what becomes of each."""
    idle = [node.name for node in plan.nodes if not node.runs]
    stakes = _stakes(plan)
    first = {stake.run for node in plan.nodes if node.turn == 1 for stake in node.runs}
    lines = [_run(stake, plan.action, stake.run in first) for stake in stakes[:RUNS_SHOWN]]
    if len(stakes) > RUNS_SHOWN:
        lines.append(f"And {some(len(stakes) - RUNS_SHOWN, 'more run', 'more runs')}.")
    if idle and plan.action != "uncordon":
        lines.append(f"{_verb(idle, 'holds', 'hold')} no run of raydeck's.")
    return lines


def _run(stake: RunStake, action: str, at_first: bool) -> str:
    who = ", ".join(part for part in (stake.state, stake.user or "unknown user") if part)
    where = f" of {_named(stake.nodes)}" if stake.nodes else ""
    holds = f"on {some(stake.gpus, 'GPU')}{where}"
    return f"{stake.run} ({who}) {holds}, {_stands(stake)}{_becomes(stake, action, at_first)}."


def _stands(stake: RunStake) -> str:
    """Its step, and what it saved last."""
    if stake.step is None:
        return "no step yet"
    if stake.checkpoint_step is None:
        return f"at step {number(stake.step)}, no checkpoint yet"
    return f"at step {number(stake.step)}, checkpoint at step {number(stake.checkpoint_step)}"


def _becomes(stake: RunStake, action: str, at_first: bool) -> str:
    if action == "drain":
        if stake.restarts_on:
            return f"; it starts again on {_named(stake.restarts_on)}"
        if not at_first:
            return "; it leaves when the turn of its node comes"
        return f"; it then has to wait{f': {stake.waits_for}' if stake.waits_for else ''}"
    if action == "retire":
        return "; Ray ends what is left of it there when its own time is up"
    return "; it goes on"


def _others(plan: NodesPlan, policy: DrainPolicy | None, now_wall: float) -> list[str]:
    """What raydeck did not start, and what becomes of that."""
    if plan.action == "uncordon":
        return []
    fate = "it goes on"
    if plan.action == "drain":
        fate = "it is ended too" if policy is not None and policy.others == "stop" else "it is left alone"
    if plan.action == "retire":
        fate = "it ends when Ray's drain does"
    found = [(node, other) for node in plan.nodes for other in node.others]
    lines = [
        f"Not raydeck's, on {node.name}: {other.sentence}{_since(other, now_wall)}; {fate}."
        for node, other in found[:OTHERS_SHOWN]
    ]
    if len(found) > OTHERS_SHOWN:
        lines.append(f"And {number(len(found) - OTHERS_SHOWN)} more that are not raydeck's.")
    return lines


def _since(other: Other, now_wall: float) -> str:
    return f", for {age(now_wall - other.since)}" if other.since is not None and now_wall > other.since else ""


def _waits(plan: NodesPlan) -> list[str]:
    """The queued runs that feel it."""
    return ["Queued runs that then have to wait:", *plan.waits] if plan.waits else []


def _already(plan: NodesPlan) -> list[str]:
    """What was so before, each with its node's name."""
    return [
        said if node.name in said else f"{node.name}: {said}" for node in plan.nodes for said in node.already
    ]  # fmt: skip


def _warnings(plan: NodesPlan, you: str) -> list[str]:
    found: list[str] = []
    unknown = [node.name for node in plan.nodes if not node.known]
    if unknown:
        found.append(f"Ray has no {'node' if len(unknown) == 1 else 'nodes'} {_named(unknown)}, now or before")
    if plan.action in ("drain", "retire"):
        others = [stake for stake in _stakes(plan) if you and stake.user and stake.user != you]
        if others:
            users = listed(sorted({stake.user for stake in others}), 4)
            found.append(f"{some(len(others), 'run')} of {users}, not yours")
    if plan.action == "retire":
        found.append("one-way: an uncordon does not undo it")
        if working := [node.name for node in plan.nodes if node.runs or node.others]:
            found.append(f"{_verb(working, 'is', 'are')} not empty; drain first")
    if plan.action != "uncordon" and plan.nodes_open_after == 0:
        found.append("no node stays open: nothing new can start anywhere")
    return found


def _to_type(plan: NodesPlan, policy: DrainPolicy | None) -> tuple[Literal["y", "name", "count"], str]:
    """One key for one node; its name if work has to leave it; how many there are for more than one."""
    if len(plan.nodes) > 1:
        return "count", str(len(plan.nodes))
    ends_others = plan.action == "retire" or (policy is not None and policy.others == "stop")
    node = plan.nodes[0] if plan.nodes else None
    if plan.action in ("drain", "retire") and node is not None and (node.runs or (node.others and ends_others)):
        return "name", node.name
    return "y", "y"
