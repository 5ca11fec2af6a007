"""The frozen cluster with nodes in every state that keeps them free, two drains, and a controller that plans."""

from __future__ import annotations

from typing import Any

from jobs.errors import Refused
from jobs.model import Run, RunState
from jobs.nodeview import (
    Drain,
    DrainNode,
    DrainPolicy,
    DrainRun,
    GpuHold,
    Hold,
    NodePlan,
    NodeRef,
    NodesPlan,
    NodesView,
    NodeView,
    Other,
    RunStake,
)
from jobs.raymodel import RayNode
from jobs.wire import (
    ControllerStatus,
    CordonRequest,
    DecideRequest,
    DrainRequest,
    NodesReply,
    Permit,
    PermitDone,
    PermitRequest,
    RetireRequest,
    UncordonRequest,
)
from probes.reading import Process
from tests.screens.answers import GB, WALL, FrozenClient
from tests.screens.frozen import NOW, RAY_IDS, FrozenSession, session_of

NVLINK = "NVLink errors on GPU 1, ticket 4711"
ACTOR = Other(kind="actor", id="a1b2c3d4e5", name="Tuner", job="raysubmit_Xy12", pid=7001, gpus=1, slipped=True,
              since=WALL - 95)  # fmt: skip
DRAIN = "d-7f3a90"


def hold(node: str, user: str, reason: str, ago: float, **more: Any) -> Hold:
    """One hold."""
    return Hold(id=f"h-{node}-{user}", node=node, user=user, at=WALL - ago, reason=reason, **more)


def _run(name: str, state: str, **more: Any) -> DrainRun:
    told: dict[str, Any] = {"attempt": 1, "workflow": "lm", "user": "alice", "asked_at": WALL - 76, **more}
    return DrainRun(run=name, state=state, **told)  # pyright: ignore[reportArgumentType]


def drains(overdue: bool = False) -> list[Drain]:
    """One that goes on, with a node that moves, one that is looked at and one that waits; and one that is over."""
    runs = [
        _run("lm-k3f9qz", "saving", nodes=["worker-1", "worker-3"], step=1250, saved_step=1200),
        _run("lm-a8d2p1", "left", user="bob", left_at=WALL - 60, step=810, saved_step=810, note="waits for 4 GPUs"),
        _run("lm-x2k9w4", "again", left_at=WALL - 70, again_at=WALL - 31, step=402, saved_step=400,
             again_on=["worker-5", "worker-6"]),
    ]  # fmt: skip
    deadline = WALL - 130 if overdue else WALL + 724
    note = "waits for lm-k3f9qz"
    if overdue:
        note += "; its deadline has passed: wait on, stop what is left, or give up"
    going = Drain(
        id=DRAIN, at=WALL - 1076, user="alice", reason="swap the NVLink bridge",
        policy=DrainPolicy(most_nodes=2, at_deadline="wait"),
        nodes=[
            DrainNode(node=NodeRef(name="worker-3"), state="moving", began_at=WALL - 1076, deadline_at=deadline,
                      overdue=overdue, runs=runs, note=note,
                      others=[Other(kind="actor", id="f0", name="Cache", job="04000000", pid=511, cpus=1)]),
            DrainNode(node=NodeRef(name="worker-4"), state="waiting",
                      note="its turn has not come: as much is away as may be"),
        ],
    )  # fmt: skip
    over = Drain(
        id="d-02bb17", at=WALL - 9000, user="carol", reason="firmware", state="done", ended_at=WALL - 8700,
        nodes=[
            DrainNode(node=NodeRef(name="worker-5"), state="empty", began_at=WALL - 9000, empty_since=WALL - 8730,
                      ended_at=WALL - 8700, note="empty, and stayed so for 30 s",
                      runs=[_run("lm-p0o9i8", "again", asked_at=WALL - 9000.0, left_at=WALL - 8988,
                                 again_at=WALL - 8941, step=77, saved_step=75, again_on=["worker-1"])]),
        ],
    )  # fmt: skip
    return [going, over]


