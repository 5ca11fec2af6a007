"""What only a Ray driver can do, as requests: ``python -m jobs.rayside HOST:PORT`` of the head's GCS.

NDJSON: ``{"id": 7, "do": "hold", …}`` on standard input; ``{"id": 7, "ok": …}`` or ``{"id": 7, "error": "sentence"}``
on standard output; first ``{"ready": true}``. It ends with its standard input. One request after the other: whoever
asks sets the limits, and kills this process when it hangs.

Whatever runs on other nodes has to be in this file: it is ``__main__``, and so is sent to them as it is.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import ray
import ray._raylet
from ray._private.worker import global_worker
from ray.exceptions import RayError
from ray.util import get_placement_group, placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_raylet: Any = ray._raylet
"""Compiled, and without types. None of it is public: what is used of it was tried with Ray 2.60."""
log = logging.getLogger("jobs.rayside")

NAMESPACE = "raydeck"
PREFIX = "raydeck-hold-"
PREEMPTION = 2
"""The reason of a drain that Ray carries out also on a node that is busy."""
SETTLE_SECONDS = 1.0
"""How long a new group is given to be placed before it is told of."""
STATE_READ_SECONDS = 3.0


class Mistake(Exception):
    """What was asked for makes no sense; the text is a sentence."""


def machine_id() -> str:
    """On a node: what tells its machine from all others."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            with open(path, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            continue
    return ""


class Hand:
    """The requests."""

    def __init__(self, gcs: str) -> None:
        self._gcs: Any = _raylet.GcsClient(address=gcs)

    def hold(self, node_id: str, gpus: int) -> dict[str, int]:
        """Bring the node's groups to one for each of so many GPUs, whatever an earlier process of ours left."""
        self._alive(node_id)
        there = {name: state for node, name, state in _groups() if node == node_id}
        wanted = [f"{PREFIX}{node_id}-{number}" for number in range(gpus)]
        for name in there.keys() - set(wanted):
            remove_placement_group(get_placement_group(name))
        made = [
            placement_group(
                [{"GPU": 1}], name=name, lifetime="detached", bundle_label_selector=[{"ray.io/node-id": node_id}]
            )
            for name in wanted
            if name not in there
        ]
        deadline = time.monotonic() + SETTLE_SECONDS
        for each in made:
            each.wait(max(0.0, deadline - time.monotonic()))
        return self._count(node_id)

    def _count(self, node_id: str) -> dict[str, int]:
        states = [state for node, _, state in _groups() if node == node_id]
        return {"groups": len(states), "held": states.count("CREATED")}

    def holds(self) -> dict[str, dict[str, int]]:
        """All groups of ours, counted by node."""
        return {node: self._count(node) for node in {node for node, _, _ in _groups()}}

    def let_go_all_but(self, node_ids: list[str]) -> int:
        """Remove the groups of all other nodes, also of dead ones; how many."""
        gone = [name for node, name, _ in _groups() if node not in node_ids]
        for name in gone:
            remove_placement_group(get_placement_group(name))
        return len(gone)

    def drain(self, node_id: str, reason: str, seconds: float) -> dict[str, Any]:
        """Ray's own drain. It takes any id and says nothing, so the id is looked at first, and the state afterwards."""
        self._alive(node_id)
        until = int((time.time() + seconds) * 1000)
        accepted, why = self._gcs.drain_node(node_id, PREEMPTION, reason, until)
        if not accepted:
            raise Mistake(f"Ray does not drain it: {why}")
        deadline = time.monotonic() + STATE_READ_SECONDS
        while True:
            draining, dead = node_id in self.draining(), not self._is_alive(node_id)
            if draining or dead or time.monotonic() > deadline:
                return {"draining": draining, "dead": dead}
            time.sleep(0.05)

    def draining(self) -> dict[str, float]:
        """Nodes that Ray drains, and by when, in seconds since 1970; 0 for no end."""
        return {_hex(node): until / 1000 for node, until in self._gcs.get_draining_nodes().items()}

    def machine_ids(self, node_ids: list[str], seconds: float) -> dict[str, str]:
        """What these nodes' machines are; those that do not answer in time are left out."""
        # One call, and its worker process ends: it leaves nothing behind on a node that is to be empty.
        ask = ray.remote(max_calls=1)(machine_id)
        asked: dict[Any, str] = {}
        for node_id in node_ids:
            there = NodeAffinitySchedulingStrategy(node_id, soft=False)
            options = ask.options(num_cpus=0, max_retries=0, name="raydeck", scheduling_strategy=there)
            asked[options.remote()] = node_id
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=seconds)
        found: dict[str, str] = {}
        for each in done:
            try:
                found[asked[each]] = ray.get(each)
            except RayError:
                log.warning("node %s did not say which machine it is", asked[each], exc_info=True)
        for each in late:
            ray.cancel(each, force=True)
        return found

    def kill_actor(self, actor_id: str) -> bool:
        """End an actor for good."""
        worker: Any = global_worker
        worker.core_worker.kill_actor(_raylet.ActorID(bytes.fromhex(actor_id)), True)
        return True

    def remove_group(self, group_id: str) -> bool:
        """Remove a placement group of anybody's."""
        remove_placement_group(PlacementGroup(_raylet.PlacementGroupID(bytes.fromhex(group_id))))
        return True

    def _alive(self, node_id: str) -> None:
        if not self._is_alive(node_id):
            raise Mistake(f"Ray has no living node {node_id}")

    def _is_alive(self, node_id: str) -> bool:
        return any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())


def _groups() -> list[tuple[str, str, str]]:
    """Node, name and state of each group of ours that is not removed."""
    found: list[tuple[str, str, str]] = []
    table: dict[str, dict[str, Any]] = placement_group_table()
    for group in table.values():
        name, state = str(group["name"]), str(group["state"])
        if name.startswith(PREFIX) and state != "REMOVED":
            found.append((name.removeprefix(PREFIX).rpartition("-")[0], name, state))
    return found


def _hex(node: Any) -> str:
    return node if isinstance(node, str) else node.hex()


def _answer(hand: Hand, request: dict[str, Any]) -> dict[str, Any]:
    number, do = request.pop("id"), request.pop("do")
    calls: dict[str, Callable[..., Any]] = {
        "hold": hand.hold,
        "holds": hand.holds,
        "let_go_all_but": hand.let_go_all_but,
        "drain": hand.drain,
        "draining": hand.draining,
        "machine_ids": hand.machine_ids,
        "kill_actor": hand.kill_actor,
        "remove_group": hand.remove_group,
    }
    try:
        return {"id": number, "ok": calls[do](**request)}
    except Mistake as error:
        return {"id": number, "error": str(error)}
    except Exception as error:
        # The boundary of a request: the next one may go well.
        first = (str(error).splitlines() or [""])[0]
        return {"id": number, "error": f"{type(error).__name__}: {first}"}


def main() -> None:
    """Connect, then answer until the input ends."""
    gcs = sys.argv[1]
    # What Ray prints must not stand between the answers.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    ray.init(address=gcs, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    hand = Hand(gcs)
    out.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        out.write(json.dumps(_answer(hand, json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
