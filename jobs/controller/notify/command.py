"""Notices by a command of the operator's own: JSON on its standard input, the main things in its environment.

The command gets what `jobs.controller.notify.bodies` calls our own JSON, and RAYDECK_ALERT_KEY, _KIND, _ID, _RULE,
_LEVEL, _STATE, _TITLE, _NODES, _RUN, _CLUSTER, _SUBJECT and _TEXT. It ends with 0 once it has told; anything else is
tried again, with the same key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping

from jobs.alertspec import Sink
from jobs.controller.notify import bodies
from jobs.controller.notify.notice import Failed, Notice
from jobs.controller.notify.words import clean, message, subject
from jobs.within import within

RUN_SECONDS = 30.0
GONE_SECONDS = 2.0
OUTPUT_BYTES = 1024
"""Of what it says, the last so many bytes are kept."""
SAID_SIGNS = 200
VALUE_SIGNS = 4096


class CommandWay:
    """One command."""

    def __init__(
        self, sink: Sink, cluster: str, environ: Mapping[str, str] = os.environ, run_seconds: float = RUN_SECONDS
    ) -> None:
        self._argv = list(sink.command)
        self._cluster = cluster
        self._environ = environ
        self._run_seconds = run_seconds
        self.limit_seconds = run_seconds + GONE_SECONDS + 3
        self.where = f"command {sink.name}"

    async def send(self, notice: Notice) -> str:
        """One try. Raises `Failed`."""
        name = clean(os.path.basename(self._argv[0]), 80)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**self._environ, **self._told(notice)},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "its arguments are not allowed"
            raise Failed(f"{name} cannot be started: {why}") from None
        said = bytearray()
        body = json.dumps(bodies.generic(notice, self._cluster)).encode() + b"\n"
        try:
            await within(_exchange(process, body, said), self._run_seconds)
        except asyncio.TimeoutError:
            # One that ended and left somebody behind who holds its output has ended all the same.
            if process.returncode is None:
                raise Failed(f"{name} did not end within {self._run_seconds:g} s{_words(said)}") from None
        finally:
            await _end(process)
        if process.returncode:
            code = process.returncode
            how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            raise Failed(f"{name} {how}{_words(said)}")
        return f"{name} took it"

    def _told(self, notice: Notice) -> dict[str, str]:
        alert = notice.alert
        values = {
            "KEY": notice.key,
            "KIND": notice.kind,
            "ID": alert.id,
            "RULE": alert.rule,
            "LEVEL": alert.level,
            "STATE": alert.state,
            "TITLE": alert.title,
            "NODES": " ".join(alert.nodes),
            "RUN": alert.run,
            "CLUSTER": self._cluster,
            "SUBJECT": subject(notice),
        }
        told = {f"RAYDECK_ALERT_{name}": clean(value, VALUE_SIGNS) for name, value in values.items()}
        return {**told, "RAYDECK_ALERT_TEXT": message(notice, self._cluster)[:VALUE_SIGNS]}


async def _exchange(process: asyncio.subprocess.Process, body: bytes, said: bytearray) -> None:
    """Gives it the body, takes what it says, and waits for its end."""
    assert process.stdin is not None
    feed = asyncio.create_task(_feed(process.stdin, body), name="what a command of an alert reads")
    try:
        await _listen(process, said)
        await process.wait()
    finally:
        feed.cancel()
        await asyncio.wait({feed})


async def _feed(stdin: asyncio.StreamWriter, body: bytes) -> None:
    # One that reads nothing is fine too.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stdin.write(body)
        await stdin.drain()
        stdin.close()


async def _listen(process: asyncio.subprocess.Process, said: bytearray) -> None:
    assert process.stdout is not None
    while piece := await process.stdout.read(4096):
        said += piece
        del said[:-OUTPUT_BYTES]


async def _end(process: asyncio.subprocess.Process) -> None:
    """Nothing of it is left, nor of what it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(asyncio.TimeoutError):
        await within(process.wait(), GONE_SECONDS)
    # Whoever has left its group may still hold the pipes; we do not.
    process._transport.close()  # pyright: ignore[reportAttributeAccessIssue]


def _words(said: bytearray) -> str:
    words = clean(bytes(said[-SAID_SIGNS * 2 :]).decode("utf-8", "replace"), SAID_SIGNS * 2)
    return f": {words[-SAID_SIGNS:]}" if words else ""
