"""Holds, drains and plans as the JSON that scripts read: stable names with units. Names are only ever added."""

from __future__ import annotations

from typing import Any

from console.state.fleet import Node
from console.state.nodes import NodesStore
from jobs.nodeview import Drain, DrainNode, Hold, NodePlan, NodesPlan, NodeView, Other, RunStake


def standing_document(node: Node, nodes: NodesStore) -> dict[str, Any]:
    """Whether a node takes new work: ``cordoned, holds, state, drain, held_note``; null where nobody has said."""
    if nodes.view is None:
        return {"cordoned": None, "holds": None, "state": None, "drain": None, "held_note": None}
    found = nodes.of(node)
    if found is None:
        return {"cordoned": False, "holds": [], "state": "open", "drain": None, "held_note": None}
    return {
        "cordoned": bool(found.holds),
        "holds": [hold_document(hold) for hold in found.holds],
        "state": found.state,
        "drain": found.drain or None,
        "held_note": found.note or None,
    }


def hold_document(hold: Hold) -> dict[str, Any]:
    """One hold: ``user, at, reason, until, kind`` …"""
    return {
        "user": hold.user,
        "at": hold.at,
        "reason": hold.reason,
        "until": hold.until,
        "kind": hold.kind,
        "drain": hold.drain or None,
        "gpus": hold.gpus,
    }


def held_document(view: NodeView) -> dict[str, Any]:
    """A node of which there is more to say than that it takes work."""
    return {
        "node": view.name,
        "address": view.address,
        "ray_node_id": view.node_id or None,
        "ray": view.ray,
        "state": view.state,
        "holds": [hold_document(hold) for hold in view.holds],
        "gpu_hold": view.gpu_hold.model_dump() if view.gpu_hold is not None else None,
        "others": [other_document(other) for other in view.others],
        "runs": view.runs,
        "gpus": view.gpus,
        "drain": view.drain or None,
        "note": view.note,
        "ray_draining_until": view.ray_draining_until,
    }


def other_document(other: Other) -> dict[str, Any]:
    """Work in Ray that raydeck did not start."""
    return {
        "kind": other.kind,
        "id": other.id,
        "name": other.name,
        "job": other.job or None,
        "pid": other.pid,
        "gpus": other.gpus,
        "cpus": other.cpus,
        "slipped": other.slipped,
        "since": other.since,
    }


def plan_document(plan: NodesPlan, *, dry_run: bool, drain: str = "") -> dict[str, Any]:
    """What a request about nodes did, or would do: ``action, dry_run, changes, nodes, nodes_open_after, waits`` …"""
    return {
        "action": plan.action,
        "dry_run": dry_run,
        "changes": plan.changes,
        "drain": drain or None,
        "nodes": [_planned(node) for node in plan.nodes],
        "nodes_open": plan.nodes_open,
        "nodes_open_after": plan.nodes_open_after,
        "gpus_open": plan.gpus_open,
        "gpus_open_after": plan.gpus_open_after,
        "waits": plan.waits,
        "notes": plan.notes,
    }


def _planned(node: NodePlan) -> dict[str, Any]:
    return {
        "node": node.name,
        "address": node.address,
        "known": node.known,
        "alive": node.alive,
        "at_once": node.at_once,
        "already": node.already,
        "runs": [_stake(stake) for stake in node.runs],
        "others": [other_document(other) for other in node.others],
        "gpus": node.gpus,
        "turn": node.turn,
    }


def _stake(stake: RunStake) -> dict[str, Any]:
    return {
        "run": stake.run,
        "workflow": stake.workflow,
        "user": stake.user,
        "state": stake.state,
        "gpus": stake.gpus,
        "nodes": stake.nodes,
        "step": stake.step,
        "checkpoint_step": stake.checkpoint_step,
        "restarts_on": stake.restarts_on,
        "waits_for": stake.waits_for or None,
    }


def drain_document(drain: Drain) -> dict[str, Any]:
    """One drain: ``id, state, user, reason, nodes`` (with their runs), ``lost_steps`` …"""
    return {
        "id": drain.id,
        "state": drain.state,
        "at": drain.at,
        "user": drain.user,
        "reason": drain.reason,
        "ended_at": drain.ended_at,
        "ended_by": drain.ended_by or None,
        "lost_steps": drain.lost_steps,
        "policy": drain.policy.model_dump(),
        "nodes": [_drained(node) for node in drain.nodes],
    }


def _drained(node: DrainNode) -> dict[str, Any]:
    return {
        "node": node.node.name,
        "address": node.node.address,
        "state": node.state,
        "began_at": node.began_at,
        "deadline_at": node.deadline_at,
        "overdue": node.overdue,
        "empty_since": node.empty_since,
        "ended_at": node.ended_at,
        "dead": node.dead,
        "note": node.note,
        "runs": [{**run.model_dump(), "lost_steps": run.lost_steps} for run in node.runs],
        "others": [other_document(other) for other in node.others],
    }
