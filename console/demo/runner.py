"""The console's side of a demo: starts the keeper, hears its steps, and lets go of it. Imports nothing heavy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

from console.settings import Context, context_from_json
from jobs.errors import Refused, Unreachable
from jobs.within import within

END_LIMIT_SECONDS = 20.0
NEEDED = "Install it with: pip install 'raydeck[local]'"


class Demo:
    """One demo. `events` until ``ready``; `close` ends it and waits until nothing is left."""

    def __init__(self, hosts: bool = False) -> None:
        """``hosts``: on several hosts of their own, made of namespaces; takes root, on Linux."""
        self._hosts = hosts
        self._keeper: asyncio.subprocess.Process | None = None
        self._errors: IO[bytes] | None = None
        self.ready: dict[str, Any] | None = None

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """What the keeper says while it starts: ``step`` …, then ``ready``. Raises `Refused` if it fails."""
        self._require_local()
        if self._hosts:
            from console.demo.hosts.net import why_not

            if missing := why_not():
                raise Refused(f"a demo on several hosts cannot run here: {missing}")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        # A session of its own: Ctrl-C and a closed terminal reach the console, and the closed pipe then ends the demo.
        self._keeper = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "console.demo.keeper",
            *(["--hosts"] if self._hosts else []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            limit=1024 * 1024,
        )
        assert self._keeper.stdout is not None
        while line := await self._keeper.stdout.readline():
            body = json.loads(line)
            if body["event"] == "failed":
                raise Refused(f"the demo did not start: {body['reason']}")
            if body["event"] == "ready":
                self.ready = body
                yield body
                return
            yield body
        raise Unreachable("the demo ended by itself", self._last_words())

    async def wait(self) -> None:
        """Until the keeper ends."""
        if self._keeper is not None:
            await self._keeper.wait()

    def context(self) -> Context:
        """The context of a demo that is ready."""
        assert self.ready is not None
        path = Path(self.ready["context_file"])
        return context_from_json(json.loads(path.read_text("utf-8"))["context"], path)

    async def close(self) -> None:
        """End everything; returns when nothing is left."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        if keeper.stdin is not None:
            keeper.stdin.close()
        try:
            await within(keeper.wait(), END_LIMIT_SECONDS)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                keeper.kill()
            raise Unreachable(f"the demo did not end within {END_LIMIT_SECONDS:.0f} s") from None
        finally:
            if self._errors is not None:
                self._errors.close()

    def _last_words(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    @staticmethod
    def _require_local() -> None:
        from importlib.util import find_spec

        missing = [name for name in ("ray", "torch") if find_spec(name) is None]
        if missing:
            raise Refused(f"a demo needs {' and '.join(missing)}, not installed here", NEEDED)
