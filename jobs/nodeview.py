"""What the controller says about nodes that are kept free of work: holds, drains, who is there, what a plan does."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore")


class NodeRef(_Message):
    """A node as a person means it, with what else is known of it: it is found again after Ray gave it a new id."""

    name: str = Field(min_length=1, max_length=253)
    """As on screen: its label ``raydeck.io/node``, Ray's name for it, its address, or (the start of) its Ray id."""
    address: str = ""
    machine_id: str = Field(default="", max_length=64)
    """What its ``/etc/machine-id`` says; empty if that is not known."""


class Hold(_Message):
    """One cordon of one node, by one person."""

    id: str
    node: str
    """The node's name."""
    user: str
    at: float
    """Seconds since 1970, by the head's clock."""
    reason: str = ""
    until: float | None = None
    """When it ends by itself; None: when somebody takes it back."""
    kind: Literal["cordon", "drain", "retire"] = "cordon"
    drain: str = ""
    """The drain that it belongs to."""
    gpus: bool = False
    """Whether idle GPUs are held in Ray as well, so that others' work stays off: best effort."""

    @property
    def sentence(self) -> str:
        """Who and why, for the screen."""
        verb = {"cordon": "cordoned", "drain": "drained", "retire": "retired"}[self.kind]
        return f"{verb} by {self.user}" + (f": {self.reason}" if self.reason else "")


class GpuHold(_Message):
    """How far a held node's idle GPUs are taken. Best effort: what waits in Ray already goes first."""

    wanted: int
    held: int = 0
    trouble: str = ""
    """Why it is not known, or not as wanted."""


class Other(_Message):
    """Work in Ray on a held node that raydeck did not start."""

    kind: str
    """``actor``, ``task`` or ``placement group``."""
    id: str
    name: str = ""
    job: str = ""
    """Ray's submission id of its job, or the job id."""
    pid: int | None = None
    gpus: float = 0.0
    cpus: float = 0.0
    slipped: bool = False
    """It came after the node was cordoned."""
    since: float | None = None
    """When it was first seen, or began where Ray says so."""

    @property
    def sentence(self) -> str:
        """What it is, in words."""
        named = f"{self.kind} {self.name or self.id[:8]}"
        job = f" of job {self.job}" if self.job else ""
        holds = f", {self.gpus:g} GPU{'' if self.gpus == 1 else 's'}" if self.gpus else ", no GPU"
        return f"{named}{job}{holds}"


NodeState = Literal["open", "cordoned", "waiting", "draining", "drained", "retiring", "retired"]
"""``waiting``: its drain has not begun, for as many others are away as may be; ``drained``: it holds no run of ours."""


class NodeView(_Message):
    """One node of which there is more to say than that it takes work."""

    name: str
    address: str = ""
    node_id: str = ""
    """Ray's id; empty for one that is not in Ray now."""
    machine_id: str = ""
    ray: Literal["alive", "dead", "unknown"] = "unknown"
    """``unknown``: Ray does not answer the controller."""
    state: NodeState = "open"
    holds: list[Hold] = Field(default_factory=list[Hold])
    gpu_hold: GpuHold | None = None
    others: list[Other] = Field(default_factory=list[Other])
    runs: list[str] = Field(default_factory=list)
    """Runs of raydeck's that hold something there."""
    gpus: float | None = None
    drain: str = ""
    """The drain that it is part of."""
    note: str = ""
    """What is being done, or waited for, in words."""
    ray_draining_until: float | None = None
    """Ray's own drain, which a retire begins: by when; 0 without an end."""

    @property
    def slipped(self) -> list[Other]:
        """What landed there although it is held."""
        return [each for each in self.others if each.slipped]


class DrainPolicy(_Message):
    """How a drain goes about it."""

    deadline_seconds: float = Field(default=1800.0, ge=0, le=30 * 86400)
    """For each node, from the moment its turn comes."""
    at_deadline: Literal["wait", "stop", "give_up"] = "wait"
    """What then follows for a run that has not left: wait on, end it at once, or give the node up (it stays cordoned).
    With ``wait`` an operator may still choose."""
    others: Literal["leave", "stop"] = "leave"
    """What raydeck did not start: listed and left alone, or ended too."""
    most_nodes: int | None = Field(default=None, ge=1)
    """So many nodes may be away at a time, those that were away before included."""
    most_share: float | None = Field(default=None, gt=0, le=1)
    """And this share of the accelerators of the cluster."""
    check_seconds: float = Field(default=30.0, ge=0, le=3600)
    """For so long an empty node has to stay empty."""
    gpus: bool = False
    """Hold idle GPUs as well, see `Hold.gpus`."""
    gone: bool = False
    """A person says that these nodes are off: no process of theirs can still write."""


