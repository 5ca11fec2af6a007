"""Whether a node that Ray has as alive answers at all: Ray itself takes a minute to find out.

Asked at the raylet's own port, from the head. A refusal is an end too: the machine is there, and its raylet is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from jobs.controller.engine import Engine
from jobs.errors import RaydeckError
from jobs.within import within

log = logging.getLogger(__name__)

CONNECT_SECONDS = 1.0
TRIES = 2
"""A packet may be lost; a node that is gone answers none of them."""
AT_ONCE = 32


async def silent(engine: Engine, node_ids: Sequence[str]) -> set[str]:
    """Those of these nodes that do not answer. One of which Ray does not say where it listens counts as answering."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def ask(node_id: str) -> bool:
        async with slots:
            try:
                where = await engine.raylet(node_id)
            except RaydeckError as error:
                log.info("where the raylet of %s listens is not known: %s", node_id[:8], error)
                return True
            return where is None or await answers(where.address, where.port)

    told = await asyncio.gather(*(ask(node_id) for node_id in node_ids))
    return {node_id for node_id, there in zip(node_ids, told, strict=True) if not there}


async def answers(address: str, port: int) -> bool:
    """Whether somebody takes a connection there."""
    for _ in range(TRIES):
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            _, writer = await within(asyncio.open_connection(address, port), CONNECT_SECONDS)
            writer.close()
            return True
    return False
