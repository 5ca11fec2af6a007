"""What the controller says of its recording: which minutes there are, and what happened in them. Light."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Mark(_Model):
    """A moment that somebody may want to go to."""

    at: float
    """Seconds since 1970, by the head's clock."""
    kind: Literal["alert", "cleared", "run", "node", "event", "note"]
    text: str = Field(max_length=400)
    level: Literal["critical", "warning", "info"] = "info"
    target: str = ""
    """The node, run or alert that it is about."""


class SegmentInfo(_Model):
    """One segment of a recording: a minute or two, whole in itself."""

    seq: int
    """Goes up from segment to segment, also where the clock went back."""
    since: float
    until: float
    """Of its newest entry."""
    bytes: int
    complete: bool = True
    """False for the one that is still written."""
    marks: list[Mark] = Field(default_factory=list)


class RecordingIndex(_Model):
    """All that is recorded, oldest first."""

    segments: list[SegmentInfo] = Field(default_factory=list)
    now: float = 0.0
    """The head's clock when this was told."""
    trouble: str = ""
    """Why nothing is recorded at the moment; empty while it is."""
    dropped: int = 0
    """So many entries were not taken since the controller started: too many at once, or senseless."""

    @property
    def marks(self) -> list[Mark]:
        """Of all segments, in the order of time."""
        return sorted((mark for segment in self.segments for mark in segment.marks), key=lambda mark: mark.at)