def view(overdue: bool = False) -> NodesView:
    """Cordoned by two and slipped onto, draining, waiting for its turn, drained; worker-6 is open and dead to Ray."""

    def node(number: int, state: str, holds: list[Hold], **more: Any) -> NodeView:
        name = f"worker-{number}"
        told: dict[str, Any] = {"ray": "alive", "node_id": RAY_IDS[name], "address": f"10.0.0.{number + 1}", **more}
        return NodeView(name=name, state=state, holds=holds, gpus=4, **told)  # pyright: ignore[reportArgumentType]

    alert = f"worker-2 is held, and {ACTOR.sentence} landed there all the same"
    bridge = "swap the NVLink bridge"
    return NodesView(
        nodes=[
            node(2, "cordoned", [hold("worker-2", "bob", NVLINK, 7500, until=WALL + 5400, gpus=True),
                                 hold("worker-2", "alice", "kernel update", 300)],
                 others=[ACTOR], runs=["lm-k3f9qz"], gpu_hold=GpuHold(wanted=4, held=3)),
            node(3, "draining", [hold("worker-3", "alice", bridge, 1076, kind="drain", drain=DRAIN)], drain=DRAIN,
                 runs=["lm-k3f9qz"], note="waits for lm-k3f9qz"),
            node(4, "waiting", [hold("worker-4", "alice", bridge, 1076, kind="drain", drain=DRAIN)], drain=DRAIN),
            node(5, "drained", [hold("worker-5", "carol", "firmware", 9000, kind="drain", drain="d-02bb17")],
                 drain="d-02bb17"),
        ],
        drains=drains(overdue),
        alerts=[alert],
    )  # fmt: skip


STAKE = RunStake(run="lm-k3f9qz", workflow="lm", user="alice", state="running", gpus=4, nodes=["worker-1", "worker-2"],
                 step=1250, checkpoint_step=1200, restarts_on=["worker-5", "worker-6"])  # fmt: skip
LATER = RunStake(run="lm-b7c1d2", workflow="lm", user="bob", state="running", gpus=2, nodes=["worker-1"], step=90,
                 waits_for="it needs 1 node with 2 free GPUs, and none has them")  # fmt: skip


