"""What a route is given, and how it answers. It decides nothing."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from jobs.controller.access import Caller
from jobs.controller.nodes.asked import listed
from jobs.errors import Usage
from jobs.nodeview import NodeRef

M = TypeVar("M", bound=BaseModel)


@dataclass(slots=True)
class Asking:
    """Who asks, and what the audit calls it if it is refused. A handler knows more of that than its route."""

    caller: Caller
    action: str
    dry_run: bool = False
    target: str = ""
    """What it is about, where the path does not say it."""

    def about(self, nodes: Sequence[NodeRef], dry_run: bool) -> None:
        """It is about these nodes."""
        self.target, self.dry_run = listed([node.name for node in nodes]), dry_run


Handler = Callable[[web.Request, Asking], Awaitable[web.StreamResponse]]
Route = tuple[str, str, Handler, str]
"""Method, path, handler, and what the audit calls a refusal; empty for what only looks."""


def told(message: BaseModel, status: int = 200) -> web.Response:
    """One thing."""
    return web.Response(text=message.model_dump_json(), status=status, content_type="application/json")


def listing(
    key: str, messages: Sequence[BaseModel], more: Mapping[str, str] | None = None, status: int = 200
) -> web.Response:
    """A list under its key, and what is said besides."""
    rows = ",".join(message.model_dump_json() for message in messages)
    rest = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in (more or {}).items())
    return web.Response(text=f'{{"{key}":[{rows}]{rest}}}', status=status, content_type="application/json")


def number(request: web.Request, name: str, default: int, most: int, least: int = 1) -> int:
    """A parameter of the query. Raises `Usage`."""
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise Usage(f"{name} must be a number from {least} to {most}")
    return int(text)


async def body(request: web.Request, model: type[M]) -> M:
    """The request's body. Raises `Usage`, naming the field."""
    try:
        return model.model_validate(json.loads(await request.read()))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise Usage(f"the request makes no sense: {where}: {first['msg']}") from error
    except ValueError as error:
        raise Usage("the request is not JSON") from error
