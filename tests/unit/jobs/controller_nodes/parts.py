"""Short ways to write down nodes, runs and drains."""

from __future__ import annotations

from typing import Any

from jobs.controller.nodes.drainstep import SeenNode
from jobs.model import Attempt, GangStatus, Outcome, Progress, Run, RunState
from jobs.nodeview import Drain, DrainNode, DrainPolicy, NodeRef, Other
from jobs.raymodel import RayNode

NOW = 1_700_000_000.0


def ray_node(name: str, node_id: str = "", ip: str = "", alive: bool = True, gpus: float = 4, **rest: Any) -> RayNode:
    return RayNode(
        node_id=node_id or f"id-{name}",
        node_ip=ip or f"10.0.0.{len(name)}",
        node_name=name,
        state="ALIVE" if alive else "DEAD",
        resources_total={"GPU": gpus, "CPU": 8.0},
        labels={"raydeck.io/node": name},
        **rest,
    )


def run(name: str, on: str = "", number: int = 1, state: RunState = RunState.RUNNING, **rest: Any) -> Run:
    """A run with so many attempts, the newest on the nodes named in ``on``."""
    attempts = [Attempt(number=each, job_id=f"raydeck-{name}-a{each}", ended_at=NOW) for each in range(1, number)]
    step, saved = rest.pop("step", None), rest.pop("saved", None)
    status = GangStatus(progress=Progress(step=step) if step is not None else None, checkpoint_step=saved)
    attempts.append(
        Attempt(
            number=number,
            job_id=f"raydeck-{name}-a{number}",
            nodes=on.split(),
            started_at=NOW,
            status=status,
            state=state,
        )
    )
    return Run(
        id=name,
        workflow="lm",
        release="r1",
        state=state,
        user="ann",
        nodes=1,
        gpus=4,
        submitted_at=NOW,
        attempts=attempts,
        **rest,
    )


def left(was: Run, step: int | None = None, saved: int | None = None, state: RunState = RunState.QUEUED) -> Run:
    """The same run after its newest attempt has left."""
    *before, last = was.attempts
    outcome = Outcome(verdict="stopped", last_step=step, checkpoint_step=saved)
    done = last.model_copy(update={"ended_at": NOW + 5, "outcome": outcome, "state": RunState.PREEMPTED})
    return was.model_copy(update={"state": state, "attempts": [*before, done]})


def other(name: str, gpus: float = 1.0, **rest: Any) -> Other:
    return Other(kind="actor", id=f"actor-{name}", name=name, gpus=gpus, **rest)


def drain(*nodes: str, **policy: Any) -> Drain:
    return Drain(
        id="d-1",
        at=NOW,
        user="ann",
        policy=DrainPolicy(**policy),
        nodes=[DrainNode(node=NodeRef(name=node, address=f"a-{node}")) for node in nodes],
    )


def seen(**changes: Any) -> SeenNode:
    given: dict[str, Any] = {"held": True, "node_id": "id", "ray": "alive", "gpus": 4.0, **changes}
    return SeenNode(**given)
