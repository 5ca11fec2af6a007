"""Freezes a workflow into a release, and tells what differs between two. Pure.

A release holds every default, so that a later version of raydeck with other defaults does not change what it means.
References to secrets stay references.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.spec import Workflow
from jobs.wire import Release

DIGITS = 8
"""Of the digest, in an id: two of a thousand releases of one workflow share it once in ten thousand times."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs between two releases. ``None`` stands where one of them has nothing."""

    path: str
    """Such as ``training.batch_size``, or ``code_digest``."""
    old: Any
    new: Any


def freeze(
    workflow: Workflow,
    *,
    code_digest: str,
    user: str,
    at: float | None = None,
    environment: Mapping[str, str] | None = None,
    data_digest: str = "",
) -> Release:
    """The release that this workflow is with this code on this data. The same three give the same id, whoever asks
    and whenever.

    ``code_digest`` is `jobs.package.Package.code_digest`, of the operator's files alone; ``data_digest`` the SHA-256 of
    the data's manifest, empty where none is known. ``at`` is in seconds since 1970 (now, if not given).
    ``environment`` is the fingerprint of where it was made; it is recorded, and is no part of the id.
    """
    config = workflow.model_dump(mode="json")
    identity = json.dumps(
        [config, code_digest, workflow.data.version, data_digest], sort_keys=True, separators=(",", ":")
    )
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return Release(
        id=f"{workflow.name}-r-{digest[:DIGITS]}",
        workflow=workflow.name,
        created_at=time.time() if at is None else at,
        user=user,
        config=config,
        code_digest=code_digest,
        environment=dict(environment or {}),
        data_version=workflow.data.version,
        data_digest=data_digest,
        seed=workflow.seed,
    )


def difference(old: Release, new: Release) -> list[Change]:
    """What a step from one release to the other changes, by path. Who made them and when is no difference."""
    before, after = _contents(old), _contents(new)
    changes = [
        Change(path, before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if not _same(before.get(path), after.get(path))
    ]
    # An empty mapping that was filled, or the other way round, is told by what is in it.
    return [
        change
        for change in changes
        if {} not in (change.old, change.new) or not any(one.path.startswith(f"{change.path}.") for one in changes)
    ]


def _contents(release: Release) -> dict[str, Any]:
    """All that a release is made of, by path."""
    return {
        "code_digest": release.code_digest,
        "data_digest": release.data_digest,
        **dict(_leaves(release.config)),
        **dict(_leaves(release.environment, "environment")),
    }


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value below, with its path; a list counts as one value, and so does an empty mapping."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def _same(old: Any, new: Any) -> bool:
    """Equal, and of one kind: 1 is not true."""
    return old == new and isinstance(old, bool) == isinstance(new, bool)