class KeptClient(FrozenClient):
    """Plans as a controller would, of two runs on each node that is meant; what was asked for is in `asked`."""

    def __init__(self, known: dict[str, Run], told: NodesView) -> None:
        super().__init__(known)
        self.told = told
        self.planned: list[Any] = []
        """Dry runs, in order."""
        self.idle = False
        """Nothing runs on the nodes."""
        self.already: list[str] = []
        """With something here a request changes nothing."""
        self.permits: list[PermitRequest] = []

    async def status(self) -> ControllerStatus:
        self._answer_or_refuse()
        return ControllerStatus(
            version="0", code_digest="", pid=1, user="ray", host="head", python="", started_at=0.0, dashboard="",
            ray="ok", metadata_store="", supervised_by="", you="alice", role="operator",
        )  # fmt: skip

    async def nodes(self) -> NodesView:
        self._answer_or_refuse()
        return self.told

    async def drains(self, limit: int = 50) -> list[Drain]:
        self._answer_or_refuse()
        return self.told.drains

    def _replied(self, verb: Any, request: Any, **more: Any) -> NodesReply:
        self._answer_or_refuse()
        if request.dry_run:
            self.planned.append(request)
        else:
            self.asked.append((verb, ",".join(node.name for node in request.nodes), request))
        runs = [] if self.idle or verb == "uncordon" else [STAKE, LATER]
        count = len(request.nodes)
        plan = NodesPlan(
            action=verb,
            nodes=[NodePlan(name=node.name, address=node.address, runs=runs if at == 0 else [], gpus=4,
                            already=self.already, at_once=False, turn=more.get("turn", lambda _: 1)(at))
                   for at, node in enumerate(request.nodes)],
            nodes_open=4, nodes_open_after=4 + (count if verb == "uncordon" else -count), gpus_open=16,
            gpus_open_after=16 + 4 * (count if verb == "uncordon" else -count),
            waits=["lm-w2q5x2 (bob) waits: 2 nodes with 4 free GPUs each are needed, 1 has them"]
            if verb != "uncordon" else [],
            changes=not self.already,
        )  # fmt: skip
        return NodesReply(plan=plan, view=self.told, drain=DRAIN if verb == "drain" and not request.dry_run else "")

    async def cordon(self, request: CordonRequest) -> NodesReply:
        return self._replied("cordon", request)

    async def uncordon(self, request: UncordonRequest) -> NodesReply:
        return self._replied("uncordon", request)

    async def drain(self, request: DrainRequest) -> NodesReply:
        most = request.policy.most_nodes
        return self._replied("drain", request, turn=lambda at: 1 if most is None else 1 + at // most)

    async def retire(self, request: RetireRequest) -> NodesReply:
        return self._replied("retire", request)

    async def decide(self, drain: str, request: DecideRequest) -> Drain:
        self._answer_or_refuse()
        self.asked.append(("decide", drain, request))
        return self.told.drains[0]

    async def permit(self, request: PermitRequest) -> Permit:
        self.permits.append(request)
        raise Refused("alice is a viewer and may not")

    async def permit_done(self, permit: str, done: PermitDone) -> Permit:
        raise AssertionError("nothing was permitted")


def kept(overdue: bool = False) -> FrozenSession:
    """A head and six workers; see `view`."""
    made = session_of(FrozenSession, workers=6)
    told = view(overdue)
    made.work.take_nodes(told, NOW - 0.4)
    made.client = KeptClient(made.client.known, told)
    made.fleet.take_ray_nodes(
        [
            RayNode(node_id=RAY_IDS[name], node_ip=f"10.0.0.{number + 1}", is_head=name == "head",
                    state="DEAD" if name == "worker-6" else "ALIVE",
                    state_message="health check failed due to missing too many heartbeats",
                    resources_total={"CPU": 64.0, "GPU": 0.0 if name == "head" else 4.0},
                    labels={"raydeck.io/node": name})
            for number, name in enumerate(RAY_IDS)
        ],
        NOW - 1,
    )  # fmt: skip
    for entry in made.context.nodes:
        entry.ray_start = f"ray start --address 10.0.0.1:6379 --node-ip-address {entry.address}"
        entry.accelerators = 4
    return made


def client_of(made: FrozenSession) -> KeptClient:
    """Its controller, as what it is."""
    assert isinstance(made.client, KeptClient)
    return made.client


def leftover(made: FrozenSession, node: str = "worker-2") -> None:
    """A process of a run that is over, one of no run, and the actor that slipped in, beside those of the run."""
    sample = made.fleet.nodes[node].sample
    assert sample is not None
    ended = made.work.runs["lm-k3f9qz"].model_copy(
        update={"id": "old-a1b2c3", "state": RunState.FAILED, "ended_at": WALL - 600}
    )
    made.work.run_changed(ended, NOW)
    sample.processes = [
        *[process for process in sample.processes if process.device == 0],
        Process(1, 3999, "alice", "python lm.py --steps 2000", 12 * GB, "old-a1b2c3", 1, 3, 812, 8120.0),
        Process(2, 3999, "alice", "python lm.py --steps 2000", 10 * GB, "old-a1b2c3", 1, 3, 812, 8120.0),
        Process(2, 6120, "dave", "jupyter kernel", 3 * GB, "", 0, None, 990, 86_400.0),
        Process(3, 7001, "bob", "ray::Tuner.step", 30 * GB, "", 0, None, 1000, 95.0),
    ]
