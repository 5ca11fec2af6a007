"""What the controller can have done in Ray: keep GPUs idle, Ray's own drain, machine ids, an end of others' work.

The only file here that imports ray. Much of what it uses is not public: it was tried with Ray 2.60.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import ray
import ray._raylet
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
from ray.exceptions import AuthenticationError, RayError
from ray.job_config import JobConfig
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.raymodel import one_line
from jobs.rayside.values import HOLD_PREFIX, NAMESPACE, AnotherHead, Mistake, RayFailed

log = logging.getLogger("jobs.rayside")

_raylet: Any = ray._raylet
"""Compiled, and without types."""
PREEMPTION = 2
"""The reason of a drain that Ray carries out also on a node that is busy."""
PLACED_SECONDS = 0.3
"""So long new groups are given to be placed before they are told of; four need 10 ms."""
READ_BACK_SECONDS = 3.0
"""So long a drain that Ray accepted is looked for."""
GCS_SECONDS = 5.0
"""For one question to the head."""
MACHINES_AT_ONCE = 64
MODE = "RAY_AUTH_MODE"
NODE_ID = re.compile(r"[0-9a-f]{56}")


@dataclass(frozen=True, slots=True)
class _Group:
    """A placement group of ours, which keeps one GPU of a node idle."""

    group_id: str
    node_id: str
    number: int
    held: bool


class Hand:
    """One connection to one head."""

    def __init__(self, address: str) -> None:
        # Before `ray.init`, which tries for 20 s where a token is missing, and then does not say so.
        self._gcs = _gcs(address)
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            # So that people who see a driver in Ray's list of jobs know whose it is.
            job_config=JobConfig(metadata={"raydeck": "the controller's own connection"}),
        )
        self.ray_version: str = ray.__version__
        self._address = address
        self.session = self._told_session()

    def close(self) -> None:
        """Leave Ray, which then knows that this driver has ended."""
        ray.shutdown()

    def calls(self) -> dict[str, Callable[..., Any]]:
        """What can be asked for, by name. All raise `Mistake` for what makes no sense, and `AnotherHead`."""
        offered: tuple[Callable[..., Any], ...] = (
            self.hold,
            self.holds,
            self.let_go,
            self.let_go_all_but,
            self.drain,
            self.draining,
            self.machine_ids,
            self.kill_actor,
            self.remove_group,
        )
        return {call.__name__: self._on_the_same_head(call) for call in offered}

    def _on_the_same_head(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def checked(**what: Any) -> Any:
            try:
                # A head that was started anew at the same address would take what was meant for the one before.
                if self._told_session() != self.session:
                    raise AnotherHead(f"the head at {self._address} is not the one of {self.session} any more")
                return call(**what)
            except AuthenticationError as error:
                # So Ray calls it too when the cluster is another one; and with a new token one has to begin anew.
                raise AnotherHead(f"the head at {self._address} does not know this process: {error}") from error
            except RayError as error:
                raise RayFailed(one_line(str(error))) from error

        return checked

    def _told_session(self) -> str:
        told: bytes | None = self._gcs.internal_kv_get(b"session_name", b"session", timeout=GCS_SECONDS)
        return (told or b"").decode()

    # --- idle GPUs ----------------------------------------------------------------------------------------------------

    def hold(self, node_id: str, gpus: int) -> dict[str, int]:
        """Bring the node's groups to one for each of so many GPUs, whatever an earlier process of ours left.

        None while Ray drains the node: they would keep it from leaving.
        """
        self._must_live(node_id)
        if node_id in self.draining():
            gpus = 0
        there = [group for group in _groups() if group.node_id == node_id]
        # Of more than are wanted those go first that hold nothing yet.
        there.sort(key=lambda group: (not group.held, group.number))
        _remove(there[gpus:])
        taken = {group.number for group in there}
        free = (number for number in itertools.count() if number not in taken)
        made = [
            placement_group(
                [{"GPU": 1}],
                name=f"{HOLD_PREFIX}{node_id}-{number}",
                lifetime="detached",
                bundle_label_selector=[{"ray.io/node-id": node_id}],
            )
            for number in itertools.islice(free, max(0, gpus - len(there)))
        ]
        deadline = time.monotonic() + PLACED_SECONDS
        while True:
            seen = _counted(_groups()).get(node_id, {"held": 0, "pending": 0})
            if not (made and seen["pending"]) or time.monotonic() > deadline:
                return seen
            time.sleep(0.01)

    def holds(self) -> dict[str, dict[str, int]]:
        """All groups of ours, counted by node."""
        return _counted(_groups())

    def let_go(self, node_ids: list[str]) -> int:
        """Remove the groups of these nodes; how many that were."""
        return _remove(group for group in _groups() if group.node_id in node_ids)

    def let_go_all_but(self, node_ids: list[str]) -> int:
        """Remove the groups of all other nodes, also of dead ones; how many that were."""
        return _remove(group for group in _groups() if group.node_id not in node_ids)

    # --- Ray's own drain ----------------------------------------------------------------------------------------------

    def drain(self, node_id: str, reason: str, seconds: float) -> dict[str, bool]:
        """Ray's own drain. It accepts any id in silence, so the id is looked at first, and the state afterwards."""
        self._must_live(node_id)
        until = int((time.time() + seconds) * 1000)
        accepted, why = self._gcs.drain_node(node_id, PREEMPTION, reason, until)
        if not accepted:
            raise Mistake(f"Ray does not drain it: {why}")
        # It takes nothing new now, and leaves when nothing holds it: neither must we.
        self.let_go([node_id])
        deadline = time.monotonic() + READ_BACK_SECONDS
        while True:
            draining, dead = node_id in self.draining(), node_id not in _alive()
            if draining or dead or time.monotonic() > deadline:
                return {"draining": draining and not dead, "dead": dead}
            time.sleep(0.05)

    def draining(self) -> dict[str, float]:
        """Nodes that Ray drains, and by when, in seconds since 1970; 0 for no end."""
        told: dict[str | bytes, int] = self._gcs.get_draining_nodes()
        return {node if isinstance(node, str) else node.hex(): until / 1000 for node, until in told.items()}

    # --- machines -----------------------------------------------------------------------------------------------------

    def machine_ids(self, node_ids: list[str], seconds: float) -> dict[str, str]:
        """What these nodes' machines are; those that do not answer in time, or cannot tell, are left out."""
        deadline = time.monotonic() + seconds
        # One call, and its worker process ends. The spare one that Ray may start beside it ends with this process.
        ask = ray.remote(max_calls=1)(_reader())
        left, asked, found = list(node_ids), dict[Any, str](), dict[str, str]()
        while (left or asked) and time.monotonic() < deadline:
            while left and len(asked) < MACHINES_AT_ONCE:
                node_id = left.pop(0)
                there = NodeAffinitySchedulingStrategy(node_id, soft=False)
                options = ask.options(num_cpus=0, max_retries=0, name="raydeck", scheduling_strategy=there)
                asked[options.remote()] = node_id
            done, _ = ray.wait(list(asked), num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            for each in done:
                node_id = asked.pop(each)
                try:
                    machine = ray.get(each)
                except RayError as error:
                    log.warning("node %s did not say which machine it is: %s", node_id, error)
                    continue
                if machine:
                    found[node_id] = machine
        for each in asked:
            ray.cancel(each, force=True)
        return found

    # --- others' work -------------------------------------------------------------------------------------------------

    def kill_actor(self, actor_id: str) -> bool:
        """End anybody's actor for good."""
        # Ray's own kill wants a handle, which only the actor's job has; the head itself asks for none.
        stub: Any = gcs_service_pb2_grpc.ActorInfoGcsServiceStub(init_grpc_channel(self._address))
        messages: Any = gcs_service_pb2
        request = messages.KillActorViaGcsRequest(
            actor_id=_bytes(actor_id, "actor", 16), force_kill=True, no_restart=True
        )
        try:
            status = stub.KillActorViaGcs(request, timeout=GCS_SECONDS).status
        except grpc.RpcError as error:
            raise RayFailed(f"the head did not end the actor: {one_line(str(error.details()))}") from error
        if status.code:
            raise Mistake(f"Ray does not end the actor {actor_id}: {status.message}")
        return True

    def remove_group(self, group_id: str) -> bool:
        """Remove anybody's placement group; False if it was gone."""
        group = PlacementGroup(_raylet.PlacementGroupID(_bytes(group_id, "placement group", 18)))
        state = placement_group_table(group).get("state", "REMOVED")
        if state == "REMOVED":
            return False
        remove_placement_group(group)
        return True

    def _must_live(self, node_id: str) -> None:
        if NODE_ID.fullmatch(node_id) is None:
            raise Mistake(f"{node_id!r} is no id of a node of Ray")
        if node_id not in _alive():
            raise Mistake(f"Ray has no living node {node_id}")


def _gcs(address: str) -> Any:
    try:
        return _raylet.GcsClient(address=address)
    except AuthenticationError:
        if MODE in os.environ:
            raise
        # With no mode set Ray uses no token as a client, also where there is one; raydeck's other ways in do use it.
        os.environ[MODE] = "token"
        _raylet.Config.initialize("")
        return _raylet.GcsClient(address=address)


def _alive() -> set[str]:
    return {str(node["NodeID"]) for node in ray.nodes() if node["Alive"]}


def _groups() -> list[_Group]:
    """The groups of ours that are not removed."""
    found: list[_Group] = []
    table: dict[str, dict[str, Any]] = placement_group_table()
    for group_id, group in table.items():
        named = re.fullmatch(rf"{HOLD_PREFIX}(.+)-(\d+)", str(group["name"]))
        if named is not None and group["state"] != "REMOVED":
            found.append(_Group(group_id, named[1], int(named[2]), group["state"] == "CREATED"))
    return found


def _counted(groups: Sequence[_Group]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for group in groups:
        counts.setdefault(group.node_id, {"held": 0, "pending": 0})["held" if group.held else "pending"] += 1
    return counts


def _remove(groups: Iterable[_Group]) -> int:
    count = 0
    for group in groups:
        remove_placement_group(PlacementGroup(_raylet.PlacementGroupID(bytes.fromhex(group.group_id))))
        count += 1
    return count


def _bytes(text: str, what: str, length: int) -> bytes:
    if re.fullmatch(rf"[0-9a-f]{{{2 * length}}}", text) is None:
        raise Mistake(f"{text!r} is no id of a Ray {what}")
    return bytes.fromhex(text)


def _reader() -> Callable[[], str]:
    """What is run on a node. Made here, inside, since only so Ray sends the code itself: no node has this file."""

    def machine_id() -> str:
        for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
            try:
                with open(path, encoding="ascii") as file:
                    return file.read().strip()
            except OSError:
                continue
        return ""

    return machine_id