class DrainRun(_Message):
    """One run that had to leave, and what became of it."""

    run: str
    attempt: int
    workflow: str = ""
    user: str = ""
    nodes: list[str] = Field(default_factory=list)
    """All nodes of its gang, by name."""
    state: Literal["asked", "saving", "left", "ended", "again"] = "asked"
    """``left``: back in the queue; ``again``: runs elsewhere; ``ended``: over for good, with ``note`` why."""
    asked_at: float | None = None
    left_at: float | None = None
    again_at: float | None = None
    step: int | None = None
    """The last step that it reported before it left."""
    saved_step: int | None = None
    """The checkpoint that it left with."""
    again_on: list[str] = Field(default_factory=list)
    note: str = ""

    @property
    def lost_steps(self) -> int | None:
        """How many steps have to be done again; None as long as it has not left, or did not say."""
        if self.left_at is None or self.step is None:
            return None
        return max(0, self.step - (self.saved_step or 0))


class DrainNode(_Message):
    """One node's part of a drain."""

    node: NodeRef
    node_id: str = ""
    """Ray's id when its turn came."""
    state: Literal["waiting", "moving", "checking", "empty", "stopped", "given up"] = "waiting"
    """``checking``: empty, and looked at for a while whether it stays so."""
    began_at: float | None = None
    deadline_at: float | None = None
    overdue: bool = False
    """Its deadline has passed, and somebody has to choose."""
    empty_since: float | None = None
    ended_at: float | None = None
    runs: list[DrainRun] = Field(default_factory=list[DrainRun])
    others: list[Other] = Field(default_factory=list[Other])
    """What raydeck did not start, as it is now."""
    dead: bool = False
    """It did not answer, or a person said that it is off: nothing was waited for."""
    note: str = ""

    @property
    def over(self) -> bool:
        """Nothing more is done for it."""
        return self.state in ("empty", "stopped", "given up")


class Drain(_Message):
    """Moving the work off one or several nodes."""

    id: str
    at: float
    user: str
    reason: str = ""
    policy: DrainPolicy = DrainPolicy()
    nodes: list[DrainNode]
    state: Literal["running", "done", "stopped", "given up"] = "running"
    ended_at: float | None = None
    ended_by: str = ""

    @property
    def lost_steps(self) -> int:
        """Of all its runs, as far as they told."""
        return sum(each.lost_steps or 0 for node in self.nodes for each in node.runs)


class NodesView(_Message):
    """All nodes of which there is more to say than that they take work, and the drains that go on or ended last."""

    nodes: list[NodeView] = Field(default_factory=list[NodeView])
    drains: list[Drain] = Field(default_factory=list[Drain])
    """Newest first; bounded."""
    alerts: list[str] = Field(default_factory=list)
    """What an operator should know, a sentence each: work that slipped in, a node that did not stay empty."""

    def node(self, name: str) -> NodeView | None:
        """The node of this name, if there is anything to say of it."""
        return next((each for each in self.nodes if each.name == name), None)


# --- what a request would do ------------------------------------------------------------------------------------------


class RunStake(_Message):
    """A run on a node that somebody is about to touch."""

    run: str
    workflow: str = ""
    user: str = ""
    state: str = ""
    gpus: int = 0
    nodes: list[str] = Field(default_factory=list)
    """All that its gang is on, by name."""
    step: int | None = None
    checkpoint_step: int | None = None
    restarts_on: list[str] = Field(default_factory=list)
    """For a drain: where it starts again at once; empty where it has to wait."""
    waits_for: str = ""
    """For a drain: why it would have to wait."""


class NodePlan(_Message):
    """What a request does to one node."""

    name: str
    address: str = ""
    known: bool = True
    """Ray has it, now or before."""
    alive: bool = True
    at_once: bool = False
    """It does not answer: a drain of it waits for nothing."""
    already: list[str] = Field(default_factory=list)
    """What of it is so already, a sentence each."""
    runs: list[RunStake] = Field(default_factory=list[RunStake])
    others: list[Other] = Field(default_factory=list[Other])
    gpus: float | None = None
    turn: int = 1
    """In which round of a drain with a limit it comes."""


class NodesPlan(_Message):
    """What a request does, or (for a dry run) would do: the same computation."""

    action: Literal["cordon", "uncordon", "drain", "retire"]
    nodes: list[NodePlan]
    nodes_open: int = 0
    """Nodes that take new work now."""
    nodes_open_after: int = 0
    gpus_open: float = 0.0
    """Accelerators on nodes that take new work now."""
    gpus_open_after: float = 0.0
    waits: list[str] = Field(default_factory=list)
    """Queued runs that have to wait for it, or can no longer start at all until a node comes back; a sentence each."""
    notes: list[str] = Field(default_factory=list)
    """What else a person should know, a sentence each."""
    changes: bool = True
    """Whether anything changes at all."""
