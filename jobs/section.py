"""What every mapping in a workflow file and a cluster file has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping in a file. Values keep their YAML types: a text never turns into a number by itself."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
