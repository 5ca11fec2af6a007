"""What the controller and its hand in Ray tell each other. No ray: both sides read it."""

from __future__ import annotations

from dataclasses import dataclass

NAMESPACE = "raydeck"
"""In Ray: what is made there is found again by its name in it."""
HOLD_PREFIX = "raydeck-hold-"
"""How a placement group that keeps a GPU idle is named: this, the node's id, a dash and a number."""

WATCH_PREFIX = "raydeck-watch-"
"""How an actor is named that keeps a probe on a node: this, the node's id, a dash and a number."""


@dataclass(frozen=True, slots=True)
class HoldSeen:
    """How far a node's GPUs are kept idle."""

    wanted: int
    held: int
    """Nobody else can use these."""
    pending: int = 0
    """Groups that wait until a GPU is free: whoever waited for it before them goes first."""


@dataclass(frozen=True, slots=True)
class DrainSeen:
    """What became of Ray's own drain, once Ray had accepted it."""

    draining: bool
    dead: bool
    """It has left already."""

    @property
    def sentence(self) -> str:
        """In words."""
        if self.dead:
            return "it was idle and has left Ray"
        if self.draining:
            return "Ray drains it: it takes nothing new, and leaves Ray when what is on it has gone"
        return "Ray accepted the drain, and does not show it"


class Mistake(Exception):
    """What was asked for makes no sense; the text is a sentence."""


class AnotherHead(Exception):
    """Ray's head was started anew: nothing that is known of it holds any more."""


class RayFailed(Exception):
    """Ray could not do it, and may do it later; the text says why."""
