"""How fast the services of a cluster answer: their nodes' metrics, read twice where it matters how it is just now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableSequence
from typing import Any, cast

from console.triage.asked import Answer, Nodes, Task, sentence
from console.triage.latency import NAMES, PERIOD_SECONDS, Figures
from console.triage.nodes import Machine
from console.triage.serving import Timed, serving_nodes
from jobs import raymodel
from jobs.errors import RaydeckError

ASK_SECONDS = 6.0
"""For one reading of a node."""


async def time_services(
    raw: Mapping[str, Any],
    names: Mapping[str, str],
    machines: Mapping[str, Machine],
    nodes: Nodes,
    promised: Mapping[str, float],
    unread: MutableSequence[str],
) -> Timed:
    """Read how fast services answer, on the nodes that were asked and serve something.

    Args:
        raw: As Ray's dashboard tells of Serve.
        names: Ray's node id to a node's name.
        machines: What the first round of questions brought, by the name of the node.
        nodes: Who asks them.
        promised: Application to milliseconds.
        unread: Takes a sentence for what could not be read.
    """
    wanted = {names[node_id]: node_id for node_id in sorted(serving_nodes(raw)) if names.get(node_id) in machines}
    loop = asyncio.get_running_loop()

    async def reading() -> Figures:
        answers = await asyncio.gather(*(_read(nodes, name, wanted[name], machines[name]) for name in wanted))
        found = Figures()
        for name, answer in zip(wanted, answers, strict=True):
            if isinstance(answer.value, list):
                found.take(str(line) for line in cast("list[Any]", answer.value))
                continue
            said = f"how fast services answer on {name}: {answer.reason or 'it answered what is no list'}"
            if said not in unread:
                unread.append(said)
        return found

    if not wanted:
        return Timed(promised=promised)
    first, began = await reading(), loop.time()
    several = max((len([None for app, _ in first.replicas if app == name]) for name, _ in first.replicas), default=0)
    if not (promised.keys() & _applications(raw)) and several < 2:
        return Timed(first, promised=promised)
    await asyncio.sleep(PERIOD_SECONDS)
    return Timed(await reading(), first, loop.time() - began, promised)


async def _read(nodes: Nodes, name: str, node_id: str, machine: Machine) -> Answer:
    raylet = machine.raylet
    port = str(raylet.get("metrics_export_port", ""))
    asked = {
        "node_id": node_id,
        "session_dir": str(raylet.get("session_dir", "")),
        "port": int(port) if port.isdecimal() and len(port) < 6 else 0,
        "names": list(NAMES),
    }
    try:
        return (await nodes.ask(name, [Task("serving", asked)], ASK_SECONDS)).answers[0]
    except RaydeckError as error:
        return Answer(reason=sentence(error))


def _applications(raw: Mapping[str, Any]) -> set[str]:
    return {str(name) for name in raymodel.mapping(raw.get("applications"))}
