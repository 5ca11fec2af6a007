"""The controller's word before something is done to a node over SSH, and telling it afterwards what came of it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from console.render.redact import redact
from jobs.client import ControllerClient
from jobs.errors import RaydeckError, Refused, Unreachable
from jobs.nodeview import NodeRef
from jobs.wire import PermitDone, PermitRequest
from jobs.within import within

Action = Literal["ray start", "ray stop", "end processes"]

DETAIL_LETTERS = 1000
OUTCOME_LETTERS = 1000
TELL_PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Between the tries to tell what came of it: a controller that is started anew takes seconds."""
INTERRUPTED_SECONDS = 2.0
"""How long somebody who interrupts it waits for that."""


@dataclass(slots=True)
class Outcome:
    """What came of it, for the audit; set by whoever does it."""

    words: str = ""
    ok: bool = True
    """Whether all was done that was asked for; an exception makes it false by itself."""


@asynccontextmanager
async def permitted(
    client: ControllerClient, node: NodeRef, action: Action, detail: str, reason: str, tell: Callable[[str], None]
) -> AsyncGenerator[Outcome]:
    """Do something to a node once the controller has allowed it and written it down.

    Raises `Refused` and what else the controller says, `Unreachable` where none answers: nothing is done then.
    """
    request = PermitRequest(
        request_id=secrets.token_hex(8), node=node, action=action, detail=_bounded(detail, DETAIL_LETTERS),
        reason=reason,
    )  # fmt: skip
    try:
        permit = await client.permit(request)
    except Unreachable as error:
        raise Unreachable(
            f"nothing was done to {node.name}, since the controller has to allow it and write it down first: "
            f"{error.sentence}",
            error.hint,
        ) from error
    except RaydeckError as error:
        raise type(error)(f"nothing was done to {node.name}: {error.sentence}", error.hint) from error
    outcome = Outcome()
    try:
        yield outcome
    except RaydeckError as error:
        if trouble := await _told(client, permit.id, PermitDone(ok=False, outcome=_words(error.sentence))):
            raise type(error)(f"{error.sentence.rstrip('.')}; {trouble}", error.hint) from error
        raise
    except BaseException as error:
        # Interrupted, or gone wrong in a way that nobody thought of: that it was begun must not stand there alone.
        done = PermitDone(ok=False, outcome=_words(f"not known: it was broken off ({type(error).__name__})"))
        try:
            await within(_told(client, permit.id, done), INTERRUPTED_SECONDS)
        except asyncio.TimeoutError:
            tell("the controller could not be told that it was broken off")
        raise
    if trouble := await _told(client, permit.id, PermitDone(ok=outcome.ok, outcome=_words(outcome.words or "done"))):
        tell(trouble)


async def _told(client: ControllerClient, permit: str, done: PermitDone) -> str:
    """Tell it, for a few seconds again and again; what kept us from that, if anything."""
    why = ""
    for pause in (0.0, *TELL_PAUSES):
        await asyncio.sleep(pause)
        try:
            await client.permit_done(permit, done)
        except Refused as error:
            return f"the audit does not have its outcome: {error.sentence}"
        except RaydeckError as error:
            why = error.sentence
        else:
            return ""
    return f"the audit does not have its outcome: {why}"


def _words(text: str) -> str:
    return _bounded(redact(text), OUTCOME_LETTERS)


def _bounded(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
