"""The two routes about the recording: which minutes there are, and their bytes as they are."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import BinaryIO

from aiohttp import web

from jobs.controller.recorder import Recorder
from jobs.errors import Usage
from jobs.within import within

PIECE_BYTES = 256 * 1024
LISTENER_SECONDS = 10.0
"""Whoever takes nothing for so long is dropped."""


async def recording_index(recorder: Recorder, request: web.Request) -> web.Response:
    """``GET /v1/recording/index`` → `RecordingIndex`. What was told just now is in it."""
    await recorder.fresh()
    return web.Response(text=recorder.index().model_dump_json(), content_type="application/json")


async def recording(recorder: Recorder, request: web.Request) -> web.StreamResponse:
    """``GET /v1/recording?since=&until=``: the segments of this span (seconds since 1970), one after the other.

    That is a ``.rdrec`` file. Raises `Usage` for a span that is none.
    """
    since, until = _seconds(request, "since", 0.0), _seconds(request, "until", 1e12)
    if until < since:
        raise Usage("until lies before since")
    await recorder.fresh()
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream", "Cache-Control": "no-store"})
    await response.prepare(request)
    try:
        for path in recorder.files(since, until):
            await _send(response, path)
        await within(response.write_eof(), LISTENER_SECONDS)
    except asyncio.TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    return response


async def _send(response: web.StreamResponse, path: Path) -> None:
    try:
        file: BinaryIO = await asyncio.to_thread(path.open, "rb")
    except FileNotFoundError:
        return  # it became too old in the meantime
    try:
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            await within(response.write(piece), LISTENER_SECONDS)
    finally:
        file.close()


def _seconds(request: web.Request, name: str, otherwise: float) -> float:
    text = request.query.get(name, "")
    try:
        value = float(text) if text else otherwise
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise Usage(f"{name} is no number of seconds: {text[:40]!r}")
    return value
