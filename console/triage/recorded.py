"""What the head has recorded of the last minutes: what happened, how often a node went away, its samples."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from jobs.client import ControllerClient
from jobs.recordcalls import RecordCalls
from jobs.recording import BadRecording, samples_of, segments
from jobs.recordview import Mark

EVERY_SECONDS = 5.0
"""Between two samples of a bundle."""
AWAY = (": SSH lost", ": Ray dead", ": Ray absent")


async def marks_of(client: ControllerClient) -> list[Mark]:
    """What happened, as far back as is recorded. Raises as every call to the controller."""
    return (await RecordCalls.beside(client).recording_index()).marks


def times_lost(marks: Sequence[Mark], node: str, since: float) -> int:
    """How often a node was told to have gone away since then."""
    return sum(
        mark.kind == "node" and mark.target == node and mark.at >= since and any(word in mark.text for word in AWAY)
        for mark in marks
    )


async def samples_lately(client: ControllerClient, nodes: Sequence[str], since: float, until: float) -> list[Any]:
    """Some nodes' samples as lines of NDJSON have them, thinned. Raises as every call to the controller."""
    pieces = [piece async for piece in RecordCalls.beside(client).recording(since, until)]
    return await asyncio.to_thread(lambda: list(_rows(b"".join(pieces), nodes, since, until)))


def _rows(data: bytes, nodes: Sequence[str], since: float, until: float) -> Iterator[dict[str, Any]]:
    try:
        parts = segments(data)
        for node in nodes:
            due = since
            for at, then in samples_of(parts, node, since, until):
                sample = then.sample() if at >= due else None
                if sample is not None:
                    due = at + EVERY_SECONDS
                    host = {"cpu_percent": sample.host.cpu_percent, "memory_used_bytes": sample.host.memory_used_bytes}
                    yield {"at": round(at, 3), "node": node, "driver": sample.driver.state, "index": sample.index,
                           "columns": sample.columns, "host": host}  # fmt: skip
    except BadRecording as error:
        yield {"at": until, "node": "", "unread": error.sentence}
