"""A look at the ranks of a run that does not go on: asked for over the controller, else by a file over SSH."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence

from console.triage.asked import Nodes, Task
from console.triage.runs import Ranked, take_look
from jobs.client import ControllerClient
from jobs.errors import RaydeckError
from jobs.looks import LOOK_SECONDS, Look, NodeLook, RankLook

POLL_SECONDS = 0.5
SLACK_SECONDS = 2.0
SSH_SECONDS = 5.0


async def look_at(
    ranked: Ranked, client: ControllerClient | None, nodes: Nodes, names: Sequence[str], seconds: float
) -> str:
    """Have the ranks looked at, and put to them what comes; a sentence for what did not, empty if all is there.

    Args:
        ranked: The ranks; their stacks, states and collectives are set.
        client: The controller, where there is one.
        nodes: The way to the nodes over SSH.
        names: Those that can be asked, and see the attempt's folder.
        seconds: How long it may take in all.
    """
    deadline = asyncio.get_running_loop().time() + min(LOOK_SECONDS + SLACK_SECONDS, seconds)
    reasons: list[str] = []
    if client is not None:
        try:
            look = await client.ask_look(ranked.run.id)
            return await _followed(ranked, lambda: client.look(ranked.run.id, look), deadline)
        except RaydeckError as error:
            reasons.append(f"over the controller: {error.sentence}")
    for name in [each for each in ranked.nodes if each in names]:
        look = secrets.token_hex(6)
        arguments = {"folder": ranked.folder, "look": look}
        try:
            answers = await nodes.ask(name, [Task("ask_look", arguments)], SSH_SECONDS)
            if not answers.answers[0].reason:
                return await _followed(ranked, lambda: _read(nodes, name, arguments), deadline)  # noqa: B023 - awaited
            reasons.append(f"over {name}: {answers.answers[0].reason}")
        except RaydeckError as error:
            reasons.append(f"over {name}: {error.sentence}")
    why = "; ".join(reasons[:3]) or "neither the controller nor a node of it can be asked"
    return f"its ranks could not be asked where they stand: {why}"


async def _followed(ranked: Ranked, ask: Callable[[], Awaitable[Look]], deadline: float) -> str:
    while True:
        look = await ask()
        take_look(ranked.ranks, look)
        if look.done:
            return "; ".join(f"{node.node}: {node.problem}" for node in look.nodes if node.problem)
        if asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(POLL_SECONDS)
    missing = [str(rank.rank) for rank in ranked.ranks if not rank.stack]
    return f"a look at its ranks was asked for and is not complete: nothing came of rank {', '.join(missing[:8])}"


async def _read(nodes: Nodes, name: str, arguments: dict[str, str]) -> Look:
    """What a look has brought so far, as its files have it; one that cannot be read is one that is not there yet."""
    answer = (await nodes.ask(name, [Task("read_look", arguments)], SSH_SECONDS)).answers[0]
    texts: dict[str, str] = answer.value if isinstance(answer.value, dict) else {}
    found = Look(id=arguments["look"])
    for file, text in sorted(texts.items()):
        try:
            if file == "look.json":
                ranks, seen = found.ranks, found.nodes
                found = Look.model_validate_json(text).model_copy(update={"ranks": ranks, "nodes": seen})
            elif file.startswith("rank-"):
                found.ranks.append(RankLook.model_validate_json(text))
            else:
                found.nodes.append(NodeLook.model_validate_json(text))
        except ValueError:
            continue
    return found
